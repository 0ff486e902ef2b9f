"""The head, then Redis, is killed in mid-training: what the steps feel, and when control is back.

Workers talk to each other without either, so the training should not notice. The figures:
``*_restart_step``: the longest time between two steps of a rank from the kill until control was
back, next to the usual step and the longest one of an equal span before the kill.
``*_restart_control``: from SIGKILL until a resize that was asked for right afterwards was in force
(the daemon is restarted by the one that watches it). One JSON line a figure; times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import _trainee

LIMIT_S = 60.0


def daemon(program: str) -> int:
    """The pid of this cluster's ``program``, a descendant of this process."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == program:
                pid = int(entry.name)
                while pid > 1:
                    if pid == os.getpid():
                        return int(entry.name)
                    pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it has just ended
    raise RuntimeError(f"{program} is not running")


def gaps_ms(folder: str, begin: float, end: float) -> list[float]:
    """Times between a rank's consecutive steps, of those that ended between two moments."""
    last: dict[int, float] = {}
    gaps = []
    for event in _trainee.read_log(folder):
        before = last.get(event["pid"])
        last[event["pid"]] = event["t"]
        if before is not None and begin <= event["t"] <= end:
            gaps.append((event["t"] - before) * 1e3)
    return gaps


def control_back(handle: Any, folder: str, workers: int) -> float:
    """Asks for one worker fewer; the moment when all the others have made a step without it."""
    began = time.monotonic()
    while True:
        try:
            handle.resize(workers)
            break
        except Exception:  # the head is not back: whatever it says, ask again
            if time.monotonic() > began + LIMIT_S:
                raise
            time.sleep(0.01)
    while time.monotonic() < began + LIMIT_S:
        first: dict[int, float] = {}
        for event in _trainee.read_log(folder):
            if event["size"] == workers and event["t"] > began:
                first.setdefault(event["rank"], event["t"])
        if len(first) == workers:
            return max(first.values())
        time.sleep(0.02)
    raise RuntimeError("the group was not resized")


def settle(folder: str, size: int) -> None:
    """Waits until a group of this size has trained for a while."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        recent: dict[int, int] = defaultdict(int)
        for event in _trainee.read_log(folder):
            if event["size"] == size and event["t"] > time.monotonic() - 2.0:
                recent[event["rank"]] += 1
        if len(recent) == size and min(recent.values()) > 20:
            time.sleep(2.0)
            return
        time.sleep(0.2)
    raise RuntimeError(f"no training of {size} workers")


def bench(kind: str, program: str, trials: int, size: int) -> None:
    """Kills ``program`` several times under one run."""
    import troupe

    with tempfile.TemporaryDirectory() as folder, troupe.Executor(
        1, size, workers=size, cpus_per_worker=0.1, num_cpus=size, progress="off",
        preload=["numpy", "torch", "troupe.torch", "troupe.torch.elastic"],
    ) as executor:
        handle = executor.submit(_trainee.train_on_troupe, (folder, "mlp", 10**9))
        steps, before, during, control = [], [], [], []
        for trial in range(trials):
            target = size - (trial + 1) % 2  # one fewer, then all again
            settle(folder, size - trial % 2)
            victim = daemon(program)
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            back = control_back(handle, folder, target)
            control.append((back - killed) * 1e3)
            usual = gaps_ms(folder, killed - (back - killed) - 0.5, killed)
            steps.append(statistics.median(usual))
            before.append(max(usual))
            during.append(max(gaps_ms(folder, killed, back)))
        Path(folder, "stop").touch()
        handle.result(timeout=LIMIT_S)
    common = {"n": size, "trials": trials, "unit": "ms"}
    for name, values in ((f"{kind}_restart_step", during), (f"{kind}_restart_step_before", before),
                         (f"{kind}_restart_control", control)):
        print(json.dumps({"bench": name, **common, "p50": round(statistics.median(values), 2),
                          "max": round(max(values), 2),
                          "usual_step_ms": round(statistics.median(steps), 2)}), flush=True)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--trials", type=int, default=4)
    options = parser.parse_args()
    for kind, program in (("head", "troupe-head"), ("redis", "redis-server")):
        bench(kind, program, options.trials, options.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
