"""A collective group as one of its actors sees it."""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from typing import Any, Optional

from troupe.actors import _session
from troupe.collective import _arrays
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

ASK_S = 30.0  # Longest wait for the head's answer.
TIMEOUT_S = 600.0  # Of a collective, unless the user sets one.


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
        with translated(self.name):
            return native_actors().enter_collective(self.name, timeout_s=ASK_S, **self._wanted)

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
        with translated(self.name):
            native_actors().leave_collective(self.name, ASK_S)

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
                with translated(self.name):
                    return getattr(native, method)(*before, limit_s, *args)
            except _PutAsideError:
                limit_s = max(deadline - time.monotonic(), 0.0)


class _PutAsideError(CollectiveGroupError):
    """The head took this member for dead; another membership follows on the one that is over."""


def native_actors() -> Any:
    """The native actors; raises in a forked child."""
    session = _session.current()
    session.check()
    return session.actors


def check_actor() -> None:
    if not _session.in_worker():
        raise NotInWorkerError(
            "only actors are members of collective groups: call this in a method of one; "
            "create_collective_group() makes a group of actors from here")


def _name(op: Any) -> str:
    try:
        return _OPS[ReduceOp(op)]
    except ValueError:
        raise ValueError(f"op must be one of ReduceOp, not {op!r}") from None


def _rank(what: str, rank: Any) -> int:
    if not isinstance(rank, int) or rank < 0:
        raise ValueError(f"{what} must be a rank, 0 or more, not {rank!r}")
    return rank


class translated:
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
