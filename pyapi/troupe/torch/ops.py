"""Collectives on tensors, with Horovod's names, arguments, defaults and autograd behaviour.

All ranks call the same collectives in the same order; names are checked, so that a mismatch of
shapes, dtypes or operations is an error on every rank and never a hang. Tensors may live on any
device; those outside of the CPU are staged through host memory.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from troupe.torch import _context
from troupe.torch._context import DTYPE_NAMES, Context
from troupe.torch._tree import mark_written, nbytes, staging
from troupe.torch.compression import Compression, Compressor
from troupe.torch.process_sets import ProcessSet, check_process_set, global_process_set


class ReduceOp(enum.IntEnum):
    """Reductions; the values are Horovod's."""

    Average = 0
    Sum = 1
    Min = 3
    Max = 4
    Product = 5


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product

_CORE_OPS = {Average: "average", Sum: "sum", Min: "min", Max: "max", Product: "product"}
_KIND_ALLREDUCE, _KIND_BROADCAST, _KIND_ALLGATHER, _KIND_BARRIER = 1, 2, 3, 4


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


def _check_tensor(tensor: Any, what: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what} needs a torch.Tensor, not {type(tensor).__name__}")
    if tensor.dtype not in DTYPE_NAMES:
        known = ", ".join(DTYPE_NAMES.values())
        raise ValueError(f"{what}: dtype {tensor.dtype} is not supported; known: {known}")
    if tensor.is_sparse:
        raise ValueError(f"{what}: sparse tensors are not supported; call to_dense() first")
    if not tensor.is_contiguous():
        raise ValueError(f"{what}: the tensor must be contiguous; call contiguous() first")


def _check_root(context: Context, root_rank: int) -> None:
    if isinstance(root_rank, bool) or not isinstance(root_rank, int):
        raise TypeError(f"root_rank must be an int, not {type(root_rank).__name__}")
    if not 0 <= root_rank < context.size:
        raise ValueError(f"root_rank {root_rank} is not a rank of a group of {context.size}")


# -- all-reduce ---------------------------------------------------------------------------------


def _scale_(tensor: torch.Tensor, factor: float) -> None:
    """Multiplies in place; integers are scaled in double precision and truncated."""
    if factor == 1.0:
        return
    with torch.no_grad():
        if tensor.dtype.is_floating_point:
            tensor.mul_(factor)
        else:
            tensor.copy_((tensor.double() * factor).trunc())


def _start_reduction(
    context: Context,
    group: list[torch.Tensor],
    op: ReduceOp,
    prescale: float,
    postscale: float,
    name: str,
) -> tuple[Callable[[], int], Callable[[], None]]:
    """How to start the reduction of tensors of one dtype, and what remains to do after it."""
    dtype = group[0].dtype
    buffers = [(t.data_ptr(), t.numel()) for t in group]
    exact = not dtype.is_floating_point
    core_op = "sum" if exact and op == Average else _CORE_OPS[op]

    def start() -> int:
        if exact:
            for tensor in group:
                _scale_(tensor, prescale)
        scales = (1.0, 1.0) if exact else (prescale, postscale)
        return int(context.group.allreduce(buffers, DTYPE_NAMES[dtype], core_op, *scales, name))

    def finish() -> None:
        for tensor in group:
            if exact:
                if op == Average and dtype != torch.bool:
                    tensor.copy_(torch.div(tensor, context.size, rounding_mode="trunc"))
                _scale_(tensor, postscale)
            else:
                mark_written(tensor)

    return start, finish


