"""Runs gradient compressors, whose reduction of a bucket takes several rounds of collectives.

All ranks must issue the same sequence, so when a reduction goes on is a function of the order of
buckets and not of what has arrived: the start of a bucket moves each earlier one by a round. With
two rounds per bucket: P0, P1 Q0, P2 Q1, ... and the rest after the backward pass. A round is
waited for one bucket later, when it has most likely arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from troupe import _native
from troupe.torch._buckets import Bucket
from troupe.torch._context import DTYPE_NAMES, Context
from troupe.torch._gradient_compression import GradientBucket, GradientCompressor
from troupe.torch._tree import nbytes


class _Reduction:
    """One bucket under way; also the collectives that its compressor sees."""

    def __init__(
        self, context: Context, team: int, name: str, compressor: GradientCompressor,
        bucket: GradientBucket,
    ) -> None:
        ranks = list(range(context.size)) if team == 0 else context.group.team(team)
        self.rank = ranks.index(context.rank)
        self.size = len(ranks)
        self.handles: list[int] = []
        self.keep: list[torch.Tensor] = [bucket.flat]
        self._context = context
        self._team = team
        self._name = name
        self._count = 0
        self._steps: Iterator[None] = iter(compressor.reduce(bucket, self))

    def all_reduce(self, tensor: torch.Tensor) -> None:
        name = self._take(tensor)
        if tensor.numel() == 0:
            return
        with _native.collective_errors(name):
            buffers = [(tensor.data_ptr(), nbytes(tensor))]
            self.handles.append(int(self._context.group.allreduce(
                buffers, buffers, tensor.numel(), DTYPE_NAMES[tensor.dtype], "sum", 1.0, 1.0, name,
                self._team,
            )))

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        name = self._take(tensor)
        out = tensor.new_empty((self.size, *tensor.shape))
        self.keep.append(out)
        if tensor.numel() == 0:
            return out
        with _native.collective_errors(name):
            self.handles.append(int(self._context.group.allgather(
                tensor.data_ptr(), out.data_ptr(), [nbytes(tensor)] * self.size, name,
                self._team,
            )))
        return out

    def _take(self, tensor: torch.Tensor) -> str:
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ValueError("a gradient compressor sends contiguous tensors on the CPU only")
        self.keep.append(tensor)
        self._count += 1
        return f"{self._name}.{self._count}"

    def advance(self) -> bool:
        """Waits for the collectives under way and goes on to the next; whether there is more."""
        with _native.collective_errors(self._name):
            while self.handles:
                self._context.group.wait(self.handles[0], self._context.timeout_s)
                del self.handles[0]
        with torch.no_grad():
            for _ in self._steps:
                return True
        return False


class Rounds:
    """The reductions of one step of one optimizer.

    Args:
        team: the core's number of the process set.
    """

    def __init__(
        self, context: Context, compressor: GradientCompressor, team: Callable[[], int]
    ) -> None:
        self.compressor = compressor
        self._context = context
        self._team = team
        self._running: list[_Reduction] = []

    def enter(self, name: str) -> None:
        """Before the first bucket of a step: in a new epoch, agrees on what is shared."""
        epoch = int(self._context.view["epoch"])
        if self.compressor.epoch != epoch:
            rows = self._context.gather_ints([self.compressor.steps], name, self._team())
            self.compressor.enter_epoch(epoch, max(row[0] for row in rows))

    def start(self, bucket: Bucket, index: int, name: str) -> None:
        """Starts a bucket, and moves those before it."""
        view = GradientBucket(index, bucket.flat, bucket.views)
        earlier = list(self._running)
        self._running.append(
            _Reduction(self._context, self._team(), name, self.compressor, view))
        for reduction in [self._running[-1], *earlier]:
            if not reduction.advance():
                self._running.remove(reduction)

    def finish(self) -> None:
        """Runs all buckets to their ends."""
        while self._running:
            for reduction in list(self._running):
                if not reduction.advance():
                    self._running.remove(reduction)

    @property
    def handles(self) -> list[int]:
        """The core's handles of the bucket that started last."""
        return list(self._running[-1].handles) if self._running else []

    @property
    def in_flight(self) -> bool:
        """Whether some bucket has started and not ended."""
        return bool(self._running)

    def abandon(self) -> tuple[list[int], list[Any]]:
        """Drops the step; returns the handles in flight and the memory that they use."""
        handles = [handle for reduction in self._running for handle in reduction.handles]
        keep = [reduction.keep for reduction in self._running]
        self._running = []
        self.compressor.rollback()
        return handles, keep
