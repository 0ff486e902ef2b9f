"""Ends of processes that user code brings about: of forked children, and by ``sys.exit``.

A forked child never speaks for its parent: where it comes out of user code, it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from typing import Optional


def end_child(pid: int, error: Optional[BaseException] = None) -> None:
    """Ends this process as a script would end if it is not ``pid``, but was forked from it.

    ``error`` is what the user's code raised; ``sys.exit`` in a child ends the child and nothing
    else. No exit handler runs: those of the parent are not the child's.
    """
    if os.getpid() == pid:
        return
    code = 0
    try:
        code = _exit_code(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def run_exit_handlers() -> None:
    """Runs what was registered by ``atexit``, once; what a handler raises is printed."""
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()


def end_process(error: SystemExit) -> None:
    """Ends this process with the status of ``sys.exit``, from any thread; exit handlers run."""
    code = 1
    try:
        code = _exit_code(error)
        run_exit_handlers()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_code(error: Optional[BaseException]) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        traceback.print_exception(type(error), error, error.__traceback__)
        return 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1
