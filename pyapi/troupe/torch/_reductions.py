"""All-reduce, reduce, and their variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from troupe.torch._context import DTYPE_NAMES
from troupe.torch._devices import Place, host_place, place_of
from troupe.torch._operations import (
    CORE_OPS,
    Adasum,
    Average,
    ReduceOp,
    Site,
    check_tensor,
    deliver,
    enter,
    resolve_op,
    synchronize,
)
from troupe.torch._tree import nbytes
from troupe.torch.compression import Compression, Compressor
from troupe.torch.process_sets import ProcessSet, global_process_set

Buffers = list[tuple[int, int]]


def scale_(tensor: torch.Tensor, factor: float) -> None:
    """Multiplies in place; integers are scaled in double precision and truncated."""
    if factor == 1.0:
        return
    with torch.no_grad():
        if tensor.dtype.is_floating_point:
            tensor.mul_(factor)
        else:
            tensor.copy_((tensor.double() * factor).trunc())


def average_exactly_(tensor: torch.Tensor, size: int) -> None:
    """Divides a sum of integers, truncating towards zero; truth values stay as they are."""
    if tensor.dtype != torch.bool:
        tensor.copy_(torch.div(tensor, size, rounding_mode="trunc"))


def scales_text(prescale: float, postscale: float) -> str:
    """How a description names the scales."""
    return "" if prescale == postscale == 1.0 else f"prescale {prescale} postscale {postscale}"


class _Reduction:
    """One all-reduce of tensors of one dtype, out of ``ins`` into ``outs``, which are in place."""

    def __init__(self, site: Site, place: Place, ins: list[torch.Tensor],
                 outs: list[torch.Tensor], op: ReduceOp, prescale: float, postscale: float,
                 text: str) -> None:
        self.site, self.ins, self.outs, self.op, self.text = site, ins, outs, op, text
        self.place = place
        self.dtype = ins[0].dtype
        self.exact = not self.dtype.is_floating_point  # The core scales in floating point.
        self.prescale, self.postscale = prescale, postscale

    def start(self) -> int:
        """Issues it."""
        group, site = self.site.context.group, self.site
        outs: Buffers = [(t.data_ptr(), nbytes(t)) for t in self.outs]
        by_hand = self.op == Adasum or (self.exact and self.prescale != 1.0)
        if by_hand:
            for source, target in zip(self.ins, self.outs, strict=True):
                target.copy_(source)
                scale_(target, self.prescale)
        dtype = DTYPE_NAMES[self.dtype]
        if self.op == Adasum:
            return int(group.adasum(outs, dtype, self.text, site.team))
        ins = outs if by_hand else [(t.data_ptr(), nbytes(t)) for t in self.ins]
        op = "sum" if self.exact and self.op == Average else CORE_OPS[self.op]
        pre, post = (1.0, 1.0) if self.exact else (self.prescale, self.postscale)
        count = sum(t.numel() for t in self.ins)
        return int(group.allreduce(
            ins, outs, count, dtype, op, pre, post, self.text, site.team, self.place.memory
        ))

    def finish(self) -> None:
        """What remains when it has arrived."""
        for tensor in self.outs:
            if self.exact and self.op == Average:
                average_exactly_(tensor, self.site.size)
            if self.exact or self.op == Adasum:
                scale_(tensor, self.postscale)

    def alone(self) -> None:
        """The result of a set of one."""
        for source, target in zip(self.ins, self.outs, strict=True):
            if source.data_ptr() != target.data_ptr():
                target.copy_(source)
            scale_(target, self.prescale * self.postscale)


def _allreduce(
    inputs: list[torch.Tensor],
    outputs: list[torch.Tensor],
    name: Optional[str],
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    single: bool,
) -> int:
    """Starts the reduction of ``inputs`` into ``outputs``, which may be the same tensors."""
    if op == Adasum and any(not t.dtype.is_floating_point for t in inputs):
        raise ValueError("op=Adasum is for floating-point tensors")
    site = enter("allreduce", name, process_set)
    how = (op.name.lower(), scales_text(prescale, postscale))
    place = host_place() if op == Adasum else place_of(site.context.group, inputs)
    if single:
        text = site.describe("allreduce", inputs[0], inputs[0].shape, *how)
    else:
        parts = ", ".join(f"{DTYPE_NAMES[t.dtype]}{list(t.shape)}" for t in inputs)
        text = site.describe("grouped allreduce", None, (), *how, f"of {len(inputs)}: {parts}",
                             "on cuda" if place.kind == "cuda" else "")
    works_in = [place.work(t) for t in inputs]
    works_out = [
        w if o.data_ptr() == i.data_ptr() else place.work(o)
        for i, o, w in zip(inputs, outputs, works_in, strict=True)
    ]
    reductions = []
    with torch.no_grad():
        for dtype in dict.fromkeys(t.dtype for t in inputs):
            chosen = [i for i, t in enumerate(inputs) if t.dtype == dtype]
            reduction = _Reduction(
                site, place, [works_in[i] for i in chosen], [works_out[i] for i in chosen], op,
                prescale, postscale, text,
            )
            reductions.append(reduction)
            if site.size == 1:
                reduction.alone()

    def finish() -> Any:
        with torch.no_grad():
            for reduction in reductions if site.size > 1 else []:
                reduction.finish()
        for output, work in zip(outputs, works_out, strict=True):
            deliver(output, work)
        return outputs[0] if single else outputs

    starts: list[Callable[[], int]] = [reduction.start for reduction in reductions]
    return site.issue(starts, finish, [*inputs, *outputs, *works_in, *works_out])


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor.detach(), memory_format=torch.contiguous_format)


def allreduce_async_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an in-place all-reduce; the tensor is valid after ``synchronize(handle)``."""
    reduce_op = resolve_op(average, op)
    check_tensor(tensor, "allreduce")
    return _allreduce(
        [tensor], [tensor], name, reduce_op, prescale_factor, postscale_factor, process_set, True
    )


