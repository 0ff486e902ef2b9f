"""Collectives of torch.distributed that reduce."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.distributed as dist

from troupe.torch._context import DTYPE_NAMES
from troupe.torch._devices import Place
from troupe.torch._reductions import average_exactly_
from troupe.torch.distributed._seat import (
    Seat,
    Start,
    check_alike,
    check_count,
    check_dense,
    deliver,
    dtype_name,
    size_of,
)
from troupe.torch.distributed._work import Work

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Reduction:
    """How tensors are combined."""

    name: str  # As the core calls it, or that of a bitwise operation.
    prescale: float = 1.0
    combine: Optional[Combine] = None  # Of bitwise operations, which the core does not know.

    @property
    def text(self) -> str:
        """How a description names it; factors may differ from rank to rank."""
        return self.name if self.prescale == 1.0 else f"{self.name} of scaled tensors"

    def core_op(self, dtype: torch.dtype) -> str:
        """What the core is asked for: it averages in floating point only."""
        exact = self.name == "average" and not dtype.is_floating_point
        return "sum" if exact else self.name

    def finish(self, tensor: torch.Tensor, size: int) -> None:
        """What remains to be done to a result."""
        if self.name == "average" and not tensor.dtype.is_floating_point:
            average_exactly_(tensor, size)


_PLAIN = (("SUM", "sum"), ("AVG", "average"), ("PRODUCT", "product"), ("MIN", "min"),
          ("MAX", "max"))
_BITWISE: tuple[tuple[str, str, Combine], ...] = (
    ("BAND", "band", torch.bitwise_and), ("BOR", "bor", torch.bitwise_or),
    ("BXOR", "bxor", torch.bitwise_xor))


def reduction_of(op: Any, dtype: torch.dtype, what: str) -> Reduction:
    """The reduction that torch.distributed's ``op`` asks for.

    Raises:
        ValueError: it is none that there is, or not for this dtype.
    """
    if dtype in DTYPE_NAMES:
        for name, core_name in _PLAIN:
            if hasattr(dist.ReduceOp, name) and op == getattr(dist.ReduceOp, name):
                return Reduction(core_name)
    for name, core_name, combine in _BITWISE:
        if op == getattr(dist.ReduceOp, name):
            if dtype.is_floating_point or dtype.is_complex:
                raise ValueError(f"{what}: ReduceOp.{name} is for integers and truth values, not "
                                 f"{dtype_name(dtype)}")
            return Reduction(core_name, combine=combine)
    if dtype not in DTYPE_NAMES:
        known = ", ".join(DTYPE_NAMES.values())
        raise ValueError(f"{what}: tensors of {dtype_name(dtype)} cannot be reduced; those of "
                         f"{known} can")
    if hasattr(dist.ReduceOp, "PREMUL_SUM") and op == dist.ReduceOp.PREMUL_SUM:
        return Reduction("sum", prescale=float(op.factor))
    raise ValueError(f"{what}: {op} is not supported")


def _real(tensor: torch.Tensor, op: Any) -> torch.Tensor:
    """Complex numbers as pairs of real ones, where that gives the same result."""
    if not tensor.is_complex():
        return tensor
    linear = [op == getattr(dist.ReduceOp, name) for name in ("SUM", "AVG")
              if hasattr(dist.ReduceOp, name)]
    return torch.view_as_real(tensor) if any(linear) else tensor


def allreduce(seat: Seat, tensors: Sequence[torch.Tensor], op: Any) -> Work:
    """Every rank gets the reduction of each tensor, in place."""
    if len(tensors) == 1 and tensors[0].layout == torch.sparse_coo:
        return _allreduce_sparse(seat, tensors[0], op)
    check_dense(tensors, "all_reduce")
    plain = [_real(t, op) for t in tensors]
    starts: list[Start] = []
    ends: list[Callable[[], None]] = []
    keep: list[Any] = [*tensors]
    for dtype in dict.fromkeys(t.dtype for t in plain):
        chosen = [t for t in plain if t.dtype == dtype]
        reduction = reduction_of(op, dtype, "all_reduce")
        place = seat.place(chosen)
        works = [place.work(t) for t in chosen]
        keep += works
        shapes = ", ".join(str(list(t.shape)) for t in chosen)
        text = seat.describe(f"all_reduce {reduction.text} {dtype_name(dtype)}{shapes}", None,
                             "" if place.kind == "cpu" else f"on {place.kind}")
        if reduction.combine is not None:
            room = place.empty([seat.size, sum(t.numel() for t in works)], dtype)
            flat = torch.cat([work.reshape(-1) for work in works])
            starts.append(_collect(seat, place, flat, room, text))
            ends.append(functools.partial(_combine, reduction.combine, room, works))
            keep += [flat, room]
        else:
            starts.append(_start_allreduce(seat, place, works, works, reduction, text))
            ends.append(functools.partial(_end_allreduce, seat, reduction, works))
        ends.append(functools.partial(_deliver, chosen, works))

    def finish() -> None:
        with torch.no_grad():
            for end in ends:
                end()

    return seat.issue(starts, finish, keep, list(tensors))


def _start_allreduce(seat: Seat, place: Place, ins: list[torch.Tensor], outs: list[torch.Tensor],
                     reduction: Reduction, text: str) -> Start:
    dtype = ins[0].dtype
    count = sum(t.numel() for t in ins)

    def start() -> int:
        return int(seat.context.group.allreduce(
            [(t.data_ptr(), size_of(t)) for t in ins], [(t.data_ptr(), size_of(t)) for t in outs],
            count, DTYPE_NAMES[dtype], reduction.core_op(dtype), reduction.prescale, 1.0, text,
            seat.team, place.memory, reduction.prescale != 1.0))

    return start


def _end_allreduce(seat: Seat, reduction: Reduction, works: list[torch.Tensor]) -> None:
    for work in works:
        if seat.size == 1 and reduction.prescale != 1.0:
            work.mul_(reduction.prescale)
        reduction.finish(work, seat.size)


def _deliver(outputs: list[torch.Tensor], works: list[torch.Tensor]) -> None:
    for output, work in zip(outputs, works, strict=True):
        deliver(output, work)


def _collect(seat: Seat, place: Place, flat: torch.Tensor, room: torch.Tensor,
             text: str) -> Start:
    """Everybody's elements, a row per rank."""

    def start() -> int:
        return int(seat.context.group.allgather(
            flat.data_ptr(), room.data_ptr(), [size_of(flat)] * seat.size, text, seat.team,
            place.memory))

    if seat.size == 1:
        room.copy_(flat)
    return start


