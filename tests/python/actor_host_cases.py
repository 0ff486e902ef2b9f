"""Actors for the tests with several hosts; in a module of its own, for workers to import."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import troupe


@troupe.remote
class Peer:
    """Calls others, with arrays."""

    def double(self, array: Any) -> Any:
        return array * 2

    def through(self, other: Any, array: Any) -> Any:
        """Doubled over there, and one more."""
        return troupe.get(other.double.remote(array), timeout=60) + 1

    def put(self, count: int) -> list[Any]:
        import numpy

        return [troupe.put(numpy.arange(count))]

    def total(self, box: list[Any]) -> int:
        return int(troupe.get(box[0], timeout=60).sum())

    def host(self) -> str:
        return os.uname().nodename


@troupe.remote
class Sequence:
    """Keeps what comes, in the order in which it comes."""

    def __init__(self) -> None:
        self.taken: dict[str, list[int]] = {}

    def take(self, caller: str, number: int, array: Any = None) -> tuple[int, float]:
        self.taken.setdefault(caller, []).append(number)
        return number, 0.0 if array is None else float(array.sum())

    def all(self) -> dict[str, list[int]]:
        return self.taken

    def life(self) -> tuple[int, int]:
        return troupe.current().incarnation, os.getpid()


@troupe.remote
class Source:
    """Sends numbers to a sequence."""

    def send(self, sequence: Any, name: str, end: str) -> int:
        """Without waiting for answers, until the file is there; how many have all come back."""
        refs = []
        while not Path(end).exists():
            refs.append(sequence.take.remote(name, len(refs)))
            time.sleep(0.005)
        assert [number for number, _ in troupe.get(refs, timeout=60)] == list(range(len(refs)))
        return len(refs)


@troupe.remote(max_restarts=-1)
class Witness:
    """Counts the calls of each caller; its incarnations write what they run into one file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.counts: dict[str, int] = {}

    def tell(self, caller: str) -> tuple[int, int]:
        """Which incarnation this is, and the caller's how manieth call."""
        incarnation = troupe.current().incarnation
        append(self.path, incarnation)
        self.counts[caller] = self.counts.get(caller, 0) + 1
        return incarnation, self.counts[caller]


@troupe.remote(max_restarts=-1)
class SavedWitness:
    """The same, with a state that is saved."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def tell(self, caller: str) -> tuple[int, int]:
        self.counts[caller] = self.counts.get(caller, 0) + 1
        return troupe.current().incarnation, self.counts[caller]

    def __troupe_save__(self) -> bytes:
        return pickle.dumps(self.counts)

    def __troupe_restore__(self, state: bytes) -> None:
        self.counts = pickle.loads(state)


@troupe.remote(max_restarts=1)
class Gate:
    def go_through(self, folder: str) -> int:
        """Returns when there is a file for this incarnation, which it is told by another."""
        incarnation = troupe.current().incarnation
        Path(folder, f"begun-{incarnation}").touch()
        while not Path(folder, f"open-{incarnation}").exists():
            time.sleep(0.01)
        return incarnation


@troupe.remote
class Visitor:
    def visit(self, gate: Any, folder: str) -> int:
        through: int = troupe.get(gate.go_through.options(retries=1).remote(folder))
        return through


@troupe.remote
class Asker:
    def ask(self, witness: Any, path: str) -> None:
        """For ever; who answers, and when, is in the file."""
        while not troupe.current().cancelled():
            incarnation, _ = troupe.get(witness.tell.remote("asker"))
            append(path, incarnation)


def append(path: str, incarnation: int) -> None:
    """Adds the time and an incarnation to a file; whole lines, whoever else writes."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, f"{time.monotonic()} {incarnation}\n".encode())
    finally:
        os.close(fd)


def read(path: Path) -> list[tuple[float, int]]:
    """What was added: times and incarnations."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(float(when), int(incarnation)) for when, incarnation in map(str.split, lines)]
