"""Every collective with inputs that each rank, and the test, can make for all ranks.

Inputs are small whole numbers made from step and rank, so every result is exact. ``Call.whole`` is
what all ranks together get, as int64; whoever knows step and size can work it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import troupe.torch as hvd

KINDS = ["allreduce", "broadcast", "reducescatter", "alltoall", "allgather", "adasum", "barrier",
         "gather", "grouped_allreduce", "broadcast_object", "scatter", "sparse_allreduce", "reduce",
         "allgather_object"]


def shares(rows: int, size: int) -> list[int]:
    return [rows // size + (rank < rows % size) for rank in range(size)]


@dataclass
class Call:
    """One collective of ``kind`` in a group of ``size``; ``rows`` says how much data."""

    kind: str
    step: int
    size: int
    rows: int

    @property
    def root(self) -> int:
        return self.step % self.size

    def numbers(self, rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """What rank has; whole numbers below 53, different for every step and rank."""
        base = torch.arange(count, dtype=torch.int64)
        return base.mul_(rank + 2 * self.step + 1).add_(rank + self.step).remainder_(53).to(dtype)

    def everybodys(self, count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        return [self.numbers(rank, count, dtype) for rank in range(self.size)]

    def splits(self) -> list[list[int]]:
        """Rows of all-to-all from each rank to each."""
        share = self.rows // self.size
        return [[share + (to + 2 * rank) % 3 for to in range(self.size)]
                for rank in range(self.size)]

    def whole(self) -> torch.Tensor:
        """What all ranks together get."""
        return getattr(self, f"_whole_of_{self.kind}")().to(torch.int64)

    def prepare(self, rank: int, folder: Path) -> tuple[Callable[[], Any], Any]:
        """The collective as ``rank`` does it, and nothing else; and what :meth:`check` needs."""
        return getattr(self, f"_prepare_{self.kind}")(rank, folder)

    def check(self, got: Any, wanted: Any) -> None:
        """The result must be what it has to be, to the bit."""
        assert (got is None) == (wanted is None), self
        if isinstance(got, list):
            got = torch.cat([tensor.to(torch.int64) for tensor in got])
        if got is not None:
            got = got.to_dense() if got.is_sparse else got
            same = got.shape == wanted.shape and torch.equal(got.to(torch.int64), wanted)
            assert same, f"wrong result of {self}"

    # -- everybody gets the same -----------------------------------------------------------------

    def _whole_of_allreduce(self) -> torch.Tensor:
        return torch.stack(self.everybodys(self.rows)).sum(0)

    def _prepare_allreduce(self, rank: int, folder: Path) -> Any:
        mine = self.numbers(rank, self.rows)
        return lambda: hvd.allreduce(mine, op=hvd.Sum), self.whole()

    def _grouped(self) -> list[tuple[int, torch.dtype]]:
        return [(self.rows // 2, torch.float32), (7, torch.int64), (self.rows // 4, torch.float64)]

    def _whole_of_grouped_allreduce(self) -> torch.Tensor:
        return torch.cat([torch.stack(self.everybodys(*part)).sum(0).to(torch.int64)
                          for part in self._grouped()])

    def _prepare_grouped_allreduce(self, rank: int, folder: Path) -> Any:
        mine = [self.numbers(rank, *part) for part in self._grouped()]
        return lambda: hvd.grouped_allreduce(mine, op=hvd.Sum), self.whole()

    def _uneven(self, rank: int) -> torch.Tensor:
        return self.numbers(rank, self.rows // (rank + 1) + rank)

    def _whole_of_allgather(self) -> torch.Tensor:
        return torch.cat([self._uneven(rank) for rank in range(self.size)])

    def _prepare_allgather(self, rank: int, folder: Path) -> Any:
        mine = self._uneven(rank)
        return lambda: hvd.allgather(mine), self.whole()

    def _whole_of_broadcast(self) -> torch.Tensor:
        return self.numbers(self.root, self.rows)

    def _prepare_broadcast(self, rank: int, folder: Path) -> Any:
        mine = self.numbers(rank, self.rows)
        return lambda: hvd.broadcast(mine, self.root), self.whole()

    def _whole_of_adasum(self) -> torch.Tensor:
        whole = torch.zeros(self.rows)
        for rank, mine in enumerate(self.everybodys(self.rows)):
            whole[rank::self.size] = mine[rank::self.size]
        return whole

    def _prepare_adasum(self, rank: int, folder: Path) -> Any:
        """Of ranks that have nothing in common, which are added as they are."""
        apart = torch.zeros(self.rows)
        apart[rank::self.size] = self.numbers(rank, self.rows)[rank::self.size]
        return lambda: hvd.allreduce(apart, op=hvd.Adasum), self.whole()

    def _whole_of_barrier(self) -> torch.Tensor:
        return torch.arange(self.size)

    def _prepare_barrier(self, rank: int, folder: Path) -> Any:
        """Nobody comes out before all are in, which each says by a file; the root is late."""
        entered = [folder / f"barrier-{hvd.epoch()}-{self.step}-{of}" for of in range(self.size)]

        def run() -> torch.Tensor:
            if rank == self.root:
                time.sleep(0.003)
            entered[rank].touch()
            hvd.barrier()
            return torch.tensor([of for of in range(self.size) if entered[of].exists()])

        return run, self.whole()

    def _whole_of_broadcast_object(self) -> torch.Tensor:
        return self.numbers(self.root, self.rows)

    def _prepare_broadcast_object(self, rank: int, folder: Path) -> Any:
        mine = {"of": rank, "values": self.numbers(rank, self.rows)} if rank == self.root else None
        return lambda: hvd.broadcast_object(mine, self.root)["values"], self.whole()

    def _whole_of_allgather_object(self) -> torch.Tensor:
        return torch.cat([self._uneven(rank) for rank in range(self.size)])

    def _prepare_allgather_object(self, rank: int, folder: Path) -> Any:
        mine = self._uneven(rank)
        return lambda: hvd.allgather_object(mine), self.whole()

    def _indices(self, rank: int) -> torch.Tensor:
        """Every second place of a window that begins elsewhere on each rank."""
        return torch.arange(rank * 5, rank * 5 + self.rows, 2)

    def _whole_of_sparse_allreduce(self) -> torch.Tensor:
        whole = torch.zeros(self.rows + 5 * self.size)
        for rank in range(self.size):
            indices = self._indices(rank)
            whole[indices] += self.numbers(rank, len(indices))
        return whole

    def _prepare_sparse_allreduce(self, rank: int, folder: Path) -> Any:
        indices = self._indices(rank)
        mine = torch.sparse_coo_tensor(indices[None], self.numbers(rank, len(indices)),
                                       (self.rows + 5 * self.size,))
        name = f"sparse-{self.step}"
        return lambda: hvd.sparse_allreduce_async(mine, name, hvd.Sum)(), self.whole()

    # -- each rank gets another part, or only the root gets something ----------------------------

    def _part(self, rank: int) -> torch.Tensor:
        return self.whole().split(shares(self.rows, self.size))[rank]

    def _whole_of_reducescatter(self) -> torch.Tensor:
        return self._whole_of_allreduce()

    def _prepare_reducescatter(self, rank: int, folder: Path) -> Any:
        mine = self.numbers(rank, self.rows)
        return lambda: hvd.reducescatter(mine, op=hvd.Sum), self._part(rank)

    def _outgoing(self, rank: int) -> torch.Tensor:
        return self.numbers(rank, sum(self.splits()[rank]))

    def _whole_of_alltoall(self) -> torch.Tensor:
        parts = [self._outgoing(rank).split(self.splits()[rank]) for rank in range(self.size)]
        return torch.cat([parts[rank][to] for to in range(self.size) for rank in range(self.size)])

    def _prepare_alltoall(self, rank: int, folder: Path) -> Any:
        mine, splits = self._outgoing(rank), self.splits()
        counts = [sum(splits[of][to] for of in range(self.size)) for to in range(self.size)]
        return lambda: hvd.alltoall(mine, splits=splits[rank])[0], self.whole().split(counts)[rank]

    def _whole_of_gather(self) -> torch.Tensor:
        return self._whole_of_allgather()

    def _prepare_gather(self, rank: int, folder: Path) -> Any:
        mine = self._uneven(rank)
        return lambda: hvd.gather(mine, self.root), self.whole() if rank == self.root else None

    def _whole_of_scatter(self) -> torch.Tensor:
        return self.numbers(self.root, self.rows)

    def _prepare_scatter(self, rank: int, folder: Path) -> Any:
        mine = self.numbers(rank, self.rows) if rank == self.root else None
        return lambda: hvd.scatter(mine, self.root), self._part(rank)

    def _whole_of_reduce(self) -> torch.Tensor:
        return torch.stack(self.everybodys(self.rows)).amax(0)

    def _prepare_reduce(self, rank: int, folder: Path) -> Any:
        mine = self.numbers(rank, self.rows)
        return (lambda: hvd.reduce(mine, self.root, op=hvd.Max),
                self.whole() if rank == self.root else None)


def fold(weights: torch.Tensor, call: Call) -> None:
    """A step: the order of steps, and what each has given, show in every later value."""
    whole = call.whole()
    places = torch.arange(1, whole.numel() + 1).remainder_(1009)
    given = int((whole * places).sum()) % 65_521
    window = weights.view(-1)[:4096]
    window.mul_(3).add_(given + call.step).remainder_(65_521)
