"""What runs inside the workers of test_integration_deaths.py."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def die_once(folder: str, how: str) -> int:
    """The first life of rank 0 ends as ``how`` says."""
    died = Path(folder, "died")
    if os.environ["TROUPE_RANK"] != "0" or died.exists():
        return os.getpid()
    died.touch()
    print("last words", file=sys.stderr, flush=True)
    if how == "crash":
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(255 if how == "exit 255" else 3)


def one_too_many(folder: str) -> int:
    """Two workers return, whatever their rank; the third dies in each of its lives."""
    for place in ("first", "second"):
        try:
            return Path(folder, place).touch(exist_ok=False) or os.getpid()
        except FileExistsError:
            continue
    print("cannot go on", file=sys.stderr, flush=True)
    os._exit(3)


def train(folder: str) -> int:
    """Until the file ``enough`` is there; each commit leaves a trace."""
    import troupe.torch as hvd

    hvd.init()

    @hvd.elastic.run
    def loop(state: Any) -> int:
        while True:
            enough = hvd.allgather_object(Path(folder, "enough").exists())
            state.step += 1
            state.commit()
            Path(folder, f"rank-{hvd.rank()}").write_text(f"{os.getpid()} {hvd.size()}")
            if any(enough):
                return int(state.step)
            time.sleep(0.005)

    result: int = loop(hvd.elastic.ObjectState(step=0))
    return result
