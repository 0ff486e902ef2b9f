"""What runs inside the workers of test_integration_orphans.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DAEMON = """
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # Of no family, and without an environment that could tell whose it was.
        os.execve("/bin/sh", ["sh", "-c", "echo $$ > $0.new && mv $0.new $0 && exec sleep 600",
                              sys.argv[1]], {})
os._exit(0)
"""


def write(path: Path, text: str) -> None:
    """All of it, or nothing yet."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def await_file(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.005)
    return path.read_text()


def leave_descendants(folder: str, how: str) -> str:
    """Starts a forked child, one with a session of its own and a daemon; then ends, once."""
    pids = Path(folder, "pids")
    if pids.exists():
        return "again"
    forked = os.fork()
    if forked == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(600)
    detached = subprocess.Popen(["sleep", "600"], start_new_session=True)
    subprocess.run([sys.executable, "-c", DAEMON, str(Path(folder, "daemon"))], check=True)
    daemon = await_file(Path(folder, "daemon"))
    write(pids, f"{os.getpid()} {forked} {detached.pid} {daemon}")
    if how == "exit":
        os._exit(3)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    while how == "wait":
        time.sleep(600)
    return "returned"


def fork_and(how: str) -> int:
    """A forked child comes out of the function as ``how`` says; the parent after it has ended."""
    forked = os.fork()
    if forked == 0:
        if how == "sys.exit":
            sys.exit(7)
        if how == "raise":
            raise RuntimeError("raised in a child")
        return -1
    _, status = os.waitpid(forked, 0)
    return os.waitstatus_to_exitcode(status)


def use_in_child() -> list[str]:
    """What a forked child is told that uses what belongs to its parent."""
    import troupe
    import troupe.torch as hvd

    hvd.init()
    read, write = os.pipe()
    if os.fork() == 0:
        told = []
        for use in (lambda: troupe.report(1), lambda: hvd.allgather_object(1)):
            try:
                use()
            except troupe.TroupeError as error:
                told.append(str(error))
        os.write(write, "\n".join(told).encode())
        os._exit(0)
    os.close(write)
    hvd.allgather_object(hvd.rank())
    with os.fdopen(read) as pipe:
        return pipe.read().splitlines()


class Forking:
    """An actor whose methods fork."""

    def fork(self, how: str) -> int:
        return fork_and(how)

    async def fork_later(self, how: str) -> int:
        return fork_and(how)
