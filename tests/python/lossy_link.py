"""A link that delays and loses frames: two TAP devices with a process between them.

Many kernels lack sch_netem. Through a TAP device the kernel hands out ordinary frames, segmented
and with checksums, so TCP sees real loss. The process ends with the one that started it, however
that ends, and its devices with it. Run as a script, this file is that process.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

_TUN = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_FRAME_BYTES = 1 << 16
_QUEUE_FRAMES = 8192  # Per direction; what comes on top of it is lost.
_TURN_FRAMES = 64  # Taken from one side before the other side has its turn.


def missing() -> str:
    """Why there can be no such link here; empty if there can."""
    try:
        os.close(_open_tap(f"tr{os.getpid()}p"))
    except OSError as error:
        return f"a lossy link needs TAP devices ({_TUN}): {error.strerror}"
    return ""


class LossyLink:
    """The devices ``inner`` and ``outer``, and a seeded process that carries frames between them.

    Frames keep their order in each direction. Until :meth:`shape` all pass at once.
    """

    def __init__(self, inner: str, outer: str, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__, inner, outer, str(seed)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.counts()  # Its devices exist.

    def shape(self, delay_ms: float, jitter_ms: float, loss: float) -> None:
        """In force for every frame that arrives after the return.

        Args:
            delay_ms: each way.
            jitter_ms: at most this is added to the delay.
            loss: the probability that a frame is lost.
        """
        self._ask({"delay_s": delay_ms / 1e3, "jitter_s": jitter_ms / 1e3, "loss": loss})

    def counts(self) -> tuple[int, int]:
        """Frames that have passed, and that were lost, both ways together."""
        return self._ask({})

    def close(self) -> None:
        """Removes the devices."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, shape: dict[str, float]) -> tuple[int, int]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(shape), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process of the lossy link has ended")
        passed, lost = json.loads(answer)
        return passed, lost


@dataclass
class _Shape:
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0


class _Way:
    """One direction."""

    def __init__(self, source: int, sink: int, seed: int) -> None:
        self.source, self.sink = source, sink
        self.passed = self.lost = 0
        self._random = random.Random(seed)
        self._queue: collections.deque[tuple[float, bytes]] = collections.deque()
        self._last_due = 0.0

    def take(self, shape: _Shape) -> None:
        """Lets frames in."""
        for _ in range(_TURN_FRAMES):
            try:
                frame = os.read(self.source, _FRAME_BYTES)
            except OSError:  # no more, or the device is down
                return
            if self._random.random() < shape.loss or len(self._queue) >= _QUEUE_FRAMES:
                self.lost += 1
                continue
            due = time.monotonic() + shape.delay_s + self._random.random() * shape.jitter_s
            self._last_due = max(self._last_due, due)
            self._queue.append((self._last_due, frame))

    def give(self) -> float:
        """Lets out what is due; the time until the next frame is."""
        while self._queue:
            left = self._queue[0][0] - time.monotonic()
            if left > 0:
                return left
            with contextlib.suppress(OSError):  # the device is down
                os.write(self.sink, self._queue.popleft()[1])
            self.passed += 1
        return 3600.0


def _open_tap(name: str) -> int:
    tap = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    except OSError:
        os.close(tap)
        raise
    return tap


def _carry(inner: str, outer: str, seed: int) -> None:
    a, b = _open_tap(inner), _open_tap(outer)
    ways = (_Way(a, b, 2 * seed), _Way(b, a, 2 * seed + 1))
    shape, commands = _Shape(), b""
    while True:
        ready, _, _ = select.select([a, b, 0], [], [], min(way.give() for way in ways))
        for way in ways:
            if way.source in ready:
                way.take(shape)
        if 0 in ready:
            read = os.read(0, 4096)
            if not read:
                return  # Whoever wanted the link is gone.
            *whole, commands = (commands + read).split(b"\n")
            for line in whole:
                shape = _Shape(**json.loads(line)) if len(line) > 2 else shape
                counts = sum(way.passed for way in ways), sum(way.lost for way in ways)
                print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    _carry(sys.argv[1], sys.argv[2], int(sys.argv[3]))
