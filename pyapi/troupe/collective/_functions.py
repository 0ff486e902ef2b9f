"""The functions of ``troupe.collective``: groups of this process by their names."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Optional

from troupe.collective._group import (
    ASK_S,
    TIMEOUT_S,
    Backend,
    CollectiveGroup,
    ReduceOp,
    check_actor,
    native_actors,
    translated,
)
from troupe.errors import CollectiveGroupError

_lock = threading.Lock()
_groups: dict[str, CollectiveGroup] = {}


def init_collective_group(
    world_size: int, rank: int = -1, backend: str = Backend.AUTO, group_name: str = "default",
    gloo_timeout: Optional[int] = None, *, elastic: bool = False, min_size: int = 1,
    timeout_s: float = TIMEOUT_S,
) -> CollectiveGroup:
    """This actor joins the group, which the first of its members makes. Does not wait for others.

    Args:
        world_size: ranks of a fixed group; most members of an elastic one. At most 64.
        rank: of this actor in a fixed group; an elastic one gives ranks by age, oldest first.
        backend: accepted and not needed.
        group_name: unique in the cluster.
        gloo_timeout: milliseconds; as ``timeout_s``.
        elastic: the group goes on with the members that it has.
        min_size: an elastic group waits below so many members.
        timeout_s: for every collective, unless it has one of its own.

    Raises:
        ValueError: the group has another size, or the rank is taken.
        NotInWorkerError: this is no actor.
    """
    check_actor()
    if not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size must be a positive number, not {world_size!r}")
    if not elastic and not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1}, not {rank!r}")
    limit = timeout_s if gloo_timeout is None else gloo_timeout / 1e3
    group = CollectiveGroup(
        group_name, {"size": world_size, "elastic": elastic, "min_size": min_size,
                     "rank": -1 if elastic else rank}, limit)
    with _lock:
        if native_actors().in_collective(group_name) and group_name in _groups:
            raise ValueError(f"this actor is in the collective group {group_name!r} already; "
                             "destroy_collective_group() leaves it")
        group.enter()
        _groups[group_name] = group
    return group


def create_collective_group(
    actors: Sequence[Any], world_size: int, ranks: Sequence[int], backend: str = Backend.AUTO,
    group_name: str = "default", gloo_timeout: Optional[int] = None, *, elastic: bool = False,
    min_size: int = 1,
) -> None:
    """Makes a group of these actors; each is in it as soon as it calls a collective of it.

    The group ends with the process or actor that makes it.

    Args:
        actors: handles, as many as ``world_size``.
        ranks: of each of them; ``range(world_size)`` in any order. Not of an elastic group, whose
            ranks go by age.

    Raises:
        ValueError: sizes contradict, an actor is named twice, the name is taken.
        ActorDiedError: an actor is dead.
    """
    if len(actors) != world_size or sorted(ranks) != list(range(world_size)):
        raise ValueError(f"{len(actors)} actors with ranks {list(ranks)} are not the ranks "
                         f"0..{world_size - 1} of a group of {world_size}")
    by_rank = [actors[list(ranks).index(rank)] for rank in range(world_size)]
    spec = {"name": group_name, "size": world_size, "elastic": elastic, "min_size": min_size,
            "actors": [actor._native.id for actor in by_rank]}
    with translated(group_name):
        native_actors().collective("create", spec, ASK_S)


def destroy_collective_group(group_name: str = "default") -> None:
    """In an actor: leaves the group, which ends with its last member. Elsewhere: ends it."""
    native = native_actors()
    with _lock:
        _groups.pop(group_name, None)
    with translated(group_name):
        if native.in_collective(group_name):
            native.leave_collective(group_name, ASK_S)
        else:
            native.collective("destroy", {"name": group_name}, ASK_S)


def is_group_initialized(group_name: str = "default") -> bool:
    """Whether this actor is in the group."""
    return bool(native_actors().in_collective(group_name))


def get_group_handle(group_name: str = "default") -> CollectiveGroup:
    """The group, of which this actor is a member from now on if it was made for it.

    Raises:
        CollectiveGroupError: there is none of this name, or it was made for others.
    """
    check_actor()
    with _lock:
        known = _groups.get(group_name)
    if known is not None:
        return known
    group = CollectiveGroup(group_name, {"size": 0, "elastic": False, "min_size": 1, "rank": -1},
                            TIMEOUT_S)
    group.enter()
    with _lock:
        return _groups.setdefault(group_name, group)


def get_rank(group_name: str = "default") -> int:
    """Of this actor, once the group is complete; -1 if it is not in it."""
    group = _mine(group_name)
    return -1 if group is None else group.rank


def get_collective_group_size(group_name: str = "default") -> int:
    """Members there are, once the group is complete; -1 if this actor is not in it."""
    group = _mine(group_name)
    return -1 if group is None else group.size


def allreduce(tensor: Any, group_name: str = "default", op: ReduceOp = ReduceOp.SUM) -> None:
    """See :meth:`CollectiveGroup.allreduce`."""
    get_group_handle(group_name).allreduce(tensor, op)


def barrier(group_name: str = "default") -> None:
    """See :meth:`CollectiveGroup.barrier`."""
    get_group_handle(group_name).barrier()


def reduce(
    tensor: Any, dst_rank: int = 0, group_name: str = "default", op: ReduceOp = ReduceOp.SUM
) -> None:
    """See :meth:`CollectiveGroup.reduce`."""
    get_group_handle(group_name).reduce(tensor, dst_rank, op)


def broadcast(tensor: Any, src_rank: int = 0, group_name: str = "default") -> None:
    """See :meth:`CollectiveGroup.broadcast`."""
    get_group_handle(group_name).broadcast(tensor, src_rank)


def allgather(tensor_list: Sequence[Any], tensor: Any, group_name: str = "default") -> None:
    """See :meth:`CollectiveGroup.allgather`."""
    get_group_handle(group_name).allgather(tensor_list, tensor)


def reducescatter(
    tensor: Any, tensor_list: Sequence[Any], group_name: str = "default",
    op: ReduceOp = ReduceOp.SUM,
) -> None:
    """See :meth:`CollectiveGroup.reducescatter`."""
    get_group_handle(group_name).reducescatter(tensor, tensor_list, op)


def send(tensor: Any, dst_rank: int, group_name: str = "default") -> None:
    """See :meth:`CollectiveGroup.send`."""
    get_group_handle(group_name).send(tensor, dst_rank)


def recv(tensor: Any, src_rank: int, group_name: str = "default") -> None:
    """See :meth:`CollectiveGroup.recv`."""
    get_group_handle(group_name).recv(tensor, src_rank)


def _mine(group_name: str) -> Optional[CollectiveGroup]:
    """The group if this actor is a member, or it was made for this actor."""
    try:
        return get_group_handle(group_name)
    except (CollectiveGroupError, ValueError):
        return None
