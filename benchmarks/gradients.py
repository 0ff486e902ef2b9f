"""Backward and reduction of ResNet-50-shaped gradients: Troupe beside DDP on Gloo, in one run.

161 tensors, 25.6 million float32. The backward pass only hands out ready gradients, so a step is
what autograd and the reduction cost. All ways run in the same processes in turns, one torch thread
each; a step begins with a barrier and the slowest rank counts. "autograd" reduces nothing;
"limit" is that and one sum of the same bytes, in place, in memory that the processes share.
"elastic_step" is a whole step of SGD with momentum, with and without ``state.commit()``.
One JSON line a figure; times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import _trainee


def worker(folder: str, shapes: list[tuple[int, ...]], rounds: int) -> dict[str, list[float]]:
    """Times every way; milliseconds of the slowest rank for each step, alike on all ranks."""
    import mmap
    import os

    import torch
    import torch.distributed as dist

    import troupe.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rank, size = hvd.rank(), hvd.size()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=size)

    class Ready(torch.autograd.Function):
        """Passes its input on; the gradient of ``parameter`` is there already."""

        @staticmethod
        def forward(ctx: Any, x: Any, parameter: Any, gradient: Any) -> Any:
            ctx.gradient = gradient
            return x.clone()

        @staticmethod
        def backward(ctx: Any, x: Any) -> Any:
            return x, ctx.gradient, None

    gradients = [torch.full(shape, float(rank + 1)) for shape in shapes]

    class Model(torch.nn.Module):
        """The parameters and no layers."""

        def __init__(self) -> None:
            super().__init__()
            self.values = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(s)) for s in shapes)

        def forward(self, x: Any) -> Any:
            for parameter, gradient in zip(self.values, gradients, strict=True):
                x = Ready.apply(x, parameter, gradient)
            return x

    x = torch.ones(1, requires_grad=True)

    def backward(net: Any, model: Any) -> None:
        for parameter in model.values:
            parameter.grad = None
        net(x).sum().backward()

    def sum_in_place(parts: list[Any]) -> Callable[[], None]:
        numel = parts[0].numel()
        begin, end, chunk = rank * numel // size, (rank + 1) * numel // size, 1 << 15

        def run() -> None:
            hvd.barrier()
            for at in range(begin, end, chunk):
                pieces = [part[at:min(at + chunk, end)] for part in parts]
                for piece in pieces[1:]:
                    pieces[0].add_(piece)
                for piece in pieces[1:]:
                    piece.copy_(pieces[0])
            hvd.barrier()

        return run

    def shared(owner: int, nbytes: int) -> Any:
        with open(f"{folder}/shared-{owner}", "r+b") as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=torch.float32)

    nbytes = 4 * sum(g.numel() for g in gradients)
    with open(f"{folder}/shared-{rank}", "wb") as file:
        file.truncate(nbytes)
    hvd.barrier()
    reduce_shared = sum_in_place([shared(owner, nbytes) for owner in range(size)])

    plain, ours = Model(), Model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1))
    models = {view: Model() for view in (False, True)}
    wrapped = {view: torch.nn.parallel.DistributedDataParallel(
        models[view], gradient_as_bucket_view=view) for view in models}

    def troupe_step() -> None:
        backward(ours, ours)
        optimizer.synchronize()

    def limit_step() -> None:
        backward(plain, plain)
        reduce_shared()

    ways: dict[str, Callable[[], None]] = {
        "troupe": troupe_step,
        "ddp": lambda: backward(wrapped[False], models[False]),
        "ddp_view": lambda: backward(wrapped[True], models[True]),
        "autograd": lambda: backward(plain, plain),
        "limit": limit_step,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}

    def measure(name: str, step: Callable[[], None], into: list[float], keep: bool) -> None:
        hvd.barrier()
        began = time.perf_counter()
        step()
        mine = torch.tensor([(time.perf_counter() - began) * 1e3])
        slowest = float(hvd.allreduce(mine, op=hvd.Max, name=f"time {name}"))
        if keep:
            into.append(slowest)

    for turn in range(rounds + 2):
        for name, step in ways.items():
            for _ in range(2):
                measure(name, step, times[name], turn >= 2)
    expected = (size + 1) / 2
    if not all(float(p.grad.flatten()[0]) == expected for p in ours.values):
        raise RuntimeError("the averaged gradients are wrong")

    trained = Model()
    momentum = hvd.DistributedOptimizer(
        torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9))
    state: Any = hvd.elastic.TorchState(trained, momentum)
    times |= {"commit": [], "no_commit": []}

    @hvd.elastic.run
    def loop(state: Any) -> None:
        for turn in range(rounds + 2):
            for name in ("commit", "no_commit"):
                def step(commit: bool = name == "commit") -> None:
                    backward(trained, trained)
                    momentum.step()
                    if commit:
                        state.commit()

                for _ in range(2):
                    measure(name, step, times[name], turn >= 2)

    loop(state)
    dist.destroy_process_group()
    return times


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
            times = executor.run(worker, (folder, shapes, options.rounds))[0]
        for name, steps in times.items():
            kind = "elastic_step" if "commit" in name else "gradients"
            print(json.dumps({
                "bench": kind, "way": name, "n": size, "trials": len(steps), "unit": "ms",
                "min": round(min(steps), 2), "p50": round(statistics.median(steps), 2),
                "max": round(max(steps), 2)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
