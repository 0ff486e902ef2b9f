"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Optional

from fakecloud.k8s.errors import bad_request

Object = dict[str, Any]
Match = Callable[[Object], bool]
_TOKEN = re.compile(r"\s*(==|!=|=|\(|\)|,|>|<|!|[A-Za-z0-9._/-]+)")
_FIELDS = {
    "pods": {"metadata.name", "metadata.namespace", "spec.nodeName", "spec.restartPolicy",
             "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork", "status.phase",
             "status.podIP", "status.nominatedNodeName"},
    "events": {"metadata.name", "metadata.namespace", "involvedObject.kind",
               "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
               "involvedObject.apiVersion", "involvedObject.resourceVersion",
               "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"},
    "nodes": {"metadata.name", "spec.unschedulable"},
    "secrets": {"metadata.name", "metadata.namespace", "type"},
    "namespaces": {"metadata.name", "status.phase"},
}


class Requirement:
    """One of a label selector."""

    def __init__(self, key: str, how: str, values: tuple[str, ...] = ()) -> None:
        self.key, self.how, self.values = key, how, values

    def fits(self, labels: dict[str, str]) -> bool:
        value = labels.get(self.key)
        if self.how == "exists":
            return value is not None
        if self.how == "absent":
            return value is None
        if self.how == "in":
            return value in self.values
        if self.how == "notin":
            return value is None or value not in self.values
        try:
            asked, got = int(self.values[0]), int(value or "")
        except ValueError:
            return False
        return got > asked if self.how == "gt" else got < asked


def _words(text: str) -> list[str]:
    words, at = [], 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise bad_request(f"unable to parse requirement: found '{text[at:].strip()[:40]}', "
                              "expected: identifier")
        words.append(found[1])
        at = found.end()
    return words


def _values(words: list[str]) -> tuple[str, ...]:
    if not words or words.pop(0) != "(":
        raise bad_request("unable to parse requirement: found '', expected: '('")
    values: list[str] = []
    while words and words[0] != ")":
        word = words.pop(0)
        if word != ",":
            values.append(word)
    if not words:
        raise bad_request("unable to parse requirement: found '', expected: ',', or ')'")
    words.pop(0)
    return tuple(values or [""])


def parse_labels(text: str) -> list[Requirement]:
    words, found = _words(text), []
    while words:
        word = words.pop(0)
        if word == "!":
            found.append(Requirement(words.pop(0) if words else "", "absent"))
        elif not re.match(r"[A-Za-z0-9]", word):
            raise bad_request(f"unable to parse requirement: found '{word}', expected: identifier")
        elif not words or words[0] == ",":
            found.append(Requirement(word, "exists"))
        else:
            how = words.pop(0)
            if how in ("=", "=="):
                value = words.pop(0) if words and words[0] != "," else ""
                found.append(Requirement(word, "in", (value,)))
            elif how == "!=":
                value = words.pop(0) if words and words[0] != "," else ""
                found.append(Requirement(word, "notin", (value,)))
            elif how in ("in", "notin"):
                found.append(Requirement(word, how, _values(words)))
            elif how in (">", "<") and words:
                found.append(Requirement(word, "gt" if how == ">" else "lt", (words.pop(0),)))
            else:
                raise bad_request(f"unable to parse requirement: found '{how}', expected: in, "
                                  "notin, =, ==, !=, gt, lt")
        if words and words.pop(0) != ",":
            raise bad_request("unable to parse requirement: expected: ',' or 'end of string'")
    return found


def field_of(one: Object, path: str) -> str:
    value: Any = one
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return "false" if path in ("spec.unschedulable", "spec.hostNetwork") else ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_fields(text: str, plural: str) -> list[tuple[str, bool, str]]:
    found = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        for sign in ("!=", "==", "="):
            if sign in term:
                path, value = (part.strip() for part in term.split(sign, 1))
                break
        else:
            raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
        if path not in _FIELDS.get(plural, {"metadata.name", "metadata.namespace"}):
            raise bad_request(f'field label not supported: {path}')
        found.append((path, sign != "!=", value))
    return found


def matcher(labels: str, fields: str, plural: str) -> Optional[Match]:
    """None: whatever there is."""
    wanted = parse_labels(labels) if labels else []
    terms = parse_fields(fields, plural) if fields else []
    if not wanted and not terms:
        return None

    def fits(one: Object) -> bool:
        own = one["metadata"].get("labels") or {}
        return all(part.fits(own) for part in wanted) and all(
            (field_of(one, path) == value) == equal for path, equal, value in terms)
    return fits


def fits_selector(selector: Optional[dict[str, Any]], labels: dict[str, str]) -> bool:
    """A LabelSelector of an object; none fits nothing, an empty one everything."""
    if selector is None:
        return False
    wanted = [Requirement(key, "in", (value,))
              for key, value in (selector.get("matchLabels") or {}).items()]
    hows = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    wanted += [Requirement(one["key"], hows[one["operator"]], tuple(one.get("values") or ()))
               for one in selector.get("matchExpressions") or []]
    return all(part.fits(labels) for part in wanted)