def allreduce_async(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-reduce; ``synchronize(handle)`` returns a new tensor of the same shape.

    ``tensor`` must not be written before that.
    """
    reduce_op = resolve_op(average, op)
    check_tensor(tensor, "allreduce")
    return _allreduce(
        [tensor.detach()], [_like(tensor)], name, reduce_op, prescale_factor, postscale_factor,
        process_set, True,
    )


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, average: Optional[bool], name: Optional[str],
                op: Optional[int], prescale: float, postscale: float,
                process_set: ProcessSet) -> torch.Tensor:
        ctx.arguments = (average, op, prescale, postscale, process_set)
        handle = allreduce_async(tensor, average, name, op, prescale, postscale, process_set)
        return synchronize(handle)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        average, op, prescale, postscale, process_set = ctx.arguments
        reduced = allreduce(
            grads[0].contiguous(), average=average, op=op, prescale_factor=prescale,
            postscale_factor=postscale, process_set=process_set,
        )
        return reduced, None, None, None, None, None, None


def allreduce(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: type[Compressor] = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces ``tensor`` over all ranks; differentiable.

    Args:
        tensor: of equal shape and dtype on all ranks, contiguous.
        average: deprecated, use ``op``.
        name: pairs the calls of the ranks; default: counted.
        compression: ``Compression.none``, ``fp16``, ``bf16`` or your own.
        op: Average (default), Sum, Adasum, Min, Max or Product.
        prescale_factor, postscale_factor: multiply before and after the reduction.
        process_set: the ranks that take part.

    Returns:
        A new tensor of the same shape and dtype.

    Raises:
        ValueError: not initialised, ``average`` and ``op`` both given, name in flight, tensor not
            contiguous, ranks disagree. HorovodInternalError: a peer died or the epoch changed.
    """
    compressed, undo = compression.compress(tensor)
    reduced = _Allreduce.apply(
        compressed, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return compression.decompress(reduced, undo)


def allreduce_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """All-reduces ``tensor`` in place and returns it. Not differentiable."""
    return synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an in-place all-reduce of a list as one operation per dtype."""
    reduce_op = resolve_op(average, op)
    for tensor in tensors:
        check_tensor(tensor, "grouped_allreduce")
    return _allreduce(
        list(tensors), list(tensors), name, reduce_op, prescale_factor, postscale_factor,
        process_set, False,
    )


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-reduce of a list; ``synchronize(handle)`` returns a list of new tensors."""
    reduce_op = resolve_op(average, op)
    for tensor in tensors:
        check_tensor(tensor, "grouped_allreduce")
    return _allreduce(
        [t.detach() for t in tensors], [_like(t) for t in tensors], name, reduce_op,
        prescale_factor, postscale_factor, process_set, False,
    )


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, average: Optional[bool], name: Optional[str], op: Optional[int],
                prescale: float, postscale: float, process_set: ProcessSet,
                *tensors: torch.Tensor) -> Any:
        ctx.arguments = (average, None, op, prescale, postscale, process_set)
        handle = grouped_allreduce_async(
            tensors, average, name, op, prescale, postscale, process_set
        )
        return tuple(synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        reduced = _GroupedAllreduce.apply(*ctx.arguments, *[g.contiguous() for g in grads])
        return (None,) * 6 + tuple(reduced)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: type[Compressor] = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """:func:`allreduce` of a list of tensors as one operation; differentiable."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = _GroupedAllreduce.apply(
        average, name, op, prescale_factor, postscale_factor, process_set,
        *[compressed for compressed, _ in pairs],
    )
    return [compression.decompress(r, undo) for r, (_, undo) in zip(reduced, pairs, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """All-reduces a list in place as one operation and returns it."""
    return synchronize(
        grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


# -- reduce -------------------------------------------------------------------------------------


def reduce(
    tensor: torch.Tensor,
    root_rank: int,
    op: Optional[int] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Optional[torch.Tensor]:
    """Reduces ``tensor`` over all ranks; a new tensor on ``root_rank``, None on the others."""
    reduce_op = resolve_op(None, op)
    check_tensor(tensor, "reduce")
    if reduce_op == Adasum:
        raise ValueError("reduce does not support op=Adasum; use allreduce")
    site = enter("reduce", name, process_set)
    try:
        mine = site.position == site.position_of(root_rank)
    except BaseException:
        site.context.unreserve(site.name)
        raise
    text = site.describe("reduce", tensor, tensor.shape, reduce_op.name.lower(),
                         f"root {root_rank}")
    place = place_of(site.context.group, [tensor])
    work = place.work(tensor)
    output = place.empty(tensor.shape, tensor.dtype)
    exact = reduce_op == Average and not tensor.dtype.is_floating_point
    outs = [(output.data_ptr(), nbytes(output))] if mine else []

    def start() -> int:
        return int(site.context.group.allreduce(
            [(work.data_ptr(), nbytes(work))], outs, work.numel(), DTYPE_NAMES[work.dtype],
            "sum" if exact else CORE_OPS[reduce_op], 1.0, 1.0, text, site.team, place.memory,
        ))

    def finish() -> Optional[torch.Tensor]:
        if site.size == 1:
            output.copy_(work)
        elif exact and mine:
            average_exactly_(output, site.size)
        return output.to(tensor.device) if mine else None

    return synchronize(site.issue([start], finish, [tensor, work, output]))
