"""What becomes of the files of a host's shared memory, and in which parts one is pulled: decisions.

Pure: listings and times are handed in, what is to be done comes back.

Invariants: OP-1 what has a reader is neither written to again nor counted as room; OP-2 a value
whose ref lives is in memory or on disk at any time, whole; OP-3 no more bytes are in memory than
the limit says, and on disk; OP-4 what nobody refers to makes room before anything that somebody
does; OP-5 a pull asks for each byte until it has it, and for no more at once than its window.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

POOLED_BYTES_MIN = 1 << 20  # A new page costs more than a smaller file is worth.
FREE_IDLE_S = 40.0  # How long memory that nobody uses waits for the next buffer.
COPY_IDLE_S = 60.0  # And a copy of another host's buffer for the next who needs it.
_POOLED_SHARE = 2  # One in so many bytes of the limit may wait.
_WASTE = 2  # A file is used again for a buffer of at least one in so many of its bytes.

OBJECT, COPY, FREE = "object", "copy", "free"
DROP, SPILL = "drop", "spill"


@dataclass(frozen=True)
class File:
    """One of the files in memory."""

    kind: str
    name: str
    size: int
    used: float  # When it was last written or read, or let go of.


def fitting(free: Iterable[File], size: int) -> list[File]:
    """Files that nobody refers to, to be used again for so many bytes; the best first."""
    fits = [f for f in free if size <= f.size <= size * _WASTE]
    return sorted(fits, key=lambda f: (f.size, -f.used, f.name))


def excess(free: Iterable[File], limit: int) -> list[File]:
    """What is too much of what waits to be used again, the oldest first."""
    there = sorted(free, key=lambda f: (f.used, f.name))
    over = sum(f.size for f in there) - limit // _POOLED_SHARE
    found: list[File] = []
    for file in there:
        if over <= 0:
            break
        found.append(file)
        over -= file.size
    return found


def room(files: Iterable[File], size: int, limit: int) -> Optional[list[tuple[str, File]]]:
    """What to do, in this order and until it is enough, so that ``size`` more bytes fit.

    ``None``: they never will. What has a reader is to be left out by who does it, but for what
    nobody refers to: that is to be dropped even so, since no more is known of it.
    """
    if size > limit:
        return None
    there = list(files)
    order = {FREE: 0, COPY: 1, OBJECT: 2}
    if sum(f.size for f in there) + size <= limit:
        return []
    ranked = sorted(there, key=lambda f: (order[f.kind], f.used, f.name))
    return [(SPILL if f.kind == OBJECT else DROP, f) for f in ranked]


def idle(files: Iterable[File], now: float) -> list[File]:
    """What nobody has used for so long that it goes; also if the clock says: later than now."""
    limits = {FREE: FREE_IDLE_S, COPY: COPY_IDLE_S}
    return [f for f in files if f.kind in limits and not 0 <= now - f.used <= limits[f.kind]]


CHUNK_BYTES = 256 << 10
WINDOW_MAX = 16
DELAY_S = 0.003  # What a chunk may wait behind others: so long small messages wait, too.
ASK_AGAIN = 5
_RECENT = 4  # So many parts in a row have waited when a window is too large.


class Pull:
    """Which parts of a buffer are asked for next, so that others are hardly delayed.

    Few parts are asked for at once, and fewer if they take longer than the quickest has taken: then
    they wait in a queue on their way, in which all other messages between the two processes wait.
    """

    def __init__(self, size: int, have: int = 0) -> None:
        self.size = size
        self.window = 2.0
        self._next = have
        self._again: collections.deque[tuple[int, int]] = collections.deque()
        self._asked: dict[int, tuple[int, float]] = {}  # By offset: length, when.
        self._failures: collections.Counter[int] = collections.Counter()
        self._left = size - have
        self._quickest: Optional[float] = None
        self._recent: collections.deque[float] = collections.deque(maxlen=_RECENT)

    @property
    def done(self) -> bool:
        """Whether all of it has come."""
        return self._left == 0

    @property
    def asked_bytes(self) -> int:
        """What is on its way."""
        return sum(length for length, _ in self._asked.values())

    def ask(self, now: float) -> Optional[tuple[int, int]]:
        """The next part to ask for: offset and length; ``None``: not now."""
        if self._again:  # At once: those before it are written first.
            part = self._again.popleft()
        elif len(self._asked) < int(self.window) and self._next < self.size:
            part = (self._next, min(CHUNK_BYTES, self.size - self._next))
            self._next += part[1]
        else:
            return None
        self._asked[part[0]] = (part[1], now)
        return part

    def came(self, offset: int, now: float) -> bool:
        """It is here; whether it was still asked for."""
        asked = self._asked.pop(offset, None)
        if asked is None:
            return False
        length, when = asked
        self._left -= length
        took = now - when
        self._quickest = took if self._quickest is None else min(self._quickest, took)
        self._recent.append(took)
        # One that was late alone was held up otherwise: by a process that had no CPU, perhaps.
        if len(self._recent) == _RECENT and min(self._recent) > self._quickest + DELAY_S:
            self.window = max(1.0, self.window / 2)
            self._recent.clear()
        elif took <= self._quickest + DELAY_S:
            self.window = min(float(WINDOW_MAX), self.window + 1 / self.window)
        return True

    def lost(self, offset: int) -> bool:
        """It will not come; whether it is asked for again."""
        asked = self._asked.pop(offset, None)
        if asked is None:
            return True
        self._failures[offset] += 1
        self._again.append((offset, asked[0]))
        self.window = 1.0
        return self._failures[offset] < ASK_AGAIN
