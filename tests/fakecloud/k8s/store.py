"""Objects by resource, with one counter of versions and a history of what has changed.

Objects are never changed in place: who has got one may keep it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

from fakecloud.k8s.catalog import Resource
from fakecloud.k8s.errors import conflict, too_old
from fakecloud.k8s.selectors import Match, Object

Key = tuple[str, str]       # Namespace and name.
FIRST_VERSION = 1_000


def key_of(one: Object) -> Key:
    return one["metadata"].get("namespace", ""), one["metadata"]["name"]


@dataclass
class Change:
    """``old`` is None for what is new; of what is deleted, ``new`` is its last state."""

    version: int
    kind: str               # ADDED, MODIFIED, DELETED.
    resource: Resource
    new: Object
    old: Optional[Object]
    _lines: dict[str, bytes] = field(default_factory=dict)

    def seen(self, match: Optional[Match]) -> Optional[tuple[str, Object]]:
        """As who looks through a selector sees it: what no longer fits is gone."""
        if match is None:
            return self.kind, self.new
        was = self.old is not None and match(self.old)
        fits = self.kind != "DELETED" and match(self.new)
        if fits:
            return ("MODIFIED" if was else "ADDED"), self.new
        return ("DELETED", self.new) if was else None

    def line(self, kind: str) -> bytes:
        """Encoded once for all who watch."""
        if kind not in self._lines:
            self._lines[kind] = event_line(kind, self.new)
        return self._lines[kind]


def event_line(kind: str, one: Object) -> bytes:
    return json.dumps({"type": kind, "object": one}, separators=(",", ":")).encode() + b"\n"


class Store:
    def __init__(self, history: int = 10_000) -> None:
        self.version = FIRST_VERSION
        self.compacted = FIRST_VERSION      # What was before this is forgotten.
        self._history_max = history
        self._history: deque[Change] = deque()
        self._objects: dict[Resource, dict[Key, Object]] = {}
        self.listeners: list[Callable[[Change], None]] = []

    # ---- reading ----

    def get(self, resource: Resource, namespace: str, name: str) -> Optional[Object]:
        return self._objects.get(resource, {}).get((namespace, name))

    def all(self, resource: Resource, namespace: str = "") -> list[Object]:
        """Sorted by namespace and name; of all namespaces if none is named."""
        own = self._objects.get(resource, {})
        return [own[key] for key in sorted(own) if namespace in ("", key[0])]

    def at(self, resource: Resource, version: int) -> dict[Key, Object]:
        """What there was then, by undoing what was changed since. Raises 410."""
        if version < self.compacted:
            raise too_old(version, self.compacted)
        found = dict(self._objects.get(resource, {}))
        for change in reversed(self._history):
            if change.version <= version:
                break
            if change.resource is not resource:
                continue
            if change.old is None:
                found.pop(key_of(change.new), None)
            else:
                found[key_of(change.old)] = change.old
        return found

    def since(self, resource: Resource, version: int) -> list[Change]:
        if version < self.compacted:
            raise too_old(version, self.compacted)
        found: list[Change] = []
        for change in reversed(self._history):
            if change.version <= version:
                break
            if change.resource is resource:
                found.append(change)
        return found[::-1]

    # ---- writing ----

    def compact(self) -> None:
        self._history.clear()
        self.compacted = self.version

    def _note(self, kind: str, resource: Resource, new: Object, old: Optional[Object]) -> None:
        change = Change(self.version, kind, resource, new, old)
        self._history.append(change)
        while len(self._history) > self._history_max:
            self.compacted = self._history.popleft().version
        for listener in list(self.listeners):
            listener(change)

    def _stamped(self, one: Object) -> Object:
        self.version += 1
        return {**one, "metadata": {**one["metadata"], "resourceVersion": str(self.version)}}

    def add(self, resource: Resource, one: Object) -> Object:
        new = self._stamped(one)
        self._objects.setdefault(resource, {})[key_of(new)] = new
        self._note("ADDED", resource, new, None)
        return new

    def replace(self, resource: Resource, one: Object) -> Object:
        """Of the version that it was made from. Without a difference there is no new version."""
        old = self._objects[resource][key_of(one)]
        if one["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            raise conflict(resource.group, resource.plural, key_of(one)[1])
        if one == old:
            return old
        new = self._stamped(one)
        self._objects[resource][key_of(new)] = new
        self._note("MODIFIED", resource, new, old)
        return new

    def remove(self, resource: Resource, one: Object) -> Object:
        old = self._objects[resource].pop(key_of(one))
        last = self._stamped(old)
        self._note("DELETED", resource, last, old)
        return last
