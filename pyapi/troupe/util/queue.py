"""A queue that many processes use: an actor holds it, and its handle travels."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from troupe.actors import _refs
from troupe.actors._remote import ActorHandle, kill, remote

Empty = queue.Empty
Full = queue.Full
_CONCURRENCY = 1000  # Readers and writers that may wait at once.


class Queue:
    """First in, first out, with the methods of ``queue.Queue``; its handle can be an argument.

    Args:
        maxsize: values that it holds at most; 0: any number, within the memory of its actor.
        actor_options: of the actor behind it, as of :func:`troupe.remote`.

    Waits end: a time-out that is not given is a day, that of a call.
    """

    def __init__(
        self, maxsize: int = 0, actor_options: Optional[Mapping[str, Any]] = None
    ) -> None:
        if isinstance(maxsize, bool) or not isinstance(maxsize, int):
            raise TypeError(f"maxsize must be a whole number, not {maxsize!r}")
        self.maxsize = max(0, maxsize)
        options = {"max_concurrency": _CONCURRENCY, **(actor_options or {})}
        self.actor: Optional[ActorHandle] = remote(**options)(_QueueActor).remote(self.maxsize)

    def __len__(self) -> int:
        return self.qsize()

    def qsize(self) -> int:
        """How many values it holds at the moment."""
        return int(self._ask("qsize"))

    def size(self) -> int:
        """As :meth:`qsize`."""
        return self.qsize()

    def empty(self) -> bool:
        """Whether it holds nothing at the moment."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether it holds ``maxsize`` values at the moment."""
        return 0 < self.maxsize <= self.qsize()

    def put(self, item: Any, block: bool = True, timeout: Optional[float] = None) -> None:
        """Adds a value at the end.

        Args:
            block: False: do not wait for room.
            timeout: seconds to wait for room at most.

        Raises:
            Full: there is no room in time. ValueError: the time-out is negative.
            ActorDiedError: the queue was shut down.
        """
        limit = _limit(block, timeout)
        self._ask("put", [item], limit)  # A ref in it stays one.

    async def put_async(
        self, item: Any, block: bool = True, timeout: Optional[float] = None
    ) -> None:
        """As :meth:`put`, on an event loop."""
        limit = _limit(block, timeout)
        await self._method("put").remote([item], limit)

    def get(self, block: bool = True, timeout: Optional[float] = None) -> Any:
        """Takes the first value.

        Raises:
            Empty: none is there in time; the arguments and other errors as of :meth:`put`.
        """
        return self._ask("get", _limit(block, timeout))[0]

    async def get_async(self, block: bool = True, timeout: Optional[float] = None) -> Any:
        """As :meth:`get`, on an event loop."""
        return (await self._method("get").remote(_limit(block, timeout)))[0]

    def put_nowait(self, item: Any) -> None:
        """As ``put(item, block=False)``."""
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """As ``get(block=False)``."""
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Adds all of these values, or none.

        Raises:
            Full: there is no room for all of them.
        """
        if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
            raise TypeError(f"put_nowait_batch() takes several values, not {items!r}")
        self._ask("put_batch", list(items))

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Takes so many values, or none.

        Raises:
            Empty: there are fewer.
        """
        if isinstance(num_items, bool) or not isinstance(num_items, int):
            raise TypeError(f"num_items must be a whole number, not {num_items!r}")
        if num_items < 0:
            raise ValueError(f"num_items must be at least 0, not {num_items}")
        return list(self._ask("get_batch", num_items))

    def shutdown(self, force: bool = False, grace_period_s: float = 5.0) -> None:
        """Ends its actor and with it the queue; whoever waits gets ActorDiedError.

        Args:
            force: do not let calls end that have begun.
            grace_period_s: seconds that they have otherwise.
        """
        actor, self.actor = self.actor, None
        if actor is None:
            return
        if not force:
            _refs.wait([actor.close.remote()], timeout=grace_period_s)
        kill(actor)

    def _method(self, name: str) -> Any:
        if self.actor is None:
            raise ValueError("this queue was shut down; make another one")
        return getattr(self.actor, name)

    def _ask(self, name: str, *args: Any) -> Any:
        return _refs.get(self._method(name).remote(*args))


class _QueueActor:
    """Holds the values; its waits are those of ``asyncio.Queue``."""

    def __init__(self, maxsize: int) -> None:
        self._made: Optional[asyncio.Queue[Any]] = None
        self._maxsize = maxsize

    @property
    def _queue(self) -> asyncio.Queue[Any]:
        if self._made is None:  # Not before: in Python 3.9 it belongs to the running loop.
            self._made = asyncio.Queue(self._maxsize)
        return self._made

    async def qsize(self) -> int:
        return self._queue.qsize()

    async def put(self, item: list[Any], limit: Optional[float]) -> None:
        if limit == 0 and self._queue.full():
            raise Full
        try:
            await asyncio.wait_for(self._queue.put(item[0]), limit or None)
        except asyncio.TimeoutError:
            raise Full from None

    async def get(self, limit: Optional[float]) -> list[Any]:
        if limit == 0 and self._queue.empty():
            raise Empty
        try:
            return [await asyncio.wait_for(self._queue.get(), limit or None)]
        except asyncio.TimeoutError:
            raise Empty from None

    async def put_batch(self, items: list[Any]) -> None:
        held = self._queue.qsize()
        if 0 < self._maxsize < held + len(items):
            raise Full(f"{len(items)} values do not fit: {held} of {self._maxsize} are held")
        for item in items:
            self._queue.put_nowait(item)

    async def get_batch(self, count: int) -> list[Any]:
        held = self._queue.qsize()
        if held < count:
            raise Empty(f"{count} values were asked for, and {held} are held")
        return [self._queue.get_nowait() for _ in range(count)]

    async def close(self) -> None:
        """Answers when the calls before it have begun."""


def _limit(block: bool, timeout: Optional[float]) -> Optional[float]:
    if not block:
        return 0.0
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")
    if timeout < 0:
        raise ValueError(f"timeout must be at least 0, not {timeout}")
    return float(timeout)
