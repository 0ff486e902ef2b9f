"""The training side of the digits example, and the books that prove what it did.

Every worker appends to a journal of its own, ahead of each reduction what it contributes and after
each commit that it was committed. The driver joins the two: what counts is the contributions to
those (step, group epoch) pairs that were committed.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

TRAIN_SHARE = 0.8
FINISH_FILE = "finish"


class Journal:
    """An append-only file of JSON lines; each line is one write, so a kill leaves whole lines."""

    def __init__(self, folder: str, name: str) -> None:
        path = os.path.join(folder, f"{name}.jsonl")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **record: Any) -> None:
        """Appends one record."""
        os.write(self._fd, (json.dumps(record) + "\n").encode())

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)


@dataclass
class Books:
    """What the journals say."""

    steps: int = 0
    steps_lost: int = 0
    samples_missing: int = 0
    samples_doubled: int = 0
    lost_by_group_epoch: dict[int, int] = field(default_factory=dict)


def read_journals(folder: str) -> list[dict[str, Any]]:
    """All records of all workers."""
    records = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            records.append({**json.loads(line), "journal": path.name})
    return records


def balance(records: list[dict[str, Any]], samples: int) -> Books:
    """Joins contributions and commits.

    A step is lost when it was committed in one group epoch and worked on again in a later one. A
    sample is missing when no committed step of a finished data epoch counts it, and doubled when
    more than one does. A commit is void if the step was done again and nobody who committed it
    lived into a later group epoch: a step counts as decided once a survivor holds its result. The
    shares of its ``lost_ranks`` are not part of a step.
    """
    newest: dict[str, int] = {}  # By journal: the last group epoch it took part in.
    for r in records:
        if "journal" in r:
            newest[r["journal"]] = max(newest.get(r["journal"], 0), r["group_epoch"])
    witnessed: dict[tuple[int, int], bool] = collections.defaultdict(bool)
    shares: dict[tuple[int, int], list[dict[str, Any]]] = collections.defaultdict(list)
    lost: dict[tuple[int, int], set[int]] = collections.defaultdict(set)
    committed: dict[int, set[int]] = collections.defaultdict(set)
    worked: dict[int, set[int]] = collections.defaultdict(set)
    for r in records:
        if r["kind"] == "share":
            shares[r["step"], r["group_epoch"]].append(r)
            worked[r["step"]].add(r["group_epoch"])
        else:
            committed[r["step"]].add(r["group_epoch"])
            lost[r["step"], r["group_epoch"]].update(r.get("lost_ranks", ()))
            lived_on = "journal" not in r or newest[r["journal"]] > r["group_epoch"]
            witnessed[r["step"], r["group_epoch"]] |= lived_on
    for step, group_epochs in committed.items():
        last = max(worked[step] | group_epochs)
        group_epochs -= {e for e in group_epochs if e < last and not witnessed[step, e]}
    books = Books(steps=len(committed))
    counted: dict[int, collections.Counter] = collections.defaultdict(collections.Counter)
    for step, group_epochs in committed.items():
        if not group_epochs:
            continue
        first = min(group_epochs)
        redone = [e for e in worked[step] | group_epochs if e > first]
        if redone:
            books.steps_lost += 1
            later = min(redone)
            books.lost_by_group_epoch[later] = books.lost_by_group_epoch.get(later, 0) + 1
        for group_epoch in group_epochs:
            for share in shares[step, group_epoch]:
                if share.get("rank") not in lost[step, group_epoch]:
                    counted[share["data_epoch"]].update(share["counted"])
    for per_sample in counted.values():
        books.samples_missing += samples - len(per_sample)
        books.samples_doubled += sum(per_sample.values()) - len(per_sample)
    return books


def load_data() -> tuple[Any, Any, Any, Any]:
    """Train images and labels, test images and labels: float32 [n, 1, 8, 8] and int64 [n]."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    cut = int(TRAIN_SHARE * len(labels))
    return images[order[:cut]], labels[order[:cut]], images[order[cut:]], labels[order[cut:]]


def make_model() -> Any:
    """A small convolutional network for 8 x 8 images and ten classes."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
    )


def hash_of(model: Any) -> str:
    """The SHA-256 of a model's weights."""
    weights = (p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(b"".join(weights)).hexdigest()


def train(folder: str, epochs: int, max_epochs: int, batch_size: int, lr: float,
          commits: Optional[str] = None) -> dict[str, Any]:
    """Trains until ``epochs`` data epochs are done and the driver has left its finish file; returns
    test accuracy, steps, data epochs, and what ``hash_of`` says of the model.

    Args:
        folder: where journals go and the finish file appears.
        epochs: data epochs at least; ``max_epochs`` at most.
        batch_size: samples per worker and step; ``lr`` is the learning rate.
        commits: a folder for durable commits, from which it goes on if all workers die at once.
    """
    import torch
    from torch.nn.functional import cross_entropy

    import troupe
    import troupe.torch as hvd

    hvd.init()
    train_x, train_y, test_x, test_y = load_data()
    torch.manual_seed(1)
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=lr))
    state = hvd.elastic.TorchState(
        model, optimizer, sampler=hvd.elastic.ElasticSampler(train_y, seed=2), durable=commits,
        epoch=0, step=0
    )
    journal = Journal(folder, f"worker-{os.getpid()}")

    def train_step(state: Any, indices: Any) -> None:
        group_epoch, step = hvd.epoch(), state.step
        journal.write(kind="share", data_epoch=state.epoch, step=step, group_epoch=group_epoch,
                      rank=hvd.rank(), counted=list(indices) if indices.counted else [])
        optimizer.zero_grad()
        loss = cross_entropy(model(train_x[indices]), train_y[indices])
        loss.backward()
        optimizer.step()
        state.step += 1
        version = state.version
        try:
            state.commit()
        finally:  # members may come or go at this boundary, but the commit itself is done
            if state.version > version:
                journal.write(kind="commit", data_epoch=state.epoch, step=step,
                              group_epoch=group_epoch, lost_ranks=indices.lost_ranks)
                if hvd.rank() == 0:
                    troupe.report({"epoch": state.epoch, "step": step, "loss": loss.item(),
                                   "size": hvd.size(), "left": state.sampler.remaining})

    def finished(state: Any) -> bool:
        if state.epoch < epochs:
            return False
        there = torch.tensor([float(os.path.exists(os.path.join(folder, FINISH_FILE)))])
        return bool(hvd.allreduce(there, op=hvd.Max) > 0) or state.epoch >= max_epochs

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while True:  # called again after a change of members: first the rest of the data epoch
            for indices in hvd.elastic.batches(state.sampler, batch_size):
                train_step(state, indices)
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            if finished(state):
                return

    loop(state)
    journal.close()
    with torch.no_grad():
        correct = (model(test_x).argmax(1) == test_y).float().mean()
    return {"accuracy": float(correct), "steps": state.step, "epochs": state.epoch,
            "weights": hash_of(model)}
