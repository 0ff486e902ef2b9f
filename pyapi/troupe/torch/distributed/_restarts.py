"""A function of torch.distributed begins again when the members of its group have changed.

Nothing in the function knows of that: a collective fails on every rank, the function ends with that
error, the members that are left form a new view, and it is called once more in the same process,
with its modules imported and its ranks and addresses in the environment.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Optional, TypeVar

import torch.distributed as dist

from troupe import _native, _runtime, _torchrun, checkpoint
from troupe.errors import DrainedError, HorovodInternalError, HostsUpdatedInterrupt, code_of
from troupe.torch import _context
from troupe.torch.distributed import _session
from troupe.torch.distributed._process_group import ProcessGroup
from troupe.torch.elastic import loop

_log = logging.getLogger("troupe.distributed")

T = TypeVar("T")

_SLICE_S = 5.0
_JOIN_S = 366 * 86_400.0  # The others let a joiner in at their next checkpoint, whenever that is.
_NEWS_S = 2.0  # By then a death that an error may come from is known.
_callbacks: list[Callable[[], None]] = []


def interrupted(error: BaseException) -> Optional[BaseException]:
    """What the elastic loop is to be told of ``error``; None if it is the function's own failure.

    The type does not decide: an error that has passed through C++ is a RuntimeError. What is given
    back is a new exception, since the frames of the old one hold whatever the function had.
    """
    session = _session.current()
    if isinstance(error, checkpoint.MembersChanged):
        return checkpoint.MembersChanged()
    ours = isinstance(error, _session.JoinFirst) or session is not None or checkpoint.used()
    if isinstance(error, HorovodInternalError) and ours:
        return HorovodInternalError(str(error))
    if session is None or not isinstance(error, Exception):
        return None
    if isinstance(error, HostsUpdatedInterrupt):
        return HostsUpdatedInterrupt()
    if dist.is_initialized() and not isinstance(dist.group.WORLD, ProcessGroup):
        return None  # Peers that use another backend may wait in it, and would not come.
    if session.broken() or _over(session.context, error):
        return HorovodInternalError(f"{type(error).__name__}: {error}")
    return None


def _over(context: _context.Context, error: Exception) -> bool:
    """Whether the epoch is over. A peer's connection may have ended before the head told so."""
    deadline = time.monotonic()
    if isinstance(error, (RuntimeError, OSError)) and context.size > 1:
        deadline += _NEWS_S
    while not context.group.over():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def finish() -> None:
    """Waits until the function has returned on every rank.

    Raises:
        HorovodInternalError: a member has died that had not; the function is to begin again.
    """
    session = _session.current()
    if session is None:
        return
    context = session.context
    if context.size > 1 and session.epoch == int(context.view["epoch"]):
        with _native.collective_errors("the end of a function of torch.distributed"):
            # All have to come to make a team, and nobody is taken for stalled who comes late: a
            # rank may evaluate for long when the others have returned.
            handle = context.group.add_team(list(range(context.size)), True)
            while not _done(context, handle):
                if context.runtime.worker.should_exit():
                    raise DrainedError("this worker was asked to end while it waited for others")
    clear()


def _done(context: _context.Context, handle: int) -> bool:
    try:
        context.group.wait(handle, _SLICE_S)
    except RuntimeError as error:
        if code_of(error) != "deadline_exceeded":
            raise
        return False
    return True


def clear() -> None:
    """Ends all process groups, in whatever state they are."""
    if dist.is_available() and dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    _session.end()


def on_restart(callback: Callable[[], None]) -> Callable[[], None]:
    """Has ``callback()`` called on each rank before the function begins again, as a decorator too.

    For what keeps a rank or a process group outside of the function, such as a module's global
    variables. It is called once, so that the function, which adds it, adds it once.
    """
    _callbacks.append(callback)
    return callback


def _forget() -> None:
    """Nothing outside of the function knows the ranks of the view that is over."""
    while _callbacks:
        _callbacks.pop()()
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None:  # It keeps the rank and the size for all of the process.
        accelerate.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.GradientState._reset_state()


def go_on(function: Callable[[], T], error: BaseException) -> T:
    """Calls ``function`` once more, and again with every change of members, until it returns.

    Args:
        error: how it ended before, as :func:`interrupted` has it.
    """
    context = _context.current()
    runtime = context.runtime
    limit_s = runtime.elastic_timeout_s
    if context.provisional:
        runtime.elastic_timeout_s = _JOIN_S
    _clear_for(error)

    def attempt(_: Any) -> T:
        runtime.elastic_timeout_s = limit_s
        _torchrun.export(runtime)
        _tell(runtime)
        problem: Optional[BaseException] = None
        try:
            value = function()
            finish()
            return value
        except BaseException as raised:
            problem = interrupted(raised)
            if problem is None:
                raise
        # Outside of the handler, so that nothing holds what the function had.
        _clear_for(problem)
        raise problem

    return loop.resume(attempt, checkpoint.state(), error)


def _tell(runtime: _runtime.WorkerRuntime) -> None:
    """The driver hears where all of them go on, which may be the very beginning."""
    context = _context.current()
    if context.rank != 0:
        return
    again = f"the function begins again on {context.size} worker{'s' * (context.size > 1)}"
    version = checkpoint.version()
    if version:
        runtime.worker.tell("resumed", f"{again}, from checkpoint {version}")
    else:
        runtime.worker.tell("warning", f"{again}, from its start: it has saved nothing with "
                            "troupe.checkpoint.save")


def _clear_for(error: BaseException) -> None:
    """Nothing of the attempt that ended with ``error`` is there for the next one."""
    _log.info("the function begins again: %s", error)
    clear()
    _forget()
