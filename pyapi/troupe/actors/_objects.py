"""Large buffers in files that the processes of one host share.

A file is made with ``O_EXCL`` and mode 0600 in the private directory of the cluster, filled by its
writer, and mapped by its readers. Its name says to which process it belongs: arguments and values
that were put to the one that wrote them, a result to its caller. That process unlinks it, at the
latest at its end. What belongs to a process that was killed is unlinked by the next one that starts
or needs the room; what is left then goes with the directory of the cluster.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import threading
import time
from collections.abc import Iterable
from typing import Optional

from troupe.errors import ObjectStoreFullError, TroupeError

THRESHOLD_BYTES = 256 << 10  # Smaller buffers travel inside messages.
_SCAN_INTERVAL_S = 0.05


class ObjectStore:
    """The files of one process in the directory of its host's cluster."""

    def __init__(self, folder: str, limit_bytes: Optional[int] = None) -> None:
        self.folder = folder
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.limit_bytes = limit_bytes if limit_bytes is not None else default_limit(folder)
        self.owner = f"{os.getpid()}-{_start_of(os.getpid())}"
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._used = 0
        self._scanned = 0.0
        self.leaving: set[str] = set()  # Files that somebody will discard soon.
        self.sweep()

    def write(self, view: memoryview, owner: Optional[str] = None) -> str:
        """A new file with these bytes, of this process or of ``owner``; its name.

        Raises:
            ObjectStoreFullError: the files of the host's cluster, or its disk, are full.
        """
        self._reserve(view.nbytes)
        name = f"{owner or self.owner}.{self.owner}.{next(self._numbers)}"
        path = os.path.join(self.folder, name)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            done = 0
            while done < view.nbytes:
                done += os.write(fd, view[done:])
        except OSError as error:
            self.discard([name])
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ObjectStoreFullError(
                    f"no room for {view.nbytes} bytes in {self.folder}: {error.strerror}; "
                    "set TMPDIR to a larger place before the cluster starts"
                ) from error
            raise
        finally:
            os.close(fd)
        return name

    def map(self, name: str, size: int) -> memoryview:
        """Read-only bytes of a file; the mapping lasts as long as they are used.

        Its ``obj`` is a private mapping that may be written without anybody else seeing it.
        """
        if "/" in name:
            raise TroupeError(f"{name!r} is no name of a shared buffer")
        try:
            fd = os.open(os.path.join(self.folder, name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise TroupeError(
                f"the shared buffer {name} is gone: the process that owned it has ended, or its "
                "ref was dropped"
            ) from None
        try:
            return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY)).toreadonly()
        finally:
            os.close(fd)

    def leave(self, names: Iterable[str]) -> None:
        """Says that somebody will discard these files soon; at once, if there is need of room."""
        self.leaving.update(names)

    def discard(self, names: Iterable[str]) -> None:
        """Unlinks files; who has mapped one keeps its bytes."""
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.folder, name))
            self.leaving.discard(name)
        self._scanned = 0.0

    def discard_own(self) -> None:
        """Unlinks what belongs to this process, at its end."""
        mine = f"{self.owner}."
        self.discard([entry.name for entry in self._entries() if entry.name.startswith(mine)])

    def sweep(self) -> None:
        """Unlinks what belongs to processes that have ended."""
        alive: dict[str, bool] = {}
        for entry in self._entries():
            owner = entry.name.partition(".")[0]
            with contextlib.suppress(OSError, ValueError):
                if owner not in alive:
                    pid, _, start = owner.partition("-")
                    alive[owner] = _start_of(int(pid)) == start
                if not alive[owner]:
                    os.unlink(entry.path)

    def used_bytes(self) -> int:
        """What all processes of the host's cluster have in files."""
        total = 0
        for entry in self._entries():
            with contextlib.suppress(OSError):
                total += entry.stat().st_size
        return total

    def _reserve(self, size: int) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._scanned > _SCAN_INTERVAL_S or self._used + size > self.limit_bytes:
                self._used, self._scanned = self.used_bytes(), now
            if self._used + size > self.limit_bytes:
                self.discard(list(self.leaving))
                self.sweep()
                self._used = self.used_bytes()
            if self._used + size > self.limit_bytes:
                raise ObjectStoreFullError(
                    f"a buffer of {size} bytes does not fit: {self._used} of {self.limit_bytes} "
                    "bytes of shared buffers are in use on this host; drop refs that are no "
                    "longer needed, or raise object_store_memory in troupe.init()"
                )
            self._used += size

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.folder) as entries:
                return list(entries)
        except FileNotFoundError:
            return []


def default_limit(folder: str) -> int:
    """30 % of the memory, and at most half of what the file system has free."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    stat = os.statvfs(folder)
    return min(memory * 3 // 10, stat.f_bavail * stat.f_frsize // 2)


def _start_of(pid: int) -> str:
    """When a process started, in ticks since boot; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
