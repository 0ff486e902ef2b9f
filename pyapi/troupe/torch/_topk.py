"""Top-k: only the gradients of largest magnitude travel."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from troupe.torch._gradient_compression import Collectives, ErrorFeedback, GradientBucket

_SAMPLE = 1 << 14  # elements


class TopK(ErrorFeedback):
    """Sparse gradients with error feedback (Stich et al., "Sparsified SGD with Memory", NeurIPS
    2018; Lin et al., "Deep Gradient Compression", ICLR 2018).

    Of each bucket of N gradients every rank sends the k = ceil(ratio N) of largest magnitude by
    all-gather: k values (float64 for float64 gradients, float32 for all other) and k int64 indices.
    The result is their sum in the order of ranks. What is not sent is added to the next step's.

    What a rank receives grows with the size of the group; it pays while size * ratio * 3 is small.

    Args:
        ratio: share of the gradients to send, in (0, 1].

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, ratio: float = 0.01) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, not {ratio}")
        super().__init__()
        self.ratio = ratio

    def signature(self) -> str:
        return f"{super().signature()} ratio={self.ratio}"

    def reduce(self, bucket: GradientBucket, group: Collectives) -> Iterator[None]:
        work = self.corrected(bucket)
        k = min(work.numel(), math.ceil(self.ratio * work.numel()))
        indices = _largest(work.abs(), k)
        values = work[indices]
        all_indices = group.all_gather(indices)
        all_values = group.all_gather(values)
        work[indices] = 0
        yield
        result = torch.zeros_like(work)
        for rank in range(group.size):  # indices of one rank differ, so each sum has one order
            result.index_add_(0, all_indices[rank], all_values[rank])
        self.finish(bucket, result, work, [all_values])


def _largest(magnitude: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the k largest elements, NaN above all.

    A sample says what roughly 2 k elements exceed. If at least k do, the largest are among them:
    the answer is exact and most elements were looked at only once.
    """
    numel = magnitude.numel()
    sample = magnitude[::max(1, numel // _SAMPLE)]
    share = math.ceil(2 * k / numel * sample.numel()) + 8
    if share < sample.numel() // 4:
        threshold = torch.topk(sample, share).values[-1]
        candidates = (~(magnitude < threshold)).nonzero().flatten()
        if candidates.numel() >= k:
            return candidates[torch.topk(magnitude[candidates], k, sorted=False).indices]
    return torch.topk(magnitude, k, sorted=False).indices
