"""Collectives of torch.distributed that move tensors and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch

from troupe.torch.distributed._seat import (
    Blocks,
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


def broadcast(seat: Seat, tensor: torch.Tensor, root: int) -> Work:
    """Every rank gets the tensor of ``root``."""
    check_dense([tensor], "broadcast")
    text = seat.describe("broadcast", tensor, f"root {root}")
    position = seat.core(root)
    place = seat.place([tensor])
    work = place.work(tensor)

    def start() -> int:
        return int(seat.context.group.broadcast(
            work.data_ptr(), size_of(work), position, text, seat.team, place.memory))

    def finish() -> None:
        if seat.rank != root:
            with torch.no_grad():
                deliver(tensor, work)

    return seat.issue([start], finish, [tensor, work], [tensor])


def allgather(seat: Seat, lists: Sequence[Sequence[torch.Tensor]],
              inputs: Sequence[torch.Tensor]) -> Work:
    """For each input a list that gets the tensors of all ranks, whose sizes may differ."""
    starts: list[Start] = []
    rooms: list[torch.Tensor] = []
    works: list[torch.Tensor] = []
    for outputs, tensor in zip(lists, inputs, strict=True):
        check_count(outputs, seat.size, "all_gather")
        check_alike([*outputs, tensor], "all_gather")
        if outputs[seat.rank].numel() != tensor.numel():
            raise ValueError(
                f"all_gather: rank {seat.rank} gives {list(tensor.shape)}, but its own place in "
                f"the list of outputs is {list(outputs[seat.rank].shape)}")
        place = seat.place([tensor])
        work = place.work(tensor)
        room = place.empty([sum(t.numel() for t in outputs)], tensor.dtype)
        shapes = ", ".join(str(list(t.shape)) for t in seat.in_core_order(outputs))
        text = seat.describe(f"all_gather {dtype_name(tensor.dtype)}{shapes}", None,
                             "" if tensor.device.type == "cpu" else f"on {tensor.device.type}")
        sizes = [size_of(t) for t in seat.in_core_order(outputs)]
        starts.append(_gather_start(seat, work, room, sizes, text, place.memory))
        rooms.append(room)
        works.append(work)
    flat = [t for outputs in lists for t in outputs]

    def finish() -> None:
        with torch.no_grad():
            for outputs, room, work in zip(lists, rooms, works, strict=True):
                if seat.size == 1:
                    room.copy_(work.reshape(-1))
                ordered = seat.in_core_order(outputs)
                parts = room.split([t.numel() for t in ordered])
                for output, part in zip(ordered, parts, strict=True):
                    output.copy_(part.view(output.shape))

    return seat.issue(starts, finish, [*flat, *inputs, *works, *rooms], flat)


def allgather_into(seat: Seat, outputs: Sequence[torch.Tensor],
                   inputs: Sequence[torch.Tensor]) -> Work:
    """For each input an output that gets the tensors of all ranks, one behind the other."""
    starts: list[Start] = []
    rooms: list[torch.Tensor] = []
    works: list[torch.Tensor] = []
    straight = seat.ranks == sorted(seat.ranks)
    for output, tensor in zip(outputs, inputs, strict=True):
        check_alike([output, tensor], "all_gather_into_tensor")
        if output.numel() != tensor.numel() * seat.size:
            raise ValueError(
                f"all_gather_into_tensor: the output of {output.numel()} elements is not "
                f"{seat.size} times the input of {tensor.numel()}")
        place = seat.place([tensor, output])
        work = place.work(tensor)
        fits = straight and output.is_contiguous() and output.device == place.device
        room = output.detach() if fits else place.empty([output.numel()], output.dtype)
        text = seat.describe("all_gather_into_tensor", tensor)
        starts.append(_gather_start(seat, work, room, [size_of(work)] * seat.size, text,
                                    place.memory))
        rooms.append(room)
        works.append(work)

    def finish() -> None:
        with torch.no_grad():
            for output, room, work in zip(outputs, rooms, works, strict=True):
                if seat.size == 1:
                    room.view(-1).copy_(work.reshape(-1))
                if room.data_ptr() != output.data_ptr():
                    output.copy_(_in_group_order(seat, room).view(output.shape))

    return seat.issue(starts, finish, [*outputs, *inputs, *works, *rooms], list(outputs))


def _in_group_order(seat: Seat, room: torch.Tensor) -> torch.Tensor:
    blocks = room.view(seat.size, -1)
    return blocks[[seat.core(position) for position in range(seat.size)]]


def _gather_start(seat: Seat, work: torch.Tensor, room: torch.Tensor, sizes: list[int], text: str,
                  memory: tuple[int, int]) -> Start:
    return lambda: int(seat.context.group.allgather(
        work.data_ptr(), room.data_ptr(), sizes, text, seat.team, memory))


def gather(seat: Seat, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Work:
    """``root`` gets the tensors of all ranks; the outputs of others are empty lists."""
    check_alike([*outputs, tensor], "gather")
    text = seat.describe("gather", tensor, f"root {root}")
    seat.core(root)
    place = seat.place([tensor])
    work = place.work(tensor)
    here = seat.rank == root
    if here:
        check_count(outputs, seat.size, "gather")
        _check_sizes(outputs, tensor, "gather")
    elif outputs:
        raise ValueError(f"gather: only the destination, rank {root}, has outputs")
    rooms = [place.work(t) for t in outputs]
    outgoing: Blocks = [] if here else [(root, work.data_ptr(), size_of(work))]
    incoming: Blocks = [(peer, room.data_ptr(), size_of(room))
                        for peer, room in enumerate(rooms) if peer != root]

    def finish() -> None:
        with torch.no_grad():
            for peer, (output, room) in enumerate(zip(outputs, rooms, strict=True)):
                deliver(output, work.view(output.shape) if peer == root else room)

    start = seat.exchange(outgoing, incoming, text, place)
    return seat.issue([start], finish, [*outputs, tensor, work, *rooms], list(outputs))


def scatter(seat: Seat, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int) -> Work:
    """Each rank gets its tensor of the list of ``root``; the inputs of others are empty lists."""
    check_alike([*inputs, output], "scatter")
    text = seat.describe("scatter", output, f"root {root}")
    seat.core(root)
    place = seat.place([output])
    here = seat.rank == root
    if here:
        check_count(inputs, seat.size, "scatter")
        _check_sizes(inputs, output, "scatter")
    elif inputs:
        raise ValueError(f"scatter: only the source, rank {root}, has inputs")
    works = [place.work(t) for t in inputs]
    room = place.work(output)
    outgoing: Blocks = [(peer, work.data_ptr(), size_of(work))
                        for peer, work in enumerate(works) if peer != root]
    incoming: Blocks = [] if here else [(root, room.data_ptr(), size_of(room))]

    def finish() -> None:
        with torch.no_grad():
            deliver(output, works[root].view(output.shape) if here else room)

    start = seat.exchange(outgoing, incoming, text, place)
    return seat.issue([start], finish, [output, room, *inputs, *works], [output])


def _check_sizes(tensors: Sequence[torch.Tensor], like: torch.Tensor, what: str) -> None:
    for index, tensor in enumerate(tensors):
        if tensor.numel() != like.numel():
            raise ValueError(f"{what}: the tensor of rank {index} has {tensor.numel()} elements, "
                             f"and that of this rank {like.numel()}")


def alltoall(seat: Seat, outputs: Sequence[torch.Tensor],
             inputs: Sequence[torch.Tensor]) -> Work:
    """Rank r gets ``inputs[r]`` of every rank, whose sizes may differ."""
    check_count(outputs, seat.size, "all_to_all")
    check_count(inputs, seat.size, "all_to_all")
    check_alike([*outputs, *inputs], "all_to_all")
    mine = seat.rank
    if inputs[mine].numel() != outputs[mine].numel():
        raise ValueError(f"all_to_all: this rank gives itself {inputs[mine].numel()} elements, "
                         f"and has room for {outputs[mine].numel()}")
    place = seat.place([*inputs, *outputs])
    works = [place.work(t) for t in inputs]
    rooms = [place.work(t) for t in outputs]
    text = seat.describe(f"all_to_all {dtype_name(inputs[0].dtype)}", None)
    outgoing: Blocks = [(p, w.data_ptr(), size_of(w)) for p, w in enumerate(works) if p != mine]
    incoming: Blocks = [(p, r.data_ptr(), size_of(r)) for p, r in enumerate(rooms) if p != mine]

    def finish() -> None:
        with torch.no_grad():
            for peer, (output, room) in enumerate(zip(outputs, rooms, strict=True)):
                deliver(output, works[mine].view(output.shape) if peer == mine else room)

    start = seat.exchange(outgoing, incoming, text, place)
    return seat.issue([start], finish, [*outputs, *inputs, *works, *rooms], list(outputs))


def alltoall_single(seat: Seat, output: torch.Tensor, tensor: torch.Tensor,
                    output_splits: Sequence[int], input_splits: Sequence[int]) -> Work:
    """As :func:`alltoall` with rows of one tensor; no splits: equal shares."""
    check_alike([output, tensor], "all_to_all_single")
    place = seat.place([tensor, output])
    work, room = place.work(tensor), place.work(output)
    sends = _rows(work, input_splits, seat.size, "input")
    receives = _rows(room, output_splits, seat.size, "output")
    mine = seat.rank
    if sends[mine].numel() != receives[mine].numel():
        raise ValueError(f"all_to_all_single: this rank gives itself {sends[mine].numel()} "
                         f"elements, and has room for {receives[mine].numel()}")
    text = seat.describe(f"all_to_all_single {dtype_name(tensor.dtype)}", None)
    outgoing: Blocks = [(p, s.data_ptr(), size_of(s)) for p, s in enumerate(sends) if p != mine]
    incoming: Blocks = [(p, r.data_ptr(), size_of(r)) for p, r in enumerate(receives) if p != mine]

    def finish() -> None:
        with torch.no_grad():
            receives[mine].copy_(sends[mine].view(receives[mine].shape))
            deliver(output, room)

    start = seat.exchange(outgoing, incoming, text, place)
    return seat.issue([start], finish, [output, tensor, work, room], [output])


def _rows(tensor: torch.Tensor, splits: Sequence[int], size: int,
          which: str) -> list[torch.Tensor]:
    rows = int(tensor.shape[0]) if tensor.dim() else 0
    if not splits:
        if rows % size:
            raise ValueError(f"all_to_all_single: {rows} rows of the {which} cannot be shared "
                             f"evenly by {size} ranks; give {which}_split_sizes")
        splits = [rows // size] * size
    if len(splits) != size or any(s < 0 for s in splits) or sum(splits) != rows:
        raise ValueError(f"all_to_all_single: {which}_split_sizes must be {size} numbers of rows "
                         f"that add up to {rows}, not {list(splits)}")
    return list(tensor.split(list(splits)))


def barrier(seat: Seat, text: Optional[str] = None) -> Work:
    """Returns when all ranks have called it."""
    what = text or "barrier"
    return seat.issue([lambda: int(seat.context.group.barrier(what, seat.team))], lambda: None,
                      [], [])
