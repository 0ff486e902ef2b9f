"""How many calls of an actor run at once: those of each concurrency group, and of none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from troupe.actors._remote import MethodKind


class Turns:
    """Calls by their concurrency groups.

    Thread: the main thread of an actor's process.
    """

    def __init__(
        self, methods: Mapping[str, MethodKind], groups: Mapping[str, int], others: int
    ) -> None:
        """``others``: how many calls of no group run at once."""
        self._methods = methods
        self._counts = {"": others, **groups}
        self._semaphores: dict[str, asyncio.Semaphore] = {}

    @property
    def one_by_one(self) -> bool:
        """Whether at most one call runs at once."""
        return sum(self._counts.values()) == 1

    def group_of(self, request: Any) -> str:
        """The group that a call runs in; "": none.

        Raises:
            ValueError: the actor has no such group.
        """
        if request.saves:
            return ""
        kind = self._methods.get(request.method)
        group = request.group or (kind[2].get("concurrency_group", "") if kind is not None else "")
        if group not in self._counts:
            known = ", ".join(name for name in self._counts if name) or "none"
            raise ValueError(f"{request.method} was called in the concurrency group {group!r}, "
                             f"which is none of the actor's: {known}")
        return str(group)

    @contextlib.contextmanager
    def threads(self) -> Any:
        """A function ``begin(request, answer)`` that runs ``answer(request)`` on a thread."""
        with contextlib.ExitStack() as stack:
            pools = {name: stack.enter_context(ThreadPoolExecutor(count, f"troupe-call-{name}"))
                     for name, count in self._counts.items()}

            def begin(request: Any, answer: Callable[[Any], None]) -> None:
                pools[self.group_of(request)].submit(answer, request)

            yield begin

    @contextlib.asynccontextmanager
    async def turn(self, request: Any) -> AsyncIterator[None]:
        """Waits in the event loop until the call may run; errors as of :meth:`group_of`."""
        group = self.group_of(request)
        if len(self._counts) == 1:  # The cell has seen to it.
            yield
            return
        if group not in self._semaphores:
            self._semaphores[group] = asyncio.Semaphore(self._counts[group])
        async with self._semaphores[group]:
            yield
