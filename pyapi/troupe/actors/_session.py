"""This process as part of a cluster for actors: started by ``init`` or by first use, or a worker.

One thread of Python runs what is to happen when calls complete, and prints what actors print.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from troupe import _cluster, _native
from troupe._config import build_settings
from troupe.actors._objects import ObjectStore
from troupe.actors._travel import References
from troupe.errors import TroupeError

_log = logging.getLogger("troupe.actors")
_TURN_S = 5.0
_JOIN_S = 5.0
ASK_S = 30.0  # For the head to answer.
_PRELOAD = ["numpy"]
_INIT_SETTINGS = ("address", "key_file", "num_cpus", "num_gpus", "memory_bytes",
                  "cluster_resources", "preload", "python", "bin_dir", "redis_server", "log_dir",
                  "start_timeout", "lease_ms", "driver_silence_s",
                  "metrics_port")


class Session:
    """The native actors of this process and what Python keeps beside them."""

    def __init__(
        self, actors: Any, cluster: Optional[_cluster.Cluster], log_to_driver: bool = True,
        object_store_memory: Optional[int] = None,
    ) -> None:
        self.actors = actors
        self.cluster = cluster
        self.pid = os.getpid()
        self.job_id: str = actors.process
        self.namespace = ""
        self.runtime_env: dict[str, Any] = {}  # Of all that it starts, unless that says otherwise.
        self.environment: Any = None  # Of a worker: what its own process was asked to set up.
        self.refs = References(actors.refs())
        self.packages: dict[Any, Any] = {}  # Of _environment, by their paths.
        self.store = _make_store(actors.cluster, object_store_memory)
        if self.store is not None:
            self.store.home = self.refs.address
        self._log_to_driver = log_to_driver
        self._kept: dict[str, Any] = {}
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._watches: dict[int, Any] = {}  # Of actors whose end is waited for.
        self._tokens = itertools.count(1)
        self._completions = actors.completions
        self._thread = threading.Thread(
            target=self._run_callbacks, name="troupe-completions", daemon=True)
        self._thread.start()

    def on_done(self, call: Any, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on a thread of ours when the call is complete; it must not block."""
        token = next(self._tokens)
        self._callbacks[token] = fn
        call.notify(self._completions, token)

    def when_gone(self, native: Any, fn: Callable[[Any], None]) -> None:
        """Runs ``fn`` on a thread of ours when this actor has ended for good, with a ref of it."""
        token = next(self._tokens)
        watch = self.actors.refer(native.address())  # Does not keep it alive.

        def gone() -> None:
            fn(self._watches.pop(token))

        self._watches[token] = watch
        self._callbacks[token] = gone
        watch.tell_gone(self._completions, token)

    def release_files(self, names: Sequence[str]) -> None:
        """Lets go of files of ours that nobody refers to any more."""
        store = self.store
        if store is None or self.pid != os.getpid():  # What a forked child has are copies.
            return
        if store.discard(names):  # On the thread of callbacks: it takes long.
            self.on_done(_native.core().completed_call(b""), store.tidy)

    def keep(self, ref: Any, key: str = "") -> None:
        """Keeps what other processes may need, until the end; of one key it keeps one."""
        self._kept[key or str(next(self._tokens))] = ref

    def runs_here(self) -> bool:
        """Whether this is the thread of callbacks, which must not wait."""
        return threading.current_thread() is self._thread

    def check(self) -> None:
        """Raises in a forked child."""
        if self.pid != os.getpid():
            raise TroupeError(
                f"this belongs to process {self.pid} and cannot be used in process {os.getpid()}, "
                "which was forked from it; use it in the parent, or call troupe.init() here"
            )

    def stop(self) -> None:
        """Ends what this process has spawned, and the cluster if it is embedded and ours."""
        self.actors.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)
        if self.store is not None:
            _native.core().serve_shared_files("", "", "")
            self.store.discard_own()
        if self.cluster is not None:
            _cluster.release(self.cluster)

    def _run_callbacks(self) -> None:
        tidied = time.monotonic()
        while not self._completions.closed:
            items = self._completions.take(_TURN_S)
            if self.store is not None and time.monotonic() - tidied > _TURN_S:
                tidied = time.monotonic()
                self.store.tidy()
            for item in items:
                if isinstance(item, int):
                    self._run_callback(item)
                elif isinstance(item, list):
                    self.refs.on_item(*item)
                elif not item[0]:  # Of the runtime itself.
                    for line in item[4]:
                        _log.warning("%s", line)
                elif self._log_to_driver:
                    _print_output(*item)

    def _run_callback(self, token: int) -> None:
        fn = self._callbacks.pop(token, None)
        if fn is None:
            return
        try:
            fn()
        except Exception:
            _log.exception("a callback of a call failed")


def _make_store(cluster: str, limit_bytes: Optional[int]) -> Optional[ObjectStore]:
    """Where this process shares buffers with others of its host; ``None``: nowhere."""
    core = _native.core()
    core.remove_ended_folders()  # And what processes left in the others that were killed.
    try:
        store = ObjectStore(core.shared_folder_path(cluster), limit_bytes)
    except (OSError, RuntimeError) as error:
        _log.warning("large values travel inside messages: %s", error)
        return None
    core.serve_shared_files(store.folder, store.spill_folder, store.identity)
    return store


def _print_output(
    kind: str, pid: int, node: str, is_stderr: bool, lines: list[str], dropped: int
) -> None:
    prefix = f"({kind} pid={pid} node={node}) "
    if dropped:
        lines = [f"[{dropped} lines dropped: printed faster than they could be sent]", *lines]
    stream = sys.stderr if is_stderr else sys.stdout
    with contextlib.suppress(OSError, ValueError):  # It was closed: nobody reads.
        stream.write("".join(f"{prefix}{line}\n" for line in lines))
        stream.flush()


