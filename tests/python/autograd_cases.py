"""Gradients through every differentiable collective, against Horovod's rules worked out by hand.

Rank p of a set of n weighs what a collective gives it with p + 1, so the incoming gradients are
known on all ranks.
"""

from __future__ import annotations

from typing import Any

import torch

import troupe.torch as hvd


class Cases:
    """One rank's side of the checks within a process set."""

    def __init__(self, process_set: Any) -> None:
        self.set = process_set
        self.ranks = process_set.ranks
        self.n, self.p = len(self.ranks), process_set.rank()
        self.mean = (self.n + 1) / 2  # Of the ranks' weights.
        self.sum = self.n * self.mean

    def leaf(self, *shape: int) -> torch.Tensor:
        values = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
        return (values + self.p + 1).requires_grad_()

    def through(self, outputs: Any) -> None:
        """Goes back from what a collective gave."""
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        sum((out * (self.p + 1)).sum() for out in outputs).backward()

    def expect(self, leaf: torch.Tensor, wanted: Any, what: str) -> None:
        wanted = torch.as_tensor(wanted, dtype=torch.float64).expand(leaf.shape)
        assert torch.allclose(leaf.grad, wanted, rtol=1e-12), (what, leaf.grad, wanted)

    def allreduce(self) -> None:
        for op, scale, wanted in [
            (hvd.Sum, 1.0, self.sum), (hvd.Average, 1.0, self.mean), (hvd.Max, 1.0, self.n),
            (hvd.Min, 1.0, 1), (hvd.Sum, 2.0, self.sum * 6), (hvd.Average, 2.0, self.mean * 6),
        ]:
            post = 3.0 if scale != 1.0 else 1.0
            how = {"op": op, "prescale_factor": scale, "postscale_factor": post,
                   "process_set": self.set}
            x = self.leaf(2, 2)
            self.through(hvd.allreduce(x, **how))
            self.expect(x, wanted, f"allreduce {op.name} scaled {scale}")
            x, y = self.leaf(3), self.leaf(1, 2)
            self.through(hvd.grouped_allreduce([x, y], **how))
            for leaf in (x, y):
                self.expect(leaf, wanted, f"grouped allreduce {op.name} scaled {scale}")
        x = self.leaf(2)
        out = hvd.allreduce(x, compression=hvd.Compression.fp16, op=hvd.Sum, process_set=self.set)
        self.through(out)
        self.expect(x, self.sum, "allreduce in 16 bits")

    def allgather(self) -> None:
        x = self.leaf(self.p + 1, 2)
        self.through(hvd.allgather(x, process_set=self.set))
        self.expect(x, self.mean, "allgather")
        x, y, z = self.leaf(self.p + 1), self.leaf(2, 3), self.leaf(1)
        first, second, third = hvd.grouped_allgather([x, y, z], process_set=self.set)
        assert first.shape == (int(self.sum),) and second.shape == (2 * self.n, 3)
        places = torch.arange(1.0, 2 * self.n + 1, dtype=torch.float64)[:, None]
        self.through([first, second * places])
        self.expect(x, self.mean, "grouped allgather of uneven rows")
        mine = places[2 * self.p:2 * self.p + 2].expand(2, 3) * self.mean
        self.expect(y, mine, "grouped allgather of weighted rows")
        self.expect(z, 0.0, "grouped allgather of what is not used")

    def broadcast(self) -> None:
        root = self.n - 1
        x = self.leaf(2)
        self.through(hvd.broadcast(x, self.ranks[root], process_set=self.set))
        self.expect(x, self.mean if self.p == root else 0.0, "broadcast")

    def alltoall(self) -> None:
        """Rank p sends q + 1 rows to rank q, so what comes back of them is q + 1."""
        splits = [q + 1 for q in range(self.n)]
        x = self.leaf(sum(splits), 2)
        out, received = hvd.alltoall(x, splits=splits, process_set=self.set)
        assert received.tolist() == [self.p + 1] * self.n
        self.through(out)
        back = [[float(q + 1)] * 2 for q in range(self.n) for _ in range(q + 1)]
        self.expect(x, back, "alltoall with splits")
        x = self.leaf(self.n)
        self.through(hvd.alltoall(x, process_set=self.set))
        self.expect(x, [q + 1 for q in range(self.n)], "alltoall")

    def reducescatter(self) -> None:
        rows = self.n + 1  # The first rank has two.
        owners = torch.tensor([0, *range(self.n)], dtype=torch.float64) + 1
        for op, scale in [(hvd.Average, 1.0), (hvd.Sum, 1.0), (hvd.Average, 2.0), (hvd.Sum, 2.0)]:
            factor = (scale * 3.0 if scale != 1.0 else 1.0) * (self.n if op == hvd.Sum else 1)
            how = {"op": op, "prescale_factor": scale, "process_set": self.set,
                   "postscale_factor": 3.0 if scale != 1.0 else 1.0}
            x = self.leaf(rows, 2)
            self.through(hvd.reducescatter(x, **how))
            wanted = (owners * factor)[:, None]
            self.expect(x, wanted, f"reducescatter {op.name} scaled {scale}")
            x, y = self.leaf(rows, 1), self.leaf(self.n)
            self.through(hvd.grouped_reducescatter([x, y], **how))
            self.expect(x, wanted, f"grouped reducescatter {op.name} scaled {scale}")
            self.expect(y, owners[1:] * factor, f"grouped reducescatter {op.name}, even")

    def whole_numbers_beside(self) -> None:
        """What has no gradient may be in a group with what has."""
        x, whole = self.leaf(1), torch.tensor([self.p])
        first, second = hvd.grouped_allgather([x, whole], process_set=self.set)
        assert second.tolist() == list(range(self.n)) and not second.requires_grad
        self.through(first)
        self.expect(x, self.mean, "grouped allgather beside whole numbers")


KINDS = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "whole_numbers_beside"]


def check_all(sets: Any) -> int:
    """All cases in all ranks' and in other process sets; how many this rank took part in."""
    done = 0
    for process_set in (hvd.global_process_set, *map(hvd.add_process_set, sets)):
        for kind in KINDS if process_set.included() else []:
            getattr(Cases(process_set), kind)()
            done += 1
    return done


def check_in_worker(sets: Any) -> int:
    """The same in a worker."""
    hvd.init()
    return check_all(sets)
