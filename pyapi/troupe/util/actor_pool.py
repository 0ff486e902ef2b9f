"""Work that is spread over a fixed set of actors, one call on each at a time."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

from troupe.actors import _refs
from troupe.actors._refs import ObjectRef
from troupe.errors import GetTimeoutError, TroupeError

Submit = Callable[[Any, Any], ObjectRef]


class ActorPool:
    """Gives each value to whichever actor is free, and collects the results.

        pool = ActorPool([Model.remote() for _ in range(4)])
        list(pool.map(lambda model, batch: model.predict.remote(batch), batches))

    Values that find no free actor wait in this process. Not for several threads at once.

    Args:
        actors: handles; they stay the caller's, and live on without the pool.
    """

    def __init__(self, actors: Iterable[Any]) -> None:
        self._idle: collections.deque[Any] = collections.deque(actors)
        self._waiting: collections.deque[tuple[Submit, Any, int]] = collections.deque()
        self._running: dict[ObjectRef, tuple[int, Any]] = {}
        self._calls: dict[int, ObjectRef] = {}  # Sent, and their results not taken, by number.
        self._submitted = 0
        self._next = 0  # The number whose result get_next gives.
        self._taken: set[int] = set()  # By get_next_unordered, ahead of _next.

    def map(self, fn: Submit, values: Iterable[Any]) -> Iterator[Any]:
        """Calls ``fn(actor, value)`` for each value; the results in the order of the values.

        ``fn`` returns the ref of a call. Results that are left from before are dropped first.
        """
        self._submit_all(fn, values)
        return self._drain(self.get_next)

    def map_unordered(self, fn: Submit, values: Iterable[Any]) -> Iterator[Any]:
        """As :meth:`map`; the results as they come."""
        self._submit_all(fn, values)
        return self._drain(self.get_next_unordered)

    def submit(self, fn: Submit, value: Any) -> None:
        """Calls ``fn(actor, value)`` on a free actor, or as soon as one is free."""
        self._waiting.append((fn, value, self._submitted))
        self._submitted += 1
        self._feed()

    def has_next(self) -> bool:
        """Whether there are results to be taken, now or later."""
        return bool(self._calls or self._waiting)

    def get_next(self, timeout: Optional[float] = None, ignore_if_timedout: bool = False) -> Any:
        """The result of the first value, in the order submitted, whose result was not taken.

        Args:
            timeout: seconds to wait at most.
            ignore_if_timedout: give up a result that is late, so that the next one follows.

        Raises:
            StopIteration: there are no more.
            GetTimeoutError (a TimeoutError): it is not there in time; it can be asked for again.
            What the call has ended with.
        """
        if not self.has_next():
            raise StopIteration("no more results to get")
        while self._next in self._taken:
            self._taken.remove(self._next)
            self._next += 1
        number, deadline = self._next, _deadline(timeout)
        while number not in self._calls and self._reclaim(deadline):
            self._feed()  # It waits for an actor.
        ref = self._calls.get(number)
        if ref is None or not ref.wait_ready(_left(deadline)):
            if ignore_if_timedout and ref is not None:
                self._forget(number)
            raise GetTimeoutError(f"result {number} of the pool is not ready in time")
        return self._take(number)

    def get_next_unordered(
        self, timeout: Optional[float] = None, ignore_if_timedout: bool = False
    ) -> Any:
        """The result of any value that is there first; arguments and errors as of get_next."""
        if not self.has_next():
            raise StopIteration("no more results to get")
        deadline = _deadline(timeout)
        while not self._calls and self._reclaim(deadline):
            self._feed()
        calls = {ref: number for number, ref in self._calls.items()}
        ready = _refs.wait(list(calls), timeout=_left(deadline))[0] if calls else []
        if not ready:
            if ignore_if_timedout and calls:
                self._forget(min(self._calls))
            raise GetTimeoutError("no result of the pool is ready in time")
        return self._take(calls[ready[0]])

    def has_free(self) -> bool:
        """Whether an actor is free and nothing waits for one."""
        self._reclaim_ready()
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> Optional[Any]:
        """Takes a free actor out of the pool; None if there is none."""
        return self._idle.popleft() if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Adds an actor to the pool.

        Raises:
            ValueError: it is in the pool already.
        """
        if actor in self._idle or any(busy == actor for _, busy in self._running.values()):
            raise ValueError(f"{actor!r} is in this pool already")
        self._idle.append(actor)
        self._feed()

    def _submit_all(self, fn: Submit, values: Iterable[Any]) -> None:
        self._waiting.clear()  # Of readers that have gone.
        self._calls.clear()
        self._taken.clear()
        self._next = self._submitted
        for value in values:
            self.submit(fn, value)

    def _drain(self, get: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield get()

    def _feed(self) -> None:
        self._reclaim_ready()
        while self._idle and self._waiting:
            fn, value, number = self._waiting.popleft()
            actor = self._idle.popleft()
            try:
                ref = fn(actor, value)
                if not isinstance(ref, ObjectRef):
                    raise TypeError(f"the function of a pool must return the ref of a call, such "
                                    f"as actor.method.remote(value), not {ref!r}")
            except BaseException:
                self._idle.appendleft(actor)
                self._taken.add(number)  # There is no result to wait for.
                raise
            self._running[ref] = (number, actor)
            self._calls[number] = ref

    def _take(self, number: int) -> Any:
        ref = self._calls[number]
        self._forget(number)
        self._feed()
        return ref.value()

    def _forget(self, number: int) -> None:
        del self._calls[number]
        self._taken.add(number)

    def _reclaim(self, deadline: Optional[float]) -> bool:
        """Waits until an actor is free; False if none is in time."""
        if self._idle:
            return True
        if not self._running:
            raise TroupeError("the pool has no actor that could do this; push() one")
        _refs.wait(list(self._running), timeout=_left(deadline))
        self._reclaim_ready()
        return bool(self._idle)

    def _reclaim_ready(self) -> None:
        for ref in [ref for ref in self._running if ref.ready()]:
            self._idle.append(self._running.pop(ref)[1])


def _deadline(timeout: Optional[float]) -> Optional[float]:
    return None if timeout is None else time.monotonic() + max(0.0, timeout)


def _left(deadline: Optional[float]) -> float:
    return _refs.FOREVER_S if deadline is None else max(0.0, deadline - time.monotonic())
