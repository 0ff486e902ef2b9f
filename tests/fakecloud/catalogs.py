"""What a cloud rents: types of machines with their size and on-demand price, zones by region."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fakecloud.orders import BadOrder


@dataclass(frozen=True)
class InstanceType:
    """``on_demand``: dollars per hour."""

    name: str
    vcpus: int
    memory_mib: int
    on_demand: float
    gpus: int = 0
    gpu: str = ""
    gpu_mib: int = 0


class Catalog:
    """``zone``: how a zone's name looks; its first group is the region. ``type_``: how that of a
    type does. ``default``: the type of a trace that names none."""

    def __init__(self, types: list[InstanceType], zone: str, type_: str, default: str,
                 examples: tuple[str, str], form: str) -> None:
        self._types = types
        self.types = {one.name: one for one in types}
        self._zone, self._type = re.compile(zone), re.compile(type_)
        self.default = default
        self.example_zone, self.example_type = examples
        self._form = form

    def region_of(self, zone: str) -> str:
        match = self._zone.fullmatch(zone)
        if match is None:
            raise BadOrder(f"{zone!r} is no zone; expected one such as {self.example_zone}")
        return match.group(1)

    def is_zone(self, word: str) -> bool:
        return self._zone.fullmatch(word) is not None

    def gpu_type(self, model: str, count: int) -> str:
        """The type with so many GPUs of a model. Empty if there is none."""
        for one in self._types:
            if one.gpu.lower() == model.lower() and one.gpus == count:
                return one.name
        return ""

    def read_types(self, raw: Any, where: str) -> dict[str, InstanceType]:
        """Of a market file: ``{"x1.small": {"vcpus": 1, "memory_mib": 512, "on_demand": 0.1}}``."""
        if not isinstance(raw, dict):
            raise BadOrder(f"{where}: types: expected an object")
        types = {}
        for name, body in raw.items():
            if not self._type.fullmatch(name) or not isinstance(body, dict):
                raise BadOrder(f"{where}: types: {name!r}: expected {self._form} and an object")
            unknown = set(body) - set(InstanceType.__dataclass_fields__)
            if unknown:
                raise BadOrder(f"{where}: types.{name}: unknown key {sorted(unknown)[0]}")
            for key in ("vcpus", "memory_mib", "on_demand", "gpus", "gpu_mib"):
                value = body.get(key, 0 if key.startswith("gpu") else None)
                kinds = (int, float) if key == "on_demand" else (int,)
                if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 1e9:
                    raise BadOrder(f"{where}: types.{name}.{key}: expected a number, got {value!r}")
            if body["vcpus"] < 1 or not isinstance(body.get("gpu", ""), str):
                raise BadOrder(f"{where}: types.{name}: expected 1 vcpu or more and a name as gpu")
            types[name] = InstanceType(**{**body, "name": name})
        return types
