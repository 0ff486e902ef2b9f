"""Actors that train as members of a group, for tests."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from typing import Any, Optional

import numpy as np

import troupe
from troupe import collective

SAMPLES, BATCH = 240, 4


def train(
    data_epochs: int, pause_s: float = 0.0, durable: Optional[str] = None, served: str = "",
    until_there: str = "", group: Optional[str] = None, late_s: float = 0.0,
) -> dict[str, Any]:
    """Trains; the state counts for each sample how often the model has seen it.

    Args:
        data_epochs: of SAMPLES samples in steps of BATCH for each member.
        pause_s: slept in every step.
        durable: folder of commits.
        served: group of actors that get the weights after each step.
        until_there: a file that the last step waits for.
        group: to train in; None: that of the group of actors.
        late_s: slept before it joins, in a life after the first.
    """
    if troupe.current().was_restarted:
        time.sleep(late_s)
    import torch

    import troupe.torch as hvd

    hvd.init(group=group)
    torch.manual_seed(3 + os.getpid())  # Only what comes from rank 0 or the disk is alike.
    model = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    for index, parameter in enumerate(model.parameters()):
        with torch.no_grad():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape)
                            .mul(3 + index).sin())
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    state: Any = hvd.elastic.TorchState(
        model, optimizer, sampler=hvd.elastic.ElasticSampler(range(SAMPLES), seed=5),
        durable=durable, epoch=0, step=0, seen=[0] * SAMPLES)
    data = torch.linspace(-1, 1, SAMPLES * 6).reshape(SAMPLES, 6).sin()
    begun: list[int] = []

    @hvd.elastic.run
    def loop(state: Any) -> None:
        begun.append(state.step)
        while state.epoch < data_epochs:
            for indices in hvd.elastic.batches(state.sampler, BATCH):
                optimizer.zero_grad()
                model(data[indices]).pow(2).mean().backward()
                optimizer.step()
                mine = torch.zeros(SAMPLES, dtype=torch.int64)
                mine[indices] += 1 if indices.counted else 0
                state.seen = (torch.tensor(state.seen) + hvd.allreduce(mine, op=hvd.Sum)).tolist()
                state.step += 1
                last = state.epoch == data_epochs - 1 and state.sampler.remaining == 0
                while last and until_there and not os.path.exists(until_there):
                    time.sleep(0.01)
                state.commit()
                if served and hvd.rank() == 0:
                    push(served, [p.detach().numpy() for p in model.parameters()])
                time.sleep(pause_s)
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
        state.commit()

    loop(state)
    blob = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return {"step": state.step, "begun": begun, "size": hvd.size(), "rank": hvd.rank(),
            "seen": sorted(set(state.seen)), "hash": hashlib.sha256(blob).hexdigest()}


def push(name: str, weights: list[np.ndarray]) -> None:
    """Broadcasts the first weights to the group of this name, if somebody is there."""
    group = collective.get_group_handle(name) if collective.is_group_initialized(name) \
        else collective.init_collective_group(8, group_name=name, elastic=True)
    try:
        view = group.wait(2.0)
        group.broadcast(weights[0].copy(), view["rank"], 2.0)
    except troupe.CollectiveGroupError:
        pass  # Somebody came or went: with the next step.


@troupe.remote(num_cpus=0.1)
class Learner:
    """A member of a group that trains."""

    def pid(self) -> int:
        return os.getpid()

    def train(self, data_epochs: int, **options: Any) -> dict[str, Any]:
        return train(data_epochs, **options)

    def bind(
        self, group: Optional[str] = None, elastic_timeout: Optional[float] = None
    ) -> tuple[int, int]:
        """Rank and size."""
        import troupe.torch as hvd

        hvd.init(group=group, elastic_timeout=elastic_timeout)
        return hvd.rank(), hvd.size()

    def sum(self, value: float) -> float:
        """Over all members, in a call of its own."""
        import torch

        import troupe.torch as hvd

        return float(hvd.allreduce(torch.tensor([value]), op=hvd.Sum))

    def below(self) -> str:
        """What an actor says of a cluster that this actor starts."""
        program = "\n".join((
            "import troupe", "@troupe.remote", "class Other:", "    def size(self):",
            "        import troupe.torch as hvd", "        hvd.init()", "        return hvd.size()",
            "troupe.init(num_cpus=1)",
            "print('size', troupe.get(Other.remote().size.remote(), timeout=60))"))
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                              timeout=90, check=True).stdout

    def unbind(self) -> None:
        import troupe.torch as hvd

        hvd.shutdown()

    def plain_sum(self, name: str) -> float:
        """With the functions of troupe.collective."""
        data = np.ones(1)
        collective.allreduce(data, name)
        return float(data[0])

    def environment(self) -> dict[str, str]:
        return {key: os.environ.get(key, "") for key in ("RANK", "WORLD_SIZE", "TROUPE_EPOCH")}


@troupe.remote(num_cpus=0.1)
class Served:
    """Has the weights that it got last."""

    def follow(self, name: str, trainers: list[Any], times: int) -> int:
        """Returns when it has got weights so often."""
        group = collective.init_collective_group(8, group_name=name, elastic=True)
        got = 0
        while got < times:
            try:
                group.wait(1.0)
                roots = [rank for t in trainers if (rank := group.rank_of(t)) is not None]
                if roots:
                    group.broadcast(np.empty((64, 6), dtype=np.float32), max(roots), 5.0)
                    got += 1
            except (troupe.CollectiveGroupError, troupe.CollectiveMismatchError):
                continue
        group.leave()
        return got
