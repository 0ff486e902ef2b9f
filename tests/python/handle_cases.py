"""Actors and tasks of the tests of counted handles; in a module, for workers to import."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import troupe


@troupe.remote(num_cpus=0)
class Thing:
    """What is held."""

    def pid(self) -> int:
        return os.getpid()

    def wait_for(self, path: str, begun: str = "") -> str:
        if begun:
            Path(begun).touch()
        wait_until_there(path)
        return "done"

    def count_to(self, most: int) -> Iterator[int]:
        yield from range(most)

    def me(self) -> Any:
        """A handle of itself, which does not keep it alive here."""
        self.kept = troupe.get_runtime_context().current_actor
        return self.kept

    def tell(self, other: Any) -> None:
        """Another one gets to know it."""
        troupe.get(other.keep.remote(troupe.get_runtime_context().current_actor))


@troupe.remote(num_cpus=0)
class Holder:
    """Keeps handles, and what else it is given."""

    def __init__(self, value: Any = None) -> None:
        self.kept = value

    def keep(self, value: Any) -> None:
        self.kept = value

    def give(self) -> Any:
        return self.kept

    def echo(self, value: Any) -> Any:
        return value

    def forget(self) -> None:
        self.kept = None

    def pid(self) -> int:
        return os.getpid()

    def pid_of_kept(self) -> int:
        return int(troupe.get(self.kept.pid.remote()))

    def make(self) -> int:
        self.kept = Thing.remote()
        return int(troupe.get(self.kept.pid.remote()))

    def make_named(self, name: str) -> int:
        self.kept = Thing.options(name=name).remote()
        return int(troupe.get(self.kept.pid.remote()))


@troupe.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Saved:
    """Finds the handle that it has in its state again."""

    def __init__(self) -> None:
        self.kept: Any = None

    def make(self) -> int:
        self.kept = Thing.remote()
        return int(troupe.get(self.kept.pid.remote()))

    def pids(self) -> tuple[int, int]:
        return os.getpid(), int(troupe.get(self.kept.pid.remote()))

    def forget(self) -> None:
        self.kept = None

    def __troupe_save__(self) -> bytes:
        return pickle.dumps(self.kept)

    def __troupe_restore__(self, state: bytes) -> None:
        self.kept = pickle.loads(state)


@troupe.remote(num_cpus=0.01)
def make() -> Any:
    """A handle as a result; and where it was made."""
    return Thing.remote(), os.getpid()


@troupe.remote(num_cpus=0.01)
def make_in(holder: Any) -> int:
    """Only another actor holds what is made here."""
    thing = Thing.remote()
    troupe.get(holder.keep.remote(thing))
    return int(troupe.get(thing.pid.remote()))


@troupe.remote(num_cpus=0.01)
def use_when(handle: Any, path: str) -> int:
    """Goes on for as long as it is told, and uses it then."""
    wait_until_there(path)
    return int(troupe.get(handle.pid.remote()))


@troupe.remote(num_cpus=0.01)
def put_in_a_box(handles: Any) -> Any:
    """A ref of a ref of handles."""
    return [troupe.put([troupe.put(handles)])]


def wait_until_there(path: str) -> None:
    end = time.monotonic() + 60
    while not Path(path).exists() and time.monotonic() < end:
        time.sleep(0.01)
