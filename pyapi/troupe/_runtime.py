"""What a worker process knows about itself: its native worker, its assignment, its view.

One per process. Threads may bind a runtime of their own (:func:`bind`), so that several ranks can
live in one process; the unit tests do.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Optional

from troupe import _native
from troupe.errors import DrainedError, HorovodInternalError, NotInWorkerError, TroupeError

_log = logging.getLogger("troupe.worker")
_WAIT_SLICE_S = 1.0
_RETRY_S = 0.05
# As torchrun names them; the rest of its variables is in troupe._torchrun.
_TORCH_NAMES = {"RANK": "rank", "WORLD_SIZE": "size", "LOCAL_RANK": "local_rank",
                "LOCAL_WORLD_SIZE": "local_size"}
_ENV_NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


class WorkerRuntime:
    """The worker side of one assignment.

    Args:
        worker: the native worker, with ``group``, ``id``, ``host``.
        assignment: what the worker was asked to run.
        elastic_timeout_s: how long to wait for a view before giving up, in seconds.
        own_process: whether this runtime may write ``os.environ``.
    """

    def __init__(
        self,
        worker: Any,
        assignment: Mapping[str, Any],
        elastic_timeout_s: float = 600.0,
        own_process: bool = True,
    ) -> None:
        self.worker = worker
        self.group = worker.group
        self.assignment = assignment
        self.elastic_timeout_s = elastic_timeout_s
        self.own_process = own_process
        self._pause = threading.Event()

    def first_view(self) -> dict[str, Any]:
        """The view to begin with: that of the group that forms, else a provisional one.

        A joiner first builds its model while the others train; elastic.run offers it to the group
        when it is ready. Who was to found the group and comes too late becomes a joiner.
        """
        view = None if self.group.running() else self._await_view(0, False, True)
        if view is None:
            view = self.provisional_view()
            self.export_view(view)
        return view

    def await_view(self, version: int, has_state: bool) -> dict[str, Any]:
        """Offers this member to the group and waits until a view with it is active.

        Raises:
            DrainedError: the member was asked to leave.
            TroupeError: no view within the elastic timeout, or this member was shut out.
        """
        view = self._await_view(version, has_state, False)
        assert view is not None  # only founders come too late
        return view

    def _await_view(
        self, version: int, has_state: bool, founder: bool
    ) -> Optional[dict[str, Any]]:
        """As await_view; None for a founder if the group trains already."""
        deadline = time.monotonic() + self.elastic_timeout_s
        problem = "too few workers are ready"
        offered = False
        while True:
            try:
                with _native.collective_errors("joining the group"):
                    if not offered:
                        self.group.ready(version, has_state, founder)
                        offered = True
                    view = self.group.wait_active(_WAIT_SLICE_S)
            except HorovodInternalError as error:
                # The view broke before it became active, or the head is away: offer once more.
                view, offered, problem = None, False, str(error)
                self._pause.wait(_RETRY_S)
            if view is not None:
                self.export_view(view)
                return dict(view)
            if founder and self.group.running():
                return None
            if self.worker.should_exit():
                raise DrainedError("this worker was asked to end while it waited for a view")
            if time.monotonic() > deadline:
                missing = getattr(self.worker, "missing", None)
                problem = (missing() if missing is not None else "") or problem
                raise TroupeError(
                    f"no group view within {self.elastic_timeout_s:g} s (elastic_timeout): "
                    f"{problem}; see the run's events and `troupe doctor`"
                )

    def provisional_view(self) -> dict[str, Any]:
        """What a joiner reports as rank and size before it is part of a view."""
        index = max(0, int(self.assignment.get("index", 0)))
        size = max(index + 1, int(self.assignment.get("min_workers", 1)))
        return {
            "epoch": 0,
            "rank": index,
            "size": size,
            "local_rank": index,
            "local_size": size,
            "cross_rank": 0,
            "cross_size": 1,
            "max_size": max(size, int(self.assignment.get("max_workers", size))),
            "reason": "waiting to join",
            "source_rank": 0,
            "needs_state": [],
            "members": [],
            "provisional": True,
        }

    def export_view(self, view: Mapping[str, Any]) -> None:
        """Sets HOROVOD_RANK and its like, their TROUPE_ twins, and RANK as torchrun has it."""
        if not self.own_process:
            return
        for name in _ENV_NAMES:
            value = str(view[name.lower()])
            os.environ[f"HOROVOD_{name}"] = value
            os.environ[f"TROUPE_{name}"] = value
        for name, key in _TORCH_NAMES.items():
            os.environ[name] = str(view[key])
        os.environ["HOROVOD_HOSTNAME"] = os.environ["TROUPE_HOSTNAME"] = str(self.worker.host)
        os.environ["HOROVOD_ELASTIC"] = "1"
        os.environ["TROUPE_EPOCH"] = str(view["epoch"])


class TrainingActor:
    """An actor as the worker of a group that it trains in; see :class:`WorkerRuntime`."""

    def __init__(
        self, group: Any, name: str, actor: str, host: str, missing: Callable[[], str]
    ) -> None:
        self.group = group
        self.name = name
        self.id = actor
        self.host = host
        self.missing = missing  # Who is not there, as a sentence.

    def should_exit(self) -> bool:
        """An actor that is to leave hears it from its group."""
        return False

    def tell(self, kind: str, message: str) -> None:
        """There is no run whose driver could be told."""
        level = logging.WARNING if kind == "warning" else logging.INFO
        _log.log(level, "group %s: %s: %s", self.name, kind, message)


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_process_runtime: Optional[WorkerRuntime] = None
_thread = threading.local()


def bind(runtime: Optional[WorkerRuntime], *, thread_only: bool = False) -> None:
    """Makes ``runtime`` the current one of this process, or of this thread only."""
    global _process_runtime
    if thread_only:
        _thread.runtime = runtime
    else:
        _process_runtime = runtime


def current() -> Optional[WorkerRuntime]:
    """The runtime of this thread, else of this process, else None (not a worker)."""
    runtime = getattr(_thread, "runtime", None)
    return runtime if runtime is not None else _process_runtime


def report(obj: Any) -> None:
    """Sends ``obj`` to the driver, which hands it to the run's callbacks and ``on_event``.

    At most once, in order per worker; does not wait for the driver. Call it from the function that
    an :class:`troupe.Executor` runs.

    Raises:
        NotInWorkerError: not called from inside a worker.
        SerializationError: ``obj`` cannot be pickled.
    """
    runtime = current()
    if runtime is None:
        raise NotInWorkerError(
            "troupe.report() sends to the driver of a run and works only inside a function that "
            "an Executor runs; call it there, or print instead"
        )
    from troupe._payload import dumps_value

    with _native.driver_errors("troupe.report"):
        runtime.worker.report(dumps_value(obj, "the reported object"))
