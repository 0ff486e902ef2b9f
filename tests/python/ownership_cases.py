"""Actors and tasks of the tests of ownership; in a module, for workers to import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import troupe
from troupe.actors import _session

LARGE = 1 << 17  # Numbers: in a file.


@troupe.remote(num_cpus=0.01)
class Shelf:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.kept: Any = None

    def keep(self, value: Any) -> None:
        self.kept = value

    def give(self) -> Any:
        return self.kept

    def read(self) -> Any:
        """What is kept, with refs in it replaced by their values, however deep."""
        return unfold(self.kept)

    def forget(self) -> None:
        self.kept = None

    def pass_on(self, other: Any) -> None:
        """To another shelf, and keeps nothing itself."""
        troupe.get(other.keep.remote(self.kept))
        self.kept = None

    def make(self) -> Any:
        return [troupe.put(np.ones(LARGE))]

    def counts(self) -> list[int]:
        """What its process counts of refs."""
        return list(_session.current().refs.native.counts)

    def pid(self) -> int:
        return os.getpid()


def unfold(value: Any) -> Any:
    while isinstance(value, (list, troupe.ObjectRef)):
        value = troupe.get(value) if isinstance(value, troupe.ObjectRef) else value[0]
    return value


@troupe.remote(num_cpus=0.01)
def put_large(value: float) -> Any:
    return [troupe.put(np.full(LARGE, value))], os.getpid()


@troupe.remote(num_cpus=0.01, num_returns=2)
def large_and_pid(value: float) -> Any:
    return np.full(LARGE, value), os.getpid()


@troupe.remote(num_cpus=0.01)
def put_nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [troupe.put(value)]
    return value, os.getpid()


@troupe.remote(num_cpus=0.01)
def wait_for(path: str, value: Any) -> Any:
    end = time.monotonic() + 60
    while not Path(path).exists() and time.monotonic() < end:
        time.sleep(0.01)
    return value


@troupe.remote(num_cpus=0.01)
def start_waiting(path: str, value: Any) -> Any:
    """The ref of a task that is not over."""
    return [wait_for.remote(path, value)], os.getpid()


@troupe.remote(num_cpus=0.01)
def put_on(shelf: Any) -> int:
    """Puts a value that only the shelf refers to."""
    troupe.get(shelf.keep.remote([troupe.put(np.ones(LARGE))]))
    return os.getpid()


@troupe.remote(num_cpus=0.01)
def make_shelf(value: Any) -> Any:
    shelf = Shelf.remote()
    troupe.get(shelf.keep.remote(value))
    return shelf, os.getpid()


@troupe.remote(num_cpus=0.01)
def give_each(count: int) -> Iterator[Any]:
    for i in range(count):
        yield [troupe.put(np.full(LARGE, i))]


@troupe.remote(num_cpus=0.01)
def length(refs: Any) -> float:
    return float(sum(troupe.get(ref).sum() for ref in refs))


@troupe.remote(num_cpus=0.01)
def forked(refs: Any) -> int:
    """A child that drops what it has a copy of, by its end."""
    child = os.fork()
    if child == 0:
        refs.clear()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@troupe.remote(max_retries=-1)
def unsure(seed: int, value: int, refs: Any) -> tuple[int, int]:
    """Dies in some of its attempts, before or behind reading what it was given."""
    rolls = np.random.default_rng([seed, time.monotonic_ns()]).random(2)
    if rolls[0] < 0.0015:
        os.kill(os.getpid(), signal.SIGKILL)
    total = value + sum(troupe.get(ref) for ref in refs)
    if rolls[1] < 0.0015:
        os.kill(os.getpid(), signal.SIGKILL)
    return total, os.getpid()


def files_in(folder: str) -> set[str]:
    return set(os.listdir(folder))
