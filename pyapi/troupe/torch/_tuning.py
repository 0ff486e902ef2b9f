"""Choosing the size of gradient buckets from how long steps take with each.

All ranks must cut their gradients alike, in every step. So the order in which sizes are tried is
fixed and advances with the steps, which all ranks make equally often; what is chosen follows from
numbers that all ranks have told each other; and in a new view they compare where they stand.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from typing import Optional

from troupe.torch._buckets import BUCKET_BYTES
from troupe.torch._context import Context

_log = logging.getLogger("troupe.optimizer")

CANDIDATES = (BUCKET_BYTES, 4 << 20, 12 << 20, 1 << 30)  # bytes; the first is kept in doubt
_WARM_STEPS = 2  # with a new size; new memory makes the first one slow
_TIMED_STEPS = 6
_LEAST_GAIN = 0.03  # of a step; less is within what steps vary by


class BucketTuning:
    """One optimizer's search, on one rank.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.choice = 0
        self.decided = False
        self._clock = clock
        self._epoch: Optional[int] = None  # Of the group, in which all ranks are known to agree.
        self._steps = 0
        self._last: Optional[float] = None
        self._times: list[float] = []
        self._medians: list[int] = []  # in nanoseconds, of each size tried

    @property
    def bucket_bytes(self) -> int:
        """The size for the next step."""
        return CANDIDATES[self.choice]

    def step_done(self) -> None:
        """A step of all ranks has ended; the next may be cut differently."""
        now = self._clock()
        before, self._last = self._last, now
        if self.decided or self._measured:
            return
        self._steps += 1
        if self._steps > _WARM_STEPS and before is not None:
            self._times.append(now - before)
        if len(self._times) < _TIMED_STEPS:
            return
        self._medians.append(int(statistics.median(self._times) * 1e9) + 1)
        self._steps, self._times = 0, []
        if not self._measured:
            self.choice += 1

    def due(self, context: Context, size: int) -> bool:
        """Whether the ranks, so many, must compare before the next step."""
        new = self._epoch != context.view["epoch"]
        return size > 1 and (new or (self._measured and not self.decided))

    def compare(self, context: Context, name: str, team: int = 0) -> None:
        """All ranks choose, or begin anew, or take over what older members have chosen.

        Raises:
            HorovodInternalError: a member died meanwhile.
        """
        medians = self._medians if self._measured else [0] * len(CANDIDATES)
        rows = context.gather_ints([int(self.decided), self.choice, *medians], name, team)
        self._epoch = context.view["epoch"]
        known = [row[1] for row in rows if row[0]]
        if known:
            self.choice, self.decided = known[0], True
            return
        slowest = [max(row[2 + i] for row in rows) for i in range(len(CANDIDATES))]
        if not all(row[2] for row in rows):
            self.choice = 0
            self._begin()
            return
        best = min(range(len(CANDIDATES)), key=slowest.__getitem__)
        self.choice = best if slowest[best] < slowest[0] * (1 - _LEAST_GAIN) else 0
        self.decided = True
        if context.rank == 0:
            steps = ", ".join(f"{size / (1 << 20):g} MiB {ns / 1e6:.2f} ms"
                              for size, ns in zip(CANDIDATES, slowest, strict=True))
            _log.info("%s: buckets of %g MiB (a step with %s)", name,
                      self.bucket_bytes / (1 << 20), steps)

    @property
    def _measured(self) -> bool:
        return len(self._medians) == len(CANDIDATES)

    def _begin(self) -> None:
        self._steps, self._last, self._times, self._medians = 0, None, [], []
