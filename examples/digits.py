"""Handwritten digits on a group that loses, gains and sheds workers while it trains.

    python examples/digits.py

Four workers start. In the middle of a data epoch one is killed with SIGKILL and replaced; the group
grows to five, shrinks to three, and then its oldest worker, rank 0, is killed. Nothing is started
over: the last line says, as JSON, how accurate the model is, how long each change paused training,
and that no committed step and no sample was lost or counted twice.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import troupe
from troupe.executor.display import EPOCH_COLUMNS, epoch_row, text_table

from digits_training import FINISH_FILE, Books, balance, load_data, read_journals, train

WORKERS, GROWN, SHRUNK, MAX_WORKERS = 4, 5, 3, 6
EPOCHS, MAX_EPOCHS, BATCH_SIZE, LEARNING_RATE = 24, 2000, 16, 2e-3
SETTLED_STEPS = 5
DEADLINE_S = 300.0


@dataclass
class Act:
    """One scene: when the group has ``size`` workers and has settled, something happens to it."""

    size: int
    say: str
    do: Callable[[troupe.RunHandle], None]


def kill(rank: int) -> Callable[[troupe.RunHandle], None]:
    """Kills the worker of that rank, without notice."""

    def do(handle: troupe.RunHandle) -> None:
        (victim,) = [w for w in handle.workers() if w["rank"] == rank]
        os.kill(victim["pid"], signal.SIGKILL)

    return do


ACTS = [
    Act(WORKERS, "SIGKILL rank 1", kill(1)),
    Act(WORKERS, f"grow to {GROWN}", lambda handle: handle.resize(GROWN)),
    Act(GROWN, f"shrink to {SHRUNK}", lambda handle: handle.resize(SHRUNK)),
    Act(SHRUNK, "SIGKILL rank 0", kill(0)),
]


class Director:
    """Plays the acts, each when the events say that its time has come."""

    def __init__(self, handle: troupe.RunHandle, folder: str, samples: int) -> None:
        self._handle = handle
        self._folder = folder
        self._acts = list(ACTS)
        self._samples = samples
        self._size = 0
        self._settled = 0

    def on_event(self, event: dict[str, Any]) -> None:
        """Takes an event in; shows it."""
        kind = event["kind"]
        if kind == "epoch":
            self._size, self._settled = event["size"], 0
            members = " ".join(f"{m['rank']}:{m['pid']}" for m in event["members"])
            say(f"epoch {event['epoch']} ({event['reason']}): {event['old_size']} -> "
                f"{event['size']} workers [{members}], paused {event['pause_ms']:.1f} ms")
        elif kind == "parked":
            say(f"waiting: {event['reason']}")
        elif kind == "report":
            self._on_step(event["value"])

    def _on_step(self, step: dict[str, Any]) -> None:
        self._settled += 1
        if step["step"] % 10 == 0:
            say(f"data epoch {step['epoch']} step {step['step']} loss {step['loss']:.4f} "
                f"on {step['size']} workers")
        in_the_middle = self._samples / 3 < step["left"] < self._samples
        if self._settled < SETTLED_STEPS or not in_the_middle:
            return
        if not self._acts:
            self._finish()
        elif self._size == self._acts[0].size:
            act = self._acts.pop(0)
            self._size = 0  # the next act waits for what this one does to the group
            say(f">>> {act.say} in the middle of data epoch {step['epoch']}")
            act.do(self._handle)

    def _finish(self) -> None:
        path = os.path.join(self._folder, FINISH_FILE)
        if self._size == SHRUNK and not os.path.exists(path):
            say(">>> all acts played; training may end")
            with open(path, "w", encoding="utf-8"):
                pass


_begin_s = time.monotonic()


def say(line: str) -> None:
    """Prints a line with the time since the start."""
    print(f"{time.monotonic() - _begin_s:7.2f} s  {line}", flush=True)


def play(executor: troupe.Executor, folder: str) -> dict[str, Any]:
    """Trains while the acts are played; returns results, epochs and the books."""
    samples = len(load_data()[1])
    events: queue.Queue[dict[str, Any]] = queue.Queue()
    handle = executor.submit(
        train, (folder, EPOCHS, MAX_EPOCHS, BATCH_SIZE, LEARNING_RATE), on_event=events.put
    )
    director = Director(handle, folder, samples)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        event = _next(events, deadline)
        if event is None:
            handle.cancel()
            raise TimeoutError(f"the play has not ended within {DEADLINE_S:g} s")
        director.on_event(event)
        if event["kind"] == "done":
            break
    return {
        "results": handle.result(),
        "epochs": handle.epochs(),
        "recovery": handle.recovery(),
        "books": balance(read_journals(folder), samples),
    }


def _next(events: queue.Queue[dict[str, Any]], deadline: float) -> Optional[dict[str, Any]]:
    try:
        return events.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        return None


def epochs_table(epochs: list[dict[str, Any]], books: Books) -> str:
    """The table of epochs, with the steps that each one had to do again."""
    rows = [
        [*epoch_row(epoch), str(books.lost_by_group_epoch.get(epoch["epoch"], 0))]
        for epoch in epochs
    ]
    return text_table([*EPOCH_COLUMNS, "steps lost"], rows)


def summary(outcome: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the last line."""
    books: Books = outcome["books"]
    return {
        "accuracy": round(min(r["accuracy"] for r in outcome["results"]), 4),
        "workers_agree": len({r["weights"] for r in outcome["results"]}) == 1,
        "epochs": [
            {"reason": e["reason"], "size": e["size"], "pause_ms": round(e["pause_ms"], 2)}
            for e in outcome["epochs"]
        ],
        **outcome["recovery"],
        "steps_lost": books.steps_lost,
        "samples_missing": books.samples_missing,
        "samples_doubled": books.samples_doubled,
    }


def make_executor() -> troupe.Executor:
    """Four to six workers of a quarter core each, so that they fit on a laptop."""
    return troupe.Executor(
        min_workers=2, max_workers=MAX_WORKERS, workers=WORKERS, cpus_per_worker=0.25,
        preload=["torch", "sklearn.datasets", "troupe.torch"], progress="off",
    )


def main() -> int:
    """Plays, prints the table and the summary."""
    with tempfile.TemporaryDirectory(prefix="troupe-digits-") as folder:
        with make_executor() as executor:
            outcome = play(executor, folder)
    print()
    print(epochs_table(outcome["epochs"], outcome["books"]))
    last = outcome["results"][0]
    print(f"\n{last['steps']} steps in {last['epochs']} data epochs")
    print(json.dumps(summary(outcome)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
