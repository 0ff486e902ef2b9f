"""The executor: runs a function on an elastic group of workers, from a script or notebook."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Optional

from troupe import _cluster, _horovod, _native, _payload
from troupe._config import ConfigSource, Settings, build_settings
from troupe.errors import PlacementError, TroupeError
from troupe.executor.handle import Callback, EventListener, RunHandle

_log = logging.getLogger("troupe.executor")
_CANCEL_GRACE_S = 15.0
_HEAVY_MODULES = ("numpy", "torch", "troupe.torch", "troupe.torch.elastic")


class Executor:
    """Runs functions on ``min_workers`` to ``max_workers`` processes that form one group.

    Without ``address`` a private cluster is started on this machine and ended with this process;
    executors of one process that ask for the same cluster share it. Usable from any thread.

    Args:
        min_workers: the run goes on while at least this many are there; it waits below that.
        max_workers: never more than this many; default: ``workers``, else ``min_workers``.
        workers: how many to start with; default: ``max_workers``, else ``min_workers``.
        resources_per_worker: amounts by name ("CPU", "GPU", "memory" in bytes, or your own);
            default one CPU.
        cpus_per_worker, gpus_per_worker: shorthands for the above; fractions are fine.
        strategy: "spread" over hosts or "pack" onto few.
        address: HOST:PORT of a running cluster, whose key ``key_file`` holds, or ipc://PATH, which
            needs no key. Default: the variable TROUPE_ADDRESS, if set; else a private cluster. The
            key's default is TROUPE_KEY_FILE, else ~/.troupe/cluster.key, which ``troupe start``
            uses.
        config: a YAML file or dict with any of these arguments; arguments given here win.
        elastic_timeout: seconds to wait for ``min_workers`` after losses before the run fails.
        start_timeout: seconds to wait for the first workers.
        stall_report_s: when workers have waited this many seconds in a collective for others that
            do not come to it, it is told which ones ("stalled" event), and again as often.
        stall_remove_s: then the missing workers are ended and the others go on; 0: never.
        driver_silence_s: end the run when this process has not been heard for so many seconds, as
            when its laptop sleeps or it is stopped with Ctrl-Z; it is not waited for if it has
            ended on the head's host. A run with ``submit(..., detached=True)`` needs no driver.
        reset_limit: fail after this many membership changes; None: no limit.
        env: environment variables of the workers; OMP_NUM_THREADS, if neither this nor the cluster
            sets it, becomes the worker's number of CPUs, rounded down, at least 1.
        preload: modules that spare workers import ahead of time; default: numpy and torch if this
            process has imported torch, or the function does.
        log_to_driver: show the workers' output here, each line as ``[rank host] line``.
        progress: "auto" (live on a terminal or in a notebook, else lines on stderr), "rich",
            "plain", "notebook" or "off".
        name: the run's name in messages, and of the folder of its durable commits, from which a
            later run of this name continues; default: the function's.
        num_cpus, num_gpus, memory_bytes, cluster_resources: what the private cluster offers;
            default: what this machine has.
        metrics_port: where the private cluster's head serves its metrics (``docs/metrics.md``), on
            127.0.0.1.
        python, bin_dir, redis_server, log_dir, lease_ms: how the private cluster is started.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it.
    """

    def __init__(
        self,
        min_workers: Optional[int] = None,
        max_workers: Optional[int] = None,
        *,
        workers: Optional[int] = None,
        resources_per_worker: Optional[dict[str, float]] = None,
        cpus_per_worker: Optional[float] = None,
        gpus_per_worker: Optional[float] = None,
        strategy: Optional[str] = None,
        address: Optional[str] = None,
        key_file: Optional[str] = None,
        config: ConfigSource = None,
        elastic_timeout: Optional[float] = None,
        start_timeout: Optional[float] = None,
        stall_report_s: Optional[float] = None,
        stall_remove_s: Optional[float] = None,
        driver_silence_s: Optional[float] = None,
        reset_limit: Optional[int] = None,
        env: Optional[dict[str, str]] = None,
        preload: Optional[list[str]] = None,
        log_to_driver: Optional[bool] = None,
        progress: Optional[str] = None,
        name: Optional[str] = None,
        num_cpus: Optional[float] = None,
        num_gpus: Optional[float] = None,
        memory_bytes: Optional[int] = None,
        cluster_resources: Optional[dict[str, float]] = None,
        python: Optional[str] = None,
        bin_dir: Optional[str] = None,
        redis_server: Optional[str] = None,
        log_dir: Optional[str] = None,
        metrics_port: Optional[int] = None,
        lease_ms: Optional[int] = None,
    ) -> None:
        arguments = dict(locals())
        given = {
            key: value
            for key, value in arguments.items()
            if value is not None and key not in ("self", "config", "__class__")
        }
        self._settings: Settings = build_settings(config, given)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._cluster: Optional[_cluster.Cluster] = None
        self._handles: list[RunHandle] = []
        self._closed = False

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> Executor:
        """Starts or joins the cluster; returns self. ``run`` and ``submit`` do it by themselves.

        Raises:
            TroupeError, TimeoutError: the cluster does not come up.
        """
        _cluster.check_process(self._pid)
        with self._lock:
            if self._closed:
                raise TroupeError("this executor was shut down; create a new one")
            if self._cluster is None:
                self._cluster = _cluster.acquire(self._settings)
        return self

    def shutdown(self) -> None:
        """Gives the cluster back and cancels what runs, but for what is detached or attached to.

        Idempotent; also at interpreter exit.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            cluster, self._cluster = self._cluster, None
            handles, self._handles = self._handles, []
        for handle in handles:
            if handle.outlives_executor:
                handle.abandon("its executor was shut down; the run goes on in its cluster")
            else:
                _cancel_quietly(handle)
        for handle in handles:
            if not handle.wait(_CANCEL_GRACE_S):
                handle.abandon("the executor was shut down")
            handle.join_pump(_CANCEL_GRACE_S)
        if cluster is not None:
            _cluster.release(cluster)

    def __enter__(self) -> Executor:
        return self.start()

    def __exit__(
        self,
        exc_type: Optional[type[BaseException]],
        exc: Optional[BaseException],
        tb: Optional[TracebackType],
    ) -> None:
        self.shutdown()

    # -- work -----------------------------------------------------------------------------------

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        callbacks: Optional[Sequence[Callback]] = None,
    ) -> list[Any]:
        """Runs ``fn(*args, **kwargs)`` on every worker; returns the results ordered by rank.

        ``callbacks`` are called with every object that workers send by ``troupe.report``. Ctrl-C
        cancels the run, waits until its workers are gone, and raises KeyboardInterrupt; a second
        Ctrl-C does not wait.

        Raises:
            WorkerError: ``fn`` failed; PlacementError: no room; RunCancelled: cancelled elsewhere.
        """
        created: list[RunHandle] = []
        try:
            return self._submit(fn, args, kwargs, callbacks=callbacks, created=created).result()
        except KeyboardInterrupt:
            for handle in created:
                _cancel_on_interrupt(handle)
            raise

    def submit(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        on_event: Optional[EventListener] = None,
        detached: bool = False,
    ) -> RunHandle:
        """Starts a run and returns its handle at once.

        With ``detached`` it goes on when this process ends, until its functions have or it is
        cancelled; ``attach(handle.run_id)`` takes it up again, from any process that reaches the
        cluster. While nobody reads, the newest events are kept (4 MiB, and 256 MiB of large
        reports); results and the last events for a day after the end, while the head lives.

        ``on_event`` is called with every event (a dict; "kind" is epoch, worker, state, report,
        result, log, parked, stalled, unreachable, warning, resumed, recovered or done) on a
        thread of the run.
        """
        return self._submit(fn, args, kwargs, on_event=on_event, detached=detached)

    def attach(self, run_id: str, on_event: Optional[EventListener] = None) -> RunHandle:
        """The handle of a run that another process has submitted, or this one has lost.

        It gets the events that the head still has, and all that come; a run that is not detached
        belongs to this process from now on if the one that has submitted it is silent for 15 s.

        Raises:
            TroupeError: there is no such run; the message names those that there are.
        """
        _check_call(print, (), None, on_event, None)
        if not isinstance(run_id, str):
            raise TypeError(f"run_id must be a string, not {_payload.type_name(run_id)}")
        driver = self._driver()
        with _native.driver_errors(f"attaching to run {run_id!r}"):
            driver.attach(run_id)
            name = str(driver.status(run_id)["name"])
        handle = self._make_handle(driver, run_id, name, on_event, ())
        handle.outlives_executor = True
        handle.start_pump()
        return handle

    def execute(
        self, fn: Callable[..., Any], callbacks: Optional[Sequence[Callback]] = None
    ) -> list[Any]:
        """``run(fn)`` under the name that users of Horovod's executors know."""
        return self.run(fn, callbacks=callbacks)

    def cluster(self) -> dict[str, Any]:
        """The cluster's nodes with their resources and what is in use."""
        driver = self._driver()
        with _native.driver_errors("cluster state"):
            return dict(driver.cluster())

    @property
    def settings(self) -> Settings:
        """The checked arguments, with defaults filled in."""
        return self._settings

    @property
    def running(self) -> list[RunHandle]:
        """Handles of the runs that have not ended."""
        with self._lock:
            return [handle for handle in self._handles if not handle.done()]

    def __repr__(self) -> str:
        least, start, most = self._settings.sizes()
        return f"<Executor {start} workers ({least}..{most}) {self._state()}>"

    def _repr_html_(self) -> str:
        from troupe.executor.display import executor_html

        return executor_html(self)

    # -- inside ---------------------------------------------------------------------------------

    def _state(self) -> str:
        if self._closed:
            return "shut down"
        return "started" if self._cluster is not None else "not started"

    def _driver(self) -> Any:
        self.start()
        cluster = self._cluster
        if cluster is None:
            raise TroupeError("this executor was shut down; create a new one")
        return cluster.driver

    def _submit(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Optional[Mapping[str, Any]],
        on_event: Optional[EventListener] = None,
        callbacks: Optional[Sequence[Callback]] = None,
        created: Optional[list[RunHandle]] = None,
        detached: bool = False,
    ) -> RunHandle:
        """Submits; the handle goes into ``created`` at once, so that Ctrl-C finds it."""
        _check_call(fn, args, kwargs, on_event, callbacks)
        _cluster.check_process(self._pid)
        settings = self._settings
        if detached and not settings.address:
            raise ValueError("detached=True needs a cluster that outlives this process: start one "
                             "with `troupe start --head` and pass address=\"HOST:PORT\"")
        task = _payload.Task(fn, tuple(args), dict(kwargs or {}), float(settings.elastic_timeout))
        payload = _payload.dump_task(task)
        driver = self._driver()
        self._check_room(driver)
        name = settings.name or _payload.callable_name(fn)
        with _native.deferred_interrupt():  # what is submitted must be known, to be cancelled
            with _native.driver_errors(f"submitting {name!r}"):
                run_id = driver.submit({**self._spec(name, payload, fn), "detached": detached})
            handle = self._make_handle(driver, run_id, name, on_event, callbacks or ())
            handle.outlives_executor = detached
            if created is not None:
                created.append(handle)
            handle.start_pump()
        return handle

    def _make_handle(
        self,
        driver: Any,
        run_id: str,
        name: str,
        on_event: Optional[EventListener],
        callbacks: Sequence[Callback],
    ) -> RunHandle:
        handle = RunHandle(
            driver, run_id, name, self._pid, on_event, callbacks, self._settings.log_to_driver
        )
        with self._lock:
            self._handles = [h for h in self._handles if not h.done()] + [handle]
        if self._settings.progress != "off":
            from troupe.executor import display

            display.attach(handle, self._settings.progress)
        return handle

    def _spec(self, name: str, payload: bytes, fn: Callable[..., Any]) -> dict[str, Any]:
        settings = self._settings
        least, start, most = settings.sizes()
        resources = settings.resources()
        preload = settings.preload
        if preload is None:
            uses_torch = "torch" in sys.modules or _payload.mentions(fn, "torch")
            preload = list(_HEAVY_MODULES) if uses_torch else []
        return {
            "name": name,
            "min_workers": least,
            "max_workers": most,
            "workers": start,
            "resources": resources,
            "strategy": settings.strategy,
            "payload": payload,
            "preload": list(preload),
            "env": {"TROUPE_WORKER_CPUS": f"{resources.get('CPU', 0):g}", **_trace_environment(),
                    **_horovod.worker_environment(), **settings.env},
            "elastic_timeout_s": float(settings.elastic_timeout),
            "start_timeout_s": float(settings.start_timeout),
            "stall_report_s": float(settings.stall_report_s),
            "stall_remove_s": float(settings.stall_remove_s),
            "driver_silence_s": float(settings.driver_silence_s),
            "reset_limit": -1 if settings.reset_limit is None else settings.reset_limit,
        }

    def _check_room(self, driver: Any) -> None:
        """A private cluster cannot grow, so what does not fit now never will."""
        if self._settings.address:
            return
        with _native.driver_errors("cluster state"):
            nodes = driver.cluster()["nodes"]
        problem = _cluster.explain_placement(
            nodes, self._settings.resources(), self._settings.min_workers
        )
        if problem:
            raise PlacementError(problem)


