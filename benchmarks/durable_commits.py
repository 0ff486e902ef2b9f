"""What a durable commit costs the training, beside a commit to memory and a plain torch.save.

One process trains the parameters of ResNet-50 with momentum (204 MB of state) and after each step
commits three ways: to memory, with ``durable=``, and by torch.save with fsync and rename. Times in
milliseconds are those that training stands still; bytes/s are those of the writer, fsync included.
One JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _trainee
import torch

import troupe.torch as hvd


def timed(call: Callable[[], None]) -> float:
    """How long the call takes, in milliseconds."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def torch_save(path: Path, model: Any, optimizer: Any) -> None:
    """What one writes by hand: another name, fsync, rename, fsync of the directory."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def show(figure: str, trials: list[float], **more: Any) -> None:
    """Prints a figure."""
    print(json.dumps({"bench": figure, "trials": len(trials), "unit": "ms",
                      "p50": round(statistics.median(trials), 2), "max": round(max(trials), 2),
                      **more}), flush=True)


def main() -> None:
    """Three blocks of steps that take turns, so that a busy disk or machine is everybody's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="of each block")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="of durable commits")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="a folder on disk")
    options = parser.parse_args()
    hvd.init()
    model, loss_of = _trainee.make_model("resnet50")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

    step()
    size = sum(t.numel() * t.element_size() for t in model.parameters()) * 2
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        folder = Path(name)
        durable = hvd.elastic.DurableCommits(folder / "commits", every=options.every)
        states = {"commit_to_memory": hvd.elastic.TorchState(model, optimizer),
                  "commit_durable": hvd.elastic.TorchState(model, optimizer, durable=durable)}
        calls: dict[str, Callable[[], None]] = {k: s.commit for k, s in states.items()}
        calls["torch_save"] = lambda: torch_save(folder / "plain.pt", model, optimizer)
        trials: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(options.rounds + 1):  # the first makes buffers and files
            for figure, call in calls.items():
                for _ in range(options.steps if turn else 3):
                    step()
                    took = timed(call)
                    if turn:
                        trials[figure].append(took)
                if figure == "commit_durable":
                    states[figure].settle()
        stats = states["commit_durable"]._commits.stats()
    show("commit_to_memory", trials["commit_to_memory"], bytes=size)
    show("commit_durable", trials["commit_durable"], bytes=size, every=options.every,
         written=stats["written"], superseded=stats["superseded"],
         gb_per_s=round(stats["bytes"] / stats["writing_s"] / 1e9, 3))
    show("torch_save", trials["torch_save"], bytes=size,
         gb_per_s=round(size / statistics.median(trials["torch_save"]) / 1e6, 3))


if __name__ == "__main__":
    main()
