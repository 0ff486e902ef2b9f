"""The fields of the objects, from ``fields.txt``: what is unknown is dropped, told or refused, as
the real server's decoder does it.

A line names a type and its fields. ``[X]`` is a list, ``{X}`` a map, ``quantity`` a text or a
number such as ``2Gi``, ``port`` a number or a text, ``bytes`` base64.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from pathlib import Path
from typing import Any

from fakecloud.k8s import quantities
from fakecloud.k8s.catalog import Resource
from fakecloud.k8s.errors import bad_request

_SCALARS = {"str": "string", "int": "int64", "bool": "bool", "float": "float64"}


def _read() -> dict[str, dict[str, str]]:
    types: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in Path(__file__).with_name("fields.txt").read_text().splitlines():
        words = line.split()
        if not line.startswith(" "):
            fields = types.setdefault(words.pop(0), {})
        for word in words:
            name, _, kind = word.partition(":")
            fields[name] = kind
    return types


TYPES = _read()


class Decoder:
    """Of one object. ``unknown``: what it has and its type has not, in the server's words."""

    def __init__(self, resource_kind: str, api_version: str) -> None:
        self.kind, self.api_version = resource_kind, api_version
        self.unknown: list[str] = []

    def refuse(self, why: str) -> Exception:
        return bad_request(f'{self.kind} in version "{self.api_version.rpartition("/")[2]}" cannot '
                           f"be handled as a {self.kind}: {why}")

    def _mismatch(self, value: Any, path: str, go_type: str) -> Exception:
        got = {bool: "bool", str: "string", list: "array", dict: "object"}.get(
            type(value), "number")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            got = f"number {value}" if isinstance(value, float) else "number"
        return self.refuse(f"json: cannot unmarshal {got} into Go struct field "
                           f"{self.kind}.{path} of type {go_type}")

    def decode(self, value: Any, kind: str, path: str) -> Any:
        """With what is unknown left out."""
        if kind.startswith("["):
            if not isinstance(value, list):
                raise self._mismatch(value, path, "[]" + kind[1:-1])
            return [self.decode(one, kind[1:-1], path) for one in value if one is not None]
        if kind.startswith("{"):
            if not isinstance(value, dict):
                raise self._mismatch(value, path, "map[string]" + kind[1:-1])
            return {key: self.decode(one, kind[1:-1], path) for key, one in value.items()
                    if one is not None}
        if kind in TYPES:
            return self._struct(value, kind, path)
        return self._scalar(value, kind, path)

    def _struct(self, value: Any, kind: str, path: str) -> Any:
        if not isinstance(value, dict):
            raise self._mismatch(value, path, f"v1.{kind}")
        fields, found = TYPES[kind], {}
        for key, one in value.items():
            inner = f"{path}.{key}" if path else key
            if key not in fields:
                self.unknown.append(f'unknown field "{inner}"')
            elif one is not None:
                if fields[key].startswith("[") and isinstance(one, list):
                    found[key] = [self.decode(part, fields[key][1:-1], f"{inner}[{number}]")
                                  for number, part in enumerate(one) if part is not None]
                else:
                    found[key] = self.decode(one, fields[key], inner)
        return found

    def _scalar(self, value: Any, kind: str, path: str) -> Any:
        if kind == "any":
            return value
        if kind == "quantity":
            text = value if isinstance(value, str) else str(value)
            if isinstance(value, (bool, list, dict)) or quantities.parse(text) is None:
                raise self.refuse("quantities must match the regular expression "
                                  "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
            return text
        if kind == "port" and type(value) in (int, str):
            return value
        if kind in ("str", "time", "bytes") and isinstance(value, str):
            return self._text(value, kind)
        if kind == "int" and (type(value) is int or isinstance(value, float)
                              and value == int(value)):
            return int(value)
        if (kind == "bool" and isinstance(value, bool)) or (
                kind == "float" and isinstance(value, (int, float))):
            return value
        raise self._mismatch(value, path, _SCALARS.get(kind, kind))

    def _text(self, value: str, kind: str) -> str:
        if kind == "bytes":
            try:
                base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                raise self.refuse("illegal base64 data at input byte "
                                  f"{len(value) - len(value.lstrip(_BASE64))}") from None
        elif kind == "time":
            try:
                datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
            except ValueError:
                raise self.refuse(f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot '
                                  f'parse "{value}" as "2006"') from None
        return value


_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def decode(body: Any, resource: Resource, how: str = "Ignore") -> tuple[dict[str, Any], list[str]]:
    """The object as its type has it, and warnings. ``how``: as ``fieldValidation``."""
    decoder = Decoder(resource.kind, resource.api_version)
    found = decoder.decode(body, resource.kind, "")
    if decoder.unknown and how == "Strict":
        raise decoder.refuse(f"strict decoding error: {', '.join(decoder.unknown)}")
    return found, decoder.unknown if how == "Warn" else []
