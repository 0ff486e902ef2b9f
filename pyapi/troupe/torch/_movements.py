"""Broadcast, all-gather, all-to-all, gather, scatter, barrier, and sparse all-reduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import torch

from troupe.torch import _context
from troupe.torch._devices import Place, host_place, place_of
from troupe.torch._operations import (
    Average,
    Site,
    Sum,
    check_rows,
    check_tensor,
    deliver,
    enter,
    resolve_op,
    rows_of,
    synchronize,
)
from troupe.torch._reductions import allreduce, grouped_allreduce
from troupe.torch._tree import nbytes
from troupe.torch.process_sets import ProcessSet, global_process_set

Blocks = list[tuple[int, int, int]]

# -- broadcast ----------------------------------------------------------------------------------


def _broadcast(output: torch.Tensor, root_rank: int, name: Optional[str],
               process_set: ProcessSet) -> int:
    site = enter("broadcast", name, process_set)
    try:
        root = site.position_of(root_rank)
    except BaseException:
        site.context.unreserve(site.name)
        raise
    text = site.describe("broadcast", output, output.shape, f"root {root_rank}")
    place = place_of(site.context.group, [output])
    work = place.work(output)

    def start() -> int:
        return int(site.context.group.broadcast(
            work.data_ptr(), nbytes(work), root, text, site.team, place.memory
        ))

    def finish() -> torch.Tensor:
        return output if site.position == root else deliver(output, work)

    return site.issue([start], finish, [output, work])


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an in-place broadcast of ``root_rank``'s tensor."""
    check_tensor(tensor, "broadcast")
    return _broadcast(tensor, root_rank, name, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a broadcast; ``synchronize(handle)`` returns a new tensor."""
    check_tensor(tensor, "broadcast")
    output = tensor.detach().clone(memory_format=torch.contiguous_format)
    return _broadcast(output, root_rank, name, process_set)


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
    """A new tensor with ``root_rank``'s values on every rank; differentiable.

    ``root_rank`` is a rank of the group, with a process set too.
    """
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Broadcasts in place and returns the tensor."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


# -- all-gather ---------------------------------------------------------------------------------



def _width(tensor: torch.Tensor) -> int:
    """Bytes of a row, also of a tensor without rows."""
    elements = 1
    for dim in tensor.shape[1:]:
        elements *= int(dim)
    return elements * tensor.element_size()


def _gather_rows(site: Site, kind: str, tensor: torch.Tensor) -> list[int]:
    """All ranks' first dimensions; the ranks compare the rest on this occasion."""
    text = site.describe(kind, tensor, ["any", *tensor.shape[1:]])
    try:
        return [r[0] for r in site.context.gather_ints([tensor.shape[0]], text, site.team)]
    except BaseException:
        site.context.unreserve(site.name)
        raise


def _allgather(
    tensors: list[torch.Tensor], name: Optional[str], process_set: ProcessSet, single: bool
) -> tuple[int, list[list[int]]]:
    for tensor in tensors:
        check_rows(tensor, "allgather")
    site = enter("allgather", name, process_set)
    rows = [_gather_rows(site, "allgather", tensor) for tensor in tensors]
    place = place_of(site.context.group, tensors)
    works = [place.work(t) for t in tensors]
    outputs = [
        place.empty([sum(r), *t.shape[1:]], t.dtype) for r, t in zip(rows, tensors, strict=True)
    ]

    def starter(tensor: torch.Tensor, work: torch.Tensor, output: torch.Tensor,
                counts: list[int]) -> Callable[[], int]:
        per_rank = [count * _width(work) for count in counts]
        text = site.describe("allgather of", tensor, list(output.shape))
        return lambda: int(site.context.group.allgather(
            work.data_ptr(), output.data_ptr(), per_rank, text, site.team, place.memory
        ))

    starts = [starter(*item) for item in zip(tensors, works, outputs, rows, strict=True)]
    if site.size == 1:
        for work, output in zip(works, outputs, strict=True):
            output.copy_(work)

    def finish() -> Any:
        results = [o.to(t.device) for o, t in zip(outputs, tensors, strict=True)]
        return results[0] if single else results

    return site.issue(starts, finish, [*tensors, *works, *outputs]), rows


def allgather_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-gather; waits for the peers' first dimensions before it returns."""
    return _allgather([tensor], name, process_set, single=True)[0]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str],
                process_set: ProcessSet) -> torch.Tensor:
        handle, (ctx.rows,) = _allgather([tensor], name, process_set, single=True)
        ctx.process_set = process_set
        return synchronize(handle)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        reduced = allreduce(grads[0].contiguous(), op=Average, process_set=ctx.process_set)
        rank = ctx.process_set.rank()
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


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts the all-gather of a list under one handle, which gives a list of tensors."""
    return _allgather(list(tensors), name, process_set, single=False)[0]


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Optional[str], process_set: ProcessSet,
                *tensors: torch.Tensor) -> Any:
        handle, ctx.rows = _allgather(list(tensors), name, process_set, single=False)
        ctx.process_set = process_set
        return tuple(synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        reduced = grouped_allreduce(
            [grad.contiguous() for grad in grads], op=Average, process_set=ctx.process_set)
        rank = ctx.process_set.rank()
        mine = (grad.narrow(0, sum(rows[:rank]), rows[rank])
                for grad, rows in zip(reduced, ctx.rows, strict=True))
        return None, None, *mine


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """:func:`allgather` of a list of tensors, under one name; differentiable."""
    return list(_GroupedAllgather.apply(name, process_set, *tensors))


# -- all-to-all, gather, scatter ----------------------------------------------------------------

Splits = Optional[Union[torch.Tensor, Sequence[int]]]


def _exchange(site: Site, work: torch.Tensor, send_rows: list[int], output: torch.Tensor,
              receive_rows: list[int], text: str, place: Place) -> Callable[[], int]:
    """Rows to and from every rank, in order of rank; this rank's own are copied here."""
    width = _width(work)
    outgoing: Blocks = []
    incoming: Blocks = []
    sent = received = 0
    mine = site.position
    for peer, (sends, receives) in enumerate(zip(send_rows, receive_rows, strict=True)):
        if peer == mine:
            output[received:received + receives].copy_(work[sent:sent + sends])
        else:
            outgoing.append((peer, work.data_ptr() + sent * width, sends * width))
            incoming.append((peer, output.data_ptr() + received * width, receives * width))
        sent += sends
        received += receives
    # Everybody begins with another peer.
    outgoing.sort(key=lambda block: (block[0] - mine) % site.size)
    incoming.sort(key=lambda block: (mine - block[0]) % site.size)
    return lambda: int(
        site.context.group.exchange(outgoing, incoming, text, site.team, place.memory)
    )


