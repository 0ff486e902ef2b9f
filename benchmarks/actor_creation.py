"""How long a new Python actor takes to answer, and a group of four to have its first all-reduce.

``warm``: their processes were started ahead, as they are after the first actor of a program;
``cold``: interpreters that begin now, which is what an environment of its own costs an actor. The
two take turns. Prints JSON lines, in milliseconds.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

import numpy as np

import troupe
from troupe import collective

ROUNDS = 15
MEMBERS = 4
SETTLE_S = 1.5  # Until the spares that were taken have been replaced.


@troupe.remote(num_cpus=0.1)
class Probe:
    """Answers, and takes part in a sum."""

    def pid(self) -> int:
        return os.getpid()

    def sum_of_ones(self, group: str) -> float:
        data = np.ones(4, dtype=np.float32)
        collective.get_group_handle(group).allreduce(data)
        return float(data[0])


def created_ms(**options: Any) -> float:
    """One actor, until it has answered a call."""
    start = time.perf_counter()
    actor = Probe.options(**options).remote()
    troupe.get(actor.pid.remote())
    took = (time.perf_counter() - start) * 1e3
    troupe.kill(actor)
    return took


def group_ms(name: str, **options: Any) -> float:
    """A group, until all of its members have the result of an all-reduce."""
    start = time.perf_counter()
    group = Probe.options(**options).group(MEMBERS, name=name).remote()
    sums = troupe.get(group.sum_of_ones.remote(name), timeout=60)
    took = (time.perf_counter() - start) * 1e3
    if sums != [float(MEMBERS)] * MEMBERS:
        raise RuntimeError(f"the members have {sums}")
    group.end()
    return took


def main() -> int:
    """Runs all rows."""
    troupe.init(num_cpus=MEMBERS)
    times: dict[tuple[str, str], list[float]] = {}
    created_ms()
    for turn in range(ROUNDS):
        for way, options in (("warm", {}), ("cold", {"runtime_env": {"env_vars": {"COLD": "1"}}})):
            time.sleep(SETTLE_S)
            times.setdefault(("actor_created", way), []).append(created_ms(**options))
            time.sleep(SETTLE_S)
            times.setdefault(("actor_group_first_allreduce", way), []).append(
                group_ms(f"{way}-{turn}", **options))
    for (bench, way), taken in times.items():
        ordered = sorted(taken)
        print(json.dumps({"bench": bench, "way": way, "n": len(ordered),
                          "p50": statistics.median(ordered), "p99": ordered[-1],
                          "max": ordered[-1], "unit": "ms"}), flush=True)
    troupe.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
