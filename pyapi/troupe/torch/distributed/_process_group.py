"""The process group that torch.distributed gets for the backend "troupe"."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.distributed as dist

from troupe.errors import TroupeError
from troupe.torch.distributed import _movements, _reductions
from troupe.torch.distributed._mailbox import ANY, Mailbox
from troupe.torch.distributed._seat import Seat, check_dense, deliver, size_of
from troupe.torch.distributed._work import Work

BACKEND = "troupe"
_Base: Any = dist.ProcessGroup


class ProcessGroup(_Base):
    """The ranks of a view, or some of them, as torch.distributed calls their collectives.

    The arguments of its methods are those of torch's C++ class of this name. It is of one epoch:
    when a member dies or the members change, what is in flight fails on all ranks with
    HorovodInternalError, and so does everything after it.

    Args:
        seat: where it takes place.
        mailbox: for messages between two ranks; gives those of the epoch, made at first use.
        name: unique on these ranks; it keeps messages of several groups apart.
    """

    def __init__(self, seat: Seat, mailbox: Any, addresses: Any, name: str) -> None:
        super().__init__(seat.rank, seat.size)
        self._seat = seat
        self._mailbox_of, self._addresses = mailbox, addresses
        self._channel = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        self._name, self._desc = name, ""
        self._end: Any = None  # Ends what all groups of the epoch share, with the default group.

    # -- about it -------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """The backend's name."""
        return BACKEND

    def name(self) -> str:
        """The backend's name."""
        return BACKEND

    def getRank(self) -> int:
        """This process's rank in the group."""
        return self._seat.rank

    def getSize(self) -> int:
        """Number of ranks of the group."""
        return self._seat.size

    # torch keeps a group's name in its backends in C++, of which there are none here.

    def getGroupName(self) -> str:
        """The name that torch has given the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Called by torch when the group is made."""
        self._name = name

    def getGroupDesc(self) -> str:
        """What the group is for, as its maker has said."""
        return self._desc

    def setGroupDesc(self, text: str) -> None:
        """Called by torch when the group is made."""
        self._desc = text

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """The longest wait for a collective from now on."""
        self._seat.timeout_s = timeout.total_seconds()

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: operations are counted by the core."""

    def _get_sequence_number_for_group(self) -> int:
        return self._seat.context.operations

    @property
    def broken(self) -> str:
        """Why its epoch is over, as far as a collective of it has heard; empty: it is not."""
        return self._seat.broken

    def shutdown(self) -> None:
        """Ends the default group, and with it all; nothing for others. Idempotent."""
        if self._end is not None:
            self._end()

    def abort(self) -> None:
        """As :meth:`shutdown`; whatever is in flight ends with its epoch."""
        self.shutdown()

    # -- reductions -----------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduces each tensor over all ranks, in place."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        return _reductions.allreduce(self._seat, tensors, _op(opts, dist.AllreduceOptions))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """Reduces the tensor to the rank ``opts.rootRank``, in place."""
        root = 0 if opts is None else int(opts.rootRank)
        return _reductions.reduce(self._seat, _only(tensors, "reduce"),
                                  _op(opts, dist.ReduceOptions), root)

    def reduce_scatter(self, outputs: Sequence[torch.Tensor],
                       inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None) -> Work:
        """Reduces a list of tensors; each rank gets that of its rank."""
        output = _only(outputs, "reduce_scatter")
        return _reductions.reduce_scatter(self._seat, output, _only(inputs, "reduce_scatter"),
                                          _op(opts, dist.ReduceScatterOptions))

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor,
                             opts: Any = None) -> Work:
        """Reduces one tensor of as many blocks as ranks; each rank gets its block."""
        return _reductions.reduce_scatter_from(self._seat, [output], [tensor],
                                               _op(opts, dist.ReduceScatterOptions))

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """As :meth:`_reduce_scatter_base`, for several tensors."""
        return _reductions.reduce_scatter_from(self._seat, outputs, inputs,
                                               _op(opts, dist.ReduceScatterOptions))

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # -- movements ------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        """Gives the tensor of the rank ``opts.rootRank`` to all."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        root = 0 if opts is None else int(opts.rootRank)
        return _movements.broadcast(self._seat, _only(tensors, "broadcast"), root)

    def allgather(self, outputs: Sequence[Sequence[torch.Tensor]],
                  inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """Gives all ranks' tensors to all, as lists."""
        return _movements.allgather(self._seat, outputs, inputs)

    def allgather_coalesced(self, outputs: Sequence[Sequence[torch.Tensor]],
                            inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """As :meth:`allgather`; ``outputs`` has a list per rank."""
        lists = [list(row) for row in zip(*outputs, strict=True)]
        return _movements.allgather(self._seat, lists, inputs)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor,
                        opts: Any = None) -> Work:
        """Gives all ranks' tensors to all, one behind the other."""
        return _movements.allgather_into(self._seat, [output], [tensor])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """As :meth:`_allgather_base`, for several tensors."""
        return _movements.allgather_into(self._seat, outputs, inputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor],
               opts: Any = None) -> Work:
        """Gives all ranks' tensors to ``opts.rootRank``."""
        root = 0 if opts is None else int(opts.rootRank)
        mine = list(outputs[0]) if outputs else []
        return _movements.gather(self._seat, mine, _only(inputs, "gather"), root)

    def scatter(self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]],
                opts: Any = None) -> Work:
        """Gives each rank its tensor of the list that ``opts.rootRank`` has."""
        root = 0 if opts is None else int(opts.rootRank)
        mine = list(inputs[0]) if inputs else []
        return _movements.scatter(self._seat, _only(outputs, "scatter"), mine, root)

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                 opts: Any = None) -> Work:
        """Sends each rank its tensor of a list."""
        return _movements.alltoall(self._seat, outputs, inputs)

    def alltoall_base(self, output: torch.Tensor, tensor: torch.Tensor,
                      output_splits: Sequence[int], input_splits: Sequence[int],
                      opts: Any = None) -> Work:
        """Sends each rank its rows of a tensor."""
        return _movements.alltoall_single(self._seat, output, tensor, output_splits, input_splits)

    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> Work:
        """Is done when all ranks have called it."""
        return _movements.barrier(self._seat)

    # -- messages -------------------------------------------------------------------------------

    def send(self, tensors: Sequence[torch.Tensor], destination: int, tag: int = 0) -> Work:
        """Sends a tensor to a rank, which receives it with this tag."""
        tensor = _only(tensors, "send")
        check_dense([tensor], "send")
        if destination == self._seat.rank:
            raise ValueError("send: a rank cannot send to itself")
        self._seat.core(destination)
        self._seat.check()
        host = tensor.detach().to("cpu").contiguous()
        address = self._addresses()[self._seat.ranks[destination]]
        mailbox = self._mailbox_of()
        delivery = mailbox.send(address, self._channel, self._seat.rank, tag, _bytes(host))
        return self._message(mailbox, delivery, [tensor], lambda: None)

    def recv(self, tensors: Sequence[torch.Tensor], source: int, tag: int = 0) -> Work:
        """Receives a tensor that the rank ``source`` sends with this tag."""
        if source == self._seat.rank:
            raise ValueError("recv: a rank cannot receive from itself")
        self._seat.core(source)
        return self._receive(_only(tensors, "recv"), source, tag)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Work:
        """Receives what comes first with this tag; ``_source_rank()`` of the work says whose."""
        return self._receive(_only(tensors, "recv"), ANY, tag)

    def _receive(self, tensor: torch.Tensor, source: int, tag: int) -> Work:
        check_dense([tensor], "recv")
        self._seat.check()
        plain = tensor.detach()
        room = plain if plain.device.type == "cpu" and plain.is_contiguous() else torch.empty(
            plain.shape, dtype=plain.dtype)
        mailbox = self._mailbox_of()
        receipt = mailbox.receive(self._channel, source, tag, _bytes(room))

        def finish() -> None:
            with torch.no_grad():
                deliver(tensor, room)

        work = self._message(mailbox, receipt, [tensor], finish)
        work.receipt = receipt
        return work

    def _message(self, mailbox: Mailbox, item: Any, tensors: list[torch.Tensor],
                 finish: Any) -> Work:
        seat = self._seat

        def alive() -> str:
            if seat.context.group.over():
                return "the members of the group have changed while a message was on its way"
            return ""

        def run(limit: Optional[float]) -> None:
            try:
                mailbox.wait(item, limit or seat.timeout_s, alive)
            except TroupeError as error:
                if seat.context.group.over():
                    seat.broken = seat.broken or str(error)
                raise
            finish()

        # One that is dropped is the mailbox's: what it never gets must not keep others waiting.
        return Work(run, item.done.is_set, tensors, seat.completer, dropped_matters=False)


def _op(opts: Any, kind: Any) -> Any:
    return (kind() if opts is None else opts).reduceOp


def _only(items: Sequence[Any], what: str) -> Any:
    """The one item of a list of torch's, which has one per device of the process."""
    if isinstance(items, torch.Tensor):
        return items
    if len(items) != 1:
        raise ValueError(f"{what}: one tensor per rank is supported, got {len(items)}")
    return items[0]


def _bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor of the host."""
    if size_of(tensor) == 0:
        return memoryview(bytearray())
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
