"""The daemons of a cluster as processes of the test, which can be killed, stopped and restarted."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from troupe.actors import _session

from processes import MARK, assert_nothing_left, free_port

CRASHES = tuple(-n for n in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL))
SHORT_LEASE_S = 2.0


def state() -> dict[str, Any]:
    """What the head of this process's cluster knows."""
    session = _session.current()
    assert session.cluster is not None
    return dict(session.cluster.driver.state())


def states() -> dict[str, str]:
    """Of the nodes."""
    return {node["id"]: node["state"] for node in state()["nodes"]}


class Daemons:
    """Redis, a head and nodes, each with a log in ``folder``; use as a context manager."""

    def __init__(self, folder: Path, bin_dir: Path, address: str) -> None:
        self.folder, self.bin_dir, self.address = folder, bin_dir, address
        self.key_file = folder / "key"
        self.head_options: list[str] = []
        self.running: dict[str, subprocess.Popen[bytes]] = {}  # The newest of each name.
        self._killed: set[str] = set()
        self._all: list[subprocess.Popen[bytes]] = []

    def start_redis(self) -> None:
        self.start("redis", ["redis-server", "--port", "0", "--unixsocket",
                             str(self.folder / "redis.sock"), "--save", "", "--dir",
                             str(self.folder)])

    def start_head(self) -> None:
        self.start("head", [str(self.bin_dir / "troupe-head"), "--listen", f"tcp://{self.address}",
                            "--key-file", str(self.key_file), "--redis-socket",
                            str(self.folder / "redis.sock"), *self.head_options])

    def node_command(self, name: str, data_address: str, cpus: float) -> list[str]:
        run_dir = tempfile.mkdtemp(prefix="run-", dir=self.folder)  # One that is killed leaves it.
        return [str(self.bin_dir / "troupe-node"), "--head", f"tcp://{self.address}", "--key-file",
                str(self.key_file), "--name", name, "--data-address", data_address, "--cpus",
                str(cpus), "--run-dir", run_dir]

    def await_key(self) -> None:
        """Nodes and drivers need the file, which the first head makes."""
        deadline = time.monotonic() + 20
        while not self.key_file.exists():
            assert time.monotonic() < deadline, self.log("head")
            time.sleep(0.02)

    def start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.running[name] = process
        self._killed.discard(name)
        self._all.append(process)

    def kill(self, name: str) -> None:
        """Ends it from one moment to the next."""
        self._killed.add(name)
        self.running[name].kill()
        self.running[name].wait(10)

    @contextlib.contextmanager
    def stopped(self, name: str):
        """It does nothing meanwhile, but its sockets stay open."""
        self.running[name].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.running[name].send_signal(signal.SIGCONT)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def end(self) -> None:
        """Ends all, those last that were started first; each is to follow the signal.

        Redis and the head are to have lived until then, but for what the test has killed, and
        nothing is to crash while it ends.
        """
        crashed = {name: self.log(name)[-5000:] for name in {"redis", "head"} - self._killed
                   if name in self.running and self.running[name].poll() is not None}
        alive = [process for process in self._all if process.poll() is None]
        for process in reversed(self._all):
            process.terminate()
        stuck = []
        for process in reversed(self._all):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                stuck.append((process.args, stacks(process.pid)))
                process.kill()
                process.wait()
        assert not stuck, stuck
        assert not crashed, crashed
        assert not [process.args for process in alive if process.returncode in CRASHES]


def stacks(pid: int) -> str:
    """Where its threads are, if there is a debugger."""
    if shutil.which("gdb") is None:
        return "(no gdb)"
    return subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 30"],
                          capture_output=True, text=True, timeout=60, check=False).stdout


class LocalCluster(Daemons):
    """A head and nodes ``node0``, ``node1``, ... on this machine."""

    def __init__(self, folder: Path, bin_dir: Path, nodes: int, cpus: float) -> None:
        super().__init__(folder, bin_dir, f"127.0.0.1:{free_port()}")
        self.nodes, self.cpus = nodes, cpus
        self.head_options = ["--node-lease", str(SHORT_LEASE_S)]

    def __enter__(self) -> LocalCluster:
        os.environ[MARK] = str(self.folder)
        try:
            self.start_redis()
            self.start_head()
            self.await_key()
            for index in range(self.nodes):
                self.start_node(index)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_node(self, index: int) -> None:
        name = f"node{index}"
        self.start(name, [*self.node_command(name, "127.0.0.1", self.cpus), "--label",
                          f"host={name}"])

    def revive(self) -> None:
        """Starts what a test has left killed, or wakes it."""
        starts = {"redis": self.start_redis, "head": self.start_head}
        starts.update({f"node{i}": functools.partial(self.start_node, i)
                       for i in range(self.nodes)})
        for name, start in starts.items():
            if self.running[name].poll() is None:
                self.running[name].send_signal(signal.SIGCONT)
            else:
                start()

    def __exit__(self, *unused: object) -> None:
        try:
            self.end()
        finally:
            os.environ.pop(MARK, None)
        assert_nothing_left(str(self.folder))
