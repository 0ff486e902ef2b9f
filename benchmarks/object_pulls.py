"""Large values between two hosts: how fast one is pulled, and how long small calls wait meanwhile.

``object_pull``: a value of 512 MB that the driver has put, read by an actor of a host with memory
of its own. ``call_beside_pull``: calls of an actor by the driver, one after another, while another
actor of its host pulls; ``way`` says whether something is being pulled. ``call_same_process``: the
actor that pulls is the one that is called. Hosts are network namespaces; one JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))

import troupe  # noqa: E402

import hosts as virtual  # noqa: E402  (the tests' virtual hosts)
import network  # noqa: E402

BYTES = 512 << 20
LIMIT_S = 120.0


@troupe.remote(num_cpus=0.1, max_concurrency=2)
class Reader:
    """Reads what it is given."""

    def last(self, box: list[Any]) -> int:
        return int(troupe.get(box[0])[-1])

    def nothing(self) -> None:
        return None


def report(bench: str, figures: list[float], unit: str, **fields: Any) -> None:
    """Prints one line of results."""
    there = sorted(figures)
    print(json.dumps({"bench": bench, "n": len(there), "p50": statistics.median(there),
                      "p99": there[int(len(there) * 0.99)], "max": there[-1], "unit": unit,
                      **fields}), flush=True)


def calls(reader: Any, over: Any) -> list[float]:
    """How long calls take, one after another, in milliseconds."""
    took = []
    while not over():
        start = time.perf_counter()
        troupe.get(reader.nothing.remote())
        took.append((time.perf_counter() - start) * 1e3)
    return took


def bench(rounds: int, gbits: float) -> None:
    """Runs all rows."""
    from troupe._cluster import find_bin_dir

    with tempfile.TemporaryDirectory() as folder, virtual.Hosts(
        Path(folder), Path(find_bin_dir()), 1, 4, own_memory=(0,)
    ) as hosts:
        troupe.init(address=hosts.address, key_file=str(hosts.key_file))
        fields = {"net": f"virtual {gbits:g} Gbit/s" if gbits else "virtual"}
        if gbits:
            network.limit_rate(hosts.spaces[0], gbits)
        array = np.ones(BYTES, dtype=np.uint8)
        readers = [Reader.options(node="host0").remote() for _ in range(2)]
        for reader in readers:
            troupe.get(reader.nothing.remote())
        end = time.monotonic() + 2
        report("call_beside_pull", calls(readers[1], lambda: time.monotonic() > end), "ms",
               way="nothing", **fields)
        rates = []
        took: dict[str, list[float]] = {"beside": [], "same": []}
        for turn in range(rounds):
            for way, called in (("beside", readers[1]), ("same", readers[0])):
                ref = troupe.put(array)
                start = time.perf_counter()
                done = readers[0].last.remote([ref])
                took[way] += calls(called, done.ready)
                assert troupe.get(done, timeout=LIMIT_S) == 1, turn
                rates.append(BYTES / 1e9 / (time.perf_counter() - start))
                del ref
        report("object_pull", rates, "GB/s", **fields)
        report("call_beside_pull", took["beside"], "ms", way="pull", **fields)
        report("call_same_process", took["same"], "ms", way="pull", **fields)
        troupe.shutdown()


def main() -> int:
    """Runs the benchmark; says so and succeeds where there can be no namespaces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gbits", type=float, default=0.0, help="what the host's link carries")
    options = parser.parse_args()
    if reason := virtual.missing():
        print(f"object_pulls: nothing measured: {reason}", file=sys.stderr)
        return 0
    bench(options.rounds, options.gbits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
