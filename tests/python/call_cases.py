"""Actors and tasks of the tests of calls; in a module, for workers to import."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import troupe

LARGE = 1 << 20


class FlakyError(Exception):
    """What is worth another attempt."""


@troupe.remote(num_cpus=0.01)
def parts(count: int) -> tuple[int, ...]:
    return tuple(range(count))


@troupe.remote(num_cpus=0.01, num_returns=2)
def arrays() -> Any:
    import numpy as np

    return np.ones(LARGE), np.zeros(LARGE)


@troupe.remote(num_cpus=0.01)
def flaky(path: str, given: list[int], failures: int) -> tuple[int, list[int]]:
    """Raises so many times before it returns; spoils its argument each time."""
    with open(path, "a", encoding="ascii") as file:
        file.write("x")
    attempts = Path(path).stat().st_size
    given.append(attempts)
    if attempts <= failures:
        raise FlakyError(f"attempt {attempts}")
    return attempts, given


@troupe.remote(num_cpus=0.01)
def die_until(path: str, deaths: int) -> int:
    with open(path, "a", encoding="ascii") as file:
        file.write("x")
    if Path(path).stat().st_size <= deaths:
        os._exit(1)
    return os.getpid()


@troupe.remote(num_cpus=0.01)
def nap(seconds: float) -> None:
    time.sleep(seconds)


@troupe.remote(num_cpus=0.01)
def positional(first: int, second: int = 2, *, third: int = 3) -> int:
    return first + second + third


@troupe.remote(num_cpus=0.01)
def letters(count: int) -> Iterator[str]:
    for i in range(count):
        yield "abcdef"[i]


@troupe.remote(num_cpus=0.01)
class Returns:
    def __init__(self, start: int) -> None:
        self.calls = start

    @troupe.method(num_returns=2)
    def two(self, first: Any, second: Any) -> Any:
        return first, second

    @troupe.method(num_returns=0)
    def count(self) -> None:
        self.calls += 1

    @troupe.method(retry_exceptions=[FlakyError])
    def flaky(self, failures: int) -> int:
        self.calls += 1
        if self.calls <= failures:
            raise FlakyError(f"call {self.calls}")
        if failures < 0:
            raise KeyError("another kind")
        return self.calls

    def total(self) -> int:
        return self.calls

    @staticmethod
    def twice(value: int) -> int:
        return 2 * value

    @classmethod
    def named(cls, value: int) -> tuple[str, int]:
        return cls.__name__, value

    def numbers(self, count: int) -> Iterator[int]:
        yield from range(count)


@troupe.remote(num_cpus=0.01)
class AsyncReturns:
    def __init__(self) -> None:
        self.calls = 0

    @troupe.method(num_returns=3)
    async def numbers(self) -> AsyncIterator[int]:
        for i in range(3):
            yield i

    @troupe.method(retry_exceptions=True)
    async def flaky(self, failures: int) -> int:
        self.calls += 1
        if self.calls <= failures:
            raise FlakyError("once more")
        return self.calls


@troupe.remote(num_cpus=0.01)
class Keeper:
    def __init__(self) -> None:
        self.kept: dict[Any, int] = {}

    def keep(self, refs: list[Any]) -> list[Any]:
        self.kept.update((ref, index) for index, ref in enumerate(refs))
        return refs

    def index(self, refs: list[Any]) -> int:
        return self.kept[refs[0]]

    def make(self) -> list[Any]:
        return [troupe.put("made")]
