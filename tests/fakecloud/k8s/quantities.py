"""Amounts of resources, such as ``250m``, ``2Gi`` or ``1e3``, exact."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Optional

_FORM = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
                   r"([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {name + "i": 1024 ** power for power, name in enumerate("KMGTPE", 1)}


def parse(text: str) -> Optional[Fraction]:
    """None if it is no amount."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    number, suffix = Fraction(found[1]), found[2] or ""
    if suffix in _BINARY:
        return number * _BINARY[suffix]
    if suffix in _DECIMAL:
        return number * Fraction(10) ** _DECIMAL[suffix]
    return number * Fraction(10) ** int(suffix[1:])


def amount(value: Any) -> Fraction:
    """Of an object that was read already."""
    return parse(str(value)) or Fraction(0)


def add(to: dict[str, Fraction], amounts: dict[str, Any]) -> None:
    for name, value in amounts.items():
        to[name] = to.get(name, Fraction(0)) + amount(value)


def text(value: Fraction) -> str:
    """The shortest form with nothing lost."""
    if value.denominator != 1:
        thousandths = value * 1000
        return f"{int(thousandths)}m" if thousandths.denominator == 1 else f"{float(value):g}"
    whole = int(value)
    for name in ("Ti", "Gi", "Mi", "Ki"):
        if whole and whole % _BINARY[name] == 0:
            return f"{whole // _BINARY[name]}{name}"
    return str(whole)
