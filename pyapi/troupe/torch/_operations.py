"""What all collectives on tensors have in common."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch

from troupe import _native
from troupe.torch import _context, _timeline
from troupe.torch._context import DTYPE_NAMES, Context
from troupe.torch._tree import mark_written
from troupe.torch.process_sets import ProcessSet, check_process_set


class ReduceOp(enum.IntEnum):
    """Reductions; the values are Horovod's."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product

CORE_OPS = {Average: "average", Sum: "sum", Min: "min", Max: "max", Product: "product"}


def resolve_op(average: Optional[bool], op: Optional[int]) -> ReduceOp:
    """The reduction meant by Horovod's deprecated ``average`` and by ``op``.

    Raises:
        ValueError: both are given, or ``op`` is unknown.
    """
    if average is not None:
        if op is not None:
            raise ValueError("average is deprecated and op is given: pass only op")
        return Average if average else Sum
    if op is None:
        return Average
    try:
        return ReduceOp(op)
    except ValueError:
        known = ", ".join(f"{o.name} ({o.value})" for o in ReduceOp)
        raise ValueError(f"op {op!r} is not supported; known: {known}") from None


def check_tensor(tensor: Any, what: str) -> None:
    """Raises TypeError or ValueError for what a collective cannot take."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what} needs a torch.Tensor, not {type(tensor).__name__}")
    if tensor.dtype not in DTYPE_NAMES:
        known = ", ".join(DTYPE_NAMES.values())
        raise ValueError(f"{what}: dtype {tensor.dtype} is not supported; known: {known}")
    if tensor.is_sparse:
        raise ValueError(
            f"{what}: sparse tensors are not supported; call to_dense() first, or use "
            "sparse_allreduce_async()"
        )
    if not tensor.is_contiguous():
        raise ValueError(f"{what}: the tensor must be contiguous; call contiguous() first")


def check_rows(tensor: Any, what: str) -> None:
    """As check_tensor, for collectives that work on the first dimension."""
    check_tensor(tensor, what)
    if tensor.dim() == 0:
        raise ValueError(f"{what} needs a tensor of at least one dimension, not a scalar")


@dataclass(frozen=True)
class Site:
    """Where a collective takes place, and under which name."""

    context: Context
    team: int
    ranks: list[int]  # Of the process set, ascending.
    name: str  # Reserved until the collective was waited for.
    label: Optional[str]  # The name if the user has given one.
    kind: str = "collective"
    entered: float = 0.0  # On the timeline's clock, if there is one.

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def position(self) -> int:
        return self.ranks.index(self.context.rank)

    def position_of(self, root_rank: Any) -> int:
        """Position of a rank of the group in the set.

        Raises:
            TypeError, ValueError: it is no int, or no rank of the set.
        """
        if isinstance(root_rank, bool) or not isinstance(root_rank, int):
            raise TypeError(f"root_rank must be an int, not {type(root_rank).__name__}")
        if root_rank in self.ranks:
            return self.ranks.index(root_rank)
        whole = f"a group of {self.context.size}"
        where = whole if self.team == 0 else f"the process set {self.ranks}"
        raise ValueError(f"root_rank {root_rank} is not a rank of {where}")

    def describe(self, kind: str, tensor: Optional[torch.Tensor], shape: Sequence[Any],
                 *more: str) -> str:
        """What the ranks compare; see :func:`_context.describe`."""
        device = ""
        if tensor is not None and tensor.device.type != "cpu":
            device = f"on {tensor.device.type}"
        dtype = None if tensor is None else tensor.dtype
        return _context.describe(kind, self.label, dtype, shape, *more, device)

    def issue(self, starts: Sequence[Callable[[], int]], finish: Callable[[], Any],
              keep: Sequence[Any]) -> int:
        """Starts core collectives under one handle; those of a set of one are left out."""
        handles: list[int] = []
        started = [functools.partial(_noted, start, handles) for start in starts]
        handle = self.context.issue(self.name, started if self.size > 1 else [], finish, keep)
        _timeline.show(self.context, [self.label or self.kind], self.kind.upper(), handles,
                       [self.entered or None])
        return handle


def _noted(start: Callable[[], int], handles: list[int]) -> int:
    handles.append(start())
    return handles[-1]


def enter(kind: str, name: Optional[str], process_set: ProcessSet) -> Site:
    """Checks that a collective may begin here, and reserves its name.

    Raises:
        ValueError: not initialised, the name is in flight, or the process set is not usable.
    """
    context = _context.current()
    context.require_active()
    check_process_set(process_set)
    timeline = _timeline.of(context)
    entered = 0.0 if timeline is None else timeline.now()
    context.flush_optimizers()
    reserved = context.new_name(kind, name)
    context.reserve(reserved)
    return Site(context, process_set.team, process_set.ranks, reserved, name, kind, entered)


def rows_of(rows: int, size: int) -> list[int]:
    """How many of ``rows`` rows each rank gets: the first ``rows % size`` ranks one more."""
    share, more = divmod(rows, size)
    return [share + (rank < more) for rank in range(size)]


def deliver(output: torch.Tensor, work: torch.Tensor) -> torch.Tensor:
    """Brings what arrived in host memory to where the user wants it."""
    with torch.no_grad():
        if work.data_ptr() != output.data_ptr():
            output.copy_(work)
        else:
            mark_written(output)
    return output


def join(device: int = -1) -> int:
    """Ends this rank's part when its data end before that of others; returns when all have joined.

    Until then it takes part in the others' collectives without a share: it adds nothing to their
    sums (an average is still divided by the size of the group), has no rows in what they gather,
    and gets nothing. Collectives that need a share of everybody (all-to-all, reduce-scatter,
    Adasum, those of process sets) fail on every rank while somebody has joined.

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: a peer died or the epoch changed.
        CollectiveMismatchError: others call what cannot be done without this rank.
    """
    context = _context.current()
    context.require_active()
    context.flush_optimizers()
    if context.size == 1:
        return context.rank
    while True:
        with _native.collective_errors("join"):
            last = int(context.group.wait(context.group.join(), _context.FOREVER_S))
        if last > 0:
            return last - 1


def poll(handle: int) -> bool:
    """Whether an asynchronous collective is complete."""
    return _context.current().poll(handle)


def synchronize(handle: int) -> Any:
    """Waits for an asynchronous collective; returns its output, None for an unknown handle.

    Raises:
        HorovodInternalError: a peer died or the epoch changed.
        CollectiveMismatchError: ranks disagree about it.
    """
    return _context.current().wait(handle)
