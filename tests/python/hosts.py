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
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import troupe

import network
from daemons import Daemons
from processes import wait_gone

OWN_MEMORY = "3g"


def missing() -> str:
    """Why there can be no such hosts here; empty if there can."""
    if not all(map(shutil.which, ("unshare", "redis-server"))):
        return "hosts need unshare and redis-server"
    return network.missing()


class Hosts(Daemons):
    """A cluster of ``count`` hosts; use as a context manager."""

    def __init__(
        self, folder: Path, bin_dir: Path, count: int, cpus: float, own_memory: Sequence[int] = ()
    ) -> None:
        """``own_memory``: hosts that do not share the memory of this machine."""
        self._network = network.Network(count)
        self._own_memory = own_memory
        super().__init__(folder, bin_dir, f"{self._network.gateway}:7077")
        self.count, self.cpus = count, cpus

    def __enter__(self) -> Hosts:
        try:
            self._network.__enter__()
            self.start_redis()
            self.start_head()
            self.await_key()
            for index in range(self.count):
                self.start_node(index)
            deadline = time.monotonic() + 20
            with self.executor(1) as anyone:  # what is placed earlier would leave hosts out
                while len(anyone.cluster()["nodes"]) < self.count:
                    assert time.monotonic() < deadline, self.log("head")
                    time.sleep(0.02)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_node(self, index: int) -> None:
        node = self.node_command(f"host{index}", self._network.address(index), self.cpus)
        own = f"mount -t tmpfs -o size={OWN_MEMORY} tmpfs /dev/shm && "
        memory = own if index in self._own_memory else ""
        named = f'{memory}hostname host{index} && exec "$@"'
        self.start(f"node{index}", ["ip", "netns", "exec", self._network.space(index), "unshare",
                                    "--uts", "--mount", "sh", "-c", named, "sh", *node])

    def node(self, index: int) -> subprocess.Popen[bytes]:
        """The newest node daemon of the host."""
        return self.running[f"node{index}"]

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
        self.node(index).wait(10)

    def cut(self, index: int) -> None:
        """The host neither sends nor hears any more."""
        self._network.cut(index)

    def mend(self, index: int) -> None:
        self._network.mend(index)

    def part(self, sender: int, hearer: int) -> None:
        """See :meth:`network.Network.part`."""
        self._network.part(sender, hearer)

    def rejoin(self, sender: int, hearer: int) -> None:
        self._network.rejoin(sender, hearer)

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

    def __exit__(self, *unused: object) -> None:
        try:
            self.end()
        finally:
            self._network.__exit__()
