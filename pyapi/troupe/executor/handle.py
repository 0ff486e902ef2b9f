"""The handle of one run: its progress, its members, its result."""

from __future__ import annotations

import collections
import logging
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union

from troupe import _cluster, _native, _payload
from troupe._config import check_amount, check_count
from troupe.errors import (
    PlacementError,
    RunCancelled,
    SerializationError,
    TroupeError,
    WorkerError,
    code_of,
)
from troupe.executor._epochs import Epochs

_log = logging.getLogger("troupe.run")
_PUMP_SLICE_S = 0.5
_WAIT_SLICE_S = 0.2
_MAX_EVENTS = 10_000
_TERMINAL = ("succeeded", "failed", "cancelled")

RECOVERY_COUNTS = ("steps_replayed", "steps_recomputed", "samples_returned")

EventListener = Callable[[dict[str, Any]], None]
Callback = Callable[[Any], None]


class RunHandle:
    """A run in progress or ended. Made by ``Executor.submit``; usable from any thread.

    Args:
        driver: the native driver.
        run_id: the run's id in the cluster.
        name: what the run is called in messages.
        owner_pid: the process that may use this handle.
        on_event: called with every event (a dict with "kind"), on the run's own thread.
        callbacks: called with every object that workers send by ``troupe.report``.
        log_to_driver: whether workers' output appears on this process's stdout and stderr.
    """

    def __init__(
        self,
        driver: Any,
        run_id: str,
        name: str,
        owner_pid: int,
        on_event: Optional[EventListener] = None,
        callbacks: Sequence[Callback] = (),
        log_to_driver: bool = True,
    ) -> None:
        self.run_id = run_id
        self.outlives_executor = False
        self.name = name
        self._driver = driver
        self._pid = owner_pid
        self._listeners: list[EventListener] = [on_event] if on_event else []
        self._callbacks = list(callbacks)
        self._log_to_driver = log_to_driver
        self._write: Callable[[str, str], None] = _write_line
        # Guarded by _lock.
        self._lock = threading.Lock()
        self._events: collections.deque[dict[str, Any]] = collections.deque(maxlen=_MAX_EVENTS)
        self._epochs = Epochs()
        self._recovery = dict.fromkeys(RECOVERY_COUNTS, 0)
        self._outcomes: list[_payload.Outcome] = []
        self._error: Optional[BaseException] = None
        self._state = "pending"
        self._last_status: dict[str, Any] = {}
        self._done = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(
            target=self._pump, name=f"troupe-run-{run_id}", daemon=True
        )

    def start_pump(self) -> None:
        """Starts the thread that dispatches this run's events; called once, by the executor."""
        self._thread.start()

    # -- what a user asks ---------------------------------------------------------------------

    @property
    def job_id(self) -> str:
        """:attr:`run_id`, by its name before 0.2."""
        return self.run_id

    def done(self) -> bool:
        """Whether the run has ended, in whatever way."""
        return self._done.is_set()

    def result(self, timeout: Optional[float] = None) -> list[Any]:
        """Waits for the end and returns the functions' results, ordered by rank.

        Raises:
            TimeoutError: the run goes on after ``timeout`` seconds.
            WorkerError: the function failed; chained to the original exception.
            PlacementError: the cluster has no room for the run.
            RunCancelled: the run was cancelled.
        """
        self._check_process()
        if timeout is not None:
            check_amount("timeout", timeout)
        if not self.wait(timeout):
            raise TimeoutError(f"run {self.name!r} has not ended within {timeout:g} s")
        with self._lock:
            error, outcomes = self._error, list(self._outcomes)
        if error is not None:
            raise error
        outcomes.sort(key=lambda o: (o.rank < 0, o.rank if o.rank >= 0 else o.index))
        return [_load_value(outcome) for outcome in outcomes]

    def status(self) -> dict[str, Any]:
        """State, reason, epoch, sizes and workers, as a dict; the last known after the end."""
        self._check_process()
        if self._done.is_set():
            with self._lock:
                return {**self._last_status, "state": self._state}
        try:
            with _native.driver_errors(f"status of run {self.name!r}"):
                status = dict(self._driver.status(self.run_id))
        except TroupeError:
            if not self._done.is_set():
                raise
            status = {}
        with self._lock:
            if status:
                self._last_status = status
            return dict(self._last_status)

    def workers(self) -> list[dict[str, Any]]:
        """One dict per worker: id, rank (-1 outside the view), pid, host, state, version."""
        return list(self.status().get("workers", []))

    def events(self) -> list[dict[str, Any]]:
        """The events so far, oldest first (the newest 10,000), without logs."""
        with self._lock:
            return list(self._events)

    def epochs(self) -> list[dict[str, Any]]:
        """One dict per epoch: epoch, reason, old_size, size, members, pause_ms, state_bytes.

        The reason names a worker that died with its signal or exit code as soon as that is known.
        """
        with self._lock:
            return [dict(epoch) for epoch in self._epochs]

    def recovery(self) -> dict[str, int]:
        """What deaths have cost this run so far.

        ``steps_replayed`` were finished from the gradients that the others had kept,
        ``steps_recomputed`` were begun after a commit and computed again, and
        ``samples_returned`` of dead members went back to a sampler.
        """
        with self._lock:
            return dict(self._recovery)

    def resize(self, workers: int) -> None:
        """Asks for another number of workers, within min_workers and max_workers."""
        self._check_process()
        check_count("workers", workers)
        with _native.driver_errors(f"resize of run {self.name!r}"):
            self._driver.resize(self.run_id, workers)

    def drain(self, worker: Union[str, int], deadline_s: float = 30.0) -> None:
        """Asks one worker, by id or rank, to leave at its next step boundary.

        It is ended by force when it is still there after ``deadline_s`` seconds; its last event, of
        state "drained", then says so.
        """
        self._check_process()
        check_amount("deadline_s", deadline_s)
        worker_id = self._worker_id(worker)
        with _native.driver_errors(f"drain of worker {worker_id} of run {self.name!r}"):
            self._driver.drain(self.run_id, worker_id, max(0.001, float(deadline_s)))

    def cancel(self) -> None:
        """Ends the run; ``result()`` then raises RunCancelled. Harmless after the end."""
        self._check_process()
        if self._done.is_set():
            return
        try:
            with _native.driver_errors(f"cancel of run {self.name!r}"):
                self._driver.cancel(self.run_id)
        except TroupeError:
            if not self._done.wait(_PUMP_SLICE_S):
                raise

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits for the end without raising; False if ``timeout`` seconds passed first."""
        # In slices: a Ctrl-C that arrives just before the wait begins would go unnoticed in it.
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._done.is_set():
            left = _WAIT_SLICE_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            self._done.wait(min(left, _WAIT_SLICE_S))
        return True

    def __repr__(self) -> str:
        return f"<RunHandle {self.name!r} {self.run_id} {self._state}>"

    def _repr_html_(self) -> str:
        from troupe.executor.display import run_html

        return run_html(self)

    # -- for the executor and the display -------------------------------------------------------

    def add_listener(self, listener: EventListener) -> None:
        """Adds a listener for events; before :meth:`start_pump`."""
        self._listeners.append(listener)

    def set_writer(self, write: Callable[[str, str], None]) -> None:
        """Sets where workers' lines go: ``write(stream name, line)``."""
        self._write = write

    def abandon(self, reason: str) -> None:
        """Ends the handle on this side when the cluster is gone."""
        self._abandoned.set()
        if self.outlives_executor:
            again = f"troupe.attach({self.run_id!r}) takes it up again"
            self._finish("detached", TroupeError(f"run {self.name!r}: {reason}; {again}"))
        else:
            self._finish("cancelled", RunCancelled(f"run {self.name!r}: {reason}"))

    def join_pump(self, timeout: float) -> None:
        """Waits until the last event is dispatched."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _check_process(self) -> None:
        _cluster.check_process(self._pid)

    def _worker_id(self, worker: Union[str, int]) -> str:
        if isinstance(worker, str):
            return worker
        check_count("rank", worker, least=0)
        for known in self.workers():
            if known["rank"] == worker:
                return str(known["id"])
        raise ValueError(f"run {self.name!r} has no worker of rank {worker} at present")

    # -- the pump -------------------------------------------------------------------------------

    def _pump(self) -> None:
        while not self._done.is_set() and not self._abandoned.is_set():
            try:
                event = self._driver.next_event(self.run_id, _PUMP_SLICE_S)
            except Exception as error:
                code = code_of(error) or type(error).__name__
                reason = f"lost contact with the cluster: {error} ({code})"
                self._finish("failed", TroupeError(f"run {self.name!r}: {reason}"))
                return
            if event is None:
                continue
            try:
                for one in _one_by_one(dict(event)):
                    self._dispatch(one)
            except Exception:
                _log.exception("run %s: cannot handle event %r", self.name, event.get("kind"))
                if event.get("kind") == "done":
                    self._done.set()

    def _dispatch(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "log":
            if self._log_to_driver:
                rank = event["rank"] if event["rank"] >= 0 else "-"
                self._write(event["stream"], f"[{rank} {event['host']}] {event['line']}")
        elif kind == "report":
            event["value"] = pickle.loads(event.pop("payload"))
        elif kind == "result":
            self._on_result(event)
        elif kind in ("epoch", "state", "worker", "parked"):
            self._on_membership(event)
        elif kind == "recovered":
            with self._lock:
                for name in RECOVERY_COUNTS:
                    self._recovery[name] += event[name]
        elif kind == "done":
            self._on_done(event)
        if kind != "log":
            with self._lock:
                self._events.append({k: v for k, v in event.items() if k != "payload"})
        for listener in self._listeners:
            _guarded(listener, event, "on_event")
        if kind == "report":
            for callback in self._callbacks:
                _guarded(callback, event["value"], "callback")
        if kind == "done":
            self._done.set()

    def _on_result(self, event: dict[str, Any]) -> None:
        payload = event.get("payload") or b""
        if not payload:  # a drained worker ends without a result
            return
        outcome: _payload.Outcome = pickle.loads(payload)
        if event["rank"] >= 0:
            outcome.rank = event["rank"]
        with self._lock:
            self._outcomes.append(outcome)

    def _on_membership(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._epochs.take(event)
            if event["kind"] == "epoch":
                self._state = "running"
            elif event["kind"] == "parked":
                self._state = "parked"

    def _on_done(self, event: dict[str, Any]) -> None:
        try:
            status = dict(self._driver.status(self.run_id))
        except RuntimeError:
            status = {}
        with self._lock:
            self._last_status = status or self._last_status
            self._state = event["state"]
            self._error = _final_error(self.name, event)

    def _finish(self, state: str, error: Optional[BaseException]) -> None:
        with self._lock:
            if not self._done.is_set():
                self._state = state
                self._error = error
            self._events.append({"kind": "done", "state": state, "reason": str(error),
                                 "time_s": time.monotonic(), "run": self.run_id})
        self._done.set()


def _one_by_one(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Output comes as many lines in one event; listeners get one event per line."""
    lines = event.pop("lines", None)
    return [event] if lines is None else [{**event, "line": line} for line in lines]


