"""A rank's place in a process group: who its peers are, and how a collective of theirs begins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch

from troupe.errors import HorovodInternalError, TroupeError, code_of
from troupe.torch import _context
from troupe.torch._devices import Place, place_of
from troupe.torch.distributed._work import Completer, Work

Start = Callable[[], int]
Blocks = list[tuple[int, int, int]]  # Peer, address, bytes.

_numbers = itertools.count(1)  # Of all collectives of this process: their names are unique.


@dataclass(eq=False)
class Seat:
    """Where the collectives of one process group take place.

    It belongs to one epoch: when the members of the group have changed, it is of no use any more.
    """

    context: _context.Context
    team: int  # The core's number of the set of ranks; 0: all.
    ranks: list[int]  # Of the view, in the order of the process group.
    rank: int  # This process's position among them.
    timeout_s: float
    completer: Completer
    epoch: int = field(init=False)
    broken: str = ""  # Why the epoch is over, as far as a collective here has heard.

    def __post_init__(self) -> None:
        self.epoch = int(self.context.view["epoch"])

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def core(self, position: int) -> int:
        """The core's position of a rank; it has them in ascending order of the view's ranks."""
        if not 0 <= position < self.size:
            raise ValueError(f"rank {position} is not in 0..{self.size - 1}")
        return sorted(self.ranks).index(self.ranks[position])

    def in_core_order(self, items: Sequence[Any]) -> list[Any]:
        """What there is one of per rank, in the core's order."""
        order = sorted(range(self.size), key=lambda position: self.ranks[position])
        return [items[position] for position in order]

    def check(self) -> None:
        """Raises HorovodInternalError if the epoch is over."""
        if self.broken or int(self.context.view["epoch"]) != self.epoch:
            raise HorovodInternalError(
                f"this process group was made in epoch {self.epoch} of the group, whose members "
                f"have changed{': ' if self.broken else ''}{self.broken}; call "
                "destroy_process_group() and init_process_group() again")

    def describe(self, kind: str, tensor: Optional[torch.Tensor], *more: str) -> str:
        """What the ranks compare: ``all_reduce float32[8, 4] sum``."""
        parts = [kind]
        if tensor is not None:
            parts.append(f"{dtype_name(tensor.dtype)}{list(tensor.shape)}")
            if tensor.device.type != "cpu":
                parts.append(f"on {tensor.device.type}")
        return " ".join([*parts, *(word for word in more if word)])

    def place(self, tensors: Sequence[torch.Tensor]) -> Place:
        """Where an operation on these tensors takes place."""
        return place_of(self.context.group, tensors)

    def issue(self, starts: Sequence[Start], finish: Callable[[], None], keep: Sequence[Any],
              outputs: Sequence[torch.Tensor]) -> Work:
        """Begins a collective: the core is given ``starts``, and ``finish`` follows their end.

        In a group of one nothing is started.
        """
        self.check()
        context = self.context
        context.require_active()
        context.flush_optimizers()
        name = f"torch.distributed.{next(_numbers)}"
        context.reserve(name)
        try:
            handle = context.issue(name, starts if self.size > 1 else [], finish, keep)
        except HorovodInternalError as error:
            self.broken = self.broken or str(error)
            raise
        return self.completer.keep(Work(
            lambda limit: self._finish(handle, limit), lambda: self._poll(handle), outputs,
            self.completer))

    def _finish(self, handle: int, limit: Optional[float]) -> None:
        try:
            self.check()
            self.context.wait(handle, limit or self.timeout_s)
        except HorovodInternalError as error:
            cause = error.__cause__
            late = cause is not None and code_of(cause) == "deadline_exceeded"
            if late and not self.context.group.over():
                raise TroupeError(
                    f"a collective of torch.distributed was not done after "
                    f"{limit or self.timeout_s:g} s; do all ranks call it?") from None
            self.broken = self.broken or str(error)
            raise

    def _poll(self, handle: int) -> bool:
        try:
            return self.context.poll(handle)
        except HorovodInternalError:
            return True

    def exchange(self, outgoing: Blocks, incoming: Blocks, text: str, place: Place) -> Start:
        """Blocks to and from others; peers are positions in the process group."""
        mine = self.core(self.rank)
        out = [(self.core(peer), address, nbytes) for peer, address, nbytes in outgoing]
        into = [(self.core(peer), address, nbytes) for peer, address, nbytes in incoming]
        # Everybody begins with another peer.
        out.sort(key=lambda block: (block[0] - mine) % self.size)
        into.sort(key=lambda block: (mine - block[0]) % self.size)
        return lambda: int(self.context.group.exchange(out, into, text, self.team, place.memory))


def deliver(output: torch.Tensor, work: torch.Tensor) -> None:
    """Brings a result to where it is wanted, if it is not there already. Without gradients."""
    if work.data_ptr() != output.data_ptr():
        output.copy_(work)


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` of ``torch.float32``."""
    return str(dtype).rpartition(".")[2]


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of its elements."""
    return int(tensor.numel()) * int(tensor.element_size())


def check_dense(tensors: Sequence[Any], what: str) -> None:
    """Raises TypeError or ValueError for what is no dense tensor."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what} needs tensors, not {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            raise ValueError(f"{what} needs dense tensors, not {tensor.layout}")


def check_alike(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Raises ValueError if tensors of one collective are of different dtypes."""
    check_dense(tensors, what)
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        names = ", ".join(sorted(dtype_name(dtype) for dtype in dtypes))
        raise ValueError(f"{what}: tensors of different dtypes: {names}")


def check_count(tensors: Sequence[Any], wanted: int, what: str) -> None:
    """Raises ValueError if there are not as many tensors as ranks."""
    if len(tensors) != wanted:
        raise ValueError(f"{what} needs a tensor for each of the {wanted} ranks, got "
                         f"{len(tensors)}")
