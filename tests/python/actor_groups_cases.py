"""Actors that are members of groups, for tests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

import troupe
from troupe import collective
from troupe.collective import ReduceOp


@troupe.remote(num_cpus=0.1)
class Trainer:
    """A member of a group that trains."""

    def __init__(self, name: str = "", fails: bool = False) -> None:
        if fails:
            raise RuntimeError("no data set")
        self.name = name
        self.calls = 0

    def pid(self) -> int:
        return os.getpid()

    def add(self, a: int, b: int = 0) -> int:
        self.calls += 1
        return a + b

    def who(self) -> str:
        return troupe.current().actor_id

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self) -> None:
        troupe.exit_actor()

    def fail_if(self, path: str) -> str:
        """Raises in whoever takes the file away."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            time.sleep(60)
            return "slept"
        raise ValueError("a bad batch")

    def sum_of_those_left(self, path: str) -> str:
        """The one that takes the file away returns at once; the others wait for it."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            self.sum_of_all()
        return "returned"

    def nap(self, seconds: float) -> str:
        time.sleep(seconds)
        return "rested"

    def wait_for(self, path: str) -> int:
        Path(f"{path}-{os.getpid()}-begun").touch()
        while not Path(path).exists():
            time.sleep(0.02)
        return os.getpid()

    def sum_of_all(self) -> float:
        """One all-reduce in the group's collective group."""
        data = np.ones(1)
        collective.get_group_handle(self.name).allreduce(data)
        return float(data[0])

    def train(self, steps: int, pace_s: float = 0.0) -> dict[str, Any]:
        """All do ``steps``, whoever comes or goes; who is to leave says so."""
        group = collective.get_group_handle(self.name)
        step, fresh, changes = 0, True, 0
        while step < steps:
            try:
                if fresh:
                    place = np.array([step], dtype=np.float64)
                    group.allreduce(place, ReduceOp.MAX)
                    step, fresh = int(place[0]), False
                    continue
                group.allreduce(np.ones(4))
                step += 1
                time.sleep(pace_s)
            except troupe.CollectiveGroupChangedError:
                changes, fresh = changes + 1, True
            except troupe.CollectiveGroupLeftError:
                return {"step": step, "changes": changes, "left": True}
        return {"step": step, "changes": changes, "left": False}
