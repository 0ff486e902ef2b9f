"""Loaders that read ahead: their batches count when training gets them, not when workers do.

A ``DataLoader`` with workers draws several batches before the first of them is trained on. What it
draws is planned, and nothing is leased; how many batches it has given out says, whenever somebody
asks, which are part of the steps so far. When the members change, what it has read ahead is of the
old shares, and a new iterator begins with what was not counted.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from types import FrameType
from typing import Any, Optional

from torch.utils.data import dataloader

from troupe.errors import TroupeError

_STALE = (
    "a DataLoader with workers was made before the members changed, so what it reads are no longer "
    "this member's samples; make its iterator inside the function decorated with "
    "troupe.torch.elastic.run, with `for batch in loader`"
)


class ReadAhead:
    """The batches of one iterator of a loader that are drawn and not yet counted."""

    def __init__(self, loader: Any, batch_size: int) -> None:
        if not getattr(loader, "_in_order", True):
            raise ValueError(
                "batches() needs a DataLoader that keeps the order; leave in_order=False out")
        self.batch_size = batch_size
        self._stale = False
        # Not the iterator itself, which ends its workers when the loop over it lets go of it.
        self._loader = vars(loader)
        self._drawn: collections.deque[list[int]] = collections.deque()
        self._counted = 0

    def retire(self) -> None:
        """The members have changed: what is drawn, and what was not asked for, is nobody's."""
        self._stale = True
        self._drawn.clear()
        self._counted = self._loader["_num_yielded"]

    def draw(self, plan: Iterator[list[int]]) -> Iterator[list[int]]:
        """Passes a plan on to the loader's workers."""
        for batch in plan:
            if self._stale:
                return  # Who asks for what training got is told.
            self._drawn.append(batch)
            yield batch

    def given(self) -> Iterator[list[int]]:
        """The batches that training has got since this was asked last."""
        while self._counted < self._loader["_num_yielded"]:
            if self._stale:
                raise TroupeError(_STALE)
            self._counted += 1
            yield self._drawn.popleft()


def reading_ahead(caller: FrameType) -> Optional[Any]:
    """The iterator of a DataLoader with workers, if it is what calls from this frame."""
    iterator = caller.f_locals.get("self")
    ahead = isinstance(iterator, dataloader._BaseDataLoaderIter) and iterator._num_workers > 0
    return iterator if ahead else None
