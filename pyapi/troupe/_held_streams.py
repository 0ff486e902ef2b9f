"""Generators that run in an actor, each for the one reader that has called it."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections import OrderedDict
from typing import Any, Optional

from troupe.errors import TroupeError

STREAMS_MAX = 1000  # More are readers that have gone without a word: the oldest is ended.
_LATE = "a value before this one was not given in time; give the calls of the stream more"
_NEVER_S = 86400.0


class _Held:
    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self.index = 0  # Of the value that is next.
        self.turn = threading.Condition()
        self.over = False
        self.async_turn: Optional[asyncio.Condition] = None


class HeldStreams:
    """The generators of one actor by number. Values are asked for by index, and given in order."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def add(self, generator: Any) -> int:
        """Keeps a generator that has not begun; its number."""
        with self._lock:
            number = next(self._numbers)
            self._held[number] = _Held(generator)
            oldest = self._held.popitem(last=False)[1] if len(self._held) > STREAMS_MAX else None
        if oldest is not None:
            _end(oldest)
        return number

    def next(self, number: int, index: int, limit_s: Optional[float]) -> Any:
        """(True, the value at this index), or (False, None) behind the last; may be awaitable.

        Raises:
            What the generator raises, at its place.
        """
        with self._lock:
            held = self._held.get(number)
            if held is not None:
                self._held.move_to_end(number)
        if held is None:
            return False, None
        limit = _NEVER_S if limit_s is None else limit_s
        if inspect.isasyncgen(held.generator):
            return self._next_async(number, held, index, limit)
        return self._next_sync(number, held, index, limit)

    def close(self, number: int) -> Any:
        """Ends a generator: its ``finally`` blocks run."""
        with self._lock:
            held = self._held.pop(number, None)
        return _end(held) if held is not None else None

    def _next_sync(self, number: int, held: _Held, index: int, limit_s: float) -> Any:
        with held.turn:
            if not held.turn.wait_for(lambda: held.over or held.index == index, limit_s):
                raise TroupeError(_LATE)
            if held.over:
                return False, None
            try:
                value = next(held.generator)
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
            turn = held.async_turn.wait_for(lambda: held.over or held.index == index)
            try:
                await asyncio.wait_for(turn, limit_s)
            except asyncio.TimeoutError:
                raise TroupeError(_LATE) from None
            if held.over:
                return False, None
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
        with self._lock:
            self._held.pop(number, None)


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