def _check_splits(splits: Splits, tensor: torch.Tensor, size: int) -> list[int]:
    rows = int(tensor.shape[0])
    if splits is None:
        if rows % size:
            raise ValueError(
                f"alltoall without splits needs a first dimension that {size} ranks can share "
                f"evenly, not {rows}; pass splits"
            )
        return [rows // size] * size
    values = [int(v) for v in (splits.tolist() if isinstance(splits, torch.Tensor) else splits)]
    if len(values) != size or any(v < 0 for v in values) or sum(values) != rows:
        raise ValueError(
            f"splits must be {size} numbers of rows that add up to {rows}, not {values}"
        )
    return values


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-to-all; see :func:`alltoall` for what ``synchronize(handle)`` returns."""
    check_rows(tensor, "alltoall")
    site = enter("alltoall", name, process_set)
    context = site.context
    text = site.describe("alltoall", tensor, ["any", *tensor.shape[1:]])
    try:
        send_rows = _check_splits(splits, tensor, site.size)
        table = context.gather_ints(send_rows, text, site.team)
    except BaseException:
        context.unreserve(site.name)
        raise
    receive_rows = [int(row[site.position]) for row in table]
    place = place_of(context.group, [tensor])
    work = place.work(tensor)
    output = place.empty([sum(receive_rows), *tensor.shape[1:]], tensor.dtype)
    with torch.no_grad():
        start = _exchange(site, work, send_rows, output, receive_rows, f"{text} rows", place)
    received = torch.tensor(receive_rows, dtype=torch.int32)

    def finish() -> Any:
        result = output.to(tensor.device)
        return result if splits is None else (result, received)

    return site.issue([start], finish, [tensor, work, output])


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: torch.Tensor, name: Optional[str],
                process_set: ProcessSet) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        back, _ = synchronize(
            alltoall_async(grads[0].contiguous(), ctx.received, None, ctx.process_set)
        )
        return back, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends each rank its rows of ``tensor`` and concatenates what comes in; differentiable.

    Args:
        splits: rows for each rank, in order; they add up to the first dimension. Default: equal
            shares.

    Returns:
        The rows received, in order of rank; with ``splits`` a pair of them and an int32 tensor of
        the numbers of rows received from each rank.

    Raises:
        ValueError: a scalar, splits that do not fit, or the ranks disagree.
    """
    check_rows(tensor, "alltoall")
    size = process_set.size() if isinstance(process_set, ProcessSet) else 1
    known = torch.tensor(_check_splits(splits, tensor, size), dtype=torch.int32)
    output, received = _Alltoall.apply(tensor, known, name, process_set)
    return output if splits is None else (output, received)


def gather(
    tensor: torch.Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Optional[torch.Tensor]:
    """All ranks' rows, in order of rank, on ``root_rank``; None on the others.

    The first dimension may differ between ranks.
    """
    check_rows(tensor, "gather")
    site = enter("gather", name, process_set)
    try:
        root = site.position_of(root_rank)
    except BaseException:
        site.context.unreserve(site.name)
        raise
    rows = _gather_rows(site, f"gather to {root_rank}", tensor)
    place = place_of(site.context.group, [tensor])
    work = place.work(tensor)
    here = site.position == root
    none = [0] * site.size
    sends = list(none)
    sends[root] = int(work.shape[0])
    output = place.empty([sum(rows) if here else 0, *tensor.shape[1:]], tensor.dtype)
    text = site.describe(f"rows of a gather to {root_rank}", tensor, [sum(rows)])
    if here:
        start = _exchange(site, work, [r if p == root else 0 for p, r in enumerate(rows)], output,
                          rows, text, place)
    else:
        start = _exchange(site, work, sends, output, none, text, place)
    return synchronize(site.issue(
        [start], lambda: output.to(tensor.device) if here else None, [tensor, work, output]
    ))


def scatter(
    tensor: Optional[torch.Tensor],
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """This rank's share of the rows of ``root_rank``'s tensor.

    The first ``rows % size`` ranks get one row more. Ranks other than the root may pass None.
    """
    site = enter("scatter", name, process_set)
    context = site.context
    try:
        root = site.position_of(root_rank)
        here = site.position == root
        if here:
            check_rows(tensor, "scatter")
    except BaseException:
        context.unreserve(site.name)
        raise
    source: torch.Tensor = tensor if here else torch.empty(0)
    codes = list(_context.DTYPE_NAMES)
    shape = [codes.index(source.dtype), source.dim(), *source.shape] if here else []
    text = site.describe("scatter", None, (), f"root {root_rank}")
    head = torch.zeros(32, dtype=torch.int64)
    head[:len(shape)] = torch.tensor(shape, dtype=torch.int64)
    if site.size > 1:
        context.run_now(text, lambda: int(
            context.group.broadcast(head.data_ptr(), nbytes(head), root, text, site.team)
        ))
    dims = [int(d) for d in head[2:2 + int(head[1])]]
    dtype = codes[int(head[0])]
    rows = rows_of(dims[0], site.size)
    place = host_place()  # Only the root knows which device.
    work = place.work(source) if here else place.empty([0, *dims[1:]], dtype)
    output = place.empty([rows[site.position], *dims[1:]], dtype)
    none = [0] * site.size
    if here:
        receives = [r if p == root else 0 for p, r in enumerate(rows)]
        start = _exchange(site, work, rows, output, receives, f"{text} rows", place)
    else:
        receives = list(none)
        receives[root] = rows[site.position]
        start = _exchange(site, work, none, output, receives, f"{text} rows", place)
    return synchronize(site.issue([start], lambda: output.to(source.device), [work, output]))


# -- sparse all-reduce, barrier -----------------------------------------------------------------


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    op: Optional[int] = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts the reduction of a sparse COO tensor by gathering indices and values.

    Args:
        tensor: sparse, of equal shape and dtype on all ranks.
        op: Average (default) or Sum.

    Returns:
        A function that waits and returns the sum or the average as an uncoalesced sparse tensor.

    Raises:
        ValueError: the tensor is dense, or another op.
    """
    reduce_op = resolve_op(None, op)
    if reduce_op not in (Average, Sum):
        raise ValueError(f"sparse_allreduce supports Average and Sum, not {reduce_op.name}")
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
        raise ValueError("sparse_allreduce_async needs a sparse COO tensor; use allreduce()")
    tensor = tensor.detach().coalesce()
    indices = tensor.indices().transpose(0, 1).contiguous()  # (entries, dimensions)
    labels = (None, None) if name is None else (f"{name}.indices", f"{name}.values")
    size = process_set.size()
    handles = [
        allgather_async(indices, labels[0], process_set),
        allgather_async(tensor.values().contiguous(), labels[1], process_set),
    ]

    def wait() -> torch.Tensor:
        all_indices, all_values = (synchronize(handle) for handle in handles)
        if reduce_op == Average:
            all_values = all_values / size
        return torch.sparse_coo_tensor(
            all_indices.transpose(0, 1), all_values, tensor.shape, device=tensor.device
        )

    return wait


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks have called it."""
    site = enter("barrier", None, process_set)
    text = site.describe("barrier", None, ())
    synchronize(site.issue(
        [lambda: int(site.context.group.barrier(text, site.team))], lambda: None, []
    ))
