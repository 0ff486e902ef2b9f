"""Orders of an administrator and settings of a cloud, read strictly."""

from __future__ import annotations

import math
import random
from dataclasses import field
from typing import Any, Optional


class BadOrder(ValueError):
    """A file, a setting or an order is wrong; says what and where."""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12


class Order:
    """Reads an order key by key, strictly."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = dict(body)
        self.verb = self.text("do")

    def _take(self, key: str, default: Any) -> Any:
        value = self._body.pop(key, default)
        if value is ...:
            raise BadOrder(f"{self.verb}: \"{key}\" is missing")
        return value

    def text(self, key: str, default: Any = ...) -> str:
        value = self._body.pop(key, default)
        if not isinstance(value, str):
            raise BadOrder(f"\"{key}\" is a text, got {str(value)[:80]}")
        return value

    def number(self, key: str, default: Any = ..., least: float = 0.0) -> float:
        value = self._take(key, default)
        if not _is_number(value) or value < least:
            raise BadOrder(f"{self.verb}: \"{key}\" is a number of at least {least:g}, "
                            f"got {str(value)[:80]}")
        return float(value)

    def optional(self, key: str) -> Optional[float]:
        return self.number(key) if key in self._body else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise BadOrder(f"{self.verb}: \"{key}\" is true or false, got {str(value)[:80]}")
        return value

    def any(self, key: str) -> Any:
        return self._take(key, ...)

    def __contains__(self, key: str) -> bool:
        return key in self._body

    def done(self) -> None:
        if self._body:
            raise BadOrder(f"{self.verb}: unknown key {sorted(self._body)[0]}")


def is_amount(value: Any) -> bool:
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and math.isfinite(value) and 0 <= value <= 1e9)


class Spread:
    """A random amount: ``3``, ``[1, 5]`` (even), ``{"median": 20, "sigma": 0.3}`` (lognormal) or
    ``{"choices": [[120, 0.8], [0, 0.2]]}`` (a value and its weight)."""

    def __init__(self, raw: Any, where: str = "value") -> None:
        self.raw = raw
        pairs = raw.get("choices") if isinstance(raw, dict) and set(raw) == {"choices"} else None
        if is_amount(raw):
            self._kind = "fixed"
        elif isinstance(raw, list) and len(raw) == 2 and all(map(is_amount, raw)) and (
                raw[0] <= raw[1]):
            self._kind = "even"
        elif isinstance(raw, dict) and set(raw) == {"median", "sigma"} and (
                all(map(is_amount, raw.values())) and raw["sigma"] <= 10):
            self._kind = "lognormal"
        elif isinstance(pairs, list) and pairs and all(
                isinstance(pair, list) and len(pair) == 2 and all(map(is_amount, pair))
                for pair in pairs) and sum(pair[1] for pair in pairs) > 0:
            self._kind = "choices"
        else:
            raise BadOrder(f'{where}: expected a number, [low, high], {{"median", "sigma"}} or '
                            f'{{"choices": [[value, weight]]}}, got {str(raw)[:80]}')

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spread) and other.raw == self.raw

    def draw(self, rng: random.Random) -> float:
        if self._kind == "fixed":
            return float(self.raw)
        if self._kind == "even":
            return rng.uniform(*self.raw)
        if self._kind == "lognormal":
            return float(self.raw["median"]) * math.exp(rng.gauss(0.0, self.raw["sigma"]))
        values, weights = zip(*self.raw["choices"])
        return float(rng.choices(values, weights)[0])


def spread(raw: Any) -> Any:
    """The default of a field of settings."""
    return field(default_factory=lambda: Spread(raw))


class StrictSettings:
    """A dataclass whose fields are what may be set: a Spread, a number, a bool, an environment, or
    what ``_is_good`` knows better."""

    __dataclass_fields__: dict[str, Any]

    def update(self, raw: Any, where: str) -> None:
        """All or nothing."""
        if not isinstance(raw, dict):
            raise BadOrder(f"{where}: expected an object")
        new = {key: self._read(key, value, f"{where}.{key}") for key, value in raw.items()}
        for key, value in new.items():
            setattr(self, key, value)

    def as_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {key: value.raw if isinstance(value, Spread) else value
                for key, value in values.items()}

    def _is_good(self, key: str, value: Any) -> Optional[bool]:
        """Whether a field may have this value; None: as others of its type."""
        return None

    def _read(self, key: str, value: Any, where: str) -> Any:
        if key not in self.__dataclass_fields__:
            names = ", ".join(sorted(self.__dataclass_fields__))
            raise BadOrder(f"{where}: there is no such setting; there are {names}")
        now = getattr(self, key)
        if isinstance(now, Spread):
            return Spread(value, where)
        good = self._is_good(key, value)
        if good is None and key == "environment":
            good = isinstance(value, dict) and all(
                isinstance(one, str) and "\0" not in name + one and "=" not in name and name
                for name, one in value.items())
        elif good is None and isinstance(now, bool):
            good = isinstance(value, bool)
        elif good is None:
            good = is_amount(value) and (isinstance(now, float) or value == int(value))
        if not good:
            raise BadOrder(f"{where}: {str(value)[:80]!r} is no value for it")
        if isinstance(now, bool) or value is None or not isinstance(now, (int, float)):
            return value
        return type(now)(value)
