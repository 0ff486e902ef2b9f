"""The actor that ``troupe chaos`` has on each node, for what cannot be done from afar."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

DISK_THREAD = "chaos-disk"
# "$1" seconds, then the rest is run.
_LATER = 'sleep "$1"; shift; exec "$@"'


class CannotDo(Exception):
    """This fault cannot be made on this node; the message says what is missing."""


class ChaosAgent:
    """On one node; every method returns at once, what lasts ends by itself."""

    def ready(self) -> str:
        """The host's name."""
        return os.uname().nodename

    def kill(self, pid: int) -> None:
        """Ends a process of this host without a word to anybody."""
        os.kill(pid, signal.SIGKILL)

    def stop(self, pid: int, seconds: float) -> None:
        """Has a process stand still for so long."""
        _later(seconds, "kill", "-CONT", str(pid))
        os.kill(pid, signal.SIGSTOP)

    def kill_node(self) -> None:
        """Ends the node's daemon, and with it everything that it has started."""
        os.kill(node_daemon(), signal.SIGKILL)

    def cut(self, addresses: list[str], seconds: float) -> None:
        """Nothing goes from here to those addresses for so long.

        Raises:
            CannotDo: there is no ``ip`` here, or no right to change routes.
        """
        ip = _ip()
        for address in addresses:
            route = _route(address)
            made = subprocess.run([ip, "route", "add", "blackhole", route], check=False,
                                  capture_output=True, text=True, timeout=10)
            if made.returncode != 0:
                raise CannotDo("a partition needs the right to change routes (CAP_NET_ADMIN): "
                               + made.stderr.strip())
            _later(seconds, ip, "route", "del", "blackhole", route)

    def join_again(self, addresses: list[str]) -> None:
        """Takes back what ``cut`` did, if it is still there."""
        for address in addresses:
            subprocess.run([_ip(), "route", "del", "blackhole", _route(address)], check=False,
                           capture_output=True, timeout=10)

    def addresses(self) -> list[str]:
        """Those of this host by which others may reach it.

        Raises:
            CannotDo: there is no ``ip`` here.
        """
        shown = subprocess.run([_ip(), "-json", "address", "show", "scope", "global"], check=True,
                               capture_output=True, timeout=10)
        return [str(a["local"]) for link in json.loads(shown.stdout) for a in link["addr_info"]
                if "local" in a]

    def load_disk(self, folder: str, seconds: float) -> None:
        """Writes to ``folder``, each block to the disk itself, for so long."""
        threading.Thread(target=_write, args=(folder or tempfile.gettempdir(), seconds),
                         daemon=True, name=DISK_THREAD).start()


def node_daemon() -> int:
    """The process id of the node's daemon, above this process.

    Raises:
        CannotDo: there is none.
    """
    pid = os.getppid()
    while pid > 1:
        if Path(f"/proc/{pid}/comm").read_text().strip() == "troupe-node":
            return pid
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    raise CannotDo("no troupe-node is above this process")


def _ip() -> str:
    ip = shutil.which("ip") or "/usr/sbin/ip"
    if not os.access(ip, os.X_OK):
        raise CannotDo("a partition needs the command ip (iproute2) on the node")
    return ip


def _route(address: str) -> str:
    return f"{address}/{128 if ':' in address else 32}"


def _later(seconds: float, *command: str) -> None:
    subprocess.Popen(["sh", "-c", _LATER, "sh", str(seconds), *command], start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL)


def _write(folder: str, seconds: float) -> None:
    block = os.urandom(4 << 20)
    until = time.monotonic() + seconds
    with tempfile.TemporaryFile(dir=folder) as file:
        while time.monotonic() < until:
            os.pwrite(file.fileno(), block, 0)
            os.fdatasync(file.fileno())
