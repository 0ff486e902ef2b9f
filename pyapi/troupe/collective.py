"""Collective groups of actors, with the names of ``ray.util.collective``.

    @troupe.remote
    class Trainer:
        def join(self, size, rank):
            collective.init_collective_group(size, rank, group_name="train")

        def step(self):
            gradient = np.ones(8, dtype=np.float32)
            collective.allreduce(gradient, "train")   # in place

Every actor can be in several groups at once. A **fixed** group has ``world_size`` ranks, and each
collective needs all of them: while an actor is being restarted the others wait for it, and when it
is dead for good the group ends. An **elastic** group goes on with the members that it has.

When a member dies, each of the others gets :class:`CollectiveGroupChangedError` exactly once: from
the collective that was cut short or, before it begins, from the next one. So all can come to the
same point again, and go on.

Tensors are NumPy arrays, or torch tensors on the CPU or a CUDA device; bytes move through shared
memory, Gloo or NCCL, whatever joins the members fastest. ``backend`` is accepted and not needed.
Groups exist inside actors; a driver can make and destroy them.
"""

from __future__ import annotations

import enum
import functools
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Optional

from troupe import _arrays, _context, _runtime, _session
from troupe.errors import (
    ActorNotFoundError,
    CollectiveGroupChangedError,
    CollectiveGroupError,
    CollectiveGroupLeftError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    NotInWorkerError,
    TroupeError,
    code_of,
)

__all__ = [
    "Backend", "CollectiveGroup", "ReduceOp", "allgather", "allreduce", "barrier", "broadcast",
    "create_collective_group", "destroy_collective_group", "get_collective_group_size",
    "get_group_handle", "get_rank", "init_collective_group", "is_group_initialized", "recv",
    "reduce", "reducescatter", "send",
]

_ASK_S = 30.0
_TIMEOUT_S = 600.0
_OWN_GROUP = "TROUPE_ACTOR_GROUP"  # Set in the members of groups of actors.


class ReduceOp(enum.IntEnum):
    """How the tensors of the members are combined."""

    SUM = 0
    PRODUCT = 1
    MAX = 2
    MIN = 3
    AVERAGE = 4


class Backend:
    """Names that are accepted; the way is chosen by where the memory is."""

    NCCL = "nccl"
    GLOO = "gloo"
    AUTO = "auto"


_OPS = {op: op.name.lower() for op in ReduceOp}