_lock = threading.RLock()
_session: Optional[Session] = None
_orphans: list[Any] = []
_hooks_installed = False


def init(
    address: Optional[str] = None,
    *,
    num_cpus: Optional[float] = None,
    num_gpus: Optional[float] = None,
    memory: Optional[int] = None,
    resources: Optional[Mapping[str, float]] = None,
    key_file: Optional[str] = None,
    data_address: str = "",
    object_store_memory: Optional[int] = None,
    log_to_driver: bool = True,
    log_dir: Optional[str] = None,
    namespace: str = "",
    runtime_env: Optional[Mapping[str, Any]] = None,
    ignore_reinit_error: bool = False,
    **settings: Any,
) -> None:
    """Makes this process a driver of actors; their first use does it with all defaults.

    Args:
        address: ``HOST:PORT`` of a cluster's head; ``None``: what ``TROUPE_ADDRESS`` says, else a
            cluster of this process's own on this machine, which ends with it.
        num_cpus, num_gpus, memory (bytes), resources: what the own cluster offers; by default what
            the machine has.
        key_file: the cluster's key pair, for an address; or ``TROUPE_KEY_FILE``.
        data_address: where others can call this process; by default what reaches the head.
        object_store_memory: bytes of large buffers that all processes of the host's cluster may
            share; by default 30 % of the memory.
        log_to_driver: print here what actors print, behind ``(Type pid=... node=...)``.
        log_dir: keep the daemons' and the actors' output here.
        namespace: in which names of actors are given and looked for; by default that of all.
        runtime_env: of all actors and tasks, but for what their own ``runtime_env`` says; a task
            has a process of its own then.
        ignore_reinit_error: do nothing if this was called before.
        settings: ``preload``: modules that processes import which are started ahead of their
            actors, by default NumPy if it is installed there. And ``python``, ``bin_dir``,
            ``redis_server``, ``start_timeout``, ``lease_ms``, ``driver_silence_s`` as for
            :class:`troupe.Executor`. ``metrics_port``: the own cluster serves Prometheus metrics
            on this port of the loopback interface.

    Raises:
        TroupeError: it was called before, or the cluster does not start. TypeError, ValueError: an
            argument is unusable.
    """
    environment = _check_init(settings, namespace, runtime_env)
    with _lock:
        if _session is not None:
            if ignore_reinit_error or in_worker():
                return
            raise TroupeError("troupe.init() was called before; call troupe.shutdown() first")
        built = build_settings(None, {
            "address": address, "num_cpus": num_cpus, "num_gpus": num_gpus, "memory_bytes": memory,
            "cluster_resources": dict(resources) if resources else None,
            "key_file": key_file, "log_dir": log_dir,
            **settings,
        })
        cluster = _cluster.acquire(built)
        try:
            with _native.driver_errors("joining the cluster"):
                modules = _PRELOAD if built.preload is None else built.preload
                actors = cluster.driver.actors(data_address, modules)
            session = Session(actors, cluster, log_to_driver, object_store_memory)
            session.namespace = namespace
            session.runtime_env = environment
            _start(session)
        except BaseException:
            _cluster.release(cluster)
            raise


def _check_init(settings: Mapping[str, Any], namespace: Any, runtime_env: Any) -> dict[str, Any]:
    """The ``runtime_env``, when it and the others are usable."""
    from troupe.actors import _environment

    unknown = sorted(set(settings) - set(_INIT_SETTINGS))
    if unknown:
        raise TypeError(f"init() has no argument {unknown[0]!r}")
    check_namespace(namespace)
    return _environment.check(runtime_env)


def shutdown() -> None:
    """Ends every actor of this process that is not detached, and its cluster if it is its own.

    Calls on their way fail with :class:`troupe.TaskCancelledError`. Does nothing if there is
    nothing to end; ``init`` may be called again.
    """
    global _session
    with _lock:
        session, _session = _session, None
    if session is not None and session.pid == os.getpid():
        session.stop()


def is_initialized() -> bool:
    """Whether this process can use actors already."""
    return _session is not None


def current() -> Session:
    """The session of this process; started with all defaults if there is none."""
    session = _session
    if session is None:
        with _lock:
            if _session is None:
                init()
            session = _session
    assert session is not None
    return session


def check_namespace(namespace: Any) -> str:
    """A namespace, or "" for that of all.

    Raises:
        TypeError, ValueError: it is none.
    """
    if namespace is None:
        return ""
    if not isinstance(namespace, str):
        raise TypeError(f"namespace must be a string, not {namespace!r}")
    if "/" in namespace:
        raise ValueError(f"a namespace has no '/' in it: {namespace!r}")
    return namespace


def current_store() -> Optional[ObjectStore]:
    """Where shared buffers of this process's cluster are, None without one."""
    return _session.store if _session is not None else None


def in_worker() -> bool:
    """Whether this process hosts an actor or tasks."""
    return _session is not None and _session.cluster is None


def enter_worker(actors: Any) -> Session:
    """Makes the actors of a worker process those of this one."""
    with _lock:
        return _start(Session(actors, None))


def _start(session: Session) -> Session:
    global _session, _hooks_installed
    _session = session
    if not _hooks_installed:
        _hooks_installed = True
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_forget_in_child)
    return session


def _forget_in_child() -> None:
    """A child must neither use nor end what belongs to its parent, not even by a destructor."""
    global _session, _lock
    _lock = threading.RLock()
    if _session is not None:
        if _session.store is not None:
            _session.store.forget()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_session))
        _orphans.append(_session)
    _session = None
