"""PowerSGD: gradients of matrices as products of two thin ones."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import torch

from troupe.torch._gradient_compression import Collectives, ErrorFeedback, GradientBucket

_BLOCK = 1 << 15  # elements


class PowerSGD(ErrorFeedback):
    """Low-rank compression (Vogels et al., "PowerSGD", NeurIPS 2019), with error feedback.

    A gradient of shape (n, ...) counts as a matrix M of n x m. Two all-reduces of (n + m) rank
    elements take the place of one of n m: P = sum M_i Q, orthogonalised, and Q = sum M_i' P; the
    result is P Q'. Q is the start of the next step (a power iteration) within an epoch; the first
    step of an epoch starts from one that is drawn from ``seed``, the epoch and the bucket, so a
    joiner has the same. Tensors of one dimension, and matrices for which nothing would be saved,
    travel as they are.

    Computed in float64 for float64 gradients, in float32 for all other; P is orthogonalised in
    float64. What is computed from equal inputs on all ranks uses elementwise operations in a fixed
    order only, so the results have the same bits also on different CPUs and numbers of threads.

    Args:
        rank: columns of P and Q. More is closer to the gradient and more to send.
        start_after: the first so many steps are not compressed (10 % of the steps is usual).
        min_compression_rate: compress a matrix if n m > rate * rank * (n + m).
        seed: of the first Q; the same on all ranks.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        rank: int = 4,
        start_after: int = 100,
        min_compression_rate: float = 1.0,
        seed: int = 0,
    ) -> None:
        if rank < 1:
            raise ValueError(f"rank must be at least 1, not {rank}")
        if start_after < 0:
            raise ValueError(f"start_after must not be negative: {start_after}")
        if min_compression_rate < 0:
            raise ValueError(f"min_compression_rate must not be negative: {min_compression_rate}")
        super().__init__(seed)
        self.rank = rank
        self.start_after = start_after
        self.min_compression_rate = min_compression_rate

    def signature(self) -> str:
        return (f"{super().signature()} rank={self.rank} start_after={self.start_after} "
                f"min_compression_rate={self.min_compression_rate}")

    def reduce(self, bucket: GradientBucket, group: Collectives) -> Iterator[None]:
        work = self.corrected(bucket)
        if self.steps < self.start_after:
            group.all_reduce(work)
            yield
            self.finish(bucket, work, None, [])
            return
        matrices, rest = self._split(bucket, work)
        plain = torch.cat([part.reshape(-1) for part in rest]) if rest else work.new_empty(0)
        ranks = [min(self.rank, *matrix.shape) for matrix in matrices]
        q = self._start(bucket, matrices, ranks)
        p = work.new_empty(sum(m.shape[0] * r for m, r in zip(matrices, ranks, strict=True)))
        p_parts = _parts(p, [m.shape[0] for m in matrices], ranks)
        for matrix, start, part in zip(matrices, q, p_parts, strict=True):
            torch.mm(matrix, start, out=part)
        group.all_reduce(plain)
        group.all_reduce(p)
        yield

        for part in p_parts:
            _orthogonalise(part)
        new_q = work.new_empty(sum(m.shape[1] * r for m, r in zip(matrices, ranks, strict=True)))
        q_parts = _parts(new_q, [m.shape[1] for m in matrices], ranks)
        for matrix, part, q_part in zip(matrices, p_parts, q_parts, strict=True):
            torch.mm(matrix.t(), part, out=q_part)
            matrix.addmm_(part, q_part.t(), alpha=-1.0)  # what this rank does not send
        sums = torch.split(plain, [part.numel() for part in rest])
        for part in rest:
            part.zero_()
        group.all_reduce(new_q)
        yield

        # The gradients are in `work` by now, so the result can take their place.
        result = bucket.flat if bucket.flat.dtype == work.dtype else torch.empty_like(work)
        whole, others = self._split(bucket, result)
        for target, part, q_part in zip(whole, p_parts, q_parts, strict=True):
            _product_into(target, part, q_part)
        for target, value in zip(others, sums, strict=True):
            target.copy_(value.view(target.shape))
        finite = self.finish(bucket, result, work, [plain, new_q])
        self.keep(bucket, "q", new_q if finite else None, shared=True)

    def _split(
        self, bucket: GradientBucket, flat: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Views of ``flat``: the matrices to compress, and the rest."""
        matrices, rest = [], []
        begin = 0
        for view in bucket.views:
            part = flat[begin:begin + view.numel()]
            begin += view.numel()
            if view.dim() >= 2 and view.numel() > 0:
                matrix = part.view(view.shape[0], -1)
                n, m = matrix.shape
                if n * m > self.min_compression_rate * min(self.rank, n, m) * (n + m):
                    matrices.append(matrix)
                    continue
            rest.append(part)
        return matrices, rest

    def _start(
        self, bucket: GradientBucket, matrices: list[torch.Tensor], ranks: list[int]
    ) -> list[torch.Tensor]:
        """Q of the last step of this epoch, or a random one."""
        columns = [m.shape[1] for m in matrices]
        last = self.recall(bucket, "q")
        if last is None:
            # Uniform numbers: they are made of integers and so the same on every CPU.
            number = zlib.crc32(repr((self.seed, self.epoch, bucket.index)).encode())
            generator = torch.Generator().manual_seed(number)
            total = sum(m * r for m, r in zip(columns, ranks, strict=True))
            last = torch.rand(total, dtype=bucket.work_dtype, generator=generator) * 2 - 1
        return _parts(last, columns, ranks)


def _parts(flat: torch.Tensor, rows: list[int], ranks: list[int]) -> list[torch.Tensor]:
    """Matrices of rows x rank, one after the other in ``flat``."""
    sizes = [n * r for n, r in zip(rows, ranks, strict=True)]
    return [part.view(n, r)
            for part, n, r in zip(torch.split(flat, sizes), rows, ranks, strict=True)]


def _column_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums over the first dimension by halving: one order of additions whatever the machine."""
    while x.shape[0] > 1:
        half = (x.shape[0] + 1) // 2
        folded = x[:half].clone()
        folded[:x.shape[0] - half] += x[half:]
        x = folded
    return x[0]


def _orthogonalise(p: torch.Tensor) -> None:
    """Makes the columns of p (n x rank) orthonormal in place; dependent ones become zero.

    Gram-Schmidt, each column twice against those before it: once is not enough where columns are
    nearly dependent, as they are for gradients of low rank.
    """
    columns = p.to(torch.float64, copy=True)
    for j in range(columns.shape[1]):
        column = columns[:, j]
        before = _column_sums((column * column).unsqueeze(1)).sqrt()
        for _ in range(2 if j > 0 else 0):
            shares = _column_sums(columns[:, :j] * column.unsqueeze(1))
            for i in range(j):
                column -= shares[i] * columns[:, i]
        norm = _column_sums((column * column).unsqueeze(1)).sqrt()
        if bool(norm > 1e-14 * before):
            column /= norm
        else:
            column.zero_()
    p.copy_(columns)


def _product_into(out: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> None:
    """out = p q' by outer products in the order of columns, in blocks of rows that fit a cache."""
    rows = max(1, _BLOCK // max(1, out.shape[1]))
    columns = q.t().contiguous()
    scratch = torch.empty_like(out[:rows])
    for begin in range(0, out.shape[0], rows):
        block, part = out[begin:begin + rows], p[begin:begin + rows]
        torch.mul(part[:, :1], columns[0], out=block)
        for j in range(1, p.shape[1]):
            block += torch.mul(part[:, j:j + 1], columns[j], out=scratch[:block.shape[0]])
