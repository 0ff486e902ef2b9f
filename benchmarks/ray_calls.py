"""Actor calls of Ray and of ours, in turns in one run, under the names of Ray's own benchmark.

Needs the environment that ``make ray`` makes; ``make bench-ray`` does both. The C++ rows come from
``actor-calls``, which runs between the rounds. Prints JSON lines; a call's argument is 64 bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

ROUNDS = 3
SYNC_CALLS = 1000
ASYNC_CALLS = 3000
IN_FLIGHT = 1000
ACTORS = 2
TEXT = b"x" * 64


class Echo:
    """Gives back what it is given."""

    def say(self, text: bytes) -> bytes:
        return text


def sync_us(get: Callable[[Any], Any], actor: Any) -> Iterator[float]:
    """Microseconds of each of many calls, one after another."""
    for _ in range(SYNC_CALLS):
        start = time.perf_counter()
        get(actor.say.remote(TEXT))
        yield (time.perf_counter() - start) * 1e6


def async_rate(get: Callable[[Any], Any], actors: list[Any]) -> float:
    """Calls per second with many in flight, shared by the actors."""
    start = time.perf_counter()
    for first in range(0, ASYNC_CALLS, IN_FLIGHT):
        count = min(IN_FLIGHT, ASYNC_CALLS - first)
        get([actors[i % len(actors)].say.remote(TEXT) for i in range(count)])
    return ASYNC_CALLS / (time.perf_counter() - start)


def report(bench: str, values: list[float], unit: str) -> None:
    """Prints one line of results."""
    ordered = sorted(values)
    print(json.dumps({"bench": bench, "n": len(ordered), "p50": statistics.median(ordered),
                      "p99": ordered[len(ordered) * 99 // 100], "max": ordered[-1], "unit": unit}),
          flush=True)


def main() -> int:
    """Runs all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", help="troupe-bench-actor-calls")
    options = parser.parse_args()
    try:
        import ray
    except ImportError:
        print("Ray is not installed here; run: make bench-ray", file=sys.stderr)
        return 1
    import troupe

    os.environ.setdefault("RAY_DEDUP_LOGS", "1")
    sides: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {}
    start = time.perf_counter()
    troupe.init(num_cpus=4)
    ours = troupe.remote(Echo)
    actors = [ours.options(num_cpus=0.1).remote() for _ in range(ACTORS)]
    troupe.get([actor.say.remote(TEXT) for actor in actors])
    report("python_start", [time.perf_counter() - start], "s")
    sides["python"] = (troupe.get, actors)
    start = time.perf_counter()
    ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False, logging_level="error")
    theirs = ray.remote(Echo)
    actors = [theirs.options(num_cpus=0.1).remote() for _ in range(ACTORS)]
    ray.get([actor.say.remote(TEXT) for actor in actors])
    report("ray_start", [time.perf_counter() - start], "s")
    sides["ray"] = (ray.get, actors)
    results: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for side, (get, group) in sides.items():
            results.setdefault(f"{side}_call_sync", []).extend(sync_us(get, group[0]))
            results.setdefault(f"{side}_call_async", []).append(async_rate(get, group[:1]))
            results.setdefault(f"{side}_call_1_n_async", []).append(async_rate(get, group))
    for bench, values in results.items():
        report(bench, values, "us" if bench.endswith("sync") and "async" not in bench
               else "calls/s")
    ray.shutdown()
    troupe.shutdown()
    if options.program:
        return subprocess.run([options.program], check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
