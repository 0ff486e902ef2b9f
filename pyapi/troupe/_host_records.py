"""What ``troupe start`` runs on this host: one record per start, and awaiting the end of it.

A record is written by ``troupe-local`` and removed by it at its end. If it was killed, its daemons
have been told by the kernel and end by themselves; what it leaves on disk is removed here.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

RUN_DIR_PREFIX = "troupe-"
_SLICE_S = 0.05  # Between two looks at processes that cannot be waited for.


@dataclass
class Record:
    """What one ``troupe start`` runs on this host."""

    path: Path
    pid: int
    role: str
    address: str
    key_file: str
    node: str
    log_dir: str
    run_dir: str = ""

    def alive(self) -> bool:
        """Whether its supervisor still runs; another process of its pid is not taken for it."""
        try:
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return os.fsencode(self.path) in words  # Of a zombie it is empty.

    def serves(self, address: str, key_file: str) -> bool:
        """Whether it is a part of the cluster whose head is at this address."""
        same_key = os.path.realpath(self.key_file) == os.path.realpath(key_file)
        return same_key and _head(self.address) == _head(address)

    def discard(self) -> None:
        """Removes what a supervisor that has ended left: its directory and its record."""
        if self.run_dir and not remove_run_dir(self.run_dir):
            return  # The next look tries again.
        self.path.unlink(missing_ok=True)


def home() -> Path:
    """Where this user's clusters are recorded."""
    return Path(os.environ.get("TROUPE_HOME") or Path.home() / ".troupe")


def records() -> list[Record]:
    """What runs here; what is left of that which has ended is removed."""
    found = []
    for path in sorted((home() / "run").absolute().glob("*.record")):
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:  # It has just ended.
            continue
        if len(lines) < 6 or not lines[0].isdigit():
            continue
        record = Record(path, int(lines[0]), *lines[1:7])
        if record.alive():
            found.append(record)
        else:
            record.discard()
    return found


def remove_run_dir(folder: str) -> bool:
    """Removes the run directory of a supervisor that is gone; whether there is none any more.

    Only what is surely such a directory of this user's is touched.
    """
    path = Path(folder)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return True
    ours = found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode)
    if not path.is_absolute() or not path.name.startswith(RUN_DIR_PREFIX) or not ours:
        return True
    shutil.rmtree(path, ignore_errors=True)  # A daemon that is ending may remove files, too.
    return not path.exists()


def last_words(log: Path) -> str:
    """What a head that could not start said last."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        if lines and lines[-1].startswith("troupe-head: "):
            return lines[-1].removeprefix("troupe-head: ")
    return ""


def private_clusters() -> list[str]:
    """Addresses of clusters of this user here that belong to a driver or to ``troupe up``."""
    known = {record.run_dir for record in records()}
    found = []
    for path in sorted(Path(tempfile.gettempdir()).glob(RUN_DIR_PREFIX + "*/head.sock")):
        with contextlib.suppress(OSError):
            folder = path.parent.lstat()
            ours = folder.st_uid == os.geteuid() and not folder.st_mode & 0o077
            if str(path.parent) in known or not ours or not stat.S_ISDIR(folder.st_mode):
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(1.0)
                probe.connect(str(path))  # Nobody listens at what a killed one has left.
            found.append(f"ipc://{path}")
    return found


def private_access(address: str) -> tuple[str, str]:
    """Address and key file by which such a cluster can be used whole: one that listens for other
    hosts has both of its own, and its actors there cannot be called without them.
    """
    folder = Path(address.removeprefix("ipc://")).parent
    with contextlib.suppress(OSError):
        listens = (folder / "address").read_text(encoding="utf-8").strip()
        if listens and (folder / "cluster.key").exists():
            return listens, str(folder / "cluster.key")
    return address, ""


# ---- processes ----


def end(record: Record, limit_s: float) -> bool:
    """Asks a supervisor to end; whether it has within the limit."""
    with _pidfd(record.pid) as fd:
        if not record.alive():  # Looked at when its pid can no longer become another's.
            return True
        with contextlib.suppress(ProcessLookupError):
            if fd is None:
                os.kill(record.pid, signal.SIGTERM)
            else:
                signal.pidfd_send_signal(fd, signal.SIGTERM)
        return _await(record, fd, time.monotonic() + limit_s)


def await_end(running: Iterable[Record], limit_s: float) -> list[Record]:
    """Waits until these supervisors have ended; those that have not by then."""
    deadline = time.monotonic() + limit_s
    left = []
    for record in running:
        with _pidfd(record.pid) as fd:
            if record.alive() and not _await(record, fd, deadline):
                left.append(record)
    return left


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[Optional[int]]:
    """A descriptor of the process; None if it is gone, or where there are none."""
    try:
        fd: Optional[int] = os.pidfd_open(pid)
    except (AttributeError, OSError):  # Kernels before 5.3, and C libraries that hide it.
        fd = None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _await(record: Record, fd: Optional[int], deadline: float) -> bool:
    if fd is not None:
        return readable(fd, deadline)
    while record.alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(_SLICE_S)
    return True


def readable(fd: int, deadline: float) -> bool:
    """Waits until the descriptor can be read; whether it can before the deadline."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


# ---- addresses ----


def address_towards(host: str) -> str:
    """The address of this host that who reaches ``host`` can reach, too."""
    if host in ("0.0.0.0", "::"):
        host = "192.0.2.1"  # Nothing is sent there; it tells the way out.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _head(address: str) -> tuple[str, str]:
    """Host and port, so that two addresses of one head are the same."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        host = socket.gethostbyname(host)
    except OSError:
        return host, port
    here = host.startswith("127.") or host == "0.0.0.0" or address_towards(host) == host
    return ("127.0.0.1" if here else host), port
