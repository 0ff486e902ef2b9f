"""A training that outlives its nodes: it ends when none of those it began on is left.

Started by ``troupe up examples/spot.yaml``, which takes the first two nodes away: one with a
notice, so that its worker moves before, and one without, so that the other worker goes on from the
last commit. Commits lie on disk as well: where imports take longer than the notice, both first
workers are gone before a new one has the state.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

WORKERS = 2
STEPS_AT_MOST = 5000


def train(commits: str) -> dict[str, Any]:
    """Fits a line by averaged gradients; returns what every worker must agree on.

    Args:
        commits: a folder for durable commits.
    """
    import os
    import time

    import torch

    import troupe.torch as hvd

    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    state: Any = hvd.elastic.TorchState(model, optimizer, durable=commits, step=0, first_nodes=[])
    target = torch.tensor([[1.0], [-2.0], [0.5], [3.0]])

    @hvd.elastic.run
    def loop(state: Any) -> list[str]:
        while state.step < STEPS_AT_MOST:
            # In every step, since any of them may be the first of a new group.
            nodes = sorted(hvd.allgather_object(os.environ["TROUPE_WORKER_NODE"]))
            if not state.first_nodes and len(nodes) == WORKERS:
                state.first_nodes = nodes
            if len(nodes) == WORKERS and not set(nodes) & set(state.first_nodes):
                return nodes
            data = torch.randn(32, 4)
            optimizer.zero_grad()
            (model(data) - data @ target).pow(2).mean().backward()
            optimizer.step()
            state.step += 1
            time.sleep(0.02)  # stands for the work of a larger model
            state.commit()
        raise RuntimeError(f"still on a first node after {STEPS_AT_MOST} steps")

    nodes = loop(state)
    return {"step": state.step, "first": state.first_nodes, "last": nodes}


def main() -> int:
    """Runs the training on the cluster that TROUPE_ADDRESS names."""
    import troupe

    with tempfile.TemporaryDirectory(prefix="spot-") as commits, \
            troupe.Executor(1, WORKERS, workers=WORKERS, progress="off",
                            preload=["torch", "troupe.torch"]) as executor:
        handle = executor.submit(train, (commits,))
        results = handle.result(timeout=120)
        for epoch in handle.epochs():
            print(f"epoch {epoch['epoch']}: {epoch['old_size']} -> {epoch['size']} workers, "
                  f"planned {epoch['planned']}, {epoch['reason']}")
    print("trained", results[0], flush=True)
    return 0 if all(result == results[0] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