def _combine(combine: Combine, room: torch.Tensor, works: list[torch.Tensor]) -> None:
    result = functools.reduce(combine, list(room))
    parts = result.split([work.numel() for work in works])
    for work, part in zip(works, parts, strict=True):
        work.copy_(part.view(work.shape))


def _allreduce_sparse(seat: Seat, tensor: torch.Tensor, op: Any) -> Work:
    """The sum of sparse tensors: all ranks' entries, those at one place added up."""
    if op != dist.ReduceOp.SUM:
        raise ValueError(f"all_reduce of a sparse tensor supports ReduceOp.SUM only, not {op}")
    mine = tensor.detach().coalesce()
    text = seat.describe("all_reduce sparse", None, f"{dtype_name(mine.dtype)}{list(mine.shape)}")
    indices = mine.indices().t().contiguous()
    values = mine.values().contiguous()
    seat.check()
    counts = seat.context.gather_ints([indices.shape[0]], f"entries of {text}", seat.team)
    place = seat.place([values])
    starts: list[Start] = []
    rooms: list[torch.Tensor] = []
    works = [place.work(indices), place.work(values)]
    for work, what in zip(works, ("places", "values"), strict=True):
        width = size_of(work) // max(1, work.shape[0])
        if work.shape[0] == 0:
            width = work.element_size() * int(torch.Size(work.shape[1:]).numel())
        room = place.empty([sum(c[0] for c in counts), *work.shape[1:]], work.dtype)
        sizes = [c[0] * width for c in counts]
        rooms.append(room)
        starts.append(_gather_rows(seat, work, room, sizes, f"{what} of {text}", place))
        if seat.size == 1:
            room.copy_(work)

    def finish() -> None:
        total = torch.sparse_coo_tensor(
            rooms[0].t().to(tensor.device), rooms[1].to(tensor.device), tensor.shape)
        with torch.no_grad():
            tensor.copy_(total.coalesce())

    return seat.issue(starts, finish, [tensor, *works, *rooms], [tensor])


def _gather_rows(seat: Seat, work: torch.Tensor, room: torch.Tensor, sizes: list[int], text: str,
                 place: Place) -> Start:
    return lambda: int(seat.context.group.allgather(
        work.data_ptr(), room.data_ptr(), sizes, text, seat.team, place.memory))


