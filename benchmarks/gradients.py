"""Backward and reduction of ResNet-50-shaped gradients: Troupe beside DDP on Gloo, in one run.

161 tensors, 25.6 million float32. The backward pass only hands out ready gradients, so a step is
what autograd and the reduction cost. All ways run in the same processes in turns, one torch thread
each; a step begins with a barrier and the slowest rank counts. "autograd" reduces nothing;
"limit" is that and one sum of the same bytes, in place, in memory that the processes share.
"ddp_troupe" is DDP on the backend "troupe", "troupe_auto" has chosen the size of its buckets
beforehand. "elastic_step" is a whole step of SGD with momentum: with commits held in place, with
copied commits, and with none.
One JSON line a figure; times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import _trainee
import torch
import torch.distributed as dist

Step = Callable[[], None]
Times = dict[str, list[float]]


class Ready(torch.autograd.Function):
    """Passes its input on; the gradient of ``parameter`` is there already."""

    @staticmethod
    def forward(ctx: Any, x: Any, parameter: Any, gradient: Any) -> Any:
        ctx.gradient = gradient
        return x.clone()

    @staticmethod
    def backward(ctx: Any, x: Any) -> Any:
        return x, ctx.gradient, None


class Model(torch.nn.Module):
    """Parameters with ready gradients, and no layers."""

    def __init__(self, gradients: list[torch.Tensor]) -> None:
        super().__init__()
        self.gradients = gradients
        self.values = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros_like(g)) for g in gradients)

    def forward(self, x: Any) -> Any:
        for parameter, gradient in zip(self.values, self.gradients, strict=True):
            x = Ready.apply(x, parameter, gradient)
        return x


def backward(net: Any, model: Any) -> None:
    """A forward and a backward pass; the gradients before it are dropped."""
    for parameter in model.values:
        parameter.grad = None
    net(torch.ones(1, requires_grad=True)).sum().backward()


def shared_sum(folder: str, nbytes: int, rank: int, size: int, barrier: Step) -> Step:
    """A sum, in place, of as many bytes of each rank in memory that all map."""
    with open(f"{folder}/shared-{rank}", "wb") as file:
        file.truncate(nbytes)
    barrier()
    parts = []
    for owner in range(size):
        with open(f"{folder}/shared-{owner}", "r+b") as file:
            memory = mmap.mmap(file.fileno(), nbytes)
        parts.append(torch.frombuffer(memory, dtype=torch.float32))
    numel, chunk = nbytes // 4, 1 << 15
    begin, end = rank * numel // size, (rank + 1) * numel // size

    def run() -> None:
        barrier()
        for at in range(begin, end, chunk):
            pieces = [part[at:min(at + chunk, end)] for part in parts]
            for piece in pieces[1:]:
                pieces[0].add_(piece)
            for piece in pieces[1:]:
                piece.copy_(pieces[0])
        barrier()

    return run


def take_turns(ways: dict[str, Step], rounds: int) -> Times:
    """Milliseconds of the slowest rank for each step, alike on all ranks."""
    import troupe.torch as hvd

    times: Times = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, step in [*ways.items()] * 2:
            hvd.barrier()
            began = time.perf_counter()
            step()
            mine = torch.tensor([(time.perf_counter() - began) * 1e3])
            slowest = float(hvd.allreduce(mine, op=hvd.Max, name=f"time {name}"))
            if turn >= 2:
                times[name].append(slowest)
    return times


def worker(folder: str, shapes: list[tuple[int, ...]], rounds: int) -> tuple[Times, int]:
    """Times of every way of reducing, then of commits; the size of buckets that was chosen."""
    import troupe.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rank, size = hvd.rank(), hvd.size()
    dist.init_process_group("troupe")
    gloo = dist.new_group(backend="gloo")
    gradients = [torch.full(shape, float(rank + 1)) for shape in shapes]
    nbytes = 4 * sum(g.numel() for g in gradients)
    reduce_shared = shared_sum(folder, nbytes, rank, size, hvd.barrier)
    plain, ours, *others = (Model(gradients) for _ in range(6))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1))
    tuned, optimizer_tuned = tune(gradients)
    ddp = [torch.nn.parallel.DistributedDataParallel(
        model, process_group=group, gradient_as_bucket_view=view)
        for model, (group, view) in zip(
            others, [(gloo, False), (gloo, True), (None, False), (None, True)], strict=True)]
    times = take_turns({
        "troupe": lambda: (backward(ours, ours), optimizer.synchronize())[1],
        "troupe_auto": lambda: (backward(tuned, tuned), optimizer_tuned.synchronize())[1],
        "ddp": lambda: backward(ddp[0], others[0]),
        "ddp_view": lambda: backward(ddp[1], others[1]),
        "ddp_troupe": lambda: backward(ddp[2], others[2]),
        "ddp_view_troupe": lambda: backward(ddp[3], others[3]),
        "autograd": lambda: backward(plain, plain),
        "limit": lambda: (backward(plain, plain), reduce_shared())[1],
    }, rounds)
    if not all(float(p.grad.flatten()[0]) == (size + 1) / 2 for p in ours.values):
        raise RuntimeError("the averaged gradients are wrong")
    dist.destroy_process_group()
    chosen = optimizer_tuned._reducer._tuning.bucket_bytes
    return {**times, **time_commits(gradients, rounds)}, chosen


def tune(gradients: list[torch.Tensor]) -> tuple[Model, Any]:
    """A model whose optimizer has chosen the size of its buckets, in steps of nothing else."""
    import troupe.torch as hvd

    model = Model(gradients)
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), bucket_bytes="auto")
    for _ in range(40):
        backward(model, model)
        optimizer.synchronize()
    return model, optimizer


def time_commits(gradients: list[torch.Tensor], rounds: int) -> Times:
    """Steps of SGD with momentum: with commits held in place, with copied ones, with none."""
    import troupe.torch as hvd
    from troupe.torch.elastic._in_place import LEARN_COMMITS

    def make() -> tuple[Model, Any]:
        model = Model(gradients)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, hvd.DistributedOptimizer(sgd)

    def train_step(model: Model, optimizer: Any) -> None:
        backward(model, model)
        optimizer.step()

    held, copied, bare = make(), make(), make()
    state = hvd.elastic.TorchState(*held)
    os.environ["TROUPE_COMMIT_COPIES"] = "always"
    copies = hvd.elastic.TorchState(*copied)

    @hvd.elastic.run
    def loop(state: Any) -> Times:
        copies.sync()
        for _ in range(LEARN_COMMITS + 1):  # the last of those to learn from may be copied
            train_step(*held)
            state.commit()
        if not state.held_in_place:
            raise RuntimeError("the commits are not held in place")
        return take_turns({
            "commit": lambda: (train_step(*held), state.commit())[1],
            "commit_copied": lambda: (train_step(*copied), copies.commit())[1],
            "no_commit": lambda: train_step(*bare),
        }, rounds)

    return loop(state)


def main() -> int:
    """Runs the groups of each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=15, help="two steps of each way per round")
    options = parser.parse_args()
    import troupe

    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, troupe.Executor(
            size, size, workers=size, cpus_per_worker=0.1, num_cpus=2, progress="off"
        ) as executor:
            shapes = _trainee.resnet50_shapes()
            times, chosen = executor.run(worker, (folder, shapes, options.rounds))[0]
        for name, steps in times.items():
            kind = "elastic_step" if "commit" in name else "gradients"
            print(json.dumps({
                "bench": kind, "way": name, "n": size, "trials": len(steps), "unit": "ms",
                "min": round(min(steps), 2), "p50": round(statistics.median(steps), 2),
                "max": round(max(steps), 2),
                **({"bucket_bytes": chosen} if name == "troupe_auto" else {})}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
