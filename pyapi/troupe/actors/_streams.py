"""Generators of actors and tasks, as their callers see them."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any, Optional

from troupe import _native
from troupe._config import check_count
from troupe.actors import _calls, _codec, _context, _failures, _refs, _session
from troupe.actors._refs import ObjectRef

LOOK_AHEAD = 4
_CLOSE_S = 30.0


class RemoteGenerator:
    """Iterates over refs of the values of a generator that runs in an actor, as they come.

    Each ref is ready: ``get`` gives its value at once. The generator is at most ``look_ahead``
    values ahead of its reader. What it raises is raised by the ref behind the values before it,
    which is the last. ``close()``, or dropping this object, ends the generator.
    """

    def __init__(
        self, session: _session.Session, native: Any, made: ObjectRef, what: str,
        timeout_s: float, look_ahead: Optional[int] = None,
        on_end: Optional[Callable[[bool], None]] = None, group: str = "",
    ) -> None:
        """``on_end``: of a task; is told when it ends, and whether by force."""
        self._session = session
        self._actor = native
        self._what = what
        self._timeout_s = timeout_s
        self._next_method = _calls.in_group(_calls.NEXT, group)
        self._ahead = LOOK_AHEAD if look_ahead is None else check_count("look_ahead", look_ahead)
        self._lock = threading.RLock()  # A wait goes on where the runtime tells that it is made.
        self._made: Optional[ObjectRef] = made
        self._stream: Optional[int] = None
        self._asked = 0
        self._coming: collections.deque[ObjectRef] = collections.deque()
        self._over = False
        self._begun: Any = None  # Of a wait before it is made: complete when its next ref is there.
        self._on_end = on_end
        self.is_of_task = on_end is not None

    def __repr__(self) -> str:
        return f"<RemoteGenerator of {self._what}, {'over' if self._over else 'open'}>"

    def __iter__(self) -> RemoteGenerator:
        return self

    def __aiter__(self) -> RemoteGenerator:
        return self

    def __next__(self) -> ObjectRef:
        made = self._made
        if made is not None and not self._over:
            made.wait_ready(_refs.FOREVER_S)
        while True:
            upcoming = self._ask_next()
            if upcoming is None:
                raise StopIteration
            upcoming.wait_ready(_refs.FOREVER_S)  # If that is interrupted nothing is lost.
            if self._take(upcoming):
                return upcoming

    async def __anext__(self) -> ObjectRef:
        made = self._made
        if made is not None and not self._over:
            await made.ready_in_loop()
        while True:
            upcoming = self._ask_next()
            if upcoming is None:
                raise StopAsyncIteration
            await upcoming.ready_in_loop()
            if self._take(upcoming):
                return upcoming

    def ready(self) -> bool:
        """Whether ``next`` gives a ref, or says that there is none, at once."""
        if self._made is not None and not self._over and not self._made.ready():
            return False
        upcoming = self._ask_next()
        return upcoming is None or upcoming.ready()

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether it is ready within this time."""
        self._session.check()
        if self.ready():
            return True
        with _context.waiting():
            ready: bool = self._native().wait(timeout_s)
        return ready

    def close(self) -> None:
        """Ends the generator where it runs: ``finally`` blocks run there. Idempotent."""
        self._end(stop=True)

    def cancel(self, *, force: bool = False, recursive: bool = True) -> None:
        """As :func:`troupe.cancel`: its next ref raises TaskCancelledError, and is the last."""
        self._session.check()
        last = _refs.later(self._session, self._what, _failures.PYTHON)
        last.cancel()
        self._end(stop=True, force=force, recursive=recursive, last=last)

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # The interpreter or the runtime is on its way out.
            return

    # ---- what comes next ----

    def _ask_next(self) -> Optional[ObjectRef]:
        """The next ref, which may not be ready; None behind the last. Only when it is made."""
        with self._lock:
            if self._over:
                return None
            if self._made is not None:
                self._begin(self._made)
            while self._stream is not None and len(self._coming) < self._ahead:
                self._coming.append(_calls.call_python(
                    self._session, self._actor, self._what, self._next_method,
                    (self._stream, self._asked), {}, self._timeout_s, False))
                self._asked += 1
            return self._coming[0]

    def _begin(self, made: ObjectRef) -> None:
        try:
            self._stream = made.value(stream=True)
        except Exception:  # There is no generator. Its first ref says why.
            self._coming.append(made)
        self._made = None

    def _native(self) -> Any:
        """A native call that is complete when this is ready."""
        with self._lock:
            made = self._made
            if self._over or made is None or made.ready():
                upcoming = self._ask_next()
                return _native.core().completed_call(b"") if upcoming is None else \
                    upcoming._native()
            if self._begun is None:
                self._begun = _native.core().pending_call()
                made.on_done(self._follow)
            return self._begun

    def _follow(self) -> None:
        upcoming = self._ask_next()
        if upcoming is None:
            self._begun.cancel(False, False)
        else:
            upcoming.on_done(lambda: self._begun.cancel(False, False))

    def _take(self, ref: ObjectRef) -> bool:
        """Takes this ref, which was the next and is ready.

        False: it is not the next any more, or says that there are no more.
        """
        with self._lock:
            if not self._coming or self._coming[0] is not ref:  # Closed or cancelled meanwhile.
                return False
            self._coming.popleft()
        try:
            kind = _codec.take_apart(ref.payload()).kind
        except Exception:  # Its actor has ended, or it came too late.
            kind = _codec.ERROR
        if kind == _codec.END:
            self._end(stop=False)
            return False
        if kind == _codec.ERROR:  # What raises is the last.
            self._end(stop=True)
        return True

    # ---- the end ----

    def _end(
        self, stop: bool, *, force: bool = False, recursive: bool = True,
        last: Optional[ObjectRef] = None,
    ) -> None:
        """Nothing is given any more, but for ``last``. ``stop``: it runs, and is to end."""
        with self._lock:
            if self._over:
                return
            self._over = last is None
            made, self._made = self._made, None
            stream, self._stream = self._stream, None
            coming, self._coming = self._coming, collections.deque([last] if last else [])
            on_end, self._on_end = self._on_end, None
        try:
            if stop and not force:
                if made is not None:
                    actor = self._actor  # This object may be going.
                    made.on_done(lambda: _close_made(actor, made))
                if stream is not None:
                    for ref in coming:
                        ref.cancel(recursive=recursive)
                    _tell_closed(self._actor, stream)
        finally:
            if on_end is not None:
                on_end(force)


def _close_made(actor: Any, made: ObjectRef) -> None:
    try:
        stream = made.value(stream=True)
    except BaseException:  # There is no generator then, and nobody who wants to know why.
        return
    _tell_closed(actor, stream)


def _tell_closed(actor: Any, stream: int) -> None:
    packed = _codec.encode(((stream,), {}, None))
    actor.call(_calls.CLOSE, packed.payload, _CLOSE_S, False)
