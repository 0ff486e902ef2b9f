"""The process that workers are forks of: it has imported what they need.

A fork takes a few milliseconds, where an interpreter and its imports take tenths of seconds. It is
safe since nothing is started before it: a process that has other threads after its imports says so,
and its kind of workers start one by one.
"""

from __future__ import annotations

import gc
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import Any

from troupe import _native

_VARIABLE = "TROUPE_FORK_SERVER"
_SOCKET = 0  # Of the node, as standard input.


def wanted() -> bool:
    """Whether this process is to be a server."""
    return os.environ.pop(_VARIABLE, "") != ""


def serve(late: Sequence[str], preload: Callable[[Sequence[str]], Any]) -> bool:
    """Serves until the node has gone; True in each fork, which is a worker then.

    ``late`` modules are imported by ``preload``, one at a time, while nobody asks for a fork.
    """
    core = _native.core()
    if not core.may_fork():
        print(f"a worker has {len(os.listdir('/proc/self/task'))} threads when it has imported "
              "what it was told, and cannot be forked", file=sys.stderr, flush=True)
        os._exit(core.FORKS_NOTHING)
    _keep_for_all()
    os.write(_SOCKET, core.FORKS_READY)
    waiting = list(late)
    while True:
        if waiting and not select.select([_SOCKET], [], [], 0)[0]:
            preload([waiting.pop(0)])
            _keep_for_all()
            continue
        came = core.serve_fork(_SOCKET)
        if came == "child":
            _forget()
            return True
        if came == "unfit":
            print("a worker's modules have started threads; it cannot be forked any more",
                  file=sys.stderr, flush=True)
            os._exit(core.FORKS_NOTHING)
        if came == "gone":
            return False


def _keep_for_all() -> None:
    """What is there now is left alone by the collector, so that forks share its memory."""
    gc.collect()
    gc.freeze()


def _forget() -> None:
    """What must not be the same in all forks: NumPy's generator. Python's own sees to itself."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
