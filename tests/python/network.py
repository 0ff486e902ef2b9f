"""A network of virtual hosts on one machine: network namespaces on a bridge.

Host ``i`` is the namespace ``space(i)`` with the address ``address(i)``; the machine itself is
``gateway`` in it. Needs root and iproute2. What a killed process left behind, the next one removes.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import lossy_link

NOWHERE = "02:00:00:00:00:01"  # A hardware address that no host has.
GATEWAY = "02:00:00:00:00:02"  # That of the machine outside.
_NAME = re.compile(r"tr(\d+)(b|[hvmio]\d+|p)$")


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


def limit_rate(space: str, gbits: float) -> None:
    """What the host in this namespace sends passes a token bucket from now on."""
    subprocess.run(
        ["ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf",
         "rate", f"{gbits}gbit", "burst", "1mb", "latency", "50ms"], check=True)


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
        self._links: dict[int, lossy_link.LossyLink] = {}

    def space(self, index: int) -> str:
        """The name of a host's namespace."""
        return f"{self.prefix}{index}"

    def address(self, index: int) -> str:
        """The address of a host."""
        return f"{self.subnet}.{index + 2}"

    def pids(self, index: int) -> list[int]:
        """The processes of a host."""
        listed = subprocess.run(["ip", "netns", "pids", self.space(index)], capture_output=True,
                                text=True, check=True)
        return [int(pid) for pid in listed.stdout.split()]

    def cut(self, index: int) -> None:
        """The host neither sends nor hears any more; nobody is told."""
        ip("link", "set", f"{self._tag}v{index}", "down")

    def mend(self, index: int) -> None:
        """The host is back."""
        ip("link", "set", f"{self._tag}v{index}", "up")

    def part(self, sender: int, hearer: int) -> None:
        """What one host sends to the other is lost, silently; all other routes stay."""
        ip("-n", self.space(sender), "neigh", "replace", self.address(hearer),
           "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent")

    def rejoin(self, sender: int, hearer: int) -> None:
        """The end of :meth:`part`."""
        ip("-n", self.space(sender), "neigh", "del", self.address(hearer), "dev", "eth0")

    def mute(self, index: int) -> None:
        """What the host sends to the machine outside is lost; hosts still reach each other."""
        ip("-n", self.space(index), "route", "add", "blackhole", f"{self.gateway}/32")

    def unmute(self, index: int) -> None:
        ip("-n", self.space(index), "route", "del", "blackhole", f"{self.gateway}/32")

    def impair(
        self, index: int, delay_ms: float = 0.0, jitter_ms: float = 0.0, loss: float = 0.0
    ) -> None:
        """What the host sends and hears comes late, each way, or with a probability not at all.

        Its connections live on. Only with a host that has been impaired does a process stand in
        the way; :meth:`repair` gives it its plain cable back.
        """
        if index not in self._links:
            self._links[index] = self._insert(index)
        self._links[index].shape(delay_ms, jitter_ms, loss)

    def losses(self, index: int) -> tuple[int, int]:
        """Frames of an impaired host that have passed, and that were lost."""
        return self._links[index].counts()

    def repair(self, index: int) -> None:
        """The end of :meth:`impair`; a frame that is on its way is lost."""
        link = self._links.pop(index, None)
        if link is not None:
            ip("link", "set", f"{self._tag}v{index}", "master", f"{self._tag}b")
            link.close()
            ip("link", "del", f"{self._tag}m{index}")

    def _insert(self, index: int) -> lossy_link.LossyLink:
        """Cable, bridge of its own, link, bridge of all."""
        middle, inner, outer = (f"{self._tag}{kind}{index}" for kind in "mio")
        link = lossy_link.LossyLink(inner, outer, seed=index)
        try:
            ip("link", "add", middle, "type", "bridge")
            for device, bridge in ((inner, middle), (outer, f"{self._tag}b"),
                                   (f"{self._tag}v{index}", middle)):
                ip("link", "set", device, "master", bridge)
                ip("link", "set", device, "up")
            ip("link", "set", middle, "up")
        except BaseException:
            link.close()
            raise
        return link

    def __enter__(self) -> Network:
        sweep()
        try:
            bridge = f"{self._tag}b"
            # An address of its own: else it has that of a port and changes it as ports come and go,
            # and what is sent then waits, or is dropped, until the new one has been asked for.
            ip("link", "add", bridge, "address", GATEWAY, "type", "bridge")
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
            for index in range(self.count):
                self._find(index)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _find(self, index: int) -> None:
        """Learns the host's hardware address.

        Where the first question for it is lost, since the cable is not up yet, all that is sent
        meanwhile waits a second for the next one.
        """
        address, until = self.address(index), time.monotonic() + 10.0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.sendto(b"", (address, 9))
        while time.monotonic() < until:
            known = subprocess.run(["ip", "neigh", "show", address], capture_output=True, text=True)
            if "lladdr" in known.stdout:
                return
            time.sleep(0.01)
        raise RuntimeError(f"{address} does not say its hardware address")

    def __exit__(self, *unused: object) -> None:
        for index, link in self._links.items():
            link.close()
            subprocess.run(["ip", "link", "del", f"{self._tag}m{index}"], capture_output=True)
        self._links.clear()
        for index in range(self.count):
            subprocess.run(["ip", "netns", "del", self.space(index)], capture_output=True)
            # A connection that was never closed properly keeps the namespace alive for minutes.
            subprocess.run(["ip", "link", "del", f"{self._tag}v{index}"], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self._tag}b"], capture_output=True)
