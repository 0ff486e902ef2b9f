"""Finishing a step whose reduction a death has interrupted, without computing it again.

The gradients of a step stay as they are until its whole result is there. So when a peer dies in
the reduction, ``optimizer.synchronize()`` enters the next view by itself and, if all its members
stand in the same step, reduces once more what they have kept. Only the share of the dead member is
lost: it goes back to the sampler. The user's function notices a pause.

Whether all do stand in the same step is what the members of a new view tell each other first (one
small all-gather), whichever way they came; nobody needs to if some member must receive state. A
member that has the whole result has left the step and commits it, and those that lack it receive
its state: then, and in all other cases, the step's members fall back to what the elastic loop does.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from troupe import _native
from troupe.errors import HorovodInternalError
from troupe.torch._context import Context
from troupe.torch.elastic.handlers import TreeHandler
from troupe.torch.elastic.state import ObjectState, State
from troupe.torch.elastic.torch_state import TorchState

_log = logging.getLogger("troupe.elastic")

_ROW = 8  # ints that a member says about itself: 1 if in a step, which one (6), 1 if it counts


class Replay:
    """One elastic loop's way into the next view, for a member in a step and for the loop itself."""

    def __init__(self, context: Context, state: State) -> None:
        self.replayed_steps = 0
        self._context = context
        self._state = state
        self._dropped = (0, 0)  # The commit that was gone back to, and the steps after it.

    def enter_from_loop(self) -> None:
        """Enters the next view, unless the step that failed has done so.

        Raises:
            HorovodInternalError: a member died meanwhile.
        """
        if not self._context.unwinding:
            self._rejoin()
            self._meet([0] * _ROW)
        self._context.unwinding = False

    def finish(self, reducer: Any, reduce: Callable[[], None], error: Exception) -> bool:
        """Enters views until ``reduce`` succeeds in one; false if the loop must take over."""
        context, state, sampler = self._context, self._state, reducer.sampler
        if not self._invisible(reducer):
            return False
        before = _ids(context)
        step = [1, state.version, *sampler.lease_key(), context.reducers().index(reducer),
                zlib.crc32(reducer.signature.encode()), int(reducer.weight > 0)]
        while True:
            _log.info("the reduction of a step is interrupted: %s", error)
            self._rejoin()
            try:
                if not self._meet(step):
                    # What runs in this view from now on is the loop's; no collective of the user.
                    context.unwinding = True
                    return False
                _native.trace_phase("replay")
                reduce()
                break
            except HorovodInternalError as again:
                error = again
        now = _ids(context)
        lost = [rank for rank, member in enumerate(before) if member not in now]
        returned = sampler.finish_without(lost, context.rank, context.size)
        context.synced_epoch = int(context.view["epoch"])
        self.replayed_steps += 1
        self._tell(f"the step after commit {state.version} was reduced again, without {len(lost)} "
                   f"lost of {len(before)} members", replayed=1, returned=returned)
        _native.trace_phase("train")
        return True

    def finish_sync(self) -> None:
        """Waits for the part of the state that is on its way."""
        self._state.finish_sync()

    def went_back(self, steps: int) -> None:
        """The loop has gone back to a commit, dropping so many steps that were begun."""
        self._dropped = (self._state.version, self._dropped[1] + steps)

    def synced(self) -> None:
        """All hold the same state. Steps that a quicker member had committed are not done again."""
        version, steps = self._dropped
        self._dropped = (0, 0)
        if steps and version == self._state.version:
            plural = "s are" if steps > 1 else " is"
            self._tell(f"{steps} step{plural} computed again after commit {version}",
                       recomputed=steps)

    def _tell(self, message: str, replayed: int = 0, recomputed: int = 0,
              returned: int = 0) -> None:
        """Once per group, by rank 0."""
        _log.info("%s", message)
        if self._context.rank == 0:
            self._context.runtime.worker.tell("recovered", json.dumps({
                "steps_replayed": replayed, "steps_recomputed": recomputed,
                "samples_returned": returned, "message": message}))

    def _rejoin(self) -> None:
        _native.trace_phase("rejoin")
        self._context.rejoin(self._state.version, self._state.has_state)

    def _meet(self, mine: Sequence[int]) -> bool:
        """Whether all members of this view stand in the same interrupted step."""
        context = self._context
        if context.size > 1 and context.view["needs_state"]:
            return False
        _native.trace_phase("meet")
        rows = context.gather_ints(mine, "interrupted step")
        return all(row[0] and row[:-1] == rows[0][:-1] for row in rows) and any(
            row[-1] for row in rows
        )

    def _invisible(self, reducer: Any) -> bool:
        """Whether nothing of the user's would notice that a view was entered within a step."""
        context, state = self._context, self._state
        return (
            isinstance(state, TorchState)
            and state.has_state
            and state.commit_stands()  # It is offered to the next view, before anybody goes back.
            and state.resumes_silently()
            and type(state).sync is ObjectState.sync
            and all(isinstance(h, TreeHandler) for h in state._handlers.values())
            and reducer.sampler is not None
            and reducer.sampler.step_leased(reducer.passes)
            and context.quiet()
        )


def _ids(context: Context) -> list[str]:
    return [str(member["id"]) for member in context.view["members"]]
