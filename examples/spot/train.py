"""The training of the drill: digits, until its time is over, with books that prove what it did.

Started by ``troupe up``. It reads ``DRILL_FOLDER`` and ``DRILL_SECONDS``, and writes losses and
results there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import troupe

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from digits_training import FINISH_FILE, balance, load_data, read_journals, train

EPOCHS, MAX_EPOCHS, BATCH_SIZE, LEARNING_RATE = 8, 100_000, 16, 2e-3
WORKERS_MAX = 4
DEADLINE_S = 3600.0


def main() -> None:
    """Trains on whatever nodes there are; nobody is waited for but the first."""
    folder = Path(os.environ["DRILL_FOLDER"])
    journals = folder / "journals"
    journals.mkdir()
    losses = (folder / "losses.jsonl").open("w", buffering=1)

    def on_event(event: dict[str, Any]) -> None:
        if event["kind"] == "report":
            point = {"at": time.time(), "loss": event["value"]["loss"]}
            losses.write(json.dumps(point) + "\n")

    timer = threading.Timer(float(os.environ["DRILL_SECONDS"]), (journals / FINISH_FILE).touch)
    timer.start()
    with troupe.Executor(1, max_workers=WORKERS_MAX, progress="off",
                         preload=["torch", "troupe.torch"]) as executor:
        handle = executor.submit(
            train, (str(journals), EPOCHS, MAX_EPOCHS, BATCH_SIZE, LEARNING_RATE,
                    str(folder / "commits")), on_event=on_event)
        results = handle.result(timeout=DEADLINE_S)
        epochs = handle.epochs()
    timer.cancel()
    losses.close()
    books = balance(read_journals(str(journals)), len(load_data()[1]))
    (folder / "results.json").write_text(json.dumps({
        "accuracy": results[0]["accuracy"], "steps": results[0]["steps"],
        "data_epochs": results[0]["epochs"],
        "same_weights": len({r["weights"] for r in results}) == 1,
        "membership_epochs": len(epochs), "steps_lost": books.steps_lost,
        "samples_missing": books.samples_missing, "samples_doubled": books.samples_doubled}))


if __name__ == "__main__":
    main()
