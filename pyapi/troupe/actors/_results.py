"""What calls of users' code give, taken whole; and the answer of those that were given up."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterator
from typing import Any


def call_whole(method: Any, args: Any, kwargs: dict[str, Any], returns: int) -> Any:
    """What a call gives; of a generator whose values it returns, those, and one more than due."""
    value = method(*args, **kwargs)
    if returns not in (0, 1) and inspect.isgenerator(value):
        return list(itertools.islice(value, returns + 1))
    return value


async def first(values: AsyncIterator[Any], most: int) -> list[Any]:
    """Its first values, so many at most."""
    taken: list[Any] = []
    async for value in values:
        taken.append(value)
        if len(taken) >= most:
            break
    return taken


def fail_cancelled(request: Any) -> None:
    """Answers a call that nobody waits for any more."""
    left = request.remaining
    if left is not None and left <= 0:
        request.fail("deadline_exceeded", "its deadline has passed while it ran")
    else:
        request.fail("cancelled", "it was cancelled while it ran")
