"""A network of virtual hosts on one machine: network namespaces on a bridge.

Host ``i`` is the namespace ``space(i)`` with the address ``address(i)``; the machine itself is
``gateway`` in it. Needs root and iproute2. What a killed process left behind, the next one removes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

_NAME = re.compile(r"tr(\d+)(b|[hv]\d+|p)$")


def missing() -> str:
    """Why there can be no such network here; empty if there can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "virtual hosts need root and iproute2"
    name = f"tr{os.getpid()}p"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"network namespaces are not allowed here: {probe.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


def ip(*arguments: str) -> None:
    """Runs iproute2's ``ip``."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _left_behind(names: list[str]) -> list[str]:
    found = [_NAME.match(name) for name in names]
    return [m.group(0) for m in found if m and not Path("/proc", m.group(1)).exists()]


def sweep() -> None:
    """Removes the namespaces and bridges of processes that are gone."""
    spaces = Path("/run/netns")
    for name in _left_behind(os.listdir(spaces) if spaces.exists() else []):
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    for name in _left_behind(os.listdir("/sys/class/net")):
        subprocess.run(["ip", "link", "del", name], capture_output=True)


class Network:
    """``count`` hosts; use as a context manager."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.subnet = f"10.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}"
        self.gateway = f"{self.subnet}.1"
        self.prefix = f"tr{os.getpid()}h"
        self._tag = f"tr{os.getpid()}"

    def space(self, index: int) -> str:
        """The name of a host's namespace."""
        return f"{self.prefix}{index}"

    def address(self, index: int) -> str:
        """The address of a host."""
        return f"{self.subnet}.{index + 2}"

    def cut(self, index: int) -> None:
        """The host neither sends nor hears any more; nobody is told."""
        ip("link", "set", f"{self._tag}v{index}", "down")

    def mend(self, index: int) -> None:
        """The host is back."""
        ip("link", "set", f"{self._tag}v{index}", "up")

    def __enter__(self) -> Network:
        sweep()
        try:
            bridge = f"{self._tag}b"
            ip("link", "add", bridge, "type", "bridge")
            ip("addr", "add", f"{self.gateway}/24", "dev", bridge)
            ip("link", "set", bridge, "up")
            for index in range(self.count):
                space, outside = self.space(index), f"{self._tag}v{index}"
                ip("netns", "add", space)
                ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
                ip("link", "set", outside, "master", bridge)
                ip("link", "set", outside, "up")
                for command in (("addr", "add", f"{self.address(index)}/24", "dev", "eth0"),
                                ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):
                    ip("-n", space, *command)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        for index in range(self.count):
            subprocess.run(["ip", "netns", "del", self.space(index)], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self._tag}b"], capture_output=True)