ElasticExecutor = Executor


def attach(
    run_id: str,
    *,
    address: Optional[str] = None,
    key_file: Optional[str] = None,
    on_event: Optional[EventListener] = None,
    progress: Optional[str] = None,
) -> RunHandle:
    """``Executor(address=...).attach(run_id)``, for a run of a cluster that was started apart.

    Without ``address`` the variable TROUPE_ADDRESS names the cluster.

    Raises:
        ValueError: no cluster is named; TroupeError: there is no such run.
    """
    executor = Executor(address=address, key_file=key_file, progress=progress)
    if not executor.settings.address:
        raise ValueError("say in which cluster the run is: address=\"HOST:PORT\", or the variable "
                         "TROUPE_ADDRESS")
    return executor.attach(run_id, on_event)


def _trace_environment() -> dict[str, str]:
    """Workers of a driver that traces do so, too."""
    folder = os.environ.get("TROUPE_TRACE_DIR")
    return {"TROUPE_TRACE_DIR": os.path.abspath(folder)} if folder else {}


def _check_call(
    fn: Any, args: Any, kwargs: Any, on_event: Any, callbacks: Any
) -> None:
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {_payload.type_name(fn)} {fn!r}")
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise TypeError(
            f"args must be a list or tuple of arguments, not {_payload.type_name(args)}; "
            "for a single argument write args=(value,)"
        )
    if kwargs is not None and not (
        isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)
    ):
        raise TypeError(f"kwargs must be a dict with string keys, not {_payload.type_name(kwargs)}")
    if on_event is not None and not callable(on_event):
        raise TypeError(f"on_event must be callable, not {_payload.type_name(on_event)}")
    if callbacks is not None and not (
        isinstance(callbacks, Sequence) and all(callable(c) for c in callbacks)
    ):
        raise TypeError("callbacks must be a list of callables")


def _cancel_quietly(handle: RunHandle) -> None:
    try:
        handle.cancel()
    except TroupeError as error:
        _log.debug("cancelling %r: %s", handle, error)


def _cancel_on_interrupt(handle: RunHandle) -> None:
    message = f"\nCancelling {handle.name!r} (Ctrl-C again to stop waiting)"
    print(message, file=sys.stderr, flush=True)
    _cancel_quietly(handle)
    if not handle.wait(_CANCEL_GRACE_S):
        _log.warning("run %s has not ended %g s after Ctrl-C", handle.name, _CANCEL_GRACE_S)
