"""Compression of gradient buckets that takes several collectives and keeps state between steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class GradientBucket:
    """What is reduced at once.

    Attributes:
        index: place of the bucket in the order of reduction, the same on all ranks.
        flat: 1-D on the CPU, dtype of its parameters. Holds this rank's gradients times its weight
            in the average; :meth:`GradientCompressor.reduce` replaces them with the sum over ranks.
        views: one view of ``flat`` per parameter, in the parameter's shape.
    """

    index: int
    flat: torch.Tensor
    views: Sequence[torch.Tensor]

    @property
    def work_dtype(self) -> torch.dtype:
        """The dtype to compute in: float64 for float64, float32 for all other."""
        return torch.float64 if self.flat.dtype == torch.float64 else torch.float32


class Collectives(Protocol):
    """What :meth:`GradientCompressor.reduce` may call: collectives that run until its ``yield``.

    All ranks must make the same calls with the same shapes and dtypes.

    Raises:
        HorovodInternalError: by each method, when the group has changed.
    """

    rank: int
    size: int

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Starts to sum a contiguous CPU tensor over the ranks, in place."""

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Starts to gather a contiguous CPU tensor; the result has shape (size, *tensor.shape)."""
        raise NotImplementedError


class GradientCompressor:
    """Base of compressors with state; pass an object to ``DistributedOptimizer(compression=...)``.

    A subclass defines :meth:`reduce`. State goes through :meth:`recall` and :meth:`keep`, so that a
    step that fails in the middle leaves it as it was and can be done again:

    * ``keep(..., shared=False)``: state of this rank alone, such as the error of error feedback. It
      stays through changes of the group: what this rank has not sent yet is still sent, to whoever
      is there. What a dead rank had not sent is lost; a joiner starts with none. A rank that is
      handed the result of a broken step by another one keeps the error of the step before.
    * ``keep(..., shared=True)``: state that is equal on all ranks and needs to be. It is dropped in
      every new epoch, since a joiner lacks it and a member that died may have left the survivors
      with different ones. Derive it anew from ``seed``, ``epoch`` and the bucket.

    ``steps`` is agreed on at the first step of an epoch: the largest of all ranks', so that a
    joiner is where the others are. All state is dropped when the parameters change
    (``add_param_group``), and state of this rank alone by ``load_state_dict``. None of it is part
    of a ``TorchState``: where ``state.restore()`` goes back over several steps, the error of the
    last one is still sent although they are redone, and a training that starts again from a
    checkpoint starts without.

    With a single rank nothing is compressed. One object serves one optimizer.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.epoch = -1
        self.steps = 0
        self._state: dict[tuple[int, str], tuple[bool, torch.Tensor]] = {}
        self._staged: dict[tuple[int, str], tuple[bool, torch.Tensor | None]] = {}

    def reduce(self, bucket: GradientBucket, group: Collectives) -> Iterator[None]:
        """A generator that replaces ``bucket.flat`` with (an approximation of) its sum over ranks.

        It starts collectives and yields where it needs their results. Meanwhile the backward pass
        and other buckets go on: it is resumed once for each later bucket that starts, and after
        the backward pass until it ends. The result must have the same bits on all ranks.
        """
        raise NotImplementedError("reduce")

    def signature(self) -> str:
        """What must be equal on all ranks; it is compared once per epoch."""
        return f"{type(self).__name__} seed={self.seed}"

    def recall(self, bucket: GradientBucket, name: str) -> torch.Tensor | None:
        """What :meth:`keep` has kept by the last complete step, or None."""
        entry = self._state.get((bucket.index, name))
        return None if entry is None else entry[1]

    def keep(
        self, bucket: GradientBucket, name: str, value: torch.Tensor | None, shared: bool
    ) -> None:
        """Keeps a tensor for the next step, once this one is complete, or drops what was kept.

        The tensor is not copied.
        """
        self._staged[(bucket.index, name)] = (shared, value)

    # -- called by the optimizer --------------------------------------------------------------

    def enter_epoch(self, epoch: int, steps: int) -> None:
        """A new view: drops shared state and takes over the number of steps."""
        self.epoch, self.steps = epoch, steps
        self._staged.clear()
        self._state = {key: entry for key, entry in self._state.items() if not entry[0]}

    def commit(self) -> None:
        """The step is complete: what it kept counts from now on."""
        for key, (shared, value) in self._staged.items():
            self._state.pop(key, None)
            if value is not None:
                self._state[key] = (shared, value)
        self._staged.clear()
        self.steps += 1

    def rollback(self) -> None:
        """The step has no result: as if it had not begun."""
        self._staged.clear()

    def forget_errors(self) -> None:
        """Drops state of this rank alone; what is shared must go on all ranks at once."""
        self._staged.clear()
        self._state = {key: entry for key, entry in self._state.items() if entry[0]}

    def reset(self) -> None:
        """Forgets everything but the number of steps; on all ranks alike."""
        self._state.clear()
        self._staged.clear()


class ErrorFeedback(GradientCompressor):
    """A compressor that adds what was left out to the next step's gradients.

    Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
    ICML 2019. The error is a sum, not an average: over any number of steps, the results plus the
    errors of all ranks at the end are the sum of all gradients (times their weights).
    """

    def corrected(self, bucket: GradientBucket) -> torch.Tensor:
        """The bucket's gradients plus this rank's error, a new 1-D tensor of ``work_dtype``."""
        work = bucket.flat.to(bucket.work_dtype, copy=True)
        error = self.recall(bucket, "error")
        return work if error is None else work.add_(error)

    def finish(
        self,
        bucket: GradientBucket,
        result: torch.Tensor,
        error: torch.Tensor | None,
        received: Sequence[torch.Tensor],
    ) -> bool:
        """Ends a reduction with the sum of all ranks and what this rank has not sent.

        ``result`` and ``error`` are 1-D of ``work_dtype``; ``received``, equal on all ranks, is
        what the result was made of. Returns whether that is finite. If not, all ranks drop their
        errors, so that one overflow does not come back in every step that follows.
        """
        finite = all(bool(torch.isfinite(part).all()) for part in received)
        self.keep(bucket, "error", error if finite else None, shared=False)
        if result is not bucket.flat:
            bucket.flat.copy_(result)
        return finite
