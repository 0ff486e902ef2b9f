"""Checks a body against ``fields.txt``: names and kinds, as Google's JSON parser does it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from fakecloud.gce.errors import GceError, bad_request


@lru_cache(maxsize=1)
def messages() -> dict[str, dict[str, str]]:
    """Message -> field -> kind."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in Path(__file__).with_name("fields.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if not line.startswith(" "):
            name, _, line = line.partition(":")
            current = found[name] = {}
        for one in line.split():
            field, _, kind = one.partition(":")
            current[field] = kind
    return found


def _is_plain(kind: str, value: Any) -> bool:
    if kind == "str":
        return isinstance(value, str)
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "num":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    text = value if isinstance(value, str) else ""
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20)


def _wrong(where: str, value: Any) -> GceError:
    return bad_request(f"Invalid value at '{where}', {str(value)[:80]!r}")


def _read(kind: str, value: Any, where: str) -> Any:
    """The value without fields that are null."""
    known = messages()
    if kind.startswith("["):
        if not isinstance(value, list):
            raise _wrong(where, value)
        return [_read(kind[1:-1], one, f"{where}[{number}]") for number, one in enumerate(value)]
    if kind.startswith("{"):
        if not isinstance(value, dict):
            raise _wrong(where, value)
        return {name: _read(kind[1:-1], one, f"{where}.{name}") for name, one in value.items()}
    if kind in known:
        if not isinstance(value, dict):
            raise _wrong(where, value)
        for name in value:
            if name not in known[kind]:
                raise bad_request("Invalid JSON payload received. Unknown name "
                                  f'"{name[:80]}" at \'{where}\': Cannot find field.')
        return {name: _read(known[kind][name], one, f"{where}.{name}")
                for name, one in value.items() if one is not None}
    if not _is_plain(kind, value):
        raise _wrong(where, value)
    return value


def check(message: str, body: Any) -> dict[str, Any]:
    """The body as it is read, if it is such a message. Raises GceError."""
    if not isinstance(body, dict):
        raise bad_request("Invalid JSON payload received. Expected an object.")
    read: dict[str, Any] = _read(message, body, "resource")
    return read
