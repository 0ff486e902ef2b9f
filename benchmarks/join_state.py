"""What members wait for when a joiner needs the state: sent beside the training, and before it.

Three members of a model of MIB MiB of parameters and as much momentum; one leaves and one joins
again, TRIALS times in each way. A step waits COMPUTE ms where an accelerator would compute, then
reduces and updates. ``added`` is the longest pause between two steps of rank 0 around a join, less
the median step. Prints one JSON line per way.

    python benchmarks/join_state.py [MIB] [COMPUTE] [TRIALS]
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any

import _trainee

LIMIT_S = 120.0
ROW_FLOATS = 1 << 18  # of one parameter: 1 MiB


def train(folder: str, mib: int, compute_ms: int) -> None:
    """Steps until it is cancelled."""
    import torch

    import troupe.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    params = [torch.nn.Parameter(torch.zeros(ROW_FLOATS)) for _ in range(mib)]
    model = torch.nn.ParameterList(params)
    sgd = torch.optim.SGD(params, lr=1e-3, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd)
    sampler = hvd.elastic.ElasticSampler(range(1 << 20))
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, step=0)
    log = _trainee.Log(folder)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        for indices in hvd.elastic.batches(state.sampler, 1):
            time.sleep(compute_ms / 1e3)
            optimizer.zero_grad()
            sum(p.sum() for p in params).mul(float(indices[0] % 7)).backward()
            optimizer.step()
            state.step += 1
            try:
                state.commit()
            finally:
                log.step(state.step, hvd.rank(), hvd.size(), hvd.epoch())

    loop(state)


def settle(folder: str, size: int, steps: int) -> None:
    """Returns when rank 0 has made so many steps in a group of this size."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        mine = [e for e in _trainee.read_log(folder) if e["rank"] == 0]
        if len(mine) >= steps and all(e["size"] == size for e in mine[-steps:]):
            return
        time.sleep(0.05)
    raise TimeoutError(f"no {steps} steps of {size} members in {LIMIT_S:g} s")


def bench(way: str, mib: int, compute_ms: int, trials: int) -> dict[str, Any]:
    """One job with ``trials`` joins."""
    import troupe

    with tempfile.TemporaryDirectory() as folder, troupe.Executor(
        2, 3, workers=3, cpus_per_worker=0.1, num_cpus=3, progress="off",
        preload=["numpy", "torch", "troupe.torch", "troupe.torch.elastic"],
        env={"TROUPE_STATE_TRANSFER": way},
    ) as executor:
        handle = executor.submit(train, (folder, mib, compute_ms))
        settle(folder, 3, 12)
        for _ in range(trials):
            handle.resize(2)
            settle(folder, 2, 12)
            handle.resize(3)
            settle(folder, 3, 12)
        handle.cancel()
        handle.wait(30)
        return summary(way, mib, compute_ms, _trainee.read_log(folder))


def summary(way: str, mib: int, compute_ms: int, events: list[dict[str, Any]]) -> dict[str, Any]:
    """The line of one way."""
    mine = [e for e in events if e["rank"] == 0]
    gaps = [(b["t"] - a["t"]) * 1e3 for a, b in zip(mine, mine[1:], strict=False)]
    usual = statistics.median(gaps)
    added = []
    for index in range(1, len(mine)):
        if mine[index]["size"] > mine[index - 1]["size"]:
            added.append(max(gaps[index - 1:index + 2]) - usual)
    return {
        "bench": "join_state", "way": way, "mib": 2 * mib, "n": 3, "step_ms": round(usual, 1),
        "compute_ms": compute_ms, "p50": round(statistics.median(added), 1),
        "max": round(max(added), 1), "trials": len(added), "unit": "ms",
    }


def main() -> None:
    """Runs both ways."""
    given = [int(argument) for argument in sys.argv[1:]]
    mib, compute_ms, trials = given + [128, 500, 4][len(given):]
    for way in ("before", "beside"):
        print(json.dumps(bench(way, mib, compute_ms, trials)), flush=True)


if __name__ == "__main__":
    main()
