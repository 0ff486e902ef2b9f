"""The drivers of this process: embedded clusters shared by reference count, ended at exit.

A cluster is keyed by the options that shape it, so executors that ask for the same share one.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, Optional

from troupe import _metric_report, _native
from troupe._config import Settings
from troupe._payload import show_amount
from troupe._redis_server import find_redis_server
from troupe.errors import TroupeError


class Cluster:
    """One native driver with the number of executors that use it."""

    def __init__(self, key: tuple[Any, ...], driver: Any) -> None:
        self.key = key
        self.driver = driver
        self.users = 0
        self.pid = os.getpid()


# Options that say how one driver starts; executors that differ in them share a cluster, since each
# of two on one machine would hand out all of its CPUs.
_NO_PART_OF_A_CLUSTER = frozenset({"python_path", "start_timeout_s", "driver_silence_s"})

_lock = threading.Lock()
_clusters: dict[tuple[Any, ...], Cluster] = {}
_orphans: list[Any] = []
_hooks_installed = False


def acquire(settings: Settings) -> Cluster:
    """The cluster that these settings ask for, started if need be."""
    _install_hooks()
    options = driver_options(settings)
    key = (settings.address or "", *sorted((k, repr(v)) for k, v in options.items()
                                           if k not in _NO_PART_OF_A_CLUSTER))
    with _lock:
        cluster = _clusters.get(key)
        if cluster is None:
            core = _native.core()
            with _native.driver_errors("starting the cluster"):
                cluster = Cluster(key, core.Driver(settings.address or "", options))
            _clusters[key] = cluster
        cluster.users += 1
        return cluster


def release(cluster: Cluster) -> None:
    """Gives a use back; the last one ends an embedded cluster and all its processes."""
    with _lock:
        cluster.users -= 1
        if cluster.users > 0 or cluster.pid != os.getpid():
            return
    _metric_report.flush()
    with _lock:
        if cluster.users > 0:
            return
        _clusters.pop(cluster.key, None)
    cluster.driver.shutdown()


def any_driver() -> Any:
    """A native driver of this process, None if it has none."""
    for cluster in list(_clusters.values()):
        if cluster.pid == os.getpid():
            return cluster.driver
    return None


def check_process(pid: int) -> None:
    """Raises in a forked child, where the threads and sockets of the parent do not exist."""
    if pid != os.getpid():
        raise TroupeError(
            f"this executor belongs to process {pid} and cannot be used in process {os.getpid()}, "
            "which was forked from it; use it in the parent, or create a new one here"
        )


def driver_options(settings: Settings) -> dict[str, Any]:
    """The options of the native driver."""
    bin_dir = str(settings.bin_dir) if settings.bin_dir else find_bin_dir()
    options: dict[str, Any] = {
        "num_cpus": settings.num_cpus,
        "num_gpus": settings.num_gpus,
        "memory_bytes": settings.memory_bytes,
        "resources": {k: float(v) for k, v in settings.cluster_resources.items()},
        "bin_dir": bin_dir,
        "python": str(settings.python or sys.executable),
        "redis_server": find_redis_server(settings.redis_server, bin_dir),
        "log_dir": str(settings.log_dir) if settings.log_dir else None,
        "start_timeout_s": float(settings.start_timeout),
        "driver_silence_s": float(settings.driver_silence_s),
        "python_path": [os.path.abspath(entry or os.getcwd()) for entry in sys.path],
    }
    if settings.metrics_port is not None:
        options["metrics_port"] = settings.metrics_port
    if settings.lease_ms is not None:
        options["lease_ms"] = settings.lease_ms
    if settings.key_file is not None:
        options["key_file"] = str(settings.key_file)
    return options


def find_bin_dir() -> str:
    """Where troupe-head and its like are: TROUPE_BIN_DIR, the package, or the interpreter's bin."""
    package = os.path.dirname(os.path.abspath(__file__))
    candidates = [
        os.environ.get("TROUPE_BIN_DIR", ""),
        os.path.join(package, "bin"),
        os.path.join(os.path.dirname(os.path.dirname(package)), "bin"),  # a build tree
        os.path.join(os.path.dirname(os.path.dirname(package)), "daemons"),
        os.path.dirname(sys.executable),
        os.path.join(sys.prefix, "bin"),
        *os.environ.get("PATH", "").split(os.pathsep),
    ]
    for folder in candidates:
        if folder and os.access(os.path.join(folder, "troupe-head"), os.X_OK):
            return folder
    return os.path.join(package, "bin")


def explain_placement(
    nodes: list[Mapping[str, Any]], resources: Mapping[str, float], workers: int
) -> Optional[str]:
    """Why ``workers`` workers can never fit on these nodes, or None if they can."""
    alive = [node for node in nodes if node.get("alive", True)]
    room = 0
    for node in alive:
        total = node.get("resources") or {}
        # 1e-9: four workers of 0.1 CPU fit on 0.4 CPUs whatever the rounding
        fits = [int(total.get(name, 0.0) / amount + 1e-9) for name, amount in resources.items()]
        room += min(fits) if fits else workers
    if room >= workers:
        return None
    asked = ", ".join(show_amount(name, amount) for name, amount in resources.items())
    offered = "; ".join(
        f"{node.get('host', '?')}: "
        + ", ".join(show_amount(name, n) for name, n in (node.get("resources") or {}).items())
        for node in alive
    )
    return (
        f"{workers} workers with {asked} each do not fit: there is room for {room} "
        f"({offered or 'no node is alive'}). Ask for less per worker or fewer workers"
    )


def shutdown_all() -> None:
    """Ends every cluster of this process; at exit, and for tests."""
    _metric_report.flush()
    with _lock:
        mine = [c for c in _clusters.values() if c.pid == os.getpid()]
        _clusters.clear()
    for cluster in mine:
        cluster.driver.shutdown()


def _install_hooks() -> None:
    global _hooks_installed
    with _lock:
        if _hooks_installed:
            return
        _hooks_installed = True
    atexit.register(shutdown_all)
    os.register_at_fork(after_in_child=_forget_in_child)


def _forget_in_child() -> None:
    """A child must neither use nor end its parent's cluster, not even by a destructor."""
    global _lock
    _lock = threading.Lock()
    for cluster in _clusters.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(cluster.driver))
        _orphans.append(cluster.driver)
    _clusters.clear()
