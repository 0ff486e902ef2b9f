"""Actor calls and tasks of Ray, Monarch and ours in one run, Ray's and ours in turns.

Needs the environments that ``scripts/build_ray.sh`` and ``build_monarch.sh`` make; ``make
bench-ray`` does all. The C++ rows come from ``actor-calls``. Prints JSON lines; a call's argument
is 64 bytes.
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

from _ray_rows import TEXT, Rows

ROUNDS = 3
SYNC_CALLS = 1000
ASYNC_CALLS = 3000
IN_FLIGHT = 1000
ACTORS = 2
MONARCH_LIMIT_S = 300


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


def compare_rows(sides: dict[str, Any]) -> None:
    """Tasks, creation, waiting and large values, in turns."""
    figures: dict[str, tuple[list[float], str]] = {}
    rows = {side: Rows(api) for side, api in sides.items()}
    for _ in range(ROUNDS):
        for side, of_side in rows.items():
            for name, (value, unit) in of_side.all().items():
                figures.setdefault(f"{side}_{name}", ([], unit))[0].append(value)
    for bench, (values, unit) in figures.items():
        report(bench, values, unit)


def main() -> int:
    """Runs all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", help="troupe-bench-actor-calls")
    parser.add_argument("--monarch", help="an interpreter that has Monarch")
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
    compare_rows({"python": troupe, "ray": ray})
    ray.shutdown()
    troupe.shutdown()
    if options.monarch:
        rows = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_monarch_rows.py")
        subprocess.run([options.monarch, rows], check=True, timeout=MONARCH_LIMIT_S)
    if options.program:
        return subprocess.run([options.program], check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