def _allreduce_in_place(
    outputs: list[torch.Tensor],
    name: Optional[str],
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    single: bool,
) -> int:
    context = _context.current()
    context.require_active()
    check_process_set(process_set)
    context.flush_optimizers()
    name = context.new_name("allreduce", name)
    context.reserve(name)
    works = [staging(t) for t in outputs]
    groups: dict[torch.dtype, list[torch.Tensor]] = {}
    for work in works:
        if work.numel():
            groups.setdefault(work.dtype, []).append(work)
    try:
        shape = list(outputs[0].shape) if single else [w.numel() for w in works]
        detail = f"{op.name}|{prescale}|{postscale}|{[DTYPE_NAMES[w.dtype] for w in works]}"
        dtype = outputs[0].dtype if outputs else None
        context.agree(name, _KIND_ALLREDUCE, dtype, shape, detail)
    except BaseException:
        context.unreserve(name)
        raise
    starts, finishers = [], []
    for group in groups.values():
        if context.size == 1:
            for work in group:
                _scale_(work, prescale * postscale)
            continue
        start, finish_group = _start_reduction(context, group, op, prescale, postscale, name)
        starts.append(start)
        finishers.append(finish_group)

    def finish() -> Any:
        with torch.no_grad():
            for finish_group in finishers:
                finish_group()
            for output, work in zip(outputs, works, strict=True):
                if work.data_ptr() != output.data_ptr():
                    output.copy_(work)
        return outputs[0] if single else outputs

    return context.issue(name, starts, finish, [*outputs, *works])


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
    _check_tensor(tensor, "allreduce")
    return _allreduce_in_place(
        [tensor], name, reduce_op, prescale_factor, postscale_factor, process_set, single=True
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
    """Starts an all-reduce; ``synchronize(handle)`` returns a new tensor of the same shape."""
    reduce_op = resolve_op(average, op)
    _check_tensor(tensor, "allreduce")
    output = tensor.detach().clone(memory_format=torch.contiguous_format)
    return _allreduce_in_place(
        [output], name, reduce_op, prescale_factor, postscale_factor, process_set, single=True
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
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor, postscale_factor: multiply before and after the reduction.

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
        _check_tensor(tensor, "grouped_allreduce")
    return _allreduce_in_place(
        list(tensors), name, reduce_op, prescale_factor, postscale_factor, process_set, single=False
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
    for tensor in tensors:
        _check_tensor(tensor, "grouped_allreduce")
    outputs = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]
    return grouped_allreduce_async_(
        outputs, average, name, op, prescale_factor, postscale_factor, process_set
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


# -- broadcast ----------------------------------------------------------------------------------


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an in-place broadcast of ``root_rank``'s tensor."""
    _check_tensor(tensor, "broadcast")
    context = _context.current()
    context.require_active()
    check_process_set(process_set)
    _check_root(context, root_rank)
    context.flush_optimizers()
    name = context.new_name("broadcast", name)
    context.reserve(name)
    try:
        context.agree(name, _KIND_BROADCAST, tensor.dtype, list(tensor.shape), f"root {root_rank}")
    except BaseException:
        context.unreserve(name)
        raise
    work = staging(tensor)
    starts: list[Callable[[], int]] = []
    if context.size > 1 and work.numel():
        starts.append(
            lambda: int(context.group.broadcast(work.data_ptr(), nbytes(work), root_rank, name))
        )

    def finish() -> torch.Tensor:
        if starts and context.rank != root_rank:
            if work.data_ptr() != tensor.data_ptr():
                with torch.no_grad():
                    tensor.copy_(work)
            else:
                mark_written(tensor)
        return tensor

    return context.issue(name, starts, finish, [tensor, work])


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a broadcast; ``synchronize(handle)`` returns a new tensor."""
    _check_tensor(tensor, "broadcast")
    output = tensor.detach().clone(memory_format=torch.contiguous_format)
    return broadcast_async_(output, root_rank, name, process_set)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: Optional[str],
                process_set: ProcessSet) -> torch.Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        reduced = allreduce(grads[0].contiguous(), op=Average, process_set=ctx.process_set)
        if _context.current().rank != ctx.root_rank:
            reduced = reduced * 0
        return reduced, None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """A new tensor with ``root_rank``'s values on every rank; differentiable."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Broadcasts in place and returns the tensor."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


# -- all-gather, barrier, handles ---------------------------------------------------------------


def allgather_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-gather; waits for the peers' first dimensions before it returns."""
    handle, _ = _allgather_start(tensor, name, process_set)
    return handle


def _allgather_start(
    tensor: torch.Tensor, name: Optional[str], process_set: ProcessSet
) -> tuple[int, list[int]]:
    _check_tensor(tensor, "allgather")
    if tensor.dim() == 0:
        raise ValueError("allgather needs a tensor of at least one dimension, not a scalar")
    context = _context.current()
    context.require_active()
    check_process_set(process_set)
    context.flush_optimizers()
    name = context.new_name("allgather", name)
    context.reserve(name)
    rest = list(tensor.shape[1:])
    try:
        context.agree(name, _KIND_ALLGATHER, tensor.dtype, [-1, *rest])
        rows = [r[0] for r in context.gather_ints([tensor.shape[0]], f"{name}.rows")]
    except BaseException:
        context.unreserve(name)
        raise
    work = staging(tensor)
    output = torch.empty([sum(rows), *rest], dtype=tensor.dtype)
    starts: list[Callable[[], int]] = []
    if context.size == 1:
        output.copy_(work)
    elif output.numel():
        row_bytes = nbytes(output) // sum(rows)
        per_rank = [row_bytes * r for r in rows]
        starts.append(
            lambda: int(
                context.group.allgather(work.data_ptr(), output.data_ptr(), per_rank, name)
            )
        )
    handle = context.issue(
        name, starts, lambda: output.to(tensor.device), [tensor, work, output]
    )
    return handle, rows


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str],
                process_set: ProcessSet) -> torch.Tensor:
        handle, ctx.rows = _allgather_start(tensor, name, process_set)
        ctx.process_set = process_set
        return synchronize(handle)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        reduced = allreduce(grads[0].contiguous(), op=Average, process_set=ctx.process_set)
        rank = _context.current().rank
        return reduced.narrow(0, sum(ctx.rows[:rank]), ctx.rows[rank]), None, None


def allgather(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Concatenates all ranks' tensors along the first dimension, which may differ; differentiable.

    Raises:
        ValueError: a scalar, or the other dimensions differ between ranks.
    """
    return _Allgather.apply(tensor, name, process_set)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks have called it."""
    context = _context.current()
    context.require_active()
    check_process_set(process_set)
    context.flush_optimizers()
    if context.size == 1:
        return
    name = context.new_name("barrier", None)
    context.agree(name, _KIND_BARRIER, None, [])
    context.run_now(name, lambda: int(context.group.barrier(name)))


def poll(handle: int) -> bool:
    """Whether an asynchronous collective is complete."""
    return _context.current().poll(handle)


def synchronize(handle: int) -> Any:
    """Waits for an asynchronous collective; returns its output, None for an unknown handle.

    Raises:
        HorovodInternalError: a peer died or the epoch changed.
    """
    return _context.current().wait(handle)
