"""Large buffers in files that the processes of one host share.

Each cluster has a folder in the shared memory of each host (``runtime/shared_folder.h``), private
to its user. A file of it is written once, and mapped by its readers. Its name says to which process
it belongs: arguments and values that were put to the one that wrote them, a result to its caller;
that process lets go of it, at the latest at its end. What belongs to a process that was killed goes
when the next one starts or needs the room; what is left then goes with the folder.

A new page of shared memory costs several times as much as a copy of it. So what nobody refers to
any more waits for a while in ``free/`` and is written to again, once it has no reader. When memory
is full, what was used longest ago and has no reader is written to disk, and read from there.
``_object_plan`` decides what waits, what goes and what is written to disk.

    fresh/ -> objects/ -> free/ -> fresh/ ...        copies/: of buffers of other hosts
                 |
                 +----> the folder's place on disk

Thread: any.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import logging
import mmap
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

from troupe import _native
from troupe.actors import _object_plan as plan
from troupe.actors._kept_files import KEPT_BYTES_MIN, KEPT_IDLE_S, KeptFile, KeptFiles
from troupe.errors import ObjectLostError, ObjectStoreFullError, TroupeError

_log = logging.getLogger("troupe.actors")
THRESHOLD_BYTES = 256 << 10  # Smaller buffers travel inside messages.
_SCAN_INTERVAL_S = 0.05  # For so long what was found in use is believed, if that is
_PLENTY = 0.875  # at most this share of the limit.
_ROOM_WAIT_S = 120.0
_ROOM_LOOK_S = 0.005
_COPY_BYTES = 16 << 20  # At a time, so that Ctrl-C is seen.
_KEPT_SHARE = 4  # One in so many bytes of the limit may be of files that are kept open.
_TIDY_S = 5.0  # How often a process calls tidy(), about.
_TRIES = 4  # Files that others may have taken meanwhile.
_KINDS = {"objects": plan.OBJECT, "copies": plan.COPY, "free": plan.FREE, "fresh": plan.OBJECT}


class ObjectStore:
    """The files of one process in the folder of its cluster on its host.

    Args:
        path: of the folder (``core.shared_folder_path``).
        limit_bytes: in memory, of all processes of it. spill_limit_bytes: on disk.
    """

    def __init__(
        self, path: str, limit_bytes: Optional[int] = None,
        spill_limit_bytes: Optional[int] = None,
    ) -> None:
        self._shared = _native.core().SharedFolder(path)
        self.base = path
        self.folder = os.path.join(path, "objects")
        self.spill_folder: str = self._shared.spill_path
        self.identity: str = self._shared.identity
        self.limit_bytes = limit_bytes if limit_bytes is not None else default_limit(path)
        if spill_limit_bytes is None:
            spill_limit_bytes = _free_bytes(self.spill_folder) // 2
        self.spill_limit_bytes = spill_limit_bytes
        self.owner: str = self._shared.name
        self.home = b""  # Where processes of other hosts ask for them.
        self._kept = KeptFiles(self.limit_bytes // _KEPT_SHARE)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._used = 0
        self._scanned = 0.0

    # ---- names ----

    @functools.cached_property
    def owner_here(self) -> str:
        """This process, for one of any host that is to write something that belongs to it."""
        return f"{self.owner}@{self.identity}"

    def here(self, name: str) -> Optional[str]:
        """The name, of a file or a process, without its host; ``None``: of another host."""
        own, _, identity = name.partition("@")
        if "/" in own:
            raise TroupeError(f"{name!r} is no name of a shared buffer")
        return own if identity == self.identity else None

    # ---- writing ----

    def write(self, view: memoryview, owner: Optional[str] = None) -> str:
        """A new file with these bytes, of this process or of ``owner``; its name.

        Raises:
            ObjectStoreFullError: the files of the host's cluster, or its disk, are full.
        """
        name = f"{owner or self.owner}.{self.owner}.{next(self._numbers)}"
        mine = f"{self.owner}.{name}"  # While it is written it is this process's.
        fresh, target = os.path.join(self.base, "fresh", mine), os.path.join(self.folder, name)
        file, in_memory = self._open_again(fresh, view.nbytes), True
        if file is None:
            with self._room(view.nbytes) as in_memory:
                if not in_memory:
                    fresh, target = (os.path.join(self.spill_folder, n) for n in (f".{mine}", name))
                fd = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
                os.ftruncate(fd, view.nbytes)  # It counts from now on.
        try:
            if file is None:
                _write_all(fd, view)
                file = KeptFile(fd, view.nbytes)
            else:
                file.write(view)
            os.rename(fresh, target)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            if file is not None:
                file.close()
            else:
                os.close(fd)
            self._scanned = 0.0
            _raise_if_full(error, view.nbytes, os.path.dirname(target))
            raise
        if in_memory and owner is None and file.size >= KEPT_BYTES_MIN:
            self._kept.keep(name, file)
        else:
            file.close()
        return f"{name}@{self.identity}"

    def _open_again(self, fresh: str, size: int) -> Optional[KeptFile]:
        """A file that nobody refers to or reads, by another name, if there is one."""
        kept = self._kept.names()
        free = [f for f in self._files("free")
                if f.size >= plan.POOLED_BYTES_MIN and (f.name in kept or not _is_kept(f))]
        fits = sorted(plan.fitting(free, size), key=lambda f: f.name not in kept)
        for found in fits[:_TRIES]:
            try:
                os.rename(os.path.join(self.base, "free", found.name), fresh)
            except FileNotFoundError:  # Somebody else was quicker.
                continue
            file = self._kept.take(found.name)
            if file is None:
                fd = os.open(fresh, os.O_RDWR | os.O_CLOEXEC)
                file = KeptFile(fd, os.fstat(fd).st_size)
            if _unread(file.fd):
                return file
            file.close()
            os.unlink(fresh)  # Its reader keeps it.
        return None

    # ---- reading ----

    def map(self, name: str, size: int) -> memoryview:
        """Read-only bytes of a file of this host; the mapping lasts as long as they are used.

        Its ``obj`` is a private mapping that may be written without anybody else seeing it.
        """
        fd = self.open(name)
        try:
            return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY)).toreadonly()
        finally:
            os.close(fd)

    def open(self, name: str) -> int:
        """A file of this host, for reading.

        Raises:
            ObjectLostError: it is gone.
        """
        own = self.here(name)
        for folder in (self.folder, self.spill_folder, self.folder):
            if own and folder:
                path = os.path.join(folder, own)
                with contextlib.suppress(FileNotFoundError):
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    with contextlib.suppress(OSError):
                        os.utime(path)
                    return fd
        raise ObjectLostError(
            f"the shared buffer {name} is gone: the process that owned it has ended, or its ref "
            "was dropped")

    # ---- letting go ----

    def discard(self, names: Iterable[str]) -> bool:
        """Lets go of files; who has mapped one keeps its bytes.

        Returns:
            Whether ``tidy`` is due: to give memory back takes long.
        """
        waits = False
        for name in names:
            own = self.here(name)
            if own is None:
                continue
            path = os.path.join(self.folder, own)
            with contextlib.suppress(OSError):
                if os.stat(path).st_size < plan.POOLED_BYTES_MIN:
                    os.unlink(path)
                else:
                    os.utime(path)
                    os.rename(path, os.path.join(self.base, "free", own))
                    waits = True
            if self.spill_folder:  # Also if it was there: it may have been on its way.
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.spill_folder, own))
        self._scanned = 0.0
        return waits and bool(plan.excess(self._files("free"), self.limit_bytes))

    def tidy(self) -> None:
        """Gives back what is too much, or has been of no use for long."""
        self._kept.close_idle()
        free = self._files("free")
        files = [*free, *self._files("copies")]
        for file in {*plan.excess(free, self.limit_bytes), *plan.idle(files, time.time())}:
            self._drop(file)

    def discard_own(self) -> None:
        """Unlinks what belongs to this process, at its end, and leaves the folder."""
        self._kept.close_idle(0.0)
        mine = f"{self.owner}."
        for folder in self._folders():
            for name in _listed(folder):
                if name.startswith(mine):
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(folder, name))
        self._shared = None

    def sweep(self) -> None:
        """Unlinks what belongs to processes that have ended."""
        self._shared.sweep()

    def used_bytes(self) -> int:
        """What all processes of the host's cluster have in memory and refer to."""
        return sum(f.size for f in (*self._files("objects"), *self._files("fresh")))

    def forget(self) -> None:
        """In a forked child, which must keep nothing alive."""
        self._kept.forget()

    # ---- room ----

    def make_room(self, size: int) -> None:
        """For so many bytes of a copy.

        Raises:
            ObjectStoreFullError: there is none.
        """
        with self._room(size) as in_memory:
            if not in_memory:
                raise self._full(size)

    def write_part(self, fd: int, data: bytes, offset: int) -> None:
        """Some of a copy."""
        try:
            os.pwrite(fd, data, offset)
        except OSError as error:
            _raise_if_full(error, len(data), self.base)
            raise

    @contextlib.contextmanager
    def _room(self, size: int) -> Iterator[bool]:
        """Makes room in memory; whether there is some: else on disk there is.

        Where memory is nearly full nobody else takes room meanwhile.
        """
        if self._has_plenty(size):
            yield True
            return
        with self._alone():
            files = self._held()
            steps = plan.room(files, size, self.limit_bytes)
            if steps:
                self._kept.close_idle(0.0)  # They could not be written to disk.
                self.sweep()
                steps = plan.room(self._held(), size, self.limit_bytes)
            done = steps is not None and self._carry_out(steps, size)
            with self._lock:
                self._used, self._scanned = self._held_bytes() + size, time.monotonic()
            if not done and (
                    not self.spill_folder or self._on_disk() + size > self.spill_limit_bytes):
                raise self._full(size)
            yield done

    def _has_plenty(self, size: int) -> bool:
        with self._lock:
            recent = time.monotonic() - self._scanned <= _SCAN_INTERVAL_S
            if not recent or self._used + size > self.limit_bytes * _PLENTY:
                return False
            self._used += size
            return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread or process of this host makes room."""
        fd = os.open(os.path.join(self.base, "room"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            end = time.monotonic() + _ROOM_WAIT_S
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise ObjectStoreFullError(
                            f"others have made room in {self.base} for {_ROOM_WAIT_S:g} s; is the "
                            f"disk of {self.spill_folder} slow?") from None
                time.sleep(_ROOM_LOOK_S)
            yield
        finally:
            os.close(fd)

    def _carry_out(self, steps: Sequence[tuple[str, plan.File]], size: int) -> bool:
        """Whether there is room for ``size`` bytes then."""
        missing = self._held_bytes() + size - self.limit_bytes
        on_disk = self._on_disk()
        for what, file in steps:
            if missing <= 0:
                break
            if what == plan.DROP:
                gone = self._drop(file)
            else:
                gone = on_disk + file.size <= self.spill_limit_bytes and self._spill(file)
                on_disk += file.size if gone else 0
            missing -= file.size if gone else 0
        return missing <= 0

    def _held(self) -> list[plan.File]:
        return [f for folder in _KINDS for f in self._files(folder)]

    def _held_bytes(self) -> int:
        return sum(f.size for f in self._held())

    def _on_disk(self) -> int:
        return sum(f.size for f in _scan(self.spill_folder, plan.OBJECT))

    def _full(self, size: int) -> ObjectStoreFullError:
        return ObjectStoreFullError(
            f"a buffer of {size} bytes does not fit: {self._held_bytes()} of {self.limit_bytes} "
            f"bytes of shared buffers are in use on this host, and {self._on_disk()} of "
            f"{self.spill_limit_bytes} on its disk, in {self.spill_folder or 'no folder'}; drop "
            "refs that are no longer needed, or raise object_store_memory in troupe.init()")

    def _drop(self, file: plan.File) -> bool:
        """Gives its memory back, unless it is of use for somebody; whether it did.

        What nobody refers to goes even if it is mapped: then its readers keep it.
        """
        folder = {plan.FREE: "free", plan.COPY: "copies"}[file.kind]
        path = os.path.join(self.base, folder, file.name)
        try:
            if file.kind == plan.FREE or self._nobody_reads(path):
                os.unlink(path)
                return True
        except OSError:  # It is gone, or is being used again.
            pass
        return False

    def _nobody_reads(self, path: str) -> bool:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return _unread(fd)
        finally:
            os.close(fd)

    def _spill(self, file: plan.File) -> bool:
        """Moves it to disk, unless somebody reads it, or moves it already; whether it did."""
        path = os.path.join(self.folder, file.name)
        target = os.path.join(self.spill_folder, file.name)
        aside = os.path.join(self.spill_folder, f".{self.owner}.{file.name}")
        with contextlib.suppress(FileNotFoundError), _locked(path) as fd:
            if fd < 0 or not _unread(fd):
                return False
            try:
                _copy(fd, aside)
                os.rename(aside, target)
            except OSError as error:  # What needs the room will be refused.
                _log.warning("cannot write %s to disk: %s", file.name, error)
                with contextlib.suppress(OSError):
                    os.unlink(aside)
                return False
            try:
                os.unlink(path)
            except FileNotFoundError:  # Nobody refers to it any more.
                os.unlink(target)
            return True
        return False

    def _folders(self) -> list[str]:
        parts = [os.path.join(self.base, part) for part in ("objects", "fresh")]
        return [*parts, self.spill_folder] if self.spill_folder else parts

    def _files(self, part: str) -> list[plan.File]:
        return _scan(os.path.join(self.base, part), _KINDS[part])


def _is_kept(file: plan.File) -> bool:
    """Whether its writer may keep it open still."""
    owner, writer, *_ = file.name.split(".")
    kept = owner == writer and file.size >= KEPT_BYTES_MIN
    return kept and time.time() - file.used < KEPT_IDLE_S + _TIDY_S


def default_limit(folder: str) -> int:
    """30 % of the memory, and at most half of what the file system has free."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    there = folder if os.path.isdir(folder) else os.path.dirname(folder)
    return min(memory * 3 // 10, _free_bytes(there) // 2)


def _free_bytes(folder: str) -> int:
    try:
        stat = os.statvfs(folder)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize


def _write_all(fd: int, view: memoryview) -> None:
    done = 0
    while done < view.nbytes:
        done += os.pwrite(fd, view[done:done + _COPY_BYTES], done)


def _raise_if_full(error: BaseException, size: int, folder: str) -> None:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise ObjectStoreFullError(
            f"no room for {size} bytes in {folder}: {error.strerror}; drop refs that are no "
            "longer needed, or make room there") from error


def _unread(fd: int) -> bool:
    """Whether nobody else has this file open or mapped, in any process.

    The kernel grants a write lease only then. It tells, not we: so a reader counts however it came
    to its mapping, and no more once it was killed.
    """
    try:
        fcntl.fcntl(fd, _SET_SIGNAL, signal.SIGURG)  # That of a lease would end the process.
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True


_SET_SIGNAL = getattr(fcntl, "F_SETSIG", 10)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[int]:
    """The file, open and locked; -1: somebody else has locked it, or it is another by now."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = os.stat(path)
        same = (there.st_ino, there.st_dev) == (os.fstat(fd).st_ino, os.fstat(fd).st_dev)
        yield fd if same else -1
    except BlockingIOError:
        yield -1
    finally:
        os.close(fd)


def _copy(fd: int, path: str) -> None:
    to = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        size, done = os.fstat(fd).st_size, 0
        while done < size:
            sent = os.sendfile(to, fd, done, min(_COPY_BYTES, size - done))
            if sent == 0:
                raise OSError(errno.EIO, "it has become shorter")
            done += sent
    finally:
        os.close(to)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _scan(folder: str, kind: str) -> list[plan.File]:
    found: list[plan.File] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder or "/nowhere") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                stat: Any = entry.stat(follow_symlinks=False)
                found.append(plan.File(kind, entry.name, stat.st_size, stat.st_mtime))
    return found