def _final_error(name: str, event: Mapping[str, Any]) -> Optional[BaseException]:
    state = event["state"]
    reason = event.get("reason") or ""
    if state == "succeeded":
        return None
    if state == "cancelled":
        return RunCancelled(f"run {name!r} was cancelled: {reason}")
    payload = event.get("payload") or b""
    if payload:
        try:
            return _payload.worker_error(pickle.loads(payload))
        except Exception as error:
            reason = f"{reason} (its error cannot be unpickled here: {error})"
    if "resource_exhausted" in reason or "placement" in reason.lower():
        return PlacementError(f"run {name!r}: {reason}")
    if event.get("worker"):
        return WorkerError(
            f"run {name!r} failed: {reason}",
            worker=event["worker"],
            rank=event.get("rank", -1),
            host=event.get("host", ""),
        )
    return TroupeError(f"run {name!r} failed: {reason}")


def _load_value(outcome: _payload.Outcome) -> Any:
    try:
        return pickle.loads(outcome.value or b"")
    except Exception as error:
        raise SerializationError(
            f"the result of rank {outcome.rank} ({outcome.host}) cannot be unpickled here: {error}"
        ) from error


def _guarded(call: Callable[[Any], None], value: Any, what: str) -> None:
    try:
        call(value)
    except Exception:
        _log.exception("the run's %s raised; the run goes on", what)


def _write_line(stream: str, line: str) -> None:
    out = sys.stderr if stream == "stderr" else sys.stdout
    print(line, file=out, flush=True)
