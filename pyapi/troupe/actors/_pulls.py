"""Buffers of other hosts: pulled in parts by who needs them, once for each host.

Who needs a buffer first makes a file ``NAME.part`` in ``copies/``, locks it, and asks the process
at its home for one part after another; others of its host wait for it. If it ends meanwhile, the
next goes on where it was. The copy stays while it has readers, and a while after that.
``_object_plan.Pull`` decides what is asked for when.

Thread: any; it waits, so not that of completions.
Limits: ``_PULLS_MAX`` pulls at once in a process, each with ``WINDOW_MAX`` parts on their way;
``SILENCE_S`` without a part.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from troupe.actors import _object_plan as plan
from troupe.errors import (
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OwnerDiedError,
    code_of,
)

if TYPE_CHECKING:
    from troupe.actors._objects import ObjectStore

SILENCE_S = 60.0  # Of a home that does not answer.
_PART_S = 20.0  # Then a part is asked for again.
_SLICE_S = 0.2
_WAIT_MIN_S, _WAIT_MAX_S = 0.002, 0.05  # Between looks at what another process pulls.
_PULLS_MAX = 4
_ROOM_BYTES = 64 << 20  # For so much room is made at a time.

pulled_bytes = 0  # By this process, for people and tests.
_turns = threading.BoundedSemaphore(_PULLS_MAX)
_here = threading.local()


@contextlib.contextmanager
def until(deadline: Optional[float]) -> Iterator[None]:
    """Pulls of this thread end then, with a GetTimeoutError; what they have got is kept."""
    before, _here.deadline = getattr(_here, "deadline", None), deadline
    try:
        yield
    finally:
        _here.deadline = before


def left_s(most: float) -> float:
    """What is left of this thread's time, ``most`` if that is not limited."""
    deadline: Optional[float] = getattr(_here, "deadline", None)
    return most if deadline is None else max(0.0, deadline - time.monotonic())


class WaitsError(Exception):
    """A value is not on this host, and its thread must not wait for it."""


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """What would be pulled by this thread is a WaitsError instead: an event loop runs on it."""
    _here.at_once = True
    try:
        yield
    finally:
        _here.at_once = False


def map_file(store: ObjectStore, home: bytes, name: str, size: int) -> memoryview:
    """The bytes of a file, of this host or of another; see ``ObjectStore.map``.

    Raises:
        ObjectLostError, OwnerDiedError: nobody can give it any more. ObjectStoreFullError: it does
        not fit here. GetTimeoutError: see ``until``.
    """
    if store.here(name) is not None:
        return store.map(name, size)
    if getattr(_here, "at_once", False):
        raise WaitsError
    copy = _Copy(store, home, name, size)
    fd = copy.open()
    try:
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY)).toreadonly()
    finally:
        os.close(fd)


def value_of(ref: Any) -> Any:
    """The value of a result that has stayed with the process that has made it."""
    from troupe.actors import _refs

    if getattr(_here, "at_once", False):
        raise WaitsError
    return _refs.get_until(ref, getattr(_here, "deadline", None))


def _count(size: int) -> None:
    global pulled_bytes
    with _count_lock:
        pulled_bytes += size


_count_lock = threading.Lock()


class _Copy:
    """A buffer of another host, on this one."""

    def __init__(self, store: ObjectStore, home: bytes, name: str, size: int) -> None:
        own, _, identity = name.partition("@")
        self._store, self._home, self._name, self._size = store, home, name, size
        self._path = os.path.join(store.base, "copies", f"{identity}.{own}")
        self._part = f"{self._path}.part"
        self._deadline: Optional[float] = getattr(_here, "deadline", None)

    def open(self) -> int:
        """The whole file, for reading."""
        wait = _WAIT_MIN_S
        seen, since = -1, time.monotonic()
        while True:
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                with contextlib.suppress(OSError):
                    os.utime(self._path)
                return fd
            if self._try():
                wait = _WAIT_MIN_S
                continue
            self._check_time()
            if (there := self._there()) != seen:
                seen, since = there, time.monotonic()
            elif time.monotonic() - since > 2 * SILENCE_S:  # It is stopped, perhaps.
                raise ObjectLostError(
                    f"another process of this host pulls {self._name}, and has not gone on for "
                    f"{2 * SILENCE_S:g} s")
            time.sleep(wait)
            wait = min(_WAIT_MAX_S, wait * 2)

    def _there(self) -> int:
        """How much of it has come."""
        try:
            return os.stat(self._part).st_size
        except FileNotFoundError:
            return 0

    def _try(self) -> bool:
        """Pulls it, unless another thread or process does; whether it is there now."""
        fd = os.open(self._part, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            try:
                if os.stat(self._part).st_ino != os.fstat(fd).st_ino:
                    return False
            except FileNotFoundError:  # It was complete, and is gone again.
                return False
            if os.path.exists(self._path):
                os.unlink(self._part)
                return True
            with self._turn():
                try:
                    self._pull(fd)
                except (ObjectLostError, ObjectStoreFullError):
                    os.unlink(self._part)  # Nobody will go on with it.
                    raise
            os.rename(self._part, self._path)
            return True
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        while not _turns.acquire(timeout=_SLICE_S):
            self._check_time()
        try:
            yield
        finally:
            _turns.release()

    def _pull(self, fd: int) -> None:
        from troupe.actors import _session

        have = os.fstat(fd).st_size
        room = have  # Up to where there is some.
        home = _session.current().actors.refer(self._home)
        pull = plan.Pull(self._size, have)
        asked: dict[int, tuple[Any, int]] = {}
        heard = time.monotonic()
        while not pull.done:
            while (part := pull.ask(time.monotonic())) is not None:
                request = f"{part[0]} {part[1]} {self._name}".encode()
                asked[part[0]] = home.call("file", request, _PART_S, False), part[1]
            # In the order of the file, so that its length says how much there is.
            offset = min(asked)
            call, length = asked[offset]
            self._check_time()
            if not call.wait(_SLICE_S):
                if time.monotonic() - heard > SILENCE_S:
                    raise ObjectLostError(f"{self._what()} has not answered for {SILENCE_S:g} s")
                continue
            del asked[offset]
            try:
                data = call.result()
                if len(data) != length:
                    raise ObjectLostError(f"{self._what()} gives other bytes than it was asked for")
            except RuntimeError as error:
                self._lost(error, home, pull, offset)
                continue
            heard = time.monotonic()
            while room < offset + length:
                more = min(_ROOM_BYTES, self._size - room)
                self._store.make_room(more)
                room += more
            self._store.write_part(fd, data, offset)
            _count(len(data))
            pull.came(offset, heard)

    def _lost(self, error: RuntimeError, home: Any, pull: plan.Pull, offset: int) -> None:
        code = code_of(error)
        if code == "not_found":
            raise ObjectLostError(f"{self._what()} does not have it any more: {error}") from None
        if code == "peer_gone":
            raise OwnerDiedError(
                f"{self._what()} has ended while it was read, and nobody else has it; let a "
                "process that lives longer make what others need") from None
        if not pull.lost(offset):
            raise ObjectLostError(f"{self._what()} cannot give it: {error}") from None

    def _what(self) -> str:
        return f"the process at the home of the buffer {self._name} ({self._size} bytes)"

    def _check_time(self) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise GetTimeoutError(
                f"{self._size} bytes of another host are not here in time; the next attempt goes "
                "on with what has come")
