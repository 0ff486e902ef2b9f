"""What collectives cost actors.

``weights``: trainers' weights go from one to all members of a group of trainers and inference
actors, and the same bytes by memcpy in one process. ``all_reduce_of_actors``: the same all-reduces
of ``troupe.torch`` by a group of actors and by ``executor.run``, in turns. Prints JSON lines, in
milliseconds; a round's time is that of its slowest member.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

import troupe
import troupe.torch as hvd
from troupe import collective

WEIGHT_BYTES = 64 << 20
TRAINERS, READERS = 2, 2
ROUNDS = 20
WARM_UP = 3
SUM_BYTES = 16 << 20
SUM_MEMBERS = 2
TURNS = 6


@troupe.remote(num_cpus=0.1)
class Holder:
    """Holds weights: a trainer or an inference actor."""

    def __init__(self) -> None:
        self.weights = np.ones(WEIGHT_BYTES // 4, dtype=np.float32)

    def take(self, group: str, rounds: int) -> list[float]:
        """The times in which the weights of rank 0 came, in ms."""
        handle = collective.get_group_handle(group)
        times = []
        for _ in range(rounds):
            handle.barrier()
            start = time.perf_counter()
            handle.broadcast(self.weights, 0)
            times.append((time.perf_counter() - start) * 1e3)
        return times


def summed(rounds: int) -> list[float]:
    """The times of all-reduces of ``troupe.torch`` in the group of this process, in ms."""
    hvd.init()
    data = torch.ones(SUM_BYTES // 4)
    times = []
    for _ in range(WARM_UP + rounds):
        hvd.barrier()
        start = time.perf_counter()
        hvd.allreduce_(data, op=hvd.Average, name="data")
        times.append((time.perf_counter() - start) * 1e3)
    return times[WARM_UP:]


@troupe.remote(num_cpus=0.1)
class Summer:
    """An actor that does what ``summed`` does."""

    def sums(self, rounds: int) -> list[float]:
        """As ``summed``."""
        return summed(rounds)


def report(bench: str, way: str, times: Sequence[float], **more: object) -> None:
    """One JSON line."""
    ordered = sorted(times)
    print(json.dumps({"bench": bench, "way": way, "n": len(ordered),
                      "p50": statistics.median(ordered), "p99": ordered[-1], "max": ordered[-1],
                      "unit": "ms", **more}), flush=True)


def slowest(of_members: Sequence[Sequence[float]]) -> list[float]:
    """Per round the time of its slowest member."""
    return [max(times) for times in zip(*of_members, strict=True)]


def weights() -> None:
    """A broadcast between two groups of actors, and memcpy."""
    trainers = [Holder.remote() for _ in range(TRAINERS)]
    readers = [Holder.remote() for _ in range(READERS)]
    members = trainers + readers
    collective.create_collective_group(members, len(members), list(range(len(members))),
                                       group_name="weights")
    rounds = WARM_UP + ROUNDS
    times = slowest(troupe.get([m.take.remote("weights", rounds) for m in members], timeout=120))
    report("weights", "broadcast", times[WARM_UP:], bytes=WEIGHT_BYTES, members=len(members))
    for member in members:
        troupe.kill(member)
    source = np.ones(WEIGHT_BYTES // 4, dtype=np.float32)
    target = np.zeros_like(source)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        np.copyto(target, source)
        times.append((time.perf_counter() - start) * 1e3)
    report("weights", "memcpy", times[WARM_UP:], bytes=WEIGHT_BYTES)


def all_reduce() -> None:
    """The same all-reduces by actors and by an executor, which take turns."""
    group = Summer.group(SUM_MEMBERS, name="summers").remote()
    times: dict[str, list[float]] = {"actors": [], "executor": []}
    with troupe.Executor(SUM_MEMBERS, cpus_per_worker=0.1) as executor:
        for _ in range(TURNS):
            times["actors"] += slowest(troupe.get(group.sums.run(ROUNDS), timeout=120))
            times["executor"] += slowest(executor.run(summed, (ROUNDS,)))
    for way, taken in times.items():
        report("all_reduce_of_actors", way, taken, bytes=SUM_BYTES, members=SUM_MEMBERS)


def main() -> int:
    """Runs all rows."""
    troupe.init(num_cpus=4)
    weights()
    all_reduce()
    troupe.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
