"""A route between two hosts is cut in mid-training, both ways, while both still reach the head.

``route_cut_report``: from the cut to the event that says who cannot reach whom.
``route_cut_step``: from the cut to the next step. ``route_back_step``: from the route's return to
the first step of both. Hosts are network namespaces. One JSON line a figure; times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for folder in ("tests/python", "examples"):
    sys.path.insert(0, str(ROOT / folder))

import _trainee  # noqa: E402

import hosts as virtual  # noqa: E402  (the tests' virtual hosts)

LIMIT_S = 90.0


def when(folder: str, size: int, since: float) -> float:
    """The moment of the first step of a group of this size after ``since``; 0.0: none yet."""
    times = [e["t"] for e in _trainee.read_log(folder) if e["size"] == size and e["t"] > since]
    return min(times, default=0.0)


def wait(what: Callable[[], float]) -> float:
    deadline = time.monotonic() + LIMIT_S
    while not (moment := what()):
        if time.monotonic() > deadline:
            raise RuntimeError("the group does not go on")
        time.sleep(0.005)
    return moment


def unreachable_at(run: Any, known: int) -> float:
    told = [e for e in run.events() if e["kind"] == "unreachable"]
    return time.monotonic() if len(told) > known else 0.0


def bench(trials: int) -> None:
    """Cuts and mends the route several times under one run."""
    from troupe._cluster import find_bin_dir

    figures: dict[str, list[float]] = {"route_cut_report": [], "route_cut_step": [],
                                       "route_back_step": []}
    with tempfile.TemporaryDirectory() as folder, virtual.Hosts(
        Path(folder), Path(find_bin_dir()), 2, 1
    ) as hosts, hosts.executor(1, 2, workers=2, strategy="spread", cpus_per_worker=1) as executor:
        run = executor.submit(_trainee.train_on_troupe, (folder, "mlp", 10**9))
        wait(lambda: when(folder, 2, 0.0))
        for _ in range(trials):
            time.sleep(2.0)
            known = len([e for e in run.events() if e["kind"] == "unreachable"])
            cut = time.monotonic()
            for route in ((0, 1), (1, 0)):
                hosts.part(*route)
            told = wait(partial(unreachable_at, run, known))
            step = wait(partial(when, folder, 1, cut))
            mended = time.monotonic()
            for route in ((0, 1), (1, 0)):
                hosts.rejoin(*route)
            back = wait(partial(when, folder, 2, mended))
            for name, took in (("route_cut_report", told - cut), ("route_cut_step", step - cut),
                               ("route_back_step", back - mended)):
                figures[name].append(took * 1e3)
        Path(folder, "stop").touch()
        run.result(timeout=LIMIT_S)
    for name, values in figures.items():
        print(json.dumps({"bench": name, "n": 2, "trials": trials, "unit": "ms",
                          "p50": round(statistics.median(values), 1),
                          "max": round(max(values), 1)}), flush=True)


def main() -> int:
    """Runs the benchmark; says so and succeeds where there can be no namespaces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    if reason := virtual.missing():
        print(f"route_cut: nothing measured: {reason}", file=sys.stderr)
        return 0
    bench(options.trials)
    return 0


if __name__ == "__main__":
    sys.exit(main())
