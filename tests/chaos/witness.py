"""The training of the chaos runs: every sample is witnessed in the sums, every step in a journal.

The model trains on data that is computed from the sample's number. Beside it each step sums, over
all ranks, how often each sample was in it; the sums are part of the state, so that what the group
holds can be compared with what it should hold whatever has happened to its members.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

SAMPLES, BATCH = 480, 8
STOP_FILE = "stop"
STEP_S = 0.004  # So that a fault meets steps of some length, and the books stay small.


def train(folder: str, sums: bool) -> dict[str, Any]:
    """Trains until the stop file is there and a data epoch ends.

    With ``sums`` each step has collectives of its own beside the reduction of gradients; without,
    a step that a death interrupts can be finished from kept gradients.
    """
    import torch

    import troupe
    import troupe.torch as hvd

    from digits_training import Journal

    hvd.init()
    torch.manual_seed(7)
    # Gradients of several chunks of shared memory, and of more than one message between hosts.
    model = torch.nn.Sequential(torch.nn.Linear(6, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 8))
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.001))
    state: Any = hvd.elastic.TorchState(
        model, optimizer, sampler=hvd.elastic.ElasticSampler(range(SAMPLES), seed=5),
        epoch=0, step=0, seen=torch.zeros(SAMPLES, dtype=torch.int64), joiners_follow=not sums)
    data = torch.linspace(-1, 1, SAMPLES * 6).reshape(SAMPLES, 6).sin()
    journal = Journal(folder, f"worker-{os.getpid()}-{time.time_ns()}")

    def one_step(indices: Any) -> None:
        at = {"data_epoch": state.epoch, "step": state.step, "group_epoch": hvd.epoch()}
        journal.write(kind="share", rank=hvd.rank(), **at,
                      counted=list(indices) if indices.counted else [])
        time.sleep(STEP_S)
        if sums:  # Nobody waits for the others in it, so that some are ahead.
            assert hvd.broadcast_object(state.step, 0, name="step") == state.step
        optimizer.zero_grad()
        model(data[indices]).pow(2).mean().backward()
        optimizer.step()
        if sums:
            mine = torch.zeros(SAMPLES, dtype=torch.int64)
            if indices.counted:
                mine.index_add_(0, torch.tensor(list(indices)),
                                torch.ones(len(indices), dtype=torch.int64))
            state.seen = state.seen + hvd.allreduce(mine, op=hvd.Sum, name="seen")
        state.step += 1
        version = state.version
        try:
            state.commit()
        finally:
            if state.version > version:
                journal.write(kind="commit", **at, lost_ranks=indices.lost_ranks)
        if hvd.rank() == 0 and state.step % 50 == 0:
            troupe.report({"step": state.step, "size": hvd.size()})

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while True:
            for indices in hvd.elastic.batches(state.sampler, BATCH):
                one_step(indices)
            over = torch.tensor([int(Path(folder, STOP_FILE).exists())])
            stop = int(hvd.allreduce(over, op=hvd.Max, name="stop").item())
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            if stop:
                return

    loop(state)
    blob = b"".join(t.numpy().tobytes() for t in model.state_dict().values())
    return {"step": state.step, "epoch": state.epoch, "hash": hashlib.sha256(blob).hexdigest(),
            "seen": sorted(set(state.seen.tolist()))}