class CollectiveGroup:
    """A group that this actor is in; its methods are the functions of this module."""

    def __init__(self, name: str, wanted: dict[str, Any], timeout_s: float) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self._wanted = wanted

    def __repr__(self) -> str:
        return f"<CollectiveGroup {self.name!r}>"

    def enter(self) -> Any:
        """The native group; enters it again if the membership before is over."""
        with _translated(self.name):
            return _actors().enter_collective(self.name, timeout_s=_ASK_S, **self._wanted)

    def wait(self, timeout_s: Optional[float] = None) -> dict[str, Any]:
        """Waits until the group is complete: its present view, which this actor knows then.

        Returns:
            ``epoch``, ``rank``, ``size``, ``members`` (ids of actors by rank), ``reason``.

        Raises:
            CollectiveTimeoutError: it is not yet; the message says who is missing.
            CollectiveGroupError: it has ended.
        """
        return dict(self._run("join", timeout_s))

    @property
    def view(self) -> Optional[dict[str, Any]]:
        """The view that this actor knows, as :meth:`wait` returns it; None before the first.

        It is that of the last collective, or of the last :class:`CollectiveGroupChangedError`.
        """
        view = self.enter().known()
        return None if view is None else dict(view)

    @property
    def rank(self) -> int:
        """Of this actor in :attr:`view`; waits for the first one."""
        return int(self._known()["rank"])

    @property
    def size(self) -> int:
        """Members of :attr:`view`; waits for the first one."""
        return int(self._known()["size"])

    @property
    def epoch(self) -> int:
        """Of :attr:`view`, grows whenever the members change; waits for the first one."""
        return int(self._known()["epoch"])

    def rank_of(self, actor: Any) -> Optional[int]:
        """The rank of the actor of this handle in :attr:`view`; None if it is not in it."""
        members = (self.view or {"members": []})["members"]
        return members.index(actor._native.id) if actor._native.id in members else None

    def allreduce(
        self, tensor: Any, op: ReduceOp = ReduceOp.SUM, timeout_s: Optional[float] = None
    ) -> None:
        """Combines ``tensor`` of all members, in place."""
        data = _arrays.Flat(tensor, "tensor", out=True)
        self._call("allreduce", data, f"allreduce {data} {_name(op)}", timeout_s,
                   data.buffer, data.buffer, data.count, data.dtype, _name(op))

    def reduce(
        self, tensor: Any, dst_rank: int = 0, op: ReduceOp = ReduceOp.SUM,
        timeout_s: Optional[float] = None,
    ) -> None:
        """As :meth:`allreduce`; only ``tensor`` of ``dst_rank`` is written."""
        data = _arrays.Flat(tensor, "tensor", out=True)
        root = _rank("dst_rank", dst_rank)
        self._call("reduce", data, f"reduce {data} {_name(op)} to {root}", timeout_s,
                   data.buffer, data.buffer, data.count, data.dtype, _name(op), root)

    def broadcast(
        self, tensor: Any, src_rank: int = 0, timeout_s: Optional[float] = None
    ) -> None:
        """``tensor`` of ``src_rank`` is written over those of the others."""
        data = _arrays.Flat(tensor, "tensor", out=True)
        root = _rank("src_rank", src_rank)
        self._call("broadcast", data, f"broadcast {data} from {root}", timeout_s,
                   data.buffer, root)

    def allgather(
        self, tensor_list: Sequence[Any], tensor: Any, timeout_s: Optional[float] = None
    ) -> None:
        """Writes ``tensor`` of every member into ``tensor_list``, by rank."""
        data = _arrays.Flat(tensor, "tensor")
        if not tensor_list:
            raise ValueError("tensor_list holds one tensor for every member")
        _, room = _arrays.stacked(tensor_list, data, "tensor_list")
        out = _arrays.Flat(room, "tensor_list", out=True)
        self._call("allgather", data, f"allgather {data}", timeout_s, data.buffer, out.buffer)
        for i, target in enumerate(tensor_list):
            _arrays.assign(target, room[i])

    def reducescatter(
        self, tensor: Any, tensor_list: Sequence[Any], op: ReduceOp = ReduceOp.SUM,
        timeout_s: Optional[float] = None,
    ) -> None:
        """``tensor`` becomes the combined ``tensor_list[rank]`` of all members."""
        data = _arrays.Flat(tensor, "tensor", out=True)
        if not tensor_list:
            raise ValueError("tensor_list holds one tensor for every member")
        _, room = _arrays.stacked(tensor_list, data, "tensor_list")
        for i, source in enumerate(tensor_list):
            _arrays.assign(room[i], source)
        blocks = _arrays.Flat(room, "tensor_list")
        self._call("reducescatter", data, f"reducescatter {data} {_name(op)}", timeout_s,
                   blocks.buffer, data.buffer, data.count, data.dtype, _name(op))

    def send(self, tensor: Any, dst_rank: int, timeout_s: Optional[float] = None) -> None:
        """To the member that calls :meth:`recv` with this one's rank; returns when it has it."""
        data = _arrays.Flat(tensor, "tensor")
        to = _rank("dst_rank", dst_rank)
        self._call("send", data, f"send {data}", timeout_s, data.buffer, to)

    def recv(self, tensor: Any, src_rank: int, timeout_s: Optional[float] = None) -> None:
        """From the member that calls :meth:`send`, into ``tensor`` of the same shape and dtype."""
        data = _arrays.Flat(tensor, "tensor", out=True)
        source = _rank("src_rank", src_rank)
        self._call("recv", data, f"send {data}", timeout_s, data.buffer, source)

    def barrier(self, timeout_s: Optional[float] = None) -> None:
        """Returns when all members have come."""
        self._run("barrier", timeout_s, "barrier")

    def leave(self) -> None:
        """This actor is no member any more. A fixed group cannot go on until it joins again."""
        with _translated(self.name):
            _actors().leave_collective(self.name, _ASK_S)

    def _known(self) -> dict[str, Any]:
        return self.view or self.wait()

    def _call(
        self, method: str, data: _arrays.Flat, what: str, timeout_s: Optional[float], *args: Any
    ) -> None:
        self._run(method, timeout_s, what, *args, data.memory)
        data.finish()

    def _run(
        self, method: str, timeout_s: Optional[float], what: Optional[str] = None, *args: Any
    ) -> Any:
        """Of the native group; once more, within the time, where a membership ended before it."""
        limit_s = self.timeout_s if timeout_s is None else float(timeout_s)
        deadline = time.monotonic() + limit_s
        before = () if what is None else (what,)
        while True:
            native = self.enter()
            try:
                with _translated(self.name):
                    return getattr(native, method)(*before, limit_s, *args)
            except _PutAsideError:
                limit_s = max(deadline - time.monotonic(), 0.0)


class _PutAsideError(CollectiveGroupError):
    """The head took this member for dead; another membership follows on the one that is over."""


_lock = threading.Lock()
_groups: dict[str, CollectiveGroup] = {}


def init_collective_group(
    world_size: int, rank: int = -1, backend: str = Backend.AUTO, group_name: str = "default",
    gloo_timeout: Optional[int] = None, *, elastic: bool = False, min_size: int = 1,
    timeout_s: float = _TIMEOUT_S,
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
    _check_actor()
    if not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size must be a positive number, not {world_size!r}")
    if not elastic and not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1}, not {rank!r}")
    limit = timeout_s if gloo_timeout is None else gloo_timeout / 1e3
    group = CollectiveGroup(
        group_name, {"size": world_size, "elastic": elastic, "min_size": min_size,
                     "rank": -1 if elastic else rank}, limit)
    with _lock:
        if _actors().in_collective(group_name) and group_name in _groups:
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
    with _translated(group_name):
        _actors().collective("create", spec, _ASK_S)


