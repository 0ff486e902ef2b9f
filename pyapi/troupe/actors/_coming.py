"""Actors whose constructors' arguments are refs that are not ready: they start when those are.

Until then nothing is asked of the cluster, so that such an actor takes no room from the very tasks
that its arguments come from.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

from troupe import _native
from troupe.actors import _failures, _refs, _session
from troupe.actors._refs import ObjectRef
from troupe.actors._travel import RefHolder
from troupe.errors import ActorDiedError, TroupeError

_THREADS = 8  # That ask the head at once.
_numbers = itertools.count(1)
_pool_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}  # By the pid: a forked child has no threads.


class ActorHolder(RefHolder):
    """What refers to an actor by a native ref, or by what waits to have one."""

    _native: Any


class ComingActor:
    """What a handle has in place of a native ref until there is one, and goes on to use.

    Thread: any.
    """

    def __init__(
        self, session: _session.Session, what: str, refs: Sequence[ObjectRef],
        spawn: Callable[[], Any],
    ) -> None:
        """``spawn`` gives the native ref: on another thread when ``refs`` are ready, if any."""
        self.key = f"coming-{next(_numbers)}"
        self.started = _refs.later(session, what, _failures.PYTHON)
        self._what = what
        self._spawn = spawn
        self._lock = threading.Lock()
        self._ref: Any = None
        self._error: Optional[BaseException] = None
        if refs:
            _refs.when_all(refs, self._start_later)
        else:
            self._start()

    def ref(self) -> Any:
        """The native ref; waits until the actor is started.

        Raises:
            What it could not be started for. TroupeError: this thread must not wait.
        """
        if not self.started.ready():
            if self.started._session.runs_here():
                raise TroupeError(f"{self._what} waits for its arguments, and cannot be sent as a "
                                  "part of another value before; pass it as an argument of its own")
            self.started.wait_ready(_refs.FOREVER_S)
        if self._error is not None:
            raise self._error
        return self._ref

    def call(self, method: str, arguments: bytes, timeout_s: float, retry: bool) -> Any:
        """As of a native ref, when it is started."""
        return self.ref().call(method, arguments, timeout_s, retry)

    def kill(self, restart: bool, reason: str, timeout_s: float) -> None:
        """As of a native ref; one that is not started never is."""
        with self._lock:
            if self._ref is None and self._error is None:
                self._error = ActorDiedError(f"{self._what}: {reason} before it was started")
        if self._ref is not None:
            self._ref.kill(restart, reason, timeout_s)
        else:
            self._settle()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ref(), name)

    def _start_later(self) -> None:
        _pool(self.started._session.pid).submit(self._start)

    def _start(self) -> None:
        if self._error is not None:
            return
        ref, error = None, None
        try:
            ref = self._spawn()
        except BaseException as problem:
            error = problem
        with self._lock:
            killed, self._ref = self._error, ref
            self._error = self._error or error
        if killed is not None and ref is not None:
            ref.kill(False, str(killed), _session.ASK_S)
        self._settle()

    def _settle(self) -> None:
        self._spawn = _never  # The arguments are not needed any more.
        self.started._call.complete_from(_native.core().completed_call(b""))


def _never() -> Any:
    raise AssertionError("it was started before")


def _pool(pid: int) -> ThreadPoolExecutor:
    with _pool_lock:
        if pid not in _pools:
            _pools.clear()
            _pools[pid] = ThreadPoolExecutor(_THREADS, "troupe-spawn")
        return _pools[pid]
