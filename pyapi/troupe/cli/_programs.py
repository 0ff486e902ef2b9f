"""Driver programs that run in the cluster: ``troupe submit -- python script.py ARG...``.

A program is a run of one worker whose function starts it and waits for it. So it has what a run
has: it outlives the terminal and the head, its output is kept and followed, and whatever it has
started ends with it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from troupe import _runtime

_SILENCE_S = 60.0  # What a killed program has started ends then on hosts that cannot see its end.
_UNPACK_S = 60.0
_NOT_FOUND, _NO_FOLDER, _LOST = 127, 126, 125
_FIRST_MEMBER = "w0#1"


class ProgramFailed(Exception):
    """A program did not end with status 0.

    Attributes:
        status: as a shell has it: 128 and the signal's number if a signal has ended it.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class Folder(NamedTuple):
    """A working directory, packed."""

    path: str  # Where it was.
    digest: str
    archive: bytes


def pack(path: str) -> Folder:
    """What lies in a folder now.

    Raises:
        ValueError: it is none, or has too much in it. OSError: it cannot be read.
    """
    from troupe.actors import _environment

    path = os.path.abspath(path)
    if not os.path.isdir(path):
        raise ValueError(f"--working-dir {path} is no folder of this host")
    archive = _environment.pack_folder(path)
    return Folder(path, hashlib.sha256(archive).hexdigest(), archive)


def run_program(words: Sequence[str], folder: Any, variables: Mapping[str, str]) -> None:
    """Runs a program on this node, as a driver of this cluster, until it ends.

    Args:
        folder: a :class:`Folder` to run it in, or the path of one that this node has, too.

    Raises:
        ProgramFailed: it could not be started, or its status is not 0.
    """
    runtime = _runtime.current()
    # Who has done half of its work must not begin it again.
    if runtime is not None and runtime.worker.id != _FIRST_MEMBER:
        raise ProgramFailed(
            f"{shlex.join(words)} has lost its process: the worker {_FIRST_MEMBER} has died or was "
            "drained. A program is not run a second time; submit it again", _LOST)
    if isinstance(folder, Folder):
        from troupe.actors import _environment_setup

        folder = _environment_setup.unpacked(
            folder.digest, folder.path, lambda: folder.archive, time.monotonic() + _UNPACK_S)
    if not os.path.isdir(folder):
        raise ProgramFailed(f"this node has no folder {folder}; send it with --working-dir DIR",
                            _NO_FOLDER)
    _run(words, folder, _variables(folder, variables))


def run_command(words: Sequence[str], folder: str) -> None:
    """Runs a command in a worker of several until it ends, with the variables of its rank.

    Args:
        folder: where; this node needs to have it.

    Raises:
        ProgramFailed: it could not be started, its status is not 0, or this worker stands in for
            one that was lost: what the others have done so far would not be done here.
    """
    runtime = _runtime.current()
    late = runtime is not None and runtime.group.view() is None
    if late or (runtime is not None and not runtime.worker.id.endswith("#1")):
        raise ProgramFailed(
            f"{shlex.join(words)} is not begun in a further process while its peers go on: it has "
            "lost one, or was asked to run on more workers than it began with; run it again", _LOST)
    if not os.path.isdir(folder):
        raise ProgramFailed(f"this node has no folder {folder}", _NO_FOLDER)
    _run(words, folder, _variables(folder, {}))


def _run(words: Sequence[str], folder: str, variables: Mapping[str, str]) -> None:
    words = list(words)
    if os.path.basename(words[0]) in ("python", "python3"):  # The one that has Troupe.
        words[0] = sys.executable
    try:
        process = subprocess.Popen(words, cwd=folder, env=variables, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise ProgramFailed(f"{words[0]} cannot be started on this node: {error.strerror}",
                            _NOT_FOUND) from error
    with _passing_on(process):
        status = process.wait()
    if status < 0:
        name = signal.Signals(-status).name
        raise ProgramFailed(f"{shlex.join(words)} was ended by {name}", 128 - status)
    if status > 0:
        raise ProgramFailed(f"{shlex.join(words)} exited with status {status}", status)


def _variables(folder: str, given: Mapping[str, str]) -> dict[str, str]:
    """Those of this process without what makes it a worker, and the way to the cluster."""
    own = {name: value for name, value in os.environ.items()
           if not name.startswith("TROUPE_WORKER_")}
    own["TROUPE_ADDRESS"] = os.environ["TROUPE_WORKER_HEAD"].replace("tcp://", "", 1)
    if "TROUPE_WORKER_KEY_FILE" in os.environ:
        own["TROUPE_KEY_FILE"] = os.environ["TROUPE_WORKER_KEY_FILE"]
    own["TROUPE_DRIVER_SILENCE_S"] = str(_SILENCE_S)
    own["PYTHONUNBUFFERED"] = "1"
    own["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [own.get("PYTHONPATH")])])
    return {**own, **given}


class _passing_on:
    """SIGTERM, with which a run is ended, goes to the program, so that it can end itself."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._before: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, lambda *_: self._process.terminate())

    def __exit__(self, *unused: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)


def failure_of(wait: Callable[[], Any]) -> Optional[ProgramFailed]:
    """Waits for a run's result; how its program has failed, None if it has not.

    Raises:
        TroupeError: the run has failed or was cancelled without that.
    """
    from troupe.errors import WorkerError

    try:
        wait()
    except WorkerError as error:
        if isinstance(error.__cause__, ProgramFailed):
            return error.__cause__
        raise
    return None


def print_line(event: Mapping[str, Any]) -> None:
    """Prints a line of the program where it has printed it."""
    if event["kind"] == "log":
        stream = sys.stderr if event["stream"] == "stderr" else sys.stdout
        print(event["line"], file=stream, flush=True)