def destroy_collective_group(group_name: str = "default") -> None:
    """In an actor: leaves the group, which ends with its last member. Elsewhere: ends it."""
    actors = _actors()
    with _lock:
        _groups.pop(group_name, None)
    with _translated(group_name):
        if actors.in_collective(group_name):
            actors.leave_collective(group_name, _ASK_S)
        else:
            actors.collective("destroy", {"name": group_name}, _ASK_S)


def is_group_initialized(group_name: str = "default") -> bool:
    """Whether this actor is in the group."""
    return bool(_actors().in_collective(group_name))


def get_group_handle(group_name: str = "default") -> CollectiveGroup:
    """The group, of which this actor is a member from now on if it was made for it.

    Raises:
        CollectiveGroupError: there is none of this name, or it was made for others.
    """
    _check_actor()
    with _lock:
        known = _groups.get(group_name)
    if known is not None:
        return known
    group = CollectiveGroup(group_name, {"size": 0, "elastic": False, "min_size": 1, "rank": -1},
                            _TIMEOUT_S)
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


def train_in(
    group_name: Optional[str], elastic_timeout_s: Optional[float] = None
) -> Optional[_runtime.WorkerRuntime]:
    """What a training loop of this actor needs to know of its group; for ``troupe.torch.init``.

    Args:
        elastic_timeout_s: of each wait for a view.
        group_name: of an elastic group that was made by ``create_collective_group``, or that of
            a group of actors; None: the one that this actor is a member of.

    Returns:
        None if no name is given and this is no member of a group of actors.

    Raises:
        ValueError: the group is none to train in, or this actor uses it otherwise.
        CollectiveGroupError: there is none of this name.
        NotInWorkerError: a name is given, and this is no actor.
    """
    name = group_name if group_name is not None else os.environ.get(_OWN_GROUP)
    if group_name is not None:
        _check_actor()
    if not name or not _session.in_worker():
        return None
    with _translated(name):
        group = _actors().enter_training(name, timeout_s=_ASK_S)
    actor = _context.current().actor_id
    worker = _runtime.TrainingActor(
        group, name, str(actor), socket.gethostname(), functools.partial(_missing, name))
    return _runtime.WorkerRuntime(
        worker, {"name": name}, _TIMEOUT_S if elastic_timeout_s is None else elastic_timeout_s)


def _missing(name: str) -> str:
    """Which actors of a group are not in it now."""
    try:
        members = dict(_actors().collective("status", {"name": name}, _ASK_S))["members"]
    except RuntimeError as error:
        return str(error)
    return "; ".join(f"actor {m['actor']} is {m['state']}"
                     for m in members if m["state"] != "member")


def end_training(group_name: str) -> None:
    """This actor is no member any more; for ``troupe.torch.shutdown``."""
    with _translated(group_name):
        _actors().leave_collective(group_name, _ASK_S)


def _actors() -> Any:
    """The native actors; raises in a forked child."""
    session = _session.current()
    session.check()
    return session.actors


def _check_actor() -> None:
    if not _session.in_worker():
        raise NotInWorkerError(
            "only actors are members of collective groups: call this in a method of one; "
            "create_collective_group() makes a group of actors from here")


def _mine(group_name: str) -> Optional[CollectiveGroup]:
    """The group if this actor is a member, or it was made for this actor."""
    try:
        return get_group_handle(group_name)
    except (CollectiveGroupError, ValueError):
        return None


def _name(op: Any) -> str:
    try:
        return _OPS[ReduceOp(op)]
    except ValueError:
        raise ValueError(f"op must be one of ReduceOp, not {op!r}") from None


def _rank(what: str, rank: Any) -> int:
    if not isinstance(rank, int) or rank < 0:
        raise ValueError(f"{what} must be a rank, 0 or more, not {rank!r}")
    return rank


class _translated:
    """Errors of the core as the exceptions that users know."""

    def __init__(self, group_name: str) -> None:
        self._name = group_name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        code = code_of(error) if isinstance(error, RuntimeError) else None
        if code is None:
            return
        message = getattr(error, "message", None) or str(error)
        kinds: dict[str, type[Exception]] = {
            "epoch_changed": CollectiveGroupChangedError, "mismatch": CollectiveMismatchError,
            "deadline_exceeded": CollectiveTimeoutError, "invalid_argument": ValueError,
            "already_exists": ValueError, "peer_gone": ActorNotFoundError,
            "not_found": CollectiveGroupError, "drained": CollectiveGroupLeftError,
            "fenced": _PutAsideError, "cancelled": CollectiveGroupError,
        }
        raise kinds.get(code, TroupeError)(message) from None
