"""Sparse gradients of a step: all ranks' entries are gathered, since each has rows of its own.

They follow the buckets. The ranks first tell each other how many entries each has of each
gradient; then indices and values of each travel as one all-gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from troupe import _native
from troupe.torch._context import DTYPE_NAMES, Context
from troupe.torch._tree import nbytes


@dataclass
class SparseParameter:
    """A parameter whose gradients are sparse, and over how many of its dimensions."""

    param: torch.Tensor
    sparse_dim: int

    def entries(self, weight: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices (entries, sparse dimensions) and values of the present gradient, on the CPU.

        Without a gradient, or with a weight of 0, there are none.
        """
        grad = self.param.grad
        # Older torch zeroes gradients in place, and a sparse one then forgets its dimensions.
        empty = grad is None or (grad.is_sparse and grad._nnz() == 0)
        if grad is None or empty or weight == 0.0:
            shape = (0, *self.param.shape[self.sparse_dim:])
            return (torch.empty((0, self.sparse_dim), dtype=torch.int64),
                    torch.empty(shape, dtype=self.param.dtype))
        grad = grad.detach()
        if not grad.is_sparse:
            grad = grad.to_sparse(self.sparse_dim)
        grad = grad.coalesce()
        values = grad.values() if weight == 1.0 else grad.values() * weight
        return grad.indices().t().cpu().contiguous(), values.cpu().contiguous()


@dataclass
class Gathered:
    """One gradient's entries of all ranks, which are on their way."""

    param: torch.Tensor
    indices: torch.Tensor
    values: torch.Tensor

    def gradient(self, scale: float) -> torch.Tensor:
        """Their sum times ``scale``, coalesced, where the parameter is."""
        values = self.values if scale == 1.0 else self.values * scale
        made = torch.sparse_coo_tensor(self.indices.t(), values, self.param.shape)
        return made.coalesce().to(self.param.device)


def gather(
    context: Context, team: int, label: str, params: Sequence[SparseParameter], weight: float,
    issued: list[tuple[int, list[torch.Tensor]]],
) -> list[Gathered]:
    """Begins to gather; handles of the core and the memory that they use come to ``issued``.

    Raises:
        HorovodInternalError: a member died. CollectiveMismatchError: other ranks have others.
    """
    found = [param.entries(weight) for param in params]
    names = ", ".join(
        f"{DTYPE_NAMES[p.param.dtype]}{list(p.param.shape)}" for p in params)
    counts = context.gather_ints(
        [len(indices) for indices, _ in found], f"{label}: sparse gradients of {names}", team)
    results = []
    for place, (param, (indices, values)) in enumerate(zip(params, found, strict=True)):
        rows = [row[place] for row in counts]
        if sum(rows) == 0:
            results.append(Gathered(param.param, indices, values))
            continue
        result = Gathered(param.param, indices.new_empty((sum(rows), *indices.shape[1:])),
                          values.new_empty((sum(rows), *values.shape[1:])))
        results.append(result)
        parts = ((indices, result.indices, "indices"), (values, result.values, "values"))
        for mine, whole, what in parts:
            width = nbytes(whole) // sum(rows)
            name = f"{label}: {what} of sparse gradient {place}"
            with _native.collective_errors(name):
                handle = context.group.allgather(
                    mine.data_ptr(), whole.data_ptr(), [count * width for count in rows], name,
                    team)
            issued.append((int(handle), [mine, whole]))
    return results
