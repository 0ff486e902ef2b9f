"""Kill to the next completed training step, PyTorch: Troupe beside its peers in one run.

A random worker is killed with SIGKILL in mid-training. The figure is the time until the slowest
rank has completed its first step after that: on Troupe the survivors go on (and a replacement
joins later), those of a script of torch.distributed from its last checkpoint; torchelastic restarts
all workers from the last snapshot, and so does elastic Horovod without the dead one. "lost" are
steps that a surviving rank had completed and that were done again.
Horovod takes part if ``make horovod`` has built it. One JSON line a figure; times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

import _trainee

TRAINEE = Path(_trainee.__file__)
LIMIT_S = 60.0
HOROVOD = TRAINEE.resolve().parent.parent / ".third_party" / "horovod" / "bin"
# Horovod gives up the host of a dead worker, so each gets one: spellings of this machine.
LOCAL_HOSTS = ("localhost", "127.0.0.1", "127.1", "127.0.1")
Event = dict[str, Any]


def wait_ranks(folder: str, size: int, after: float = 0.0, generation: int = 0) -> bool:
    """Waits until every rank of a group of ``size`` has completed a step since ``after``."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        ranks = {e["rank"] for e in _trainee.read_log(folder)
                 if e["t"] > after and e["size"] == size and e["generation"] >= generation}
        if len(ranks) == size:
            return True
        time.sleep(0.05)
    return False


def summary(figure: str, trials: list[float], **more: Any) -> None:
    """Prints a figure."""
    ordered = sorted(trials)
    if ordered:
        more |= {"p50": round(statistics.median(ordered), 2), "max": round(ordered[-1], 2)}
    print(json.dumps({"bench": figure, "trials": len(ordered), "unit": "ms", **more}), flush=True)


def median_step_ms(events: list[Event], size: int) -> float:
    """The usual time of a step of a group of ``size``."""
    steps: dict[int, float] = {}
    for event in events:
        if event["rank"] == 0 and event["size"] == size:
            steps[event["step"]] = event["t"]
    gaps = [steps[s] - steps[s - 1] for s in steps if s - 1 in steps]
    return statistics.median(gaps) * 1e3 if gaps else float("nan")


def after_kill(events: list[Event], killed: float, victim: int, size: int) -> tuple[float, int]:
    """Milliseconds to the slowest survivor's next step, and the steps done again."""
    first: dict[int, Event] = {}
    for event in events:
        # Steps of the old group that were complete in flight count as done before.
        if event["t"] > killed and event["size"] == size - 1:
            first.setdefault(event["pid"], event)
    before = [e["step"] for e in events
              if e["pid"] != victim and e["pid"] in first and e["t"] < first[e["pid"]]["t"]]
    lost = max(before) + 1 - min(e["step"] for e in first.values())
    return (max(e["t"] for e in first.values()) - killed) * 1e3, max(0, lost)


def bench_troupe(size: int, kills: int, model: str, train: Any, name: str) -> None:
    """Kills workers of an ``executor.run`` one after the other.

    Args:
        train: what runs. name: of the figures.
    """
    import troupe

    with tempfile.TemporaryDirectory() as folder, troupe.Executor(
        1, size, workers=size, cpus_per_worker=0.1, num_cpus=size, progress="off",
        preload=["numpy", "torch", "troupe.torch", "troupe.torch.elastic"],
    ) as executor:
        handle = executor.submit(train, (folder, model, 10**9))
        times, lost, full, killed = [], 0, [], 0.0
        for _ in range(kills):
            if not wait_ranks(folder, size, killed):
                raise RuntimeError("the group does not reach its size")
            settle()
            pids = {e["rank"]: e["pid"] for e in _trainee.read_log(folder) if e["size"] == size}
            victim = pids[random.randrange(size)]
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            if not wait_ranks(folder, size - 1, killed):
                raise RuntimeError("the survivors do not go on")
            ms, again = after_kill(_trainee.read_log(folder), killed, victim, size)
            times.append(ms)
            lost += again
            if wait_ranks(folder, size, killed + ms / 1e3):
                first = [e["t"] for e in _trainee.read_log(folder)
                         if e["size"] == size and e["t"] > killed + ms / 1e3]
                full.append((min(first) - killed) * 1e3)
        Path(folder, "stop").touch()
        handle.result(timeout=LIMIT_S)
        step_ms = median_step_ms(_trainee.read_log(folder), size)
        summary(f"{name}_kill_to_next_step", times, n=size, model=model, steps_lost=lost,
                step_ms=round(step_ms, 2))
        summary(f"{name}_kill_to_full_size", full, n=size, model=model)


