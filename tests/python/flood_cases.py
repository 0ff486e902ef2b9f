"""What runs inside the workers of test_integration_flood.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import troupe


def flooded(folder: str, flood: bool) -> list[float]:
    """Trains; a child of rank 1 prints all the time. Returns when the steps were finished."""
    import troupe.torch as hvd

    hvd.init()

    @hvd.elastic.run
    def train(state: Any) -> list[float]:
        steps: list[float] = []
        enough = False
        while not enough:
            if flood and hvd.rank() == 1 and not Path(folder, "flooding").exists():
                subprocess.Popen(["yes", "x" * 60])
                Path(folder, "draft").write_text(str(os.getpid()))
                Path(folder, "draft").rename(Path(folder, "flooding"))
            told = hvd.allgather_object((hvd.rank(), Path(folder, "enough").exists()))
            assert [rank for rank, _ in told] == list(range(hvd.size()))
            enough = any(seen for _, seen in told)  # All end with the same step.
            state.step += 1
            state.commit()
            steps.append(time.monotonic())
            with Path(folder, f"steps-{os.getpid()}").open("a") as out:
                out.write(f"{time.monotonic()}\n")
            time.sleep(0.002)
        return steps

    result: list[float] = train(hvd.elastic.ObjectState(step=0))
    subprocess.run(["pkill", "-P", str(os.getpid()), "yes"], check=False)
    return result


def print_much(megabytes: int) -> int:
    """Prints lines of 100 bytes."""
    line = "z" * 99 + "\n"
    for _ in range(megabytes):
        sys.stdout.write(line * 10_000)
    sys.stdout.flush()
    return megabytes



def wait_for(path: str, ballast: bytes) -> int:
    """Returns when the file is there."""
    while not Path(path).exists():
        time.sleep(0.01)
    return len(ballast)


def give(size: int) -> bytes:
    return bytes(size)


def report_much(reports: int, megabytes: int) -> int:
    """Each report begins with its number."""
    for number in range(reports):
        troupe.report(number.to_bytes(4, "big") + bytes(megabytes << 20))
    return reports


@troupe.remote(max_restarts=-1)
class Saver:
    """Saves 10 MiB after each call."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self) -> int:
        self.calls += 1
        return self.calls

    def pid(self) -> int:
        return os.getpid()

    def __troupe_save__(self) -> bytes:
        return self.calls.to_bytes(4, "big") + bytes(10 << 20)

    def __troupe_restore__(self, state: bytes) -> None:
        self.calls = int.from_bytes(state[:4], "big")


def print_and_touch(megabytes: int, folder: str) -> int:
    """Prints, then leaves the file ``printed``."""
    print_much(megabytes)
    Path(folder, "printed").touch()
    return megabytes


def hoard(size: int) -> int:
    """Takes so much memory, and uses it."""
    return len(bytearray(b"x") * size)


@troupe.remote
class Shouter:
    """Prints what it is told to."""

    def shout(self, megabytes: int) -> int:
        return print_much(megabytes)
