"""Reduce-scatter and its grouped form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from troupe.torch._context import DTYPE_NAMES
from troupe.torch._devices import Place, place_of
from troupe.torch._movements import allgather, grouped_allgather
from troupe.torch._operations import (
    CORE_OPS,
    Average,
    ReduceOp,
    Site,
    Sum,
    check_rows,
    enter,
    resolve_op,
    rows_of,
    synchronize,
)
from troupe.torch._reductions import average_exactly_, scale_, scales_text
from troupe.torch.compression import Compression, Compressor
from troupe.torch.process_sets import ProcessSet, global_process_set


def reducescatter_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a reduce-scatter; ``synchronize(handle)`` returns this rank's rows, reduced."""
    return _reducescatter(
        [tensor], name, op, process_set, prescale_factor, postscale_factor, single=True
    )


def _reducescatter(
    tensors: list[torch.Tensor],
    name: Optional[str],
    op: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    single: bool,
) -> int:
    reduce_op = resolve_op(None, op)
    if reduce_op not in (Average, Sum):
        raise ValueError(f"reducescatter supports Average and Sum, not {reduce_op.name}")
    for tensor in tensors:
        check_rows(tensor, "reducescatter")
    site = enter("reducescatter", name, process_set)
    place = place_of(site.context.group, tensors)
    works = [_prescaled(place.work(t), prescale) for t in tensors]
    outputs: list[torch.Tensor] = []
    starts: list[Callable[[], int]] = []
    for work, tensor in zip(works, tensors, strict=True):
        rows = rows_of(work.shape[0], site.size)
        width = work[0].numel() if work.shape[0] else 0
        output = place.empty((rows[site.position], *work.shape[1:]), work.dtype)
        outputs.append(output)
        text = site.describe("reducescatter", tensor, tensor.shape, reduce_op.name.lower(),
                             scales_text(prescale, postscale))
        starts.append(_start_reducescatter(
            site, place, work, output, [r * width for r in rows], reduce_op, prescale, postscale,
            text,
        ))
        if site.size == 1:
            output.copy_(work)
            scale_(output, postscale if not work.dtype.is_floating_point else prescale * postscale)

    def finish() -> Any:
        results = []
        with torch.no_grad():
            for output, tensor in zip(outputs, tensors, strict=True):
                if site.size > 1 and not output.dtype.is_floating_point:
                    if reduce_op == Average:
                        average_exactly_(output, site.size)
                    scale_(output, postscale)
                results.append(output.to(tensor.device))
        return results[0] if single else results

    return site.issue(starts, finish, [*tensors, *works, *outputs])


def _prescaled(work: torch.Tensor, prescale: float) -> torch.Tensor:
    """Integers are scaled here, floating-point numbers by the core."""
    if work.dtype.is_floating_point or prescale == 1.0:
        return work
    scaled = work.clone()
    scale_(scaled, prescale)
    return scaled


def _start_reducescatter(
    site: Site, place: Place, work: torch.Tensor, output: torch.Tensor, counts: list[int],
    op: ReduceOp, prescale: float, postscale: float, text: str,
) -> Callable[[], int]:
    exact = not work.dtype.is_floating_point
    core_op = "sum" if exact else CORE_OPS[op]
    scales = (1.0, 1.0) if exact else (prescale, postscale)

    def start() -> int:
        return int(site.context.group.reducescatter(
            work.data_ptr(), output.data_ptr(), counts, DTYPE_NAMES[work.dtype], core_op, *scales,
            text, site.team, place.memory,
        ))

    return start


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str], op: int,
                process_set: ProcessSet, prescale: float, postscale: float) -> torch.Tensor:
        ctx.op, ctx.process_set = op, process_set
        ctx.scale = prescale * postscale
        return synchronize(
            reducescatter_async(tensor, name, op, process_set, prescale, postscale)
        )

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        grad = grads[0].contiguous() * _backward_scale(ctx)
        return allgather(grad, process_set=ctx.process_set), None, None, None, None, None


def _backward_scale(ctx: Any) -> float:
    """As Horovod has it: a sum's gradient is larger than an average's by the number of ranks."""
    size = ctx.process_set.size() if resolve_op(None, ctx.op) == Sum else 1
    return float(ctx.scale * size)


class _GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Optional[str], op: int, process_set: ProcessSet, prescale: float,
                postscale: float, *tensors: torch.Tensor) -> Any:
        ctx.op, ctx.process_set = op, process_set
        ctx.scale = prescale * postscale
        return tuple(synchronize(grouped_reducescatter_async(
            tensors, name, op, process_set, prescale, postscale)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        scale = _backward_scale(ctx)
        scaled = [grad.contiguous() * scale for grad in grads]
        return (None,) * 5 + tuple(grouped_allgather(scaled, process_set=ctx.process_set))


def reducescatter(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces ``tensor`` over all ranks and gives each its share of the rows; differentiable.

    Args:
        tensor: of equal shape and dtype on all ranks; the first ``shape[0] % size`` ranks get one
            row more.
        op: Average (default) or Sum.

    Returns:
        A new tensor of this rank's rows.

    Raises:
        ValueError: a scalar, another op, or the ranks disagree.
    """
    compressed, undo = compression.compress(tensor)
    reduced = _Reducescatter.apply(
        compressed, name, op, process_set, prescale_factor, postscale_factor
    )
    return compression.decompress(reduced, undo)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts the reduce-scatter of a list under one handle, which gives a list of tensors."""
    return _reducescatter(
        list(tensors), name, op, process_set, prescale_factor, postscale_factor, single=False
    )


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: Optional[str] = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """:func:`reducescatter` of a list of tensors, under one name; differentiable."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = _GroupedReducescatter.apply(
        name, op, process_set, prescale_factor, postscale_factor,
        *[compressed for compressed, _ in pairs],
    )
    return [compression.decompress(r, undo) for r, (_, undo) in zip(reduced, pairs, strict=True)]
