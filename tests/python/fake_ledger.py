"""A stand-in for ``troupe._core.SampleLedger``, which counts sample by sample."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Optional

from fake_errors import CoreError


class SampleLedger:
    """Strict reference of the ledger's contract, sample by sample."""

    forgetful = False  # a mutant: what a commit gives back is lost

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.begin_epoch(0)

    def begin_epoch(self, data_epoch: int) -> None:
        self.data_epoch = data_epoch
        self._pool = list(range(self.samples))
        self._lease: Optional[tuple[int, list[int]]] = None
        self.next_step = 0

    @property
    def committed(self) -> int:
        return self.samples - len(self._pool)

    def remaining(self) -> int:
        return len(self._pool)

    def pool(self) -> list[tuple[int, int]]:
        return _ranges(self._pool)

    def lease(self, step: int, sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
        if step < self.next_step:
            raise CoreError("invalid_argument", f"step {step} was already committed")
        if sum(sizes) > len(self._pool):
            raise CoreError("invalid_argument", f"lease of {sum(sizes)} of {len(self._pool)}")
        shares, begin = [], 0
        for size in sizes:
            shares.append(_ranges(self._pool[begin:begin + size]))
            begin += size
        self._lease = (step, self._pool[:begin])
        return shares

    def commit(self, step: int, returned: Sequence[tuple[int, int]] = ()) -> None:
        if self._lease is None or self._lease[0] != step:
            raise CoreError("invalid_argument", f"step {step} is not leased")
        back = [i for begin, end in returned for i in range(begin, end)]
        if len(set(back)) < len(back) or not set(back) <= set(self._lease[1]):
            raise CoreError("invalid_argument", f"step {step} did not lease {returned}")
        self._pool = sorted(({*self._pool} - {*self._lease[1]}) | ({*back} - {
            *(back if self.forgetful else ())}))
        self._lease = None
        self.next_step = step + 1

    def void(self, step: int) -> None:
        self._lease = None

    def state(self) -> bytes:
        return pickle.dumps((self.samples, self.data_epoch, self._pool, self.next_step))

    def load(self, state: bytes) -> None:
        samples, self.data_epoch, self._pool, self.next_step = pickle.loads(state)
        if samples != self.samples:
            raise CoreError("invalid_argument", "the state is of another data set")
        self._lease = None


def _ranges(positions: Sequence[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return ranges
