"""A 100 MB array as the argument of an actor's call on one host, against one memcpy of as much.

The array is written into shared memory once, by ``troupe.put`` or by the call itself; the actor
reads it in place. ``actor_array_put`` is the put and a call with it, ``actor_array_again`` another
call with the same ref. ``put_get_1gb``: a put of 1 GB and its get, by one process; with memcpy of
as much to memory that was used before, and to fresh memory. Prints JSON lines.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np

import troupe

BYTES = 100_000_000
ROUNDS = 20
LARGE_BYTES = 1_000_000_000
LARGE_ROUNDS = 5


@troupe.remote
class Reader:
    """Looks at both ends of what it is given."""

    def ends(self, array: np.ndarray) -> tuple[int, int]:
        return int(array[0]), int(array[-1])


def report(bench: str, seconds: list[float], size: int = BYTES) -> None:
    """Prints one line of results, as bytes per second."""
    rates = sorted(size / s / 1e9 for s in seconds)
    print(json.dumps({"bench": bench, "n": len(rates), "p50": statistics.median(rates),
                      "p99": rates[0], "max": rates[-1], "unit": "GB/s"}), flush=True)


def large() -> None:
    """1 GB through ``put`` and ``get``."""
    times: dict[str, list[float]] = {}

    def measure(bench: str, start: float) -> None:
        times.setdefault(bench, []).append(time.perf_counter() - start)

    source = np.ones(LARGE_BYTES, dtype=np.uint8)
    target = np.zeros(LARGE_BYTES, dtype=np.uint8)
    for turn in range(LARGE_ROUNDS):
        source[-1] = turn
        start = time.perf_counter()
        np.copyto(target, source)
        measure("memcpy_1gb", start)
        start = time.perf_counter()
        fresh = source.copy()
        measure("memcpy_1gb_fresh", start)
        del fresh
        start = time.perf_counter()
        ref = troupe.put(source)
        put = time.perf_counter()
        value = troupe.get(ref)
        assert value[-1] == turn
        measure("put_get_1gb" if turn else "put_get_1gb_first", start)
        times.setdefault("get_1gb", []).append(time.perf_counter() - put)
        del ref, value
    for bench, seconds in times.items():
        report(bench, seconds, LARGE_BYTES)


def main() -> int:
    """Runs all rows."""
    troupe.init(num_cpus=2)
    reader = Reader.remote()
    source = np.ones(BYTES, dtype=np.uint8)
    target = np.zeros(BYTES, dtype=np.uint8)
    times: dict[str, list[float]] = {}

    def measure(bench: str, start: float) -> None:
        times.setdefault(bench, []).append(time.perf_counter() - start)

    for turn in range(ROUNDS):
        source[0] = source[-1] = turn
        start = time.perf_counter()
        np.copyto(target, source)
        measure("memcpy_100mb", start)
        start = time.perf_counter()
        first = troupe.get(reader.ends.remote(source))
        measure("actor_array_argument", start)
        start = time.perf_counter()
        ref = troupe.put(source)
        second = troupe.get(reader.ends.remote(ref))
        measure("actor_array_put", start)
        start = time.perf_counter()
        third = troupe.get(reader.ends.remote(ref))
        measure("actor_array_again", start)
        if not first == second == third == (turn, turn):
            print(f"the actor saw {first}, {second}, {third}, not {turn}", file=sys.stderr)
            return 1
    for bench, seconds in times.items():
        report(bench, seconds)
    del source, target
    large()
    troupe.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
