"""What can be rented: instance types with their size and on-demand price, zones by their region."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from fakecloud.ec2.errors import BadMarket

_ZONE = re.compile(r"([a-z]{2}(?:-[a-z]+)+-[0-9])([a-z])")
_TYPE = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")


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


# Sizes are those of AWS, prices those of us-east-1 at some time.
_TYPES = [
    InstanceType("t3.micro", 2, 1024, 0.0104),
    InstanceType("t3.medium", 2, 4096, 0.0416),
    InstanceType("m5.large", 2, 8192, 0.096),
    InstanceType("m5.xlarge", 4, 16384, 0.192),
    InstanceType("m5.2xlarge", 8, 32768, 0.384),
    InstanceType("c5.large", 2, 4096, 0.085),
    InstanceType("c5.xlarge", 4, 8192, 0.17),
    InstanceType("c5.4xlarge", 16, 32768, 0.68),
    InstanceType("g4dn.xlarge", 4, 16384, 0.526, 1, "T4", 16384),
    InstanceType("g4dn.12xlarge", 48, 196608, 3.912, 4, "T4", 16384),
    InstanceType("g5.xlarge", 4, 16384, 1.006, 1, "A10G", 22888),
    InstanceType("p2.xlarge", 4, 62464, 0.9, 1, "K80", 12288),
    InstanceType("p2.8xlarge", 32, 499712, 7.2, 8, "K80", 12288),
    InstanceType("p3.2xlarge", 8, 62464, 3.06, 1, "V100", 16384),
    InstanceType("p3.8xlarge", 32, 249856, 12.24, 4, "V100", 16384),
    InstanceType("p3.16xlarge", 64, 499712, 24.48, 8, "V100", 16384),
    InstanceType("p4d.24xlarge", 96, 1179648, 32.7726, 8, "A100", 40960),
    InstanceType("p5.48xlarge", 192, 2097152, 98.32, 8, "H100", 81920),
]
TYPES = {one.name: one for one in _TYPES}


def region_of(zone: str) -> str:
    match = _ZONE.fullmatch(zone)
    if match is None:
        raise BadMarket(f"{zone!r} is no zone; expected one such as us-east-1a")
    return match.group(1)


def is_zone(word: str) -> bool:
    return _ZONE.fullmatch(word) is not None


def zone_id(zone: str) -> str:
    """us-east-1a as use1-az1."""
    region, letter = region_of(zone), zone[-1]
    area, *direction, number = region.split("-")
    return f"{area}{''.join(word[0] for word in direction)}{number}-az{ord(letter) - 96}"


def subnet_of(zone: str) -> str:
    return "subnet-" + hashlib.sha256(zone.encode()).hexdigest()[:17]


def gpu_type(model: str, count: int) -> str:
    """The type with so many GPUs of a model: p3.2xlarge for one v100. Empty if there is none."""
    for one in _TYPES:
        if one.gpu.lower() == model.lower() and one.gpus == count:
            return one.name
    return ""


def read_types(raw: Any, where: str) -> dict[str, InstanceType]:
    """Of a market file: ``{"x1.small": {"vcpus": 1, "memory_mib": 512, "on_demand": 0.1}}``."""
    if not isinstance(raw, dict):
        raise BadMarket(f"{where}: types: expected an object")
    types = {}
    for name, body in raw.items():
        if not _TYPE.fullmatch(name) or not isinstance(body, dict):
            raise BadMarket(f"{where}: types: {name!r}: expected FAMILY.SIZE and an object")
        unknown = set(body) - set(InstanceType.__dataclass_fields__)
        if unknown:
            raise BadMarket(f"{where}: types.{name}: unknown key {sorted(unknown)[0]}")
        for key in ("vcpus", "memory_mib", "on_demand", "gpus", "gpu_mib"):
            value = body.get(key, 0 if key.startswith("gpu") else None)
            kinds = (int, float) if key == "on_demand" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 1e9:
                raise BadMarket(f"{where}: types.{name}.{key}: expected a number, got {value!r}")
        if body["vcpus"] < 1 or not isinstance(body.get("gpu", ""), str):
            raise BadMarket(f"{where}: types.{name}: expected 1 vcpu or more and a name as gpu")
        types[name] = InstanceType(**{**body, "name": name})
    return types
