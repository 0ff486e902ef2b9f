"""Process sets: collectives among some of the ranks.

A set is its members, not a list of ranks: in a new view it holds those that are still there, at
their new ranks. Whoever joins later is in the global set only.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Optional, Union

from troupe import _native
from troupe.torch import _context


class ProcessSet:
    """Some ranks of the group; usable once it was given to :func:`add_process_set`.

    Args:
        ranks_or_comm: ranks of the present view; None: all of them, whatever the group's size.

    Raises:
        ValueError: ranks are given twice, or are not ints.
    """

    def __init__(self, ranks_or_comm: Optional[Sequence[int]] = None) -> None:
        self._wanted = None if ranks_or_comm is None else _check_ranks(ranks_or_comm)
        self.process_set_id: Optional[int] = 0 if ranks_or_comm is None else None
        # Optimizers, and the epoch in which they were counted; a set that was not used is pickled.
        self._users: Optional[weakref.WeakKeyDictionary[Any, int]] = None
        self._users_epoch = -1

    @property
    def team(self) -> int:
        """The core's number of the set.

        Raises:
            ValueError: it was not added, or was removed.
        """
        if self.process_set_id is None:
            raise ValueError("this process set is not registered; pass it to add_process_set()")
        return self.process_set_id

    @property
    def ranks(self) -> list[int]:
        """Ranks of its members in the present view, ascending."""
        context = _context.current()
        if self.process_set_id == 0:
            return list(range(context.size))
        if self.process_set_id is None and self._wanted is not None:
            return list(self._wanted)
        return [int(rank) for rank in context.group.team(self.team)]

    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    def included(self) -> bool:
        """Whether this process is in the set."""
        return _context.current().rank in self.ranks

    def rank(self) -> int:
        """This process's position in the set, -1 if it is not in it."""
        ranks, mine = self.ranks, _context.current().rank
        return ranks.index(mine) if mine in ranks else -1

    def ordinal(self, user: Any, epoch: int) -> int:
        """The place of an optimizer in the order of first use in this epoch of the group."""
        if self._users is None or epoch != self._users_epoch:
            self._users, self._users_epoch = weakref.WeakKeyDictionary(), epoch
        return self._users.setdefault(user, len(self._users))

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self._wanted or 'all'})"


def _check_ranks(ranks: Sequence[int]) -> list[int]:
    values = list(ranks)
    if any(isinstance(r, bool) or not isinstance(r, int) for r in values):
        raise ValueError(f"a process set is made of ranks, which are ints: {values!r}")
    if len(set(values)) != len(values) or not values:
        raise ValueError(f"a process set needs at least one rank, and none twice: {values!r}")
    return sorted(values)


global_process_set = ProcessSet()


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Registers a set; all ranks call this with the same ranks, in the same order.

    Raises:
        ValueError: a rank does not exist, or a set of these ranks is there already.
    """
    context = _context.current()
    context.require_active()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    wanted = added._wanted
    if wanted is None or added.process_set_id is not None:
        raise ValueError("this process set is registered already")
    beyond = [rank for rank in wanted if not 0 <= rank < context.size]
    if beyond:
        raise ValueError(f"ranks {beyond} are not ranks of a group of {context.size}")
    if any(other.ranks == wanted for other in context.process_sets):
        raise ValueError(f"a process set of the ranks {wanted} is registered already")
    context.flush_optimizers()
    if context.size > 1:
        text = f"add process set {wanted}"
        context.run_now(text, lambda: int(context.group.barrier(text)))
    with _native.collective_errors("add_process_set"):
        handle = context.group.add_team(wanted)
        added.process_set_id = int(context.group.wait(handle, context.timeout_s))
    context.process_sets.append(added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a set; False if it is the global one or not registered."""
    context = _context.current()
    if process_set not in context.process_sets:
        return False
    context.process_sets.remove(process_set)
    process_set.process_set_id = None
    return True


def check_process_set(process_set: Any) -> ProcessSet:
    """The set, if this process may call a collective of it.

    Raises:
        ValueError: it is no registered set, or this process is not in it.
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet, not {type(process_set).__name__}")
    if process_set.team != 0 and not process_set.included():
        raise ValueError(f"this process is not in {process_set!r}")
    return process_set
