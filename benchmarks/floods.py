"""The control plane while workers print at full speed, and large results.

``flood_kill_to_next_step``: from SIGKILL of one of four workers to the next step of the others,
while a child of another prints without end (way "flood") and without (way "quiet").
``status_latency``: of ``run.status()`` while a child of each of four workers prints, and without.
``results``: 1 GB returned by 4 ranks, from the end of the slowest function to ``result()``.
One JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import _trainee

LIMIT_S = 90.0
NOISE = "noise"


def train_with_noise(folder: str, noisy: list[int]) -> None:
    """The usual training; ranks in ``noisy`` have a child that prints while the file is there."""
    import threading

    def print_on() -> None:
        child = None
        while not Path(folder, "stop").exists():
            wanted = Path(folder, NOISE).exists()
            if wanted and child is None and int(os.environ.get("RANK", "0")) in noisy:
                child = subprocess.Popen(["yes", "x" * 99])
            if not wanted and child is not None:
                child.kill()
                child.wait()
                child = None
            time.sleep(0.02)
        if child is not None:
            child.kill()
            child.wait()

    thread = threading.Thread(target=print_on, daemon=True)
    thread.start()
    _trainee.train_on_troupe(folder, "mlp", 10**9)
    thread.join()


def give(megabytes: int) -> tuple[float, bytes]:
    """A result of this size, and when it was ready."""
    payload = os.urandom(1 << 20) * megabytes
    return time.monotonic(), payload


def wait(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while not (value := what()):
        if time.monotonic() > deadline:
            raise RuntimeError("the training does not go on")
        time.sleep(0.005)
    return value


def tell(bench: str, values: list[float], unit: str, **more: Any) -> None:
    print(json.dumps({"bench": bench, "trials": len(values), "unit": unit, **more,
                      "p50": round(statistics.median(values), 2),
                      "max": round(max(values), 2)}), flush=True)


def full(run: Any, folder: str, since: float) -> list[dict[str, Any]]:
    """The members of the newest epoch, once four of them have trained in it for a while."""
    epochs = run.epochs()
    recent = {e["pid"] for e in _trainee.read_log(folder) if e["size"] == 4 and e["t"] > since}
    return epochs[-1]["members"] if epochs and len(recent) == 4 else []


def next_step_ms(folder: str, killed: float, pid: int) -> float:
    steps = [e["t"] for e in _trainee.read_log(folder)
             if e["t"] > killed and e["pid"] != pid and e["size"] == 3]
    return (min(steps) - killed) * 1e3 if steps else 0.0


def bench_training(trials: int) -> None:
    import troupe

    with tempfile.TemporaryDirectory() as folder, troupe.Executor(
        1, 4, workers=4, cpus_per_worker=0.1, num_cpus=4, progress="off", log_to_driver=False,
        preload=["numpy", "torch", "troupe.torch", "troupe.torch.elastic"],
    ) as executor:
        run = executor.submit(train_with_noise, (folder, [0, 1, 2, 3]))
        for way in ("quiet", "flood"):
            kills, latencies = [], []
            if way == "flood":
                Path(folder, NOISE).touch()
                time.sleep(1.0)
            for _ in range(trials):
                since = time.monotonic()
                members = wait(partial(full, run, folder, since))
                for _ in range(20):
                    asked = time.monotonic()
                    run.status()
                    latencies.append((time.monotonic() - asked) * 1e3)
                killed, pid = time.monotonic(), int(members[-1]["pid"])
                os.kill(pid, signal.SIGKILL)
                kills.append(wait(partial(next_step_ms, folder, killed, pid)))
            tell("flood_kill_to_next_step", kills, "ms", way=way, n=4)
            tell("status_latency", latencies, "ms", way=way, n=4)
        Path(folder, NOISE).unlink()
        Path(folder, "stop").touch()
        run.result(timeout=LIMIT_S)


def bench_results(trials: int, megabytes: int) -> None:
    import troupe

    took = []
    with troupe.Executor(4, cpus_per_worker=0.1, num_cpus=4, progress="off") as executor:
        for _ in range(trials):
            results = executor.run(give, (megabytes // 4,))
            took.append(time.monotonic() - max(ready for ready, _ in results))
            assert sum(len(payload) for _, payload in results) == megabytes // 4 * 4 << 20
    tell("results", took, "s", n=4, megabytes=megabytes)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=1000)
    options = parser.parse_args()
    bench_training(options.trials)
    bench_results(2, options.megabytes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
