"""What comparing parameters costs: a ResNet-50's step of one process, and its digests.

The step is an update by SGD with momentum of the parameters of ResNet-50, whose forward pass only
touches each tensor: the least that a step can be, so the share of a real one is smaller. The
digests are those of one comparison, which happens every ``--every`` commits. One JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import _trainee
import torch

import troupe.torch as hvd
from troupe.torch.elastic import _checksum


def trials(call: Callable[[int], object], count: int, device: str) -> list[float]:
    """How long each call takes, in milliseconds, after two that are not counted."""
    found = []
    for turn in range(count + 2):
        if device != "cpu":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call(turn)
        if device != "cpu":
            torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) * 1e3)
    return found[2:]


def main() -> None:
    """Measures both on one device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--every", type=int, default=_checksum.DEFAULT_EVERY, help="commits")
    options = parser.parse_args()
    hvd.init()
    model, loss_of = _trainee.make_model("resnet50")
    model.to(options.device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    state = hvd.elastic.TorchState(model, optimizer)
    handlers = list(state._handlers.items())

    def step(turn: int) -> None:
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

    def digests(turn: int) -> None:
        tensors = [tensor for _, tensor in _checksum.parameters_of(handlers)]
        _checksum.digests_of(tensors, turn)

    steps = statistics.median(trials(step, options.trials, options.device))
    took = statistics.median(trials(digests, options.trials, options.device))
    print(json.dumps({
        "bench": "parameter_checksum", "device": options.device, "step_ms": round(steps, 3),
        "comparison_ms": round(took, 3), "every": options.every,
        "percent_of_a_step": round(100 * took / options.every / steps, 4)}))


if __name__ == "__main__":
    main()
