"""Actors and tasks of the tests of cancellation; in a module, for workers to import."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import troupe
from troupe.actors._interrupts import SIGNAL

LONG_S = 3600.0


def note(path: str, word: str) -> None:
    """Appends a line at once, for the test to see it whole."""
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{word}\n")


def notes(path: str) -> list[str]:
    """What was noted until now."""
    return Path(path).read_text(encoding="ascii").split() if Path(path).exists() else []


@troupe.remote(num_cpus=0.01)
def sleep(path: str) -> None:
    """Sleeps until it is interrupted, and says by what: from its first note on, for which whoever
    interrupts it waits.
    """
    try:
        note(path, f"began-{os.getpid()}")
        time.sleep(LONG_S)
    except KeyboardInterrupt as error:
        note(path, type(error).__name__)
        raise
    finally:
        note(path, "cleaned")


@troupe.remote(num_cpus=0.01)
def miss_a_signal(path: str) -> None:
    """Sleeps on after a first signal, as if that had come just before the kernel's sleep began;
    when it is interrupted it cleans up for longer than it takes to send signals again.
    """
    handler = signal.getsignal(SIGNAL)

    def miss(number: int, frame: Any) -> None:
        signal.signal(SIGNAL, handler)
        note(path, "missed")

    signal.signal(SIGNAL, miss)
    try:
        note(path, f"began-{os.getpid()}")
        time.sleep(LONG_S)
    except KeyboardInterrupt as error:
        note(path, type(error).__name__)
        time.sleep(2.5)
        note(path, "cleaned")
        raise


@troupe.remote(num_cpus=0.01)
def compute(path: str) -> None:
    note(path, f"began-{os.getpid()}")
    n = 0
    while True:
        n += 1


@troupe.remote(num_cpus=0.01)
def wait_for_lock(path: str) -> None:
    note(path, f"began-{os.getpid()}")
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@troupe.remote(num_cpus=0.01)
def wait_for_events(path: str) -> None:
    note(path, f"began-{os.getpid()}")
    asyncio.run(asyncio.sleep(LONG_S))


@troupe.remote(num_cpus=0.01)
def wait_for_ref(path: str) -> None:
    note(path, f"began-{os.getpid()}")
    troupe.get(sleep.remote(path + ".child"))


@troupe.remote(num_cpus=0.01)
def heedless(path: str) -> None:
    """Does not end when it is interrupted."""
    words = [f"began-{os.getpid()}"]
    while True:
        try:
            while words:
                note(path, words.pop())
            time.sleep(LONG_S)
        except KeyboardInterrupt:
            note(path, "interrupted")


@troupe.remote(num_cpus=0.01)
def parent(path: str, hands: int) -> None:
    """Starts others, and waits for none but the last."""
    refs = [sleep.remote(f"{path}.{i}") for i in range(hands)]
    del refs[:-1]
    if hands > 1:
        refs.append(parent.remote(f"{path}.p", hands - 1))
    note(path, f"began-{os.getpid()}")
    troupe.get(refs[-1])


@troupe.remote(num_cpus=0.01)
def quick(value: int) -> tuple[int, int]:
    return value, os.getpid()


@troupe.remote(num_cpus=0.01)
def spin(steps: int) -> int:
    """Ends about when it is cancelled."""
    total = 0
    for i in range(steps):
        total += i
    return total


@troupe.remote(num_cpus=0.01)
def numbers(path: str, quick_ones: int) -> Iterator[int]:
    try:
        note(path, f"began-{os.getpid()}")
        yield from range(quick_ones)
        time.sleep(LONG_S)
        yield -1
    finally:
        note(path, "cleaned")


@troupe.remote(num_cpus=0.01)
class Worker:
    def hire(self, path: str) -> None:
        troupe.get(sleep.remote(path))

    def stay(self, path: str) -> str:
        try:
            note(path, "began")
            while not troupe.current().cancelled():
                time.sleep(0.01)
        except KeyboardInterrupt:
            note(path, "interrupted")
        note(path, "over")
        return "stayed"

    def write(self, path: str) -> None:
        note(path, "ran")

    def give(self, refs: list[Any]) -> None:
        troupe.cancel(refs[0])

    def values(self, path: str) -> Iterator[int]:
        try:
            yield 1
            yield 2
            while not troupe.current().cancelled():
                time.sleep(0.01)
            yield 3
        finally:
            note(path, "cleaned")


@troupe.remote(num_cpus=0.01)
class Loop:
    async def hire(self, path: str) -> None:
        note(path, "began")
        try:
            await sleep.remote(f"{path}.child")
        except asyncio.CancelledError:
            note(path, "cancelled")
            raise

    async def same(self, value: Any) -> Any:
        return value
