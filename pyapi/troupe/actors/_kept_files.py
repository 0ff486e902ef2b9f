"""Files that this process has written to lately, open and mapped to be written to again.

A copy into pages that are mapped already is twice as fast as one by a system call. While a file is
kept, no other process can tell whether it has readers; so it is not kept for long.
Thread: any. Limits: ``most_bytes``; files of ``KEPT_BYTES_MIN`` at least.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
import os
import threading
import time
from typing import Optional

from troupe import _native

KEPT_BYTES_MIN = 8 << 20
KEPT_IDLE_S = 30.0
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14.
_PIECE_BYTES = 64 << 20


class KeptFile:
    """An open file; its mapping is made when it is written to for the second time."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self.written = time.monotonic()
        self._map: Optional[mmap.mmap] = None

    def write(self, view: memoryview) -> None:
        """Over what it has from its beginning on."""
        if self._map is None:
            self._map = mmap.mmap(self.fd, self.size, access=mmap.ACCESS_WRITE)
            self._map.madvise(mmap.MADV_DONTFORK)
            _populate(self._map)
        _native.core().copy_bytes(self._map, view)
        self.written = time.monotonic()

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self.fd)


def _populate(mapping: mmap.mmap) -> None:
    """Maps its pages many at once, which is quicker than one by one as they are written to."""
    with contextlib.suppress(OSError):  # An older kernel does not know how.
        for start in range(0, len(mapping), _PIECE_BYTES):  # Others may have the GIL in between.
            mapping.madvise(_POPULATE_WRITE, start, min(_PIECE_BYTES, len(mapping) - start))


class KeptFiles:
    """By their names, the one written to last at the end."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._files: collections.OrderedDict[str, KeptFile] = collections.OrderedDict()

    def keep(self, name: str, file: KeptFile) -> None:
        """Closes it later, or now, and others perhaps."""
        with self._lock:
            self._files[name] = file
            over = sum(f.size for f in self._files.values()) - self._most_bytes
            closed = []
            while over > 0 and self._files:
                _, oldest = self._files.popitem(last=False)
                over -= oldest.size
                closed.append(oldest)
        for file in closed:
            file.close()

    def take(self, name: str) -> Optional[KeptFile]:
        """It belongs to the caller now."""
        with self._lock:
            return self._files.pop(name, None)

    def names(self) -> set[str]:
        """Of those that are kept."""
        with self._lock:
            return set(self._files)

    def close_idle(self, for_s: float = KEPT_IDLE_S) -> None:
        """Those that were not written to for so long."""
        now = time.monotonic()
        with self._lock:
            idle = [name for name, f in self._files.items() if now - f.written >= for_s]
            closed = [self._files.pop(name) for name in idle]
        for file in closed:
            file.close()

    def forget(self) -> None:
        """In a forked child: it has the descriptors, and not the mappings."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                os.close(file.fd)
