"""Generators that run in an actor, each for the one reader that has called it."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Optional

from troupe.errors import TroupeError

STREAMS_MAX = 1000  # More are readers that have gone without a word: the oldest is ended.
_LATE = "a value before this one was not given in time; give the calls of the stream more"
_LOST = "the call for a value before this one was cancelled, too late or lost on its way"
_GONE = ("the generator is not held here any more: its actor was started again since, or "
         f"{STREAMS_MAX} others were read after it")
_NEVER_S = 86400.0


class _Held:
    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self.index = 0  # Of the value that is next.
        self.asked = 0  # Values that calls which have arrived will take.
        self.lost: Optional[int] = None  # The first value that nobody will take, if there is one.
        self.turn = threading.Condition()
        self.over = False
        self.async_turn: Optional[asyncio.Condition] = None
        self.waking: Any = None  # The task that wakes who waits in the event loop.

    def may_go(self, index: int) -> bool:
        """Whether the call for this value need not wait any more."""
        return self.over or self.index == index or self.is_lost(index)

    def is_lost(self, index: int) -> bool:
        """Whether the turn of this value cannot come any more."""
        return index < self.index or (self.lost is not None and index >= self.lost)

    def lose(self, index: int) -> None:
        """Nobody will take this value."""
        self.lost = index if self.lost is None else min(self.lost, index)


class HeldStreams:
    """The generators of one actor by number. Values are asked for by index, and given in order.

    A call for a value waits for those before it. One that was cancelled, or whose deadline passed,
    before it ran, or that was lost on its way, leaves a gap that nothing will ever fill: the calls
    behind a gap must not wait, they may hold the only thread of the actor. So each call is told
    when it arrives (``arrived``, in the order of the calls) and when it will not run (``dropped``).
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        """``run(fn)`` calls what users have written."""
        self._run = run
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._ended: OrderedDict[int, None] = OrderedDict()  # The last; calls ahead come behind.
        self._lock = threading.Lock()

    def add(self, generator: Any) -> int:
        """Keeps a generator that has not begun; its number, which no other process will give."""
        with self._lock:
            number = secrets.randbits(63)
            self._held[number] = _Held(generator)
            oldest = self._held.popitem(last=False)[1] if len(self._held) > STREAMS_MAX else None
        if oldest is not None:
            _end(oldest)
        return number

    def arrived(self, number: int, index: int) -> None:
        """A call for a value is here and will run, or be told as dropped."""
        with self._lock:
            held = self._held.get(number)
            if held is None:
                return
            if index > held.asked:
                held.lose(held.asked)
            held.asked = max(held.asked, index + 1)

    def dropped(self, number: int, index: int) -> None:
        """A call for a value that has arrived will not run."""
        with self._lock:
            held = self._held.get(number)
            if held is None:
                return
            held.lose(index)
        if held.async_turn is not None:
            held.waking = asyncio.ensure_future(_wake(held.async_turn))
        elif not inspect.isasyncgen(held.generator):
            with held.turn:
                held.turn.notify_all()

    def next(self, number: int, index: int, limit_s: Optional[float]) -> Any:
        """(True, the value at this index), or (False, None) behind the last; may be awaitable.

        Raises:
            TroupeError: the value cannot be given any more. What the generator raises, at its
            place.
        """
        with self._lock:
            held = self._held.get(number)
            if held is not None:
                self._held.move_to_end(number)
            elif number in self._ended:
                return False, None
        if held is None:
            raise TroupeError(_GONE)
        limit = _NEVER_S if limit_s is None else limit_s
        if inspect.isasyncgen(held.generator):
            return self._next_async(number, held, index, limit)
        return self._next_sync(number, held, index, limit)

    def close(self, number: int) -> Any:
        """Ends a generator: its ``finally`` blocks run."""
        held = self._take_out(number)
        return _end(held) if held is not None else None

    def _next_sync(self, number: int, held: _Held, index: int, limit_s: float) -> Any:
        with held.turn:
            if not held.turn.wait_for(lambda: held.may_go(index), limit_s):
                self._lose(held, index)
                held.turn.notify_all()
                raise TroupeError(_LATE)
            if held.over:
                return False, None
            if held.is_lost(index):
                raise TroupeError(_LOST)
            try:
                value = self._run(next, held.generator)
            except StopIteration:
                self._over(number, held)
                return False, None
            except BaseException:
                self._over(number, held)
                raise
            finally:
                held.index += 1
                held.turn.notify_all()
            return True, value

    async def _next_async(self, number: int, held: _Held, index: int, limit_s: float) -> Any:
        if held.async_turn is None:
            held.async_turn = asyncio.Condition()
        async with held.async_turn:
            turn = held.async_turn.wait_for(lambda: held.may_go(index))
            try:
                await asyncio.wait_for(turn, limit_s)
            except BaseException as error:  # Too late, or cancelled.
                self._lose(held, index)
                held.async_turn.notify_all()
                if isinstance(error, asyncio.TimeoutError):
                    raise TroupeError(_LATE) from None
                raise
            if held.over:
                return False, None
            if held.is_lost(index):
                raise TroupeError(_LOST)
            try:
                value = await held.generator.__anext__()
            except StopAsyncIteration:
                self._over(number, held)
                return False, None
            except BaseException:
                self._over(number, held)
                raise
            finally:
                held.index += 1
                held.async_turn.notify_all()
            return True, value

    def _over(self, number: int, held: _Held) -> None:
        held.over = True
        self._take_out(number)

    def _take_out(self, number: int) -> Optional[_Held]:
        with self._lock:
            held = self._held.pop(number, None)
            if held is not None:
                self._ended[number] = None
                if len(self._ended) > STREAMS_MAX:
                    self._ended.popitem(last=False)
            return held

    def _lose(self, held: _Held, index: int) -> None:
        with self._lock:
            held.lose(index)


async def _wake(turn: asyncio.Condition) -> None:
    async with turn:
        turn.notify_all()


def _end(held: _Held) -> Any:
    if inspect.isasyncgen(held.generator):
        return _end_async(held)
    with held.turn:
        held.over = True
        held.turn.notify_all()
        held.generator.close()
    return None


async def _end_async(held: _Held) -> None:
    if held.async_turn is None:
        held.async_turn = asyncio.Condition()
    async with held.async_turn:
        held.over = True
        held.async_turn.notify_all()
        await held.generator.aclose()
