"""Finding and awaiting the processes of a test, by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

MARK = "TROUPE_TEST_MARK"


def free_port() -> int:
    """A port that is free at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def marked(mark: str) -> list[int]:
    """Pids of live processes whose environment carries the mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it ended, or is not ours
            continue
    return found


def until(ask: Callable[[], Any], wanted: Any, limit_s: float = 60.0) -> None:
    """Asks again until the answer is the one wanted; fails when the limit has passed."""
    deadline = time.monotonic() + limit_s
    answer = ask()
    while answer != wanted:
        assert time.monotonic() < deadline, f"still {answer!r}, not {wanted!r}"
        time.sleep(0.01)
        answer = ask()


def wait_gone(pids: list[int], deadline_s: float) -> list[int]:
    """Waits until the processes have ended; those that have not by then."""
    deadline = time.monotonic() + deadline_s
    left = []
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                left.append(pid)
        finally:
            os.close(fd)
    return left


def assert_nothing_left(mark: str, deadline_s: float = 20.0) -> None:
    """No process with the mark is alive, or comes to be, when those seen now have ended."""
    left = wait_gone(marked(mark), deadline_s) or marked(mark)
    names = {pid: _command(pid) for pid in left}
    assert not left, f"left behind: {names}"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return "?"


def _mind_signals() -> None:
    """What is started by tests in the background, or under nohup, would ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextlib.contextmanager
def beside(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that runs during the test, minds Ctrl-C and a hang-up, and is killed with it."""
    with subprocess.Popen(command, text=True, preexec_fn=_mind_signals, **options) as process:
        try:
            yield process
        finally:
            process.kill()  # A test that fails must not wait for it.


class Script:
    """A driver in a process of its own; its output is read line by line."""

    def __init__(self, path: Path, code: str, mark: str, pythonpath: str) -> None:
        path.write_text(code)
        env = {**os.environ, MARK: mark, "PYTHONPATH": pythonpath, "PYTHONUNBUFFERED": "1"}
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, str(path)], env=env, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_mind_signals)
        self.lines: list[str] = []

    def read_until(self, text: str) -> str:
        """The first line that contains ``text``; fails with all lines if the output ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return line.rstrip()
        raise AssertionError(f"no line with {text!r} in:\n" + "\n".join(self.lines))

    def wait(self, timeout_s: float) -> int:
        """Reads the rest and returns the exit status."""
        out, _ = self.process.communicate(timeout=timeout_s)
        self.lines.extend((out or "").splitlines())
        return self.process.returncode

    def kill(self, signal_number: int) -> None:
        """Sends a signal to the driver only."""
        self.process.send_signal(signal_number)

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *unused: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
