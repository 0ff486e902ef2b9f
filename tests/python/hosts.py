"""Several hosts on one machine: network namespaces with host names of their own.

A bridge joins them. Redis and the head run outside, a node daemon in each host. Links are cut by
taking the host's end of its cable down, which loses packets without telling anybody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import troupe

NET = f"10.{os.getpid() % 200 + 20}.77"
TAG = f"tr{os.getpid() % 100000}"


def missing() -> str:
    """Why there can be no such hosts here; empty if there can."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "redis-server"))):
        return "hosts need root, iproute2, unshare and redis-server"
    probe = subprocess.run(["ip", "netns", "add", f"{TAG}p"], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"network namespaces are not allowed here: {probe.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", f"{TAG}p"], check=False)
    return ""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Hosts:
    """A cluster of ``count`` hosts; use as a context manager."""

    def __init__(self, folder: Path, bin_dir: Path, count: int, cpus: float) -> None:
        self.folder, self.bin_dir, self.count, self.cpus = folder, bin_dir, count, cpus
        self.address = f"{NET}.1:7077"
        self.key_file = folder / "key"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._devices: list[str] = []

    def __enter__(self) -> Hosts:
        try:
            self._cable()
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
        except BaseException:
            self.__exit__()
            raise
        return self

    def _cable(self) -> None:
        bridge = f"{TAG}b"
        ip("link", "add", bridge, "type", "bridge")
        self._devices.append(bridge)
        ip("addr", "add", f"{NET}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for index in range(self.count):
            space, outside = self.space(index), f"{TAG}v{index}"
            ip("netns", "add", space)
            ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", outside, "master", bridge)
            ip("link", "set", outside, "up")
            for command in (("addr", "add", f"{NET}.{index + 2}/24", "dev", "eth0"),
                            ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):
                ip("-n", space, *command)

    def space(self, index: int) -> str:
        return f"{TAG}h{index}"

    def start_node(self, index: int) -> None:
        node = [str(self.bin_dir / "troupe-node"), "--head", f"tcp://{self.address}", "--key-file",
                str(self.key_file), "--name", f"host{index}", "--data-address",
                f"{NET}.{index + 2}", "--cpus", str(self.cpus)]
        named = f'hostname host{index} && exec "$@"'
        self._start(f"node{index}", ["ip", "netns", "exec", self.space(index), "unshare", "--uts",
                                     "sh", "-c", named, "sh", *node])

    def cut(self, index: int) -> None:
        """The host neither sends nor hears any more."""
        ip("link", "set", f"{TAG}v{index}", "down")

    def mend(self, index: int) -> None:
        ip("link", "set", f"{TAG}v{index}", "up")

    def executor(self, *arguments: Any, **options: Any) -> troupe.Executor:
        return troupe.Executor(*arguments, address=self.address, key_file=str(self.key_file),
                               progress="off", **options)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log,
                                                    stdin=subprocess.DEVNULL))

    def __exit__(self, *unused: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for index in range(self.count):
            subprocess.run(["ip", "netns", "del", self.space(index)], capture_output=True)
        for device in self._devices:
            subprocess.run(["ip", "link", "del", device], capture_output=True)
