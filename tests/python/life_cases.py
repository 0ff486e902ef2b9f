"""Actors and tasks of the tests of beginnings and ends; in a module, for workers to import."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import troupe


def note(path: str, word: str) -> None:
    """Appends a line at once, for the test to see it whole."""
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{word}\n")


class Gated:
    """Waits for a file that the test makes."""

    def wait(self, path: str, value: Any = None) -> Any:
        while not os.path.exists(path) and not troupe.current().cancelled():
            threading.Event().wait(0.005)
        return value


@troupe.remote(num_cpus=0.01)
def wait_for(path: str, value: Any = None) -> Any:
    return Gated().wait(path, value)


@troupe.remote(num_cpus=0.01)
def fail() -> None:
    raise ValueError("no such model")


@troupe.remote(num_cpus=0.01)
class Model:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self.calls = 0

    def all(self) -> Any:
        return self.parts

    def count(self) -> int:
        self.calls += 1
        return self.calls

    def tell(self, other: Any) -> int:
        return troupe.get(other.count.remote())

    def own(self) -> tuple[Any, str]:
        return troupe.get_runtime_context().current_actor, troupe.current().actor_id or ""


@troupe.remote(num_cpus=0.01)
class Shadowed:
    """Attributes of an instance may have the names of its methods."""

    def __init__(self) -> None:
        self.value = 5
        self.double = lambda x: 2 * x

    def value(self) -> int:  # type: ignore[no-redef]
        return vars(self)["value"]


class Gate(Gated):
    def __init__(self, *seen: Any) -> None:
        self.seen = list(seen)

    def see(self, value: Any) -> list[Any]:
        self.seen.append(value)
        return self.seen


@troupe.remote(num_cpus=0.01)
class AsyncGate:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def see(self, value: Any) -> list[Any]:
        self.seen.append(value)
        return self.seen


@troupe.remote(num_cpus=0.01)
class Leaver:
    def __init__(self, path: str) -> None:
        note(path, f"made-{os.getpid()}")
        atexit.register(note, path, "exit-handler")

    def pid(self) -> int:
        return os.getpid()

    def exit(self, status: Any) -> None:
        sys.exit(status)

    def leave(self) -> None:
        troupe.exit_actor("enough")


@troupe.remote(num_cpus=0.01, max_restarts=1, max_task_retries=2)
class DiesOnce:
    def die(self, path: str) -> str:
        if not os.path.exists(path):
            Path(path).touch()
            os._exit(1)
        return "alive"

    def values(self, gate: str) -> Iterator[int]:
        Gated().wait(gate)
        yield 1


@troupe.remote(num_cpus=0.01)
class AsyncLeaver:
    async def exit(self, status: Any) -> None:
        sys.exit(status)

    async def leave(self) -> None:
        troupe.exit_actor("enough")


@troupe.remote(num_cpus=0.01)
def exit_task(path: str, status: Any) -> None:
    note(path, "ran")
    sys.exit(status)


@troupe.remote(num_cpus=0.01)
def leave_task() -> None:
    troupe.exit_actor()


@troupe.remote(num_cpus=0.01)
def gated_numbers(folder: str, count: int) -> Iterator[int]:
    for i in range(count):
        Gated().wait(str(Path(folder) / str(i)))
        yield i
