"""What code that runs in an actor or a task can ask about itself."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from troupe.actors import _session
from troupe.errors import NotInWorkerError


@dataclass
class Running:
    """One call that runs, and the actor that it runs in."""

    request: Any  # None in a constructor.
    actor_id: str
    actor_type: str
    node: str
    incarnation: int
    loan: Any = None  # Where its waits are counted; None: it has no CPU to lend.


_running: contextvars.ContextVar[Optional[Running]] = contextvars.ContextVar(
    "troupe_running", default=None)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """The call that runs here waits for what others do: its CPU may be lent meanwhile."""
    running = _running.get()
    loan = running.loan if running is not None else None
    if loan is None:
        yield
        return
    loan.wait_began()
    try:
        yield
    finally:
        loan.wait_ended()


@contextlib.contextmanager
def counted(running: Running) -> Iterator[None]:
    """This call runs here, so that its process's CPU is not lent unless it waits."""
    token = _running.set(running)
    if running.loan is not None:
        running.loan.call_began()
    try:
        yield
    finally:
        if running.loan is not None:
            running.loan.call_ended()
        _running.reset(token)


class ExitActor(BaseException):
    """Unwinds a method that ends its actor. Not an Exception: ``except Exception`` lets it pass."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RuntimeContext:
    """Where this code runs; of a method, what is left of its call."""

    def __init__(self, running: Optional[Running]) -> None:
        self._running = running

    @property
    def actor_id(self) -> Optional[str]:
        """Id of the actor; None in a driver."""
        return self._running.actor_id if self._running else None

    @property
    def actor_name(self) -> Optional[str]:
        """Type of the actor; None in a driver."""
        return self._running.actor_type if self._running else None

    @property
    def node(self) -> str:
        """Name of the node; "driver" in a driver."""
        return self._running.node if self._running else "driver"

    @property
    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    @property
    def incarnation(self) -> int:
        """1 for the first process of the actor; 0 in a driver."""
        return self._running.incarnation if self._running else 0

    @property
    def was_restarted(self) -> bool:
        """Whether the actor has died before."""
        return self.incarnation > 1

    def cancelled(self) -> bool:
        """Whether nobody waits for the result of this call any more: cancelled, or too late."""
        request = self._running.request if self._running else None
        if request is None:
            return False
        left = request.remaining
        return bool(request.cancelled) or (left is not None and left <= 0)

    def remaining(self) -> Optional[float]:
        """Seconds until this call's deadline, at least 0; None outside a call."""
        request = self._running.request if self._running else None
        left = request.remaining if request is not None else None
        return None if left is None else max(0.0, left)

    def __repr__(self) -> str:
        where = f"{self.actor_name} {self.actor_id}" if self._running else "driver"
        return f"<RuntimeContext of {where} on {self.node}>"


def current() -> RuntimeContext:
    """What this code can ask about where it runs; in a driver, too."""
    return RuntimeContext(_running.get())


def exit_actor(reason: str = "it has ended itself") -> None:
    """Ends the actor whose method calls this; it is not restarted. The call returns None.

    Raises:
        NotInWorkerError: this is no method of an actor.
    """
    if _running.get() is None or not _session.in_worker():
        raise NotInWorkerError("exit_actor() is for methods of actors")
    raise ExitActor(reason or "it has ended itself")