def reduce(seat: Seat, tensor: torch.Tensor, op: Any, root: int) -> Work:
    """``root`` gets the reduction, in place; the tensors of others stay as they are."""
    check_dense([tensor], "reduce")
    plain = _real(tensor, op)
    reduction = reduction_of(op, plain.dtype, "reduce")
    seat.core(root)
    here = seat.rank == root
    place = seat.place([plain])
    work = place.work(plain)
    text = seat.describe(f"reduce {reduction.text}", plain, f"root {root}")
    keep: list[Any] = [tensor, work]
    if reduction.combine is not None:
        room = place.empty([seat.size, work.numel()], work.dtype)
        start = _collect(seat, place, work.view(-1), room, text)
        combine = reduction.combine
        keep.append(room)
    else:
        start = _start_allreduce(seat, place, [work], [work] if here else [], reduction, text)

    def finish() -> None:
        if not here:
            return
        with torch.no_grad():
            if reduction.combine is not None:
                _combine(combine, room, [work])
            else:
                _end_allreduce(seat, reduction, [work])
            deliver(plain, work)

    return seat.issue([start], finish, keep, [tensor])


def reduce_scatter(seat: Seat, output: torch.Tensor, inputs: Sequence[torch.Tensor],
                   op: Any) -> Work:
    """Rank r gets the reduction of everybody's ``inputs[r]``, whose sizes may differ."""
    check_count(inputs, seat.size, "reduce_scatter")
    check_alike([output, *inputs], "reduce_scatter")
    if inputs[seat.rank].numel() != output.numel():
        raise ValueError(
            f"reduce_scatter: the output of rank {seat.rank} has {output.numel()} elements, and "
            f"its input {inputs[seat.rank].numel()}")
    flat = torch.cat([_real(t, op).reshape(-1) for t in seat.in_core_order(inputs)])
    counts = [_real(t, op).numel() for t in seat.in_core_order(inputs)]
    return _scatter_reduced(seat, [output], [flat], [counts], op, "reduce_scatter")


def reduce_scatter_from(seat: Seat, outputs: Sequence[torch.Tensor],
                        inputs: Sequence[torch.Tensor], op: Any) -> Work:
    """For each output an input of as many blocks as ranks, of which rank r gets block r."""
    flats = []
    for output, tensor in zip(outputs, inputs, strict=True):
        check_alike([output, tensor], "reduce_scatter_tensor")
        if tensor.numel() != output.numel() * seat.size:
            raise ValueError(
                f"reduce_scatter_tensor: the input of {tensor.numel()} elements is not "
                f"{seat.size} times the output of {output.numel()}")
        plain = _real(tensor, op).detach().reshape(-1)
        if seat.ranks != sorted(seat.ranks):
            plain = torch.cat(seat.in_core_order(plain.chunk(seat.size)))
        flats.append(plain)
    counts = [[flat.numel() // seat.size] * seat.size for flat in flats]
    return _scatter_reduced(seat, outputs, flats, counts, op, "reduce_scatter_tensor")


def _scatter_reduced(seat: Seat, outputs: Sequence[torch.Tensor], flats: list[torch.Tensor],
                     counts: list[list[int]], op: Any, what: str) -> Work:
    """The blocks of all ranks, of so many elements, stand in the core's order in ``flats``."""
    starts: list[Start] = []
    ends: list[Callable[[], None]] = []
    keep: list[Any] = [*outputs, *flats]
    mine = seat.core(seat.rank)
    for output, flat, sizes in zip(outputs, flats, counts, strict=True):
        target = _real(output, op)
        reduction = reduction_of(op, flat.dtype, what)
        place = seat.place([flat, target])
        work, room = place.work(flat), place.work(target)
        keep += [work, room]
        text = seat.describe(f"{what} {reduction.text}", flat)
        if reduction.combine is not None:
            table = place.empty([seat.size, work.numel()], work.dtype)
            starts.append(_collect(seat, place, work, table, text))
            block = table[:, sum(sizes[:mine]):sum(sizes[:mine + 1])]
            ends.append(functools.partial(_combine, reduction.combine, block, [room]))
            keep.append(table)
        else:
            starts.append(_start_scatter(seat, place, work, room, sizes, reduction, text))
            ends.append(functools.partial(_end_scatter, seat, reduction, work, room))
        ends.append(functools.partial(_deliver, [target], [room]))

    def finish() -> None:
        with torch.no_grad():
            for end in ends:
                end()

    return seat.issue(starts, finish, keep, list(outputs))


def _start_scatter(seat: Seat, place: Place, work: torch.Tensor, room: torch.Tensor,
                   sizes: list[int], reduction: Reduction, text: str) -> Start:
    return lambda: int(seat.context.group.reducescatter(
        work.data_ptr(), room.data_ptr(), sizes, DTYPE_NAMES[work.dtype],
        reduction.core_op(work.dtype), reduction.prescale, 1.0, text, seat.team, place.memory))


def _end_scatter(seat: Seat, reduction: Reduction, work: torch.Tensor,
                 room: torch.Tensor) -> None:
    if seat.size == 1:
        room.copy_(work.view(room.shape) * reduction.prescale if reduction.prescale != 1.0
                   else work.view(room.shape))
    reduction.finish(room, seat.size)
