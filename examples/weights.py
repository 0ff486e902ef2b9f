"""Trainers and inference actors: weights flow from one elastic group of actors into another.

    python examples/weights.py --steps 200 --kill-every 1.0

Trainers average their gradients in the collective group "train". The oldest of them is also in the
group "weights", with all inference actors, and broadcasts its weights there every few steps.
Members of both are killed meanwhile: the groups go on without them and take them back, and nobody
who asks an inference actor gets weights that are torn or go back.
"""
from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from typing import Any

import numpy as np

import troupe
from troupe import collective

NUMBERS = 100_000
PUSH_EVERY = 5


@troupe.remote
class Trainer:
    """Takes part in one training; state comes from the oldest member."""

    def train(self, steps: int, most: int) -> dict[str, float]:
        me = troupe.current().actor_id
        group = collective.init_collective_group(most, group_name="train", elastic=True)
        state = np.zeros(1 + NUMBERS)  # The step, then the weights.
        pushed, fresh = 0, True
        while state[0] < steps:
            try:
                if fresh:
                    group.wait()
                    # The oldest has been here longest: what it has counts. All of it comes with
                    # one broadcast and replaces ours when it is whole: if the oldest dies within,
                    # we may be the oldest next, and our own must not be half of its.
                    given = state.copy()
                    group.broadcast(given, 0)
                    state, fresh = given, False
                    continue
                gradient = np.full(NUMBERS, 1.0)
                group.allreduce(gradient, collective.ReduceOp.AVERAGE)
                state[1:] += gradient
                state[0] += 1
                if group.rank == 0 and state[0] % PUSH_EVERY == 0:
                    pushed += push(state[1:])
                time.sleep(0.005)
            except troupe.CollectiveGroupChangedError:
                fresh = True
        group.leave()
        collective.destroy_collective_group("weights")
        return {"actor": me, "step": float(state[0]), "weight": float(state[1]), "pushed": pushed}

    def pid(self) -> int:
        return os.getpid()


def push(weights: np.ndarray) -> int:
    """Broadcasts to whoever follows; 1 if they have it."""
    group = collective.init_collective_group(16, group_name="weights", elastic=True) \
        if not collective.is_group_initialized("weights") \
        else collective.get_group_handle("weights")
    for _ in range(3):
        try:
            view = group.wait(2.0)
            group.broadcast(weights.copy(), view["rank"], 2.0)
            return 1
        except troupe.CollectiveGroupError:
            continue  # Somebody came or went, or was busy: once more, then with the next push.
    return 0


@troupe.remote
class Server:
    """Answers with the weights that it has got last."""

    def __init__(self, trainers: list[Any]) -> None:
        self._trainers = trainers
        self._weights = np.zeros(NUMBERS)
        self._lock = threading.Lock()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        group = collective.init_collective_group(16, group_name="weights", elastic=True)
        while True:
            try:
                group.wait(1.0)
                roots = [rank for trainer in self._trainers
                         if (rank := group.rank_of(trainer)) is not None]
                if not roots:
                    time.sleep(0.02)
                    continue
                incoming = np.empty(NUMBERS)
                group.broadcast(incoming, max(roots), 5.0)  # Who has come last is the oldest now.
            except (troupe.CollectiveGroupError, troupe.CollectiveMismatchError):
                continue
            with self._lock:
                if incoming[0] >= self._weights[0]:
                    self._weights = incoming

    def predict(self) -> tuple[int, float, bool]:
        """Who answers, the first weight, and whether all are of the same step."""
        with self._lock:
            whole = bool((self._weights == self._weights[0]).all())
            return os.getpid(), float(self._weights[0]), whole

    def pid(self) -> int:
        return os.getpid()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainers", type=int, default=3)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--kill-every", type=float, default=1.0, help="seconds; 0: never")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    options = {"num_cpus": 0.1, "max_restarts": -1}
    trainers = [Trainer.options(max_concurrency=2, **options).remote()
                for _ in range(arguments.trainers)]
    servers = [Server.options(max_concurrency=4, **options).remote(trainers)
               for _ in range(arguments.servers)]
    running = {t.train.remote(arguments.steps, arguments.trainers): t for t in trainers}
    random.seed(arguments.seed)
    results, kills, seen = [], 0, [(0, 0.0)] * len(servers)
    kill_at = time.monotonic() + arguments.kill_every
    while running:
        ready, _ = troupe.wait(list(running), timeout=0.05)
        for ref in ready:
            trainer = running.pop(ref)
            try:
                results.append(troupe.get(ref))
            except troupe.ActorError:  # It was killed: it comes back, and joins again.
                running[trainer.train.remote(arguments.steps, arguments.trainers)] = trainer
        for i, server in enumerate(servers):
            try:
                pid, weight, whole = troupe.get(server.predict.remote(), timeout=5)
            except troupe.ActorError:
                continue  # On its way back.
            assert whole, "torn weights"
            # Another process knows nothing yet.
            assert pid != seen[i][0] or weight >= seen[i][1], "weights went back"
            seen[i] = (pid, weight)
        if arguments.kill_every and time.monotonic() > kill_at and not results:
            victim = random.choice([*trainers[1:], *servers, trainers[0]])
            try:
                os.kill(troupe.get(victim.pid.remote(), timeout=0.2), signal.SIGKILL)
                kills += 1
            except (troupe.ActorError, ProcessLookupError):
                pass  # It computes, or is on its way back.
            kill_at = time.monotonic() + arguments.kill_every
    weights = sorted({r["weight"] for r in results})
    print(f"{arguments.steps} steps, {kills} killed, weights {weights}, "
          f"{sum(r['pushed'] for r in results)} pushes, served {[weight for _, weight in seen]}")
    assert {r["step"] for r in results} == {float(arguments.steps)}
    assert {r["weight"] for r in results} == {float(arguments.steps)}


if __name__ == "__main__":
    main()
