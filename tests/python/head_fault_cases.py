"""Actors for the tests of head faults; in a module of its own, for workers to import."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import troupe

from actor_cases import Counter


@troupe.remote(num_cpus=0.1)
class Born:
    """Each instance that is made adds a line to a file."""

    def __init__(self, mark: str, go: str = "") -> None:
        """Waits for the file ``go``, if one is named."""
        self.mark = mark
        with Path(mark).open("a") as file:
            file.write(f"{os.getpid()}\n")
        while go and not Path(go).exists():
            time.sleep(0.01)

    def path(self) -> str:
        return self.mark


@troupe.remote(num_cpus=0.1)
class Parent:
    def __init__(self) -> None:
        self.children: list[Any] = []

    def hire(self, name: str) -> tuple[int, int]:
        """Makes an actor that this one owns; the pids of both."""
        self.children.append(Counter.options(name=name, num_cpus=0.1).remote())
        return os.getpid(), troupe.get(self.children[-1].pid.remote())


@troupe.remote
class Borrower:
    """Calls an actor that it was handed."""

    def add_once(self, ledger: Any, key: str) -> str:
        troupe.get(ledger.add.remote(1))
        return key
