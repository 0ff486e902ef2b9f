"""Faults for real: each does one thing to a running cluster and undoes it.

A fault is a method of :class:`Faults`; it returns when it is healed. What it did is told in one
line, so that a run can be read; the seed tells the order, though not what each one meets.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clock import Clock

import troupe

from hosts import Hosts

FLOOD_BYTES = 60 << 20
READY_S = 120.0
REFILL_S = 4.0
MOST_WORKERS, LEAST_WORKERS = 5, 2
JUMPS_S = (-86_400, -60, -2, 2, 60, 3_600, 7 * 86_400)
KEYS_KEPT_S = 86_400  # By the store, if no head refreshes them.


def loses_keys(jump_s: float) -> bool:
    """Whether a jump of the time of day, or the way back from it, lets every key expire."""
    return jump_s > KEYS_KEPT_S or jump_s <= -KEYS_KEPT_S


class Faults:
    """What can be done to ``run`` on the two ``hosts``."""

    def __init__(self, hosts: Hosts, clock: Clock, run: Any, seed: int,
                 steps: Callable[[], int], say: Callable[[str], None]) -> None:
        self.hosts, self.clock, self.run, self.steps, self.say = hosts, clock, run, steps, say
        self.random = random.Random(seed)
        self._kept_by = 0.0  # By then the head has filled a store that was lost.
        self.done: dict[str, int] = {}
        weights = {
            self.kill: 6, self.kill_two: 2, self.stop: 3, self.flood: 3, self.part_both: 2,
            self.part_one_way: 2, self.part_and_kill: 1, self.mute: 2, self.cut: 1,
            self.kill_head: 3, self.stop_head: 2, self.drain_then_kill_head: 2,
            self.kill_redis: 2, self.stop_redis: 2, self.wipe_store: 2,
            self.wipe_store_and_kill_head: 1, self.kill_node: 1, self.kill_joiner: 2,
            self.resize: 4, self.drain: 3, self.fill_disk: 1,
            self.jump: 2, self.jump_and_kill_node: 1,
        }
        self._faults = list(weights)
        self._weights = list(weights.values())

    def one(self) -> str:
        """Does a random one; its name."""
        fault = self.random.choices(self._faults, self._weights)[0]
        name = fault.__name__
        self.done[name] = self.done.get(name, 0) + 1
        fault()
        return name

    # ---- processes ----

    def members(self) -> list[dict[str, Any]]:
        """Of the newest epoch that is told, those that live."""
        epochs = self.run.epochs()
        members = epochs[-1]["members"] if epochs else []
        return [m for m in members if Path("/proc", str(m["pid"])).exists()]

    def pids(self) -> list[int]:
        """Of members of which each holds the newest state: all but one of them may die.

        The last holder's death loses the state by right, so that a fault that kills waits until a
        step was committed in an epoch of two and more. That one comes is part of the promise.
        """
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            epochs, steps = len(self.run.epochs()), self.steps()
            members = self.members()
            if len(members) >= 2:
                while self.steps() < steps + 3 and time.monotonic() < deadline:
                    time.sleep(0.05)
                if len(self.run.epochs()) == epochs and self.steps() >= steps + 3:
                    return [int(m["pid"]) for m in members]
            time.sleep(0.05)
        raise AssertionError(f"no epoch of two members and more within {READY_S:.0f} s: "
                             f"{self.run.status()}; {self.run.epochs()[-3:]}")

    def _on_both_hosts(self) -> bool:
        """So that one host can be lost; waits as :meth:`pids` does."""
        pids = set(self.pids())
        spread = len({m["host"] for m in self.members() if int(m["pid"]) in pids}) == 2
        if not spread:
            self.say("left out: all members are on one host")
        return spread

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def kill(self, count: int = 1) -> None:
        self._kill(self.pids(), count)

    def _kill(self, pids: list[int], count: int) -> None:
        victims = self.random.sample(pids, min(count, len(pids) - 1))
        self.say(f"SIGKILL {victims} of {pids}")
        for pid in victims:
            self._signal(pid, signal.SIGKILL)

    def kill_two(self) -> None:
        self.kill(2)

    def stop(self) -> None:
        pids = self.pids()
        pid, length = self.random.choice(pids), self.random.uniform(0.2, 4)
        self.say(f"SIGSTOP {pid} for {length:.1f} s")
        self._signal(pid, signal.SIGSTOP)
        time.sleep(length)
        self._signal(pid, signal.SIGCONT)

    def flood(self) -> None:
        """One worker's output is flooded while another is killed."""
        pids = self.pids()
        noisy, victim = self.random.sample(pids, 2)
        self.say(f"flood of the output of {noisy}, then SIGKILL {victim}")
        flood = threading.Thread(target=self._flood, args=(noisy,))
        flood.start()
        time.sleep(self.random.uniform(0.1, 1))
        self._signal(victim, signal.SIGKILL)
        flood.join()

    def _flood(self, pid: int) -> None:
        line = (b"x" * 99 + b"\n") * 600
        deadline = time.monotonic() + 4
        with contextlib.suppress(OSError):
            pipe = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
            try:
                written = 0
                while written < FLOOD_BYTES and time.monotonic() < deadline:
                    try:
                        written += os.write(pipe, line)
                    except BlockingIOError:
                        time.sleep(0.001)
            finally:
                os.close(pipe)

    def kill_joiner(self) -> None:
        """A replacement is killed on its way in."""
        before = self.pids()
        self._kill(before, 1)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for worker in self.run.status()["workers"]:
                pid = int(worker.get("pid") or 0)
                if pid and pid not in before and worker["state"] in ("starting", "running"):
                    time.sleep(self.random.uniform(0, 1))
                    self.say(f"SIGKILL {pid}, which joins")
                    return self._signal(pid, signal.SIGKILL)
            time.sleep(0.02)

    # ---- the network ----

    def part_both(self) -> None:
        self._part([(0, 1), (1, 0)], self.random.uniform(0.5, 12))

    def part_one_way(self) -> None:
        self._part([self.random.choice([(0, 1), (1, 0)])], self.random.uniform(0.5, 8))

    def part_and_kill(self) -> None:
        pids = self.pids()  # Before: who is on the other side cannot join meanwhile.
        self._part([(0, 1), (1, 0)], self.random.uniform(4, 12), lambda: self._kill(pids, 1))

    def _part(self, routes: list[tuple[int, int]], length: float,
              meanwhile: Callable[[], None] = lambda: None) -> None:
        self.say(f"routes {routes} cut for {length:.1f} s")
        for route in routes:
            self.hosts.part(*route)
        try:
            meanwhile()
            time.sleep(length)
        finally:
            for route in routes:
                self.hosts.rejoin(*route)

    def mute(self) -> None:
        """A host does not reach the head; the hosts reach each other."""
        host, length = self.random.randrange(2), self.random.uniform(0.5, 4)
        if not self._on_both_hosts():
            return
        self.say(f"host{host} does not reach the head for {length:.1f} s")
        self.hosts.mute(host)
        time.sleep(length)
        self.hosts.unmute(host)

    def cut(self) -> None:
        host, length = self.random.randrange(2), self.random.uniform(0.5, 5)
        if not self._on_both_hosts():
            return
        self.say(f"host{host} is cut off for {length:.1f} s")
        self.hosts.cut(host)
        time.sleep(length)
        self.hosts.mend(host)

    # ---- daemons and store ----

    def kill_head(self) -> None:
        # Lost at the same moment as the store, the run would be lost by right.
        time.sleep(max(0.0, self._kept_by - time.monotonic()))
        self.say("the head is killed")
        self.hosts.kill("head")
        time.sleep(self.random.uniform(0, 2))
        self.hosts.start_head()

    def stop_head(self) -> None:
        self._stop("head", self.random.uniform(0.2, 5))

    def stop_redis(self) -> None:
        self._stop("redis", self.random.uniform(0.2, 5))

    def _stop(self, name: str, length: float) -> None:
        self.say(f"{name} is stopped for {length:.1f} s")
        with self.hosts.stopped(name):
            time.sleep(length)

    def drain_then_kill_head(self) -> None:
        """The drained are on their way out when the head starts anew."""
        self.resize()
        time.sleep(self.random.uniform(0, 0.5))
        self.kill_head()

    def kill_redis(self) -> None:
        """It comes back empty."""
        self.say("redis is killed, with all it holds")
        self.hosts.kill("redis")
        time.sleep(self.random.uniform(0, 2))
        self.hosts.start_redis()
        self._kept_by = time.monotonic() + REFILL_S

    def wipe_store(self) -> None:
        self.say("the store is wiped")
        subprocess.run(["redis-cli", "-s", str(self.hosts.folder / "redis.sock"), "FLUSHALL"],
                       capture_output=True, timeout=20, check=False)
        self._kept_by = time.monotonic() + REFILL_S

    def wipe_store_and_kill_head(self) -> None:
        self.wipe_store()
        self.kill_head()

    def kill_node(self) -> None:
        host = self.random.randrange(2)
        if not self._on_both_hosts():
            return
        self.say(f"the node daemon of host{host} is killed")
        self.hosts.kill(f"node{host}")
        time.sleep(self.random.uniform(0, 1))
        self.hosts.start_node(host)

    def fill_disk(self) -> None:
        """Where the nodes keep the output of workers there is no room."""
        full = Path(self.hosts.folder, "disk", "full")
        if not full.parent.is_mount():
            return
        length = self.random.uniform(0.5, 4)
        self.say(f"the disk of the logs is full for {length:.1f} s")
        with contextlib.suppress(OSError), full.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        time.sleep(length)
        full.unlink()

    def jump(self) -> None:
        """The time of day jumps, everywhere in the cluster, and back."""
        jump_s, length = self.random.choice(JUMPS_S), self.random.uniform(0.5, 3)
        self.say(f"the time of day jumps by {jump_s} s for {length:.1f} s")
        self.clock.jump(jump_s)
        time.sleep(length)
        self._return_from(jump_s)

    def jump_and_kill_node(self) -> None:
        """A node daemon is started again at a time of day before its last start."""
        jump_s = self.random.choice([one for one in JUMPS_S if one < 0])
        self.say(f"the time of day jumps by {jump_s} s")
        self.clock.jump(jump_s)
        try:
            self.kill_node()
            time.sleep(self.random.uniform(0.5, 3))
        finally:
            self._return_from(jump_s)

    def _return_from(self, jump_s: float) -> None:
        self.clock.jump(0)
        if loses_keys(jump_s):
            self._kept_by = time.monotonic() + REFILL_S

    # ---- what users ask for ----

    def resize(self) -> None:
        size = self.random.randint(LEAST_WORKERS, MOST_WORKERS)
        self.say(f"resize to {size}")
        self._ask(lambda: self.run.resize(size))

    def drain(self) -> None:
        workers = [w for w in self.run.status()["workers"] if w["state"] == "running"]
        if len(workers) <= LEAST_WORKERS:
            return
        worker = self.random.choice(workers)["id"]
        self.say(f"drain of {worker}")
        self._ask(lambda: self.run.drain(worker))

    def _ask(self, request: Callable[[], Any]) -> None:
        """What a fault of its own may refuse: it is told, and the run goes on."""
        try:
            request()
        except (troupe.TroupeError, TimeoutError) as error:
            self.say(f"  refused: {error}")
