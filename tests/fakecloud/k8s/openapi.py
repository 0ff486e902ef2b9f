"""What the types are, for clients that check what they send: OpenAPI 2, as JSON or as protobuf.

kubectl 1.20 reads the second form alone, and checks a manifest itself. Later ones look for a patch
that takes ``fieldValidation``, and leave that to the server.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from fakecloud.k8s.catalog import RESOURCES, Resource
from fakecloud.k8s.schema import TYPES
from fakecloud.service import Reply

PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
TOLD = PROTOBUF.replace("@", ".")       # The first is asked for, but is no type that can be read.
_PREFIX = "io.k8s.api.v1."
_KIND = "x-kubernetes-group-version-kind"
_PLAIN = {"str": ("string", ""), "int": ("integer", "int64"), "bool": ("boolean", ""),
          "float": ("number", "double"), "time": ("string", "date-time"),
          "quantity": ("string", ""), "bytes": ("string", "byte"),
          "port": ("string", "int-or-string"), "any": ("object", "")}
Schema = dict[str, Any]


def _schema(kind: str) -> Schema:
    if kind.startswith("["):
        return {"type": "array", "items": _schema(kind[1:-1])}
    if kind.startswith("{"):
        return {"type": "object", "additionalProperties": _schema(kind[1:-1])}
    if kind in TYPES:
        return {"$ref": f"#/definitions/{_PREFIX}{kind}"}
    plain, form = _PLAIN[kind]
    return {"type": plain, "format": form} if form else {"type": plain}


def _kind_of(one: Resource) -> dict[str, str]:
    return {"group": one.group, "kind": one.kind, "version": one.version}


def _patch(one: Resource) -> Schema:
    return {"patch": {
        "parameters": [{"in": "query", "name": "fieldValidation", "type": "string"},
                       {"in": "query", "name": "dryRun", "type": "string"}],
        "responses": {"200": {"description": "OK"}}, _KIND: _kind_of(one)}}


def _path(one: Resource) -> str:
    root = f"/apis/{one.group}/{one.version}" if one.group else f"/api/{one.version}"
    return f"{root}{'/namespaces/{namespace}' if one.namespaced else ''}/{one.plural}/{{name}}"


@functools.lru_cache(maxsize=1)
def document() -> Schema:
    definitions: Schema = {
        _PREFIX + name: {"type": "object", "properties": {
            key: _schema(kind) for key, kind in fields.items()}} for name, fields in TYPES.items()}
    for one in RESOURCES:
        definitions[_PREFIX + one.kind][_KIND] = [_kind_of(one)]
    return {"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.31.0"},
            "paths": {_path(one): _patch(one) for one in RESOURCES if one.stored},
            "definitions": definitions}


# ---- protobuf: the fields of gnostic's messages by their numbers ----

def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def _bytes(field: int, value: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _named(field: int, name: str, value: bytes) -> bytes:
    return _bytes(field, _text(1, name) + _bytes(2, value))


def _extension(field: int, value: Any) -> bytes:
    return _named(field, _KIND, _text(2, json.dumps(value)))    # JSON is YAML.


def _encode_schema(one: Schema) -> bytes:
    out = b""
    if "$ref" in one:
        out += _text(1, one["$ref"])
    if "format" in one:
        out += _text(2, one["format"])
    if "additionalProperties" in one:
        out += _bytes(21, _bytes(1, _encode_schema(one["additionalProperties"])))
    if "type" in one:
        out += _bytes(22, _text(1, one["type"]))
    if "items" in one:
        out += _bytes(23, _bytes(1, _encode_schema(one["items"])))
    if "properties" in one:
        out += _bytes(25, b"".join(_named(1, name, _encode_schema(value))
                                   for name, value in one["properties"].items()))
    if _KIND in one:
        out += _extension(31, one[_KIND])
    return out


def _encode_patch(one: Schema) -> bytes:
    parameters = b"".join(
        _bytes(8, _bytes(1, _bytes(2, _bytes(3, _text(2, each["in"]) + _text(4, each["name"])
                                              + _text(6, each["type"])))))
        for each in one["parameters"])
    done = _bytes(9, _named(1, "200", _bytes(1, _text(1, "OK"))))
    return _bytes(7, parameters + done + _extension(13, one[_KIND]))


@functools.lru_cache(maxsize=1)
def encoded() -> bytes:
    whole = document()
    info = _text(1, whole["info"]["title"]) + _text(2, whole["info"]["version"])
    paths = b"".join(_named(2, name, _encode_patch(one["patch"]))
                     for name, one in whole["paths"].items())
    definitions = b"".join(_named(1, name, _encode_schema(one))
                           for name, one in whole["definitions"].items())
    return (_text(1, whole["swagger"]) + _bytes(2, info) + _bytes(8, paths)
            + _bytes(9, definitions))


def answer(accept: str) -> Reply:
    if PROTOBUF in accept:
        return Reply(200, encoded(), {"Content-Type": TOLD})
    return Reply(200, json.dumps(document()) + "\n", {"Content-Type": "application/json"})