def settle() -> None:
    """Some training, of a length that hits every phase of a step; a spare gets warm meanwhile."""
    time.sleep(random.uniform(3.0, 4.0))


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bench_torchelastic(size: int, kills: int, model: str, interval: Optional[float]) -> None:
    """The same on torchrun; ``interval``: how often its agent looks, default as torchrun has it."""
    with tempfile.TemporaryDirectory() as folder:
        # The agent ends its workers at SIGTERM; it gets one even if this process is killed.
        command = ["setpriv", "--pdeathsig", "TERM",
                   sys.executable, "-m", "torch.distributed.run", "--nnodes=1",
                   f"--nproc-per-node={size}", f"--max-restarts={kills + 1}",
                   "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                   "--rdzv-id=recovery"]
        if interval is not None:
            command.append(f"--monitor-interval={interval}")
        # A store per round: in one that rounds share, Gloo finds the addresses of the dead.
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
               "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with open(os.path.join(folder, "agent.out"), "wb") as output:
            command += [str(TRAINEE), "torchelastic", folder, model]
            agent = subprocess.Popen(command, env=env, stdout=output, stderr=output,
                                     start_new_session=True)
        try:
            times, lost = [], 0
            for generation in range(kills):
                if not wait_ranks(folder, size, generation=generation):
                    raise RuntimeError(Path(folder, "agent.out").read_text()[:6000])
                settle()
                events = _trainee.read_log(folder)
                pids = {e["rank"]: e["pid"] for e in events if e["generation"] == generation}
                killed = time.monotonic()
                os.kill(pids[random.randrange(size)], signal.SIGKILL)
                if not wait_ranks(folder, size, generation=generation + 1):
                    raise RuntimeError(Path(folder, "agent.out").read_text()[:6000])
                first: dict[int, Event] = {}
                events = _trainee.read_log(folder)
                for event in events:
                    if event["generation"] > generation:
                        first.setdefault(event["rank"], event)
                before = max(e["step"] for e in events if e["generation"] == generation)
                times.append((max(e["t"] for e in first.values()) - killed) * 1e3)
                lost += max(0, before + 1 - min(e["step"] for e in first.values()))
            summary("torchelastic_kill_to_next_step", times, n=size, model=model, steps_lost=lost,
                    monitor_interval_s=interval,
                    step_ms=round(median_step_ms(_trainee.read_log(folder), size), 2))
        finally:
            end(agent)


def end(agent: subprocess.Popen[bytes]) -> None:
    """Lets a launcher end its workers; it leads their process group."""
    agent.send_signal(signal.SIGTERM)
    try:
        agent.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()


def bench_horovod(size: int, kills: int, model: str) -> None:
    """The same on elastic Horovod, started anew for each kill."""
    times, lost, step_ms = [], 0, float("nan")
    hung = 0
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder, "hosts.sh")
            hosts = "".join(f"echo {host}:1\n" for host in LOCAL_HOSTS[:size])
            found.write_text(f"#!/bin/sh\n{hosts}")
            found.chmod(0o755)
            command = ["setpriv", "--pdeathsig", "TERM", str(HOROVOD / "horovodrun"), "--gloo",
                       "--network-interface", "lo", "-np", str(size), "--min-np", "1", "--max-np",
                       str(size), "--host-discovery-script", str(found), "--disable-cache",
                       str(HOROVOD / "python3"), str(TRAINEE), "horovod", folder, model]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
            env["PATH"] = f"{HOROVOD}:{env['PATH']}"
            with open(os.path.join(folder, "launcher.out"), "wb") as output:
                launcher = subprocess.Popen(command, env=env, stdout=output, stderr=output,
                                            start_new_session=True)
            try:
                if not wait_ranks(folder, size):
                    raise RuntimeError(Path(folder, "launcher.out").read_text()[:6000])
                settle()
                pids = {e["rank"]: e["pid"] for e in _trainee.read_log(folder)}
                victim = pids[random.randrange(size)]
                killed = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                if not wait_ranks(folder, size - 1, killed):
                    hung += 1
                    continue
                events = _trainee.read_log(folder)
                ms, again = after_kill(events, killed, victim, size)
                times.append(ms)
                lost += again
                step_ms = median_step_ms(events, size)
            finally:
                end(launcher)
                for event in _trainee.read_log(folder):
                    end_worker(event["pid"])
    summary("horovod_kill_to_next_step", times, n=size, model=model, steps_lost=lost,
            never_recovered=hung, step_ms=round(step_ms, 2))


def end_worker(pid: int) -> None:
    """Ends a worker that its launcher has left behind."""
    try:
        if str(TRAINEE).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--models", nargs="+", default=["mlp", "resnet50"],
                        choices=["mlp", "resnet50"])
    parser.add_argument("--reference-kills", type=int, default=2)
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    for model in options.models:
        bench_troupe(options.workers, options.kills, model, _trainee.train_on_troupe, "troupe")
        bench_troupe(options.workers, options.kills, model, _trainee.train_on_torch_distributed,
                     "torch_distributed")
        if not options.no_reference:
            for interval in (0.1, None):
                bench_torchelastic(options.workers, options.reference_kills, model, interval)
            if (HOROVOD / "horovodrun").exists():
                slots = min(options.workers, len(LOCAL_HOSTS))
                bench_horovod(slots, options.reference_kills, model)
            else:
                print("training_recovery: no Horovod beside it; make horovod builds it",
                      file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
