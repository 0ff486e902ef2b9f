"""``runtime_env`` in the process that asked for it: packages fetched, and a virtual environment.

Both are kept on the host under the digest of what they consist of, in a private folder that the
clusters of one user share (``TROUPE_ENVIRONMENTS``, by default ``~/.cache/troupe/environments``). A
process holds a shared lock of each entry that it uses. Of those that nobody uses ENTRIES_KEPT stay.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import importlib
import importlib.util
import io
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from typing import Any

from troupe.actors import _environment, _refs, _session
from troupe.errors import RuntimeEnvSetupError

ENTRIES_KEPT = 32
UNPACKED_BYTES_MAX = 1 << 30
_LOOK_AGAIN_S = 0.1
_SHOWN_BYTES = 2000  # Of what pip has said.
_held: list[int] = []  # Descriptors whose locks last as long as the process.


def enter(session: _session.Session) -> bool:
    """Sets up what this process was asked to find; whether it has a working directory.

    Raises:
        RuntimeEnvSetupError: it cannot be set up; says what, and why.
    """
    given = os.environ.pop(_environment.VARIABLE, "")
    if not given:
        return False
    try:
        made: _environment.Environment = pickle.loads(base64.b64decode(given))
        session.environment = made  # For what is started from here.
        _set_up(made)
    except RuntimeEnvSetupError:
        raise
    except Exception as error:  # A damaged archive, a full disk.
        raise RuntimeEnvSetupError(
            f"the runtime_env cannot be set up: {type(error).__name__}: {error}") from error
    return made.working_dir is not None


def _set_up(made: _environment.Environment) -> None:
    deadline = time.monotonic() + made.timeout_s
    for package in made.modules:
        sys.path.insert(0, _unpacked(package, deadline))
    if made.requirements:
        _use_environment(made.requirements, deadline)
    if made.working_dir is not None:
        folder = _unpacked(made.working_dir, deadline)
        os.chdir(folder)
        sys.path.insert(0, folder)
    importlib.invalidate_caches()


def _unpacked(package: _environment.Package, deadline: float) -> str:
    def fetch() -> bytes:
        try:
            data = _refs.get(package.archive, timeout=max(0.0, deadline - time.monotonic()))
        except Exception as error:
            raise RuntimeEnvSetupError(
                f"the package of {package.what} cannot be fetched from who has packed it: {error}"
            ) from error
        return bytes(data)

    return unpacked(package.digest, package.what, fetch, deadline)


def unpacked(digest: str, what: str, fetch: Callable[[], bytes], deadline: float) -> str:
    """The folder of an archive on this host, which is fetched only if the host lacks it.

    Raises:
        RuntimeEnvSetupError: it cannot be fetched or unpacked, or not in time.
    """
    def fill(folder: str) -> None:
        with zipfile.ZipFile(io.BytesIO(fetch())) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
            if total > UNPACKED_BYTES_MAX:
                raise RuntimeEnvSetupError(f"{what} has {total} bytes unpacked, over "
                                           f"{UNPACKED_BYTES_MAX}")
            for entry in archive.infolist():
                path = archive.extract(entry, folder)
                mode = entry.external_attr >> 16 & 0o777
                if mode and not entry.is_dir():
                    os.chmod(path, mode | 0o600)

    return _entry(f"package-{digest}", fill, deadline)


def _use_environment(requirements: list[str], deadline: float) -> None:
    key = repr((sys.version, sys.executable, sorted(requirements)))
    name = f"pip-{hashlib.sha256(key.encode()).hexdigest()}"
    folder = _entry(name, lambda made: _make_environment(made, requirements, deadline), deadline)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    sys.path.insert(0, os.path.join(folder, "lib", version, "site-packages"))
    os.environ["VIRTUAL_ENV"] = folder
    os.environ["PATH"] = os.path.join(folder, "bin") + os.pathsep + os.environ.get("PATH", "")


def _make_environment(folder: str, requirements: list[str], deadline: float) -> None:
    own_pip = importlib.util.find_spec("pip") is not None
    _run([sys.executable, "-m", "venv", *(["--without-pip"] if own_pip else []), folder], deadline,
         "a virtual environment cannot be made")
    python = os.path.join(folder, "bin", "python")
    pip = [sys.executable, "-m", "pip", "--python", python] if own_pip else [python, "-m", "pip"]
    _run([*pip, "--no-input", "--disable-pip-version-check", "install", "--", *requirements],
         deadline, f"pip cannot install {', '.join(requirements)}")


def _run(command: list[str], deadline: float, problem: str) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=max(0.1, deadline - time.monotonic()), check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeEnvSetupError(f"{problem} in time; raise runtime_env's config "
                                   '{"setup_timeout_seconds": ...}') from None
    if done.returncode != 0:
        said = done.stdout[-_SHOWN_BYTES:].decode("utf-8", "replace").strip()
        raise RuntimeEnvSetupError(f"{problem} (status {done.returncode}): {said}")


# ---- entries that processes share ----


def _entry(name: str, fill: Callable[[str], None], deadline: float) -> str:
    """The folder of an entry, filled by whoever needs it first, and in use from now on."""
    base = _base()
    folder = os.path.join(base, name)
    lock = os.open(f"{folder}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    _held.append(lock)
    _lock(lock, fcntl.LOCK_EX, deadline, folder)
    try:
        if not os.path.isdir(folder):
            _fill(base, folder, fill)
        os.utime(folder)
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)  # Another may get in between: it finds the entry there.
    if not os.path.isdir(folder):
        raise RuntimeEnvSetupError(f"{folder} was removed while it was set up; try again")
    _prune(base)
    return folder


def _fill(base: str, folder: str, fill: Callable[[str], None]) -> None:
    made = tempfile.mkdtemp(prefix=".new-", dir=base)
    try:
        fill(made)
        os.rename(made, folder)
    except OSError as error:
        raise RuntimeEnvSetupError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _lock(lock: int, kind: int, deadline: float, folder: str) -> None:
    while True:
        try:
            return fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            # Who uses it holds a shared lock: the entry is there, and so is ours to share.
            if os.path.isdir(folder):
                with contextlib.suppress(BlockingIOError):
                    return fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if time.monotonic() > deadline:
            raise RuntimeEnvSetupError(f"another process has set up {folder} for too long; end it, "
                                       "or raise setup_timeout_seconds")
        time.sleep(_LOOK_AGAIN_S)


def _prune(base: str) -> None:
    """Removes the entries that were used longest ago, of more than ENTRIES_KEPT, and by nobody."""
    entries: list[tuple[float, str]] = []
    for entry in os.scandir(base):
        with contextlib.suppress(OSError):
            if entry.is_dir() and not entry.name.startswith("."):
                entries.append((entry.stat().st_mtime, entry.path))
    for _, path in sorted(entries)[:-ENTRIES_KEPT]:
        lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def _base() -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    base = os.environ.get("TROUPE_ENVIRONMENTS") or os.path.join(cache, "troupe", "environments")
    try:
        os.makedirs(base, mode=0o700, exist_ok=True)
        stat: Any = os.stat(base)
    except OSError as error:
        raise RuntimeEnvSetupError(
            f"{base} cannot be made: {error}; TROUPE_ENVIRONMENTS names another") from error
    if stat.st_uid != os.getuid() or stat.st_mode & 0o022:
        raise RuntimeEnvSetupError(f"{base} belongs to another user, or others may write it; "
                                   "TROUPE_ENVIRONMENTS names another")
    return base
