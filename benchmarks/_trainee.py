"""The training that the recovery benchmark kills: the same model on Troupe and on its peers.

Every rank appends a line of JSON to a file of its own for each step it has completed, so that what
a killed rank had done is known to the last step. Run as a script it is the trainee of torchelastic
or Horovod: ``_trainee.py KIND FOLDER MODEL``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SNAPSHOT_EVERY = 10  # steps between torchelastic's snapshots; Troupe commits every step


class Log:
    """Appends events of one process to ``FOLDER/PID.log``, one write each."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, f"{os.getpid()}.log")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def step(self, step: int, rank: int, size: int, generation: int = 0) -> None:
        """Says that this rank has completed a step."""
        event = {"t": time.monotonic(), "pid": os.getpid(), "step": step, "rank": rank,
                 "size": size, "generation": generation}
        os.write(self._fd, (json.dumps(event) + "\n").encode())


def read_log(folder: str) -> list[dict[str, Any]]:
    """All events of all processes, by time; a half-written last line is left out."""
    events = []
    for path in Path(folder).glob("*.log"):
        for line in path.read_text().splitlines():
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # its process was killed in this write, or it is being written
    return sorted(events, key=lambda event: event["t"])


def resnet50_shapes() -> list[tuple[int, ...]]:
    """Shapes of the 161 parameter tensors of ResNet-50: 25,557,032 values."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for out, inside, kernel in ((width, channels, 1), (width, width, 3),
                                        (4 * width, width, 1)):
                shapes += [(out, inside, kernel, kernel), (out,), (out,)]
            if block == 0:
                shapes += [(4 * width, channels, 1, 1), (4 * width,), (4 * width,)]
            channels = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def make_model(name: str) -> tuple[Any, Any]:
    """The model and a function that gives its loss: "mlp", or "resnet50" for its parameters alone.

    The latter's forward pass only touches each tensor, so a step is the reduction of 102 MB of
    gradients and the update.
    """
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if name == "mlp":
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(),
                                    torch.nn.Linear(256, 256), torch.nn.ReLU(),
                                    torch.nn.Linear(256, 10))
        x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
        return model, lambda net: torch.nn.functional.cross_entropy(net(x), y)

    class Shapes(torch.nn.Module):
        """Parameters without a network."""

        def __init__(self) -> None:
            super().__init__()
            self.values = torch.nn.ParameterList(
                [torch.nn.Parameter(torch.zeros(shape)) for shape in resnet50_shapes()])

        def forward(self) -> Any:
            """A number that depends on every parameter."""
            return sum(value.sum() for value in self.values) * 1e-6

    return Shapes(), lambda net: net()


def train_on_troupe(folder: str, model_name: str, steps: int) -> int:
    """The body of ``executor.run``: trains until the file ``FOLDER/stop`` is there."""
    import torch

    import troupe.torch as hvd

    hvd.init()
    model, loss_of = make_model(model_name)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    state: Any = hvd.elastic.TorchState(model, optimizer, step=0, stop=0)
    log = Log(folder)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while state.step < steps and not state.stop:
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            state.step += 1
            if state.step % 20 == 0:  # in step with the others, like everything in the state
                state.stop = hvd.broadcast_object(os.path.exists(f"{folder}/stop"), 0)
            state.commit()
            log.step(state.step, hvd.rank(), hvd.size())

    loop(state)
    return int(state.step)


def train_on_torchelastic(folder: str, model_name: str) -> None:
    """The body of a torchelastic worker: DDP on Gloo, rank 0 saves a snapshot now and then."""
    import torch
    import torch.distributed as dist

    log = Log(folder)
    dist.init_process_group("gloo")
    model, loss_of = make_model(model_name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    path, step = os.path.join(folder, "snapshot.pt"), 0
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    network = torch.nn.parallel.DistributedDataParallel(model)
    generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    while True:
        optimizer.zero_grad()
        loss_of(network).backward()
        optimizer.step()
        step += 1
        log.step(step, dist.get_rank(), dist.get_world_size(), generation)
        if dist.get_rank() == 0 and step % SNAPSHOT_EVERY == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                        "step": step}, path + ".new")
            os.replace(path + ".new", path)


def train_on_torch_distributed(folder: str, model_name: str, steps: int) -> int:
    """The same script on the backend "troupe", until ``FOLDER/stop`` is there."""
    import torch
    import torch.distributed as dist

    import troupe

    log = Log(folder)
    dist.init_process_group("troupe")
    model, loss_of = make_model(model_name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    saved = troupe.checkpoint.load({"step": 0})
    step = saved["step"]
    if step:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    network = torch.nn.parallel.DistributedDataParallel(model)
    stop = torch.zeros(1)
    while step < steps and not stop:
        optimizer.zero_grad()
        loss_of(network).backward()
        optimizer.step()
        step += 1
        log.step(step, dist.get_rank(), dist.get_world_size())
        if step % SNAPSHOT_EVERY == 0:
            stop.fill_(float(os.path.exists(f"{folder}/stop")))
            dist.broadcast(stop, 0)
            troupe.checkpoint.save({"model": model.state_dict(), "step": step,
                                    "optimizer": optimizer.state_dict()})
    dist.destroy_process_group()
    return int(step)


def train_on_horovod(folder: str, model_name: str) -> None:
    """The body of a worker of elastic Horovod, which commits as often as torchelastic saves."""
    import horovod.torch as hvd
    import torch

    log = Log(folder)
    hvd.init()
    model, loss_of = make_model(model_name)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        named_parameters=model.named_parameters())

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while True:
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            state.step += 1
            log.step(state.step, hvd.rank(), hvd.size())
            if state.step % SNAPSHOT_EVERY == 0:
                state.commit()

    loop(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    {"torchelastic": train_on_torchelastic, "horovod": train_on_horovod}[kind](*arguments)
