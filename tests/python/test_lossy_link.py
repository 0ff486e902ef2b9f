"""The link that delays and loses frames does so, and nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lossy_link
import network
from network import Network
from processes import Script

pytestmark = [
    pytest.mark.once,
    pytest.mark.timeout(60),
    pytest.mark.skipif(bool(network.missing() or lossy_link.missing()),
                       reason=network.missing() or lossy_link.missing()),
]

_ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 9000))
print("ready", flush=True)
while True:
    data, who = s.recvfrom(2048)
    s.sendto(data, who)
"""

_DIGEST = """
import hashlib, socket, sys
s = socket.create_server((sys.argv[1], 9001))
print("ready", flush=True)
c, _ = s.accept()
digest, got = hashlib.sha256(), 0
while got < int(sys.argv[2]):
    data = c.recv(65536)
    digest.update(data)
    got += len(data)
c.sendall(digest.digest())
"""


@contextlib.contextmanager
def serving(made: Network, code: str, *arguments: str) -> Iterator[None]:
    """The code runs in host 0 and listens."""
    command = ["ip", "netns", "exec", made.space(0), sys.executable, "-S", "-c", code]
    with subprocess.Popen([*command, made.address(0), *arguments],
                          stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


def echoes(
    address: str, count: int, wait_s: float, apart_s: float = 0.01
) -> list[tuple[int, float]]:
    """Numbers of the datagrams that came back, in order of arrival, with their times in ms.

    They are sent at least ``apart_s`` after each other, so that a moment in which the machine does
    something else is not the time of them all.
    """
    found, sent = [], {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for number in range(count):
            sent[number] = time.monotonic()
            probe.sendto(number.to_bytes(4, "big"), (address, 9000))
            limit_s = apart_s if number + 1 < count else wait_s
            while len(found) < count and select.select([probe], [], [], limit_s)[0]:
                back = int.from_bytes(probe.recv(2048), "big")
                found.append((back, (time.monotonic() - sent[back]) * 1e3))
    return found


def test_delay_and_loss_are_what_was_asked_for_and_end_with_it() -> None:
    with Network(1) as made, serving(made, _ECHO):
        address = made.address(0)
        plain = echoes(address, 50, 1.0)
        made.impair(0, delay_ms=30, jitter_ms=10)
        late = echoes(address, 100, 1.0)
        carried = made.losses(0)
        made.impair(0, loss=0.3)
        passed, lost = made.losses(0)
        few = echoes(address, 600, 0.5, apart_s=0.001)
        passed, lost = (now - then for now, then in zip(made.losses(0), (passed, lost)))
        made.impair(0, loss=1.0)
        none = echoes(address, 50, 0.3)
        made.impair(0)
        back = echoes(address, 50, 1.0)
        made.repair(0)
        again = echoes(address, 50, 1.0)
    for what, clean in {"plain": plain, "back": back, "again": again}.items():
        assert [number for number, _ in clean] == list(range(50)), (what, clean)
        assert min(ms for _, ms in clean) < 20, (what, clean)
    # In the order of sending; where the link has carried both ways of all, the kernel lost some.
    assert [number for number, _ in late] == list(range(100)), (late, carried)
    assert min(ms for _, ms in late) >= 60
    assert min(ms for _, ms in late) < 110
    assert 0.35 < len(few) / 600 < 0.65  # both ways: 0.49
    assert 0.2 < lost / (passed + lost) < 0.4
    assert none == []


def test_a_stream_is_whole_although_segments_are_lost() -> None:
    data = os.urandom(1 << 20)
    with Network(1) as made, serving(made, _DIGEST, str(len(data))):
        made.impair(0, delay_ms=1, jitter_ms=1, loss=0.02)
        with socket.create_connection((made.address(0), 9001), timeout=40) as stream:
            stream.sendall(data)
            digest = stream.recv(64)
        passed, lost = made.losses(0)
    assert digest == hashlib.sha256(data).digest()
    assert passed > len(data) / 1500 and lost > 5  # frames, not what the kernel bundles


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path) -> None:
    code = ("import time\nfrom network import Network\nwith Network(1) as made:\n"
            "    made.impair(0, delay_ms=5)\n    print('impaired', flush=True)\n"
            "    time.sleep(60)\n")
    with Script(tmp_path / "owner.py", code, "lossy", str(Path(__file__).parent)) as owner:
        owner.read_until("impaired")
        tag = f"tr{owner.process.pid}"
        assert {f"{tag}i0", f"{tag}o0", f"{tag}m0"} <= set(os.listdir("/sys/class/net"))
        owner.kill(signal.SIGKILL)
        owner.process.wait()
    network.sweep()
    deadline = time.monotonic() + 10
    while left := [name for name in os.listdir("/sys/class/net") if name.startswith(tag)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
