"""The ranks that an optimizer reduces with."""

from __future__ import annotations

from typing import Any

from troupe.torch._context import Context
from troupe.torch.process_sets import ProcessSet


class Members:
    """The members of a process set, as one optimizer sees them; they change with the view."""

    def __init__(self, context: Context, process_set: ProcessSet, optimizer: Any) -> None:
        self._context = context
        self._process_set = process_set
        self._optimizer = optimizer  # By whose order of first use collectives are named.
        self._agreed = ""

    @property
    def team(self) -> int:
        """The core's number of the process set, 0 for all ranks."""
        return self._process_set.team

    @property
    def size(self) -> int:
        """How many they are."""
        team = self.team
        return self._context.size if team == 0 else len(self._context.group.team(team))

    @property
    def included(self) -> bool:
        """Whether this rank is one of them."""
        team = self.team
        return team == 0 or self._context.rank in self._context.group.team(team)

    @property
    def label(self) -> str:
        """Names the optimizer in collectives, alike on all of them."""
        if self.team == 0:
            return f"optimizer.{self._context.ordinal(self._optimizer)}"
        epoch = int(self._context.view["epoch"])
        return f"optimizer.{self._process_set.ordinal(self._optimizer, epoch)} of a process set"

    def agree(self, text: str) -> None:
        """Checks that all of them are about to do the same, once per text and epoch."""
        context, team = self._context, self.team
        if team == 0:
            context.agree(text)
            return
        agreed = f"{text} in epoch {context.view['epoch']}"
        if self.size > 1 and self._agreed != agreed:
            context.run_now(text, lambda: int(context.group.barrier(text, team)), users=False)
            self._agreed = agreed
