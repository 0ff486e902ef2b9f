"""Actors of the tests of concurrency groups; in a module, for workers to import."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import troupe

LIMIT_S = 60.0


@troupe.remote(num_cpus=0.01, concurrency_groups={"io": 2, "compute": 1})
class Threaded:
    """Counts who is inside at the same time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.gate = threading.Event()

    def enter(self, group: str) -> str:
        with self.lock:
            self.inside[group] = self.inside.get(group, 0) + 1
            self.most[group] = max(self.most.get(group, 0), self.inside[group])
        self.gate.wait(LIMIT_S)
        with self.lock:
            self.inside[group] -= 1
        return threading.current_thread().name

    @troupe.method(concurrency_group="io")
    def read(self) -> str:
        return self.enter("io")

    @troupe.method(concurrency_group="compute")
    def compute(self) -> str:
        return self.enter("compute")

    def other(self) -> str:
        return self.enter("other")

    @troupe.method(concurrency_group="compute")
    def values(self) -> Iterator[str]:
        yield threading.current_thread().name
        yield threading.current_thread().name

    @troupe.method(concurrency_group="io")
    def counts(self) -> dict[str, int]:
        with self.lock:
            return dict(self.inside)

    @troupe.method(concurrency_group="io")
    def open(self) -> None:
        self.gate.set()

    @troupe.method(concurrency_group="io")
    def seen(self) -> dict[str, int]:
        return self.most


@troupe.remote(num_cpus=0.01, concurrency_groups={"io": 2})
class Async:
    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.gate = asyncio.Event()

    @troupe.method(concurrency_group="io")
    async def read(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.gate.wait()
        self.inside -= 1

    async def state(self) -> tuple[int, int]:
        return self.inside, self.most

    async def open(self) -> None:
        self.gate.set()
