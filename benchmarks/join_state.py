"""What members wait for when a joiner needs the state: sent beside the training, and before it.

Three members of a model of MIB MiB of parameters and as much momentum; one leaves and one joins
again, twice in each of ROUNDS runs per way. A step waits COMPUTE ms where an accelerator would
compute on a batch (a follower: on one sample), then reduces and updates. Figures are the longest
pause between two steps of rank 0 around a join, less the median step: what the join, the transfer
and the joiner's first step, in memory that it has not touched yet, add.

    python benchmarks/join_state.py [MIB] [COMPUTE] [ROUNDS]
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
JOINS = 2  # per run
BATCH = 8
ROW_FLOATS = 1 << 18  # of one parameter: 1 MiB


def train(folder: str, mib: int, compute_ms: int, follow: bool) -> None:
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
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, step=0,
                                   joiners_follow=follow)
    log = _trainee.Log(folder)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        for indices in hvd.elastic.batches(state.sampler, BATCH):
            time.sleep(compute_ms / 1e3 * len(indices) / BATCH)
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


def join(way: str, mib: int, compute_ms: int) -> tuple[float, list[float]]:
    """One run with JOINS joins: the median step, and what each join added to one, in ms."""
    import troupe

    with tempfile.TemporaryDirectory() as folder, troupe.Executor(
        2, 3, workers=3, cpus_per_worker=0.1, num_cpus=3, progress="off",
        preload=["numpy", "torch", "troupe.torch", "troupe.torch.elastic"],
    ) as executor:
        handle = executor.submit(train, (folder, mib, compute_ms, way == "beside"))
        settle(folder, 3, 12)
        for _ in range(JOINS):
            handle.resize(2)
            settle(folder, 2, 12)
            handle.resize(3)
            settle(folder, 3, 6)
        handle.cancel()
        handle.wait(30)
        mine = [e for e in _trainee.read_log(folder) if e["rank"] == 0]
    gaps = [(b["t"] - a["t"]) * 1e3 for a, b in zip(mine, mine[1:], strict=False)]
    usual = statistics.median(gaps)
    joins = [i for i in range(1, len(gaps)) if mine[i]["size"] > mine[i - 1]["size"]]
    return usual, [max(gaps[i - 1:i + 2]) - usual for i in joins]


def main() -> None:
    """Both ways by turns, a line for each."""
    given = [int(argument) for argument in sys.argv[1:]]
    mib, compute_ms, rounds = given + [128, 500, 2][len(given):]
    steps: dict[str, list[float]] = {"before": [], "beside": []}
    added: dict[str, list[float]] = {"before": [], "beside": []}
    for _ in range(rounds):
        for way in steps:
            usual, more = join(way, mib, compute_ms)
            steps[way].append(usual)
            added[way].extend(more)
    for way, found in added.items():
        print(json.dumps({
            "bench": "join_state", "way": way, "mib": 2 * mib, "n": 3, "compute_ms": compute_ms,
            "step_ms": round(statistics.median(steps[way]), 1),
            "p50": round(statistics.median(found), 1), "max": round(max(found), 1),
            "trials": len(found), "unit": "ms",
        }), flush=True)


if __name__ == "__main__":
    main()
