"""Several hosts on one machine: network namespaces with host names of their own.

A bridge joins them. Redis and the head run outside, a node daemon in each host. Links are cut by
taking the host's end of its cable down, which loses packets without telling anybody.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import troupe

import network
from processes import wait_gone


def missing() -> str:
    """Why there can be no such hosts here; empty if there can."""
    if not all(map(shutil.which, ("unshare", "redis-server"))):
        return "hosts need unshare and redis-server"
    return network.missing()


class Hosts:
    """A cluster of ``count`` hosts; use as a context manager."""

    def __init__(self, folder: Path, bin_dir: Path, count: int, cpus: float) -> None:
        self.folder, self.bin_dir, self.count, self.cpus = folder, bin_dir, count, cpus
        self._network = network.Network(count)
        self.address = f"{self._network.gateway}:7077"
        self.key_file = folder / "key"
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}  # The newest of each host.
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        try:
            self._network.__enter__()
            self._start("redis", ["redis-server", "--port", "0", "--unixsocket",
                                  str(self.folder / "redis.sock"), "--save", "", "--dir",
                                  str(self.folder)])
            self._start("head", [str(self.bin_dir / "troupe-head"), "--listen",
                                 f"tcp://{self.address}", "--key-file", str(self.key_file),
                                 "--redis-socket", str(self.folder / "redis.sock")])
            deadline = time.monotonic() + 20
            while not self.key_file.exists():
                assert time.monotonic() < deadline, self.log("head")
                time.sleep(0.02)
            for index in range(self.count):
                self.start_node(index)
            with self.executor(1) as anyone:  # what is placed earlier would leave hosts out
                while len(anyone.cluster()["nodes"]) < self.count:
                    assert time.monotonic() < deadline, self.log("head")
                    time.sleep(0.02)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_node(self, index: int) -> None:
        run_dir = tempfile.mkdtemp(prefix="run-", dir=self.folder)  # One that is lost leaves it.
        node = [str(self.bin_dir / "troupe-node"), "--head", f"tcp://{self.address}", "--key-file",
                str(self.key_file), "--name", f"host{index}", "--data-address",
                self._network.address(index), "--cpus", str(self.cpus), "--run-dir", run_dir]
        named = f'hostname host{index} && exec "$@"'
        self.nodes[index] = self._start(
            f"node{index}", ["ip", "netns", "exec", self._network.space(index), "unshare", "--uts",
                             "sh", "-c", named, "sh", *node])

    @property
    def spaces(self) -> list[str]:
        """The network namespaces of the hosts."""
        return [self._network.space(index) for index in range(self.count)]

    def pids(self, index: int) -> list[int]:
        """What runs on the host."""
        return self._network.pids(index)

    def lose(self, index: int) -> None:
        """The host is gone from one moment to the next, with all that runs on it.

        ``mend`` and ``start_node`` make it a new one.
        """
        self.cut(index)
        deadline = time.monotonic() + 10
        while running := self.pids(index):  # The node may have started one meanwhile.
            assert time.monotonic() < deadline, running
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_gone(running, 1)
        self.nodes[index].wait(10)

    def cut(self, index: int) -> None:
        """The host neither sends nor hears any more."""
        self._network.cut(index)

    def mend(self, index: int) -> None:
        self._network.mend(index)

    def mute(self, index: int) -> None:
        """The head and this process do not hear the host any more; the other hosts do."""
        self._network.mute(index)

    def unmute(self, index: int) -> None:
        self._network.unmute(index)

    def impair(self, index: int, **how: float) -> None:
        """See :meth:`network.Network.impair`."""
        self._network.impair(index, **how)

    def losses(self, index: int) -> tuple[int, int]:
        return self._network.losses(index)

    def repair(self, index: int) -> None:
        self._network.repair(index)

    def executor(self, *arguments: Any, **options: Any) -> troupe.Executor:
        return troupe.Executor(*arguments, address=self.address, key_file=str(self.key_file),
                               progress="off", **options)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._processes.append(process)
        return process

    def __exit__(self, *unused: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._network.__exit__()
