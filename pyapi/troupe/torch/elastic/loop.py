"""The elastic loop: enter a view, bring everyone to the newest state, train, repeat."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Optional, TypeVar

from troupe import _native
from troupe.errors import HorovodInternalError, HostsUpdatedInterrupt
from troupe.torch import _context
from troupe.torch.elastic._replay import Replay
from troupe.torch.elastic.state import State

_log = logging.getLogger("troupe.elastic")

T = TypeVar("T")


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Decorates ``func(state, ...)`` so that it survives members that die, leave and join.

    ``func`` is called again whenever the members have changed, with the state of the newest
    committed step, so it must continue from what the state says. When a peer dies
    (HorovodInternalError) the state goes back to its last commit first; at a planned change
    (HostsUpdatedInterrupt, from ``commit()`` or ``check_host_updates()``) it is kept. Other
    exceptions fail the run. With durable commits the last one is on disk when this returns.

    A death in the reduction of a ``DistributedOptimizer`` is less: if the samples come from
    ``batches(...)`` of the state's sampler and nothing of the user's asks to hear of new members
    (reset callbacks, a state or handler of one's own, process sets, collectives in flight), the
    others reduce their gradients again, without computing them, and ``func`` goes on. Only the
    samples of the dead member are left to a later step. ``rank()`` and ``size()`` have changed.

    Returns:
        What ``func`` returns, once all members have returned.
    """

    @functools.wraps(func)
    def wrapper(*given: Any, **kwargs: Any) -> T:
        state: Any = given[0] if given else kwargs.pop("state", None)
        if not isinstance(state, State):
            raise TypeError(
                f"{getattr(func, '__name__', 'the function')}() is decorated with "
                "troupe.torch.elastic.run, so its first argument must be a state, such as "
                f"TorchState(model, optimizer, epoch=0), not {type(state).__name__}"
            )
        try:
            return _run(func, state, given[1:], kwargs)
        finally:
            state.settle()

    return wrapper


def resume(func: Callable[[Any], T], state: State, error: BaseException) -> T:
    """As :func:`run`, of a function that was called before and was interrupted by ``error``.

    Args:
        error: HorovodInternalError or HostsUpdatedInterrupt.
    """
    try:
        return _run(func, state, (), {}, error)
    finally:
        state.settle()


def _run(func: Callable[..., T], state: State, args: Any, kwargs: Any,
         error: Optional[BaseException] = None) -> T:
    context = _context.current()
    replay = context.replay = Replay(context, state)
    try:
        return _loop(func, state, args, kwargs, replay, error)
    finally:
        context.replay, context.unwinding = None, False


def _loop(func: Callable[..., T], state: State, args: Any, kwargs: Any, replay: Replay,
          interrupted: Optional[BaseException]) -> T:
    context = _context.current()
    entered = not context.provisional  # a founding member is in a view since init()
    first = True
    while True:
        try:
            if interrupted is not None:
                error, interrupted, entered = interrupted, None, False
                raise error
            if not entered:
                replay.enter_from_loop()
                if not first:
                    _native.trace_phase("reset callbacks")
                    state.on_reset()
            entered, first = False, False
            _native.trace_phase("sync")
            state.sync()
            state.mark_synced()
            replay.synced()
            _native.trace_phase("train")
            result = func(state, *args, **kwargs)
            state.finish_sync()
            state.finished()
            _end_together(context)
            return result
        except HorovodInternalError as error:
            _log.info("back to commit %d: %s", state.version, error)
            _native.trace_phase("restore")
            context.abandon_collectives()
            state.give_up_sync()
            if state.has_state:
                steps, version = state.steps_begun(), state.version
                state.go_back()
                replay.went_back(steps + version - state.version)
        except HostsUpdatedInterrupt:
            _log.info("the members change after commit %d", state.version)


def _end_together(context: _context.Context) -> None:
    """Nobody leaves with the newest state while a peer still has to redo the last step."""
    if context.size > 1:
        context.flush_optimizers()
        text = "end of elastic.run"
        context.run_now(text, lambda: int(context.group.barrier(text)))
