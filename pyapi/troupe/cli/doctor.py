"""``troupe doctor``: is everything there that a run needs?"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from troupe import _cluster, _native, _redis_server, _runtime

_MIN_FILES = 1024
_MIN_SHM_BYTES = 64 << 20
_DAEMONS = ("troupe-head", "troupe-node", "troupe-guard")


@dataclass
class Finding:
    """The outcome of one check; ``advice`` says what to do when it is not ``ok``."""

    name: str
    ok: bool
    detail: str
    advice: str = ""
    required: bool = True

    def line(self) -> str:
        """One line for people."""
        mark = "ok  " if self.ok else ("FAIL" if self.required else "warn")
        text = f"{mark}  {self.name}: {self.detail}"
        return text if self.ok or not self.advice else f"{text}\n      -> {self.advice}"


def check_python() -> Finding:
    version = sys.version.split()[0]
    return Finding("python", sys.version_info >= (3, 9), f"{version} at {sys.executable}",
                   "use Python 3.9 or newer")


def check_core() -> Finding:
    try:
        return Finding("native core", True, f"version {_native.core().version()}")
    except ImportError as error:
        return Finding("native core", False, str(error), "build or install the package again")


def check_daemon(name: str) -> Finding:
    path = os.path.join(_cluster.find_bin_dir(), name)
    return Finding(name, os.access(path, os.X_OK), path,
                   "set TROUPE_BIN_DIR to the folder that holds it")


def check_redis() -> Finding:
    path = _redis_server.find_redis_server(None, _cluster.find_bin_dir())
    return Finding("redis-server", path is not None, path or "not found on PATH",
                   f"install it: {_redis_server.ADVICE}")


def check_module(name: str, required: bool, advice: str) -> Finding:
    if importlib.util.find_spec(name) is None:
        return Finding(name, False, "not installed", advice, required)
    try:
        version = getattr(importlib.import_module(name), "__version__", "unknown version")
    except Exception as error:
        return Finding(name, False, f"cannot be imported: {error}", advice, required)
    return Finding(name, True, str(version), required=required)


def check_shared_memory(folder: str = "/dev/shm") -> Finding:
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("shared memory", False, f"{folder}: {error}", "mount a writable tmpfs there")
    enough = free >= _MIN_SHM_BYTES
    return Finding("shared memory", enough, f"{folder} writable, {free >> 20} MiB free",
                   "free some, or give a container more, for example --shm-size=1g")


def check_files() -> Finding:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Finding("open files", soft >= _MIN_FILES, f"limit {soft}",
                   f"raise it: ulimit -n {_MIN_FILES}", required=False)


def check_cores() -> Finding:
    return Finding("processors", True, f"{_runtime.usable_cores()} usable")


def checks() -> list[Callable[[], Finding]]:
    """All checks, in the order in which they are shown."""
    return [
        check_python,
        check_core,
        *[lambda name=name: check_daemon(name) for name in _DAEMONS],
        check_redis,
        lambda: check_module("cloudpickle", True, "pip install cloudpickle"),
        lambda: check_module("yaml", False, "pip install pyyaml, for config files"),
        lambda: check_module("rich", False, "pip install rich, for live progress"),
        lambda: check_module("torch", False, "pip install torch, to use troupe.torch"),
        check_shared_memory,
        check_files,
        check_cores,
    ]


def run_checks(only: Optional[list[Callable[[], Finding]]] = None) -> list[Finding]:
    """Runs the checks."""
    return [check() for check in (only if only is not None else checks())]
