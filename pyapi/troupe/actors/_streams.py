"""Generators of actors, as their callers see them."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Optional

from troupe._config import check_count
from troupe.actors import _calls, _codec, _refs, _session
from troupe.actors._refs import ObjectRef
from troupe.errors import TroupeError

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
    ) -> None:
        self._session = session
        self._native = native
        self._made: Optional[ObjectRef] = made
        self._what = what
        self._timeout_s = timeout_s
        self._ahead = LOOK_AHEAD if look_ahead is None else check_count("look_ahead", look_ahead)
        self._stream: Optional[int] = None
        self._asked = 0
        self._coming: collections.deque[ObjectRef] = collections.deque()
        self._over = False
        self.on_end: Optional[Callable[[], None]] = None

    def __iter__(self) -> RemoteGenerator:
        return self

    def __aiter__(self) -> RemoteGenerator:
        return self

    def __next__(self) -> ObjectRef:
        if self._over:
            raise StopIteration
        if self._made is not None:
            self._made.wait_ready(_refs.FOREVER_S)
            self._begin(self._made)
        self._ask_ahead()
        self._coming[0].wait_ready(_refs.FOREVER_S)  # If that is interrupted nothing is lost.
        ref = self._take()
        if ref is None:
            raise StopIteration
        return ref

    async def __anext__(self) -> ObjectRef:
        if self._over:
            raise StopAsyncIteration
        if self._made is not None:
            await self._made.ready_in_loop()
            self._begin(self._made)
        self._ask_ahead()
        await self._coming[0].ready_in_loop()
        ref = self._take()
        if ref is None:
            raise StopAsyncIteration
        return ref

    def close(self) -> None:
        """Ends the generator in its actor: ``finally`` blocks run there. Idempotent."""
        if not self._over:
            self._end(stop=True)

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # The interpreter or the runtime is on its way out.
            return

    def _begin(self, made: ObjectRef) -> None:
        try:
            self._stream = made.value(stream=True)
        except Exception:  # There is no generator. Its first ref says why.
            self._coming.append(made)
        self._made = None

    def _ask_ahead(self) -> None:
        while self._stream is not None and len(self._coming) < self._ahead:
            self._coming.append(_calls.call_python(
                self._session, self._native, self._what, _calls.NEXT,
                (self._stream, self._asked), {}, self._timeout_s, False))
            self._asked += 1

    def _take(self) -> Optional[ObjectRef]:
        """The next ref, which is ready; None behind the last."""
        ref = self._coming.popleft()
        try:
            kind = _codec.take_apart(ref.payload()).kind
        except Exception:  # Its actor has ended, or it came too late.
            kind = _codec.ERROR
        if kind == _codec.END:
            self._end(stop=False)
            return None
        if kind == _codec.ERROR:  # What raises is the last.
            self._end(stop=True)
        return ref

    def _end(self, stop: bool) -> None:
        self._over = True
        made, self._made = self._made, None
        coming = list(self._coming)
        self._coming.clear()
        try:
            if stop and made is not None:
                made.on_done(lambda: self._close_made(made))
            if stop and self._stream is not None:
                for ref in coming:
                    ref.cancel()
                self._tell_closed(self._stream)
        except TroupeError:
            return
        finally:
            if self.on_end is not None:
                self.on_end()

    def _close_made(self, made: ObjectRef) -> None:
        try:
            stream = made.value(stream=True)
        except Exception:  # There is no generator then, and nobody who wants to know why.
            return
        self._tell_closed(stream)

    def _tell_closed(self, stream: int) -> None:
        packed = _codec.encode(((stream,), {}, None))
        self._native.call(_calls.CLOSE, packed.payload, _CLOSE_S, False)
