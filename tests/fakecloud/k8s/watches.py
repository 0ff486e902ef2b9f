"""Watching: what has been since a version, then what comes, until its time is over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Optional

from fakecloud.k8s import errors
from fakecloud.k8s.catalog import Resource
from fakecloud.k8s.errors import ApiError
from fakecloud.k8s.selectors import Match, Object
from fakecloud.k8s.store import Change, Store, event_line

QUEUE_MAX = 2_000       # Who is further behind is hung up on, and starts again.


def bookmark(resource: Resource, version: int) -> bytes:
    return event_line("BOOKMARK", {
        "kind": resource.kind, "apiVersion": resource.api_version,
        "metadata": {"resourceVersion": str(version), "creationTimestamp": None}})


class Watch:
    """One that watches. Use as a context manager: it listens for as long."""

    def __init__(self, store: Store, resource: Resource, namespace: str, match: Optional[Match],
                 version: Optional[int]) -> None:
        """``version``: what is known already; None or 0: nothing."""
        self._store, self._resource, self._namespace = store, resource, namespace
        self._match, self._version = match, version
        self._queue: deque[Change] = deque()
        self._wake = asyncio.Event()
        self.behind = False

    def __enter__(self) -> Watch:
        self._store.listeners.append(self._listen)
        return self

    def __exit__(self, *unused: object) -> None:
        self._store.listeners.remove(self._listen)

    def wake(self) -> None:
        self._wake.set()

    def _fits(self, one: Object) -> bool:
        return self._namespace in ("", one["metadata"].get("namespace", ""))

    def _listen(self, change: Change) -> None:
        if change.resource is not self._resource or not self._fits(change.new):
            return
        if len(self._queue) >= QUEUE_MAX:
            self.behind = True
            self._queue.clear()
        elif not self.behind:
            self._queue.append(change)
        self._wake.set()

    def first(self) -> list[bytes]:
        """What there is to tell at once. Call before anything else can change."""
        if not self._version:
            return [event_line("ADDED", one)
                    for one in self._store.all(self._resource, self._namespace)
                    if self._match is None or self._match(one)]
        if self._version > self._store.version:
            raise errors.too_large(self._version, self._store.version)
        lines = []
        for change in self._store.since(self._resource, self._version):
            if self._fits(change.new) and (seen := change.seen(self._match)):
                lines.append(change.line(seen[0]))
        return lines

    async def lines(self, until_s: float, bookmarks_s: float, now: Callable[[], float],
                    told: bool, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
        """``told``: with bookmarks, one of which comes before the end. b"" comes now and then."""
        mark_s = now() + bookmarks_s
        while not ended():
            while self._queue:
                change = self._queue.popleft()
                seen = change.seen(self._match)
                if seen:
                    yield change.line(seen[0])
            if self.behind or now() >= until_s:
                if told and not self.behind:
                    yield bookmark(self._resource, self._store.version)
                return
            if told and now() >= mark_s:
                mark_s = now() + bookmarks_s
                yield bookmark(self._resource, self._store.version)
            self._wake.clear()
            left_s = min(until_s, mark_s if told else until_s) - now()
            try:
                await asyncio.wait_for(self._wake.wait(), max(0.0, min(left_s, 1.0)))
            except asyncio.TimeoutError:
                pass
            yield b""


def error_line(error: ApiError) -> bytes:
    return event_line("ERROR", error.status())

