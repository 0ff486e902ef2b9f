"""How much of the reduction of gradients is hidden behind the backward pass.

Two members on two virtual hosts whose links carry ``--gbits`` Gbit/s, so that a reduction waits for
the network, as it does between machines. A model of ``--layers`` square layers; a step is measured
from the beginning of its backward pass until its averaged gradients are there, the slowest rank
counts, and all ways take turns in the same processes:

- ``backward`` reduces nothing,
- ``after`` reduces everything when the backward pass is over (one bucket),
- ``overlapped`` reduces buckets as they fill, which is what happens by default.

``ddp_after`` and ``ddp`` are the last two with DistributedDataParallel on Gloo. What is hidden is
(after - overlapped) / (after - backward). ``--trace DIR`` leaves a trace of the run there, in which
the buckets' reductions lie under the phase "backward". One JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))

import hosts  # noqa: E402  (the tests' virtual hosts)
import network  # noqa: E402

Step = Callable[[], None]
WIDTH = 1024
WHOLE = 1 << 40  # bytes; more than any model has


def make_model(layers: int) -> torch.nn.Module:
    """Square layers, 4 MiB of gradients each."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))


def worker(folder: str, layers: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds from the beginning of the backward pass to the gradients, for every way."""
    import torch.distributed as dist

    import troupe.torch as hvd
    from troupe import _native

    hvd.init()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=hvd.rank(),
                            world_size=hvd.size())
    data = torch.randn(batch, WIDTH)

    def pass_of(net: Any) -> Any:
        net.zero_grad(set_to_none=True)
        return net(data).square().mean()

    def ours(bucket_bytes: Any) -> tuple[Any, Step]:
        model = make_model(layers)
        sgd = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer = hvd.DistributedOptimizer(sgd, bucket_bytes=bucket_bytes)
        return model, optimizer.synchronize

    def ddp(bucket_mib: int) -> tuple[Any, Step]:
        net = torch.nn.parallel.DistributedDataParallel(
            make_model(layers), bucket_cap_mb=bucket_mib, gradient_as_bucket_view=True)
        return net, lambda: None

    ways = {"backward": (make_model(layers), lambda: None), "after": ours(WHOLE),
            "overlapped": ours(None), "ddp_after": ddp(WHOLE >> 20), "ddp": ddp(25)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, (net, finish) in ways.items():
            loss = pass_of(net)
            hvd.barrier()
            _native.trace_phase(f"backward, {name}")
            began = time.perf_counter()
            loss.backward()
            _native.trace_phase("wait for gradients")
            finish()
            took = torch.tensor([(time.perf_counter() - began) * 1e3])
            _native.trace_phase("between steps")
            slowest = float(hvd.allreduce(took, op=hvd.Max, name="time"))
            if turn >= 2:
                times[name].append(slowest)
    dist.destroy_process_group()
    return times


def report(times: dict[str, list[float]], shape: dict[str, Any]) -> None:
    """Prints the figures."""
    p50 = {name: statistics.median(steps) for name, steps in times.items()}
    for name, steps in times.items():
        print(json.dumps({"bench": "overlap", "way": name, "trials": len(steps), **shape,
                          "min": round(min(steps), 1), "p50": round(p50[name], 1),
                          "max": round(max(steps), 1), "unit": "ms"}))
    for ours, after in (("overlapped", "after"), ("ddp", "ddp_after")):
        hidden = (p50[after] - p50[ours]) / (p50[after] - p50["backward"])
        print(json.dumps({"bench": "overlap_hidden", "way": ours, **shape,
                          "p50": round(100 * hidden, 1), "unit": "%"}), flush=True)


def main() -> int:
    """Runs the benchmark; says so and succeeds where there can be no virtual hosts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gbits", type=float, default=8.0)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--trace", help="a folder for the trace of the run")
    options = parser.parse_args()
    if reason := hosts.missing():
        print(f"overlap: nothing measured: {reason}", file=sys.stderr)
        return 0
    from troupe._cluster import find_bin_dir

    if options.trace:
        os.environ["TROUPE_TRACE_DIR"] = str(Path(options.trace).resolve())
    with tempfile.TemporaryDirectory() as folder, hosts.Hosts(
        Path(folder), Path(find_bin_dir()), count=2, cpus=1
    ) as made:
        for space in made.spaces:
            network.limit_rate(space, options.gbits)
        with made.executor(2, 2, workers=2, strategy="spread") as executor:
            times = executor.run(
                worker, (folder, options.layers, options.batch, options.rounds))[0]
    report(times, {"n": 2, "gbits": options.gbits, "mib": options.layers * WIDTH * WIDTH >> 18})
    return 0


if __name__ == "__main__":
    sys.exit(main())
