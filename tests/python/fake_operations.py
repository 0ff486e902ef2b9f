"""What the collectives of the stand-in for ``troupe._core`` compute.

Members are told apart by their identity; an operation holds what each of them gave it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Optional

import torch

from fake_errors import CoreError

DTYPES = {
    "uint8": torch.uint8, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32,
    "int64": torch.int64, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "float32": torch.float32, "float64": torch.float64, "bool": torch.bool,
}


def memory(ptr: int, nbytes: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(ptr), dtype=dtype)


class Op:
    def __init__(self, kind: str, key: tuple[Any, ...], text: str = "") -> None:
        self.kind = kind
        self.key = key
        self.text = text
        self.parts: dict[int, Any] = {}
        self.done_for: set[int] = set()
        self.error: Optional[CoreError] = None


def perform(op: Op, members: list[Any], chosen: list[Any]) -> None:
    """Gives the chosen of the members what the operation of all of them results in."""
    if op.kind == "allreduce":
        _reduce(op, members, chosen)
    elif op.kind == "reducescatter":
        _reduce_scatter(op, members, chosen)
    elif op.kind == "adasum":
        _adasum(op, members, chosen)
    elif op.kind == "broadcast":
        nbytes, root = op.key
        if nbytes:
            source = memory(op.parts[id(members[root])], nbytes).clone()
            for member in chosen:
                memory(op.parts[id(member)], nbytes).copy_(source)
    elif op.kind == "allgather":
        blocks = [
            memory(op.parts[id(m)][0], n) for m, n in zip(members, op.key) if n
        ]
        for member in chosen if blocks else []:
            memory(op.parts[id(member)][1], sum(op.key)).copy_(torch.cat(blocks))
    elif op.kind == "exchange":
        _exchange(op, members, chosen)


def _combine(
    parts: list[torch.Tensor], how: str, pre: Sequence[float], post: float
) -> torch.Tensor:
    dtype = parts[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    stack = torch.stack([p.to(wide) * f if f != 1.0 else p.to(wide) for p, f in zip(parts, pre)])
    if how in ("sum", "average"):
        result = stack.any(0) if dtype == torch.bool else stack.sum(0)
        if how == "average":
            result = result / len(parts)
    elif how == "min":
        result = stack.min(0).values
    elif how == "max":
        result = stack.max(0).values
    else:
        result = stack.prod(0)
    if post != 1.0:
        result = result * post
    return result.to(dtype)


def _joined(buffers: list[tuple[int, int]], dtype: torch.dtype) -> torch.Tensor:
    pieces = [memory(ptr, n, dtype) for ptr, n in buffers if n]
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=dtype)


def _spread(flat: torch.Tensor, buffers: list[tuple[int, int]]) -> None:
    begin = 0
    for ptr, n in buffers:
        if n == 0:
            continue
        target = memory(ptr, n, flat.dtype)
        target.copy_(flat[begin:begin + target.numel()])
        begin += target.numel()


def _reduce(op: Op, members: list[Any], chosen: list[Any]) -> None:
    _, dtype_name, how, post = op.key
    dtype = DTYPES[dtype_name]
    inputs = [_joined(op.parts[id(m)][0], dtype) for m in members]
    result = _combine(inputs, how, [op.parts[id(m)][2] for m in members], post)
    for member in chosen:
        _spread(result, op.parts[id(member)][1])


def _reduce_scatter(op: Op, members: list[Any], chosen: list[Any]) -> None:
    counts, dtype_name, how, pre, post = op.key
    dtype = DTYPES[dtype_name]
    size = torch.tensor([], dtype=dtype).element_size()
    inputs = [_joined([(op.parts[id(m)][0], sum(counts) * size)], dtype) for m in members]
    blocks = _combine(inputs, how, [pre] * len(inputs), post).split(list(counts))
    for position, member in enumerate(members):
        if member in chosen:
            _spread(blocks[position], [(op.parts[id(member)][1], counts[position] * size)])


def _adasum(op: Op, members: list[Any], chosen: list[Any]) -> None:
    """Folds the ranks beyond a power of two, then combines neighbours, neighbours of pairs, ..."""
    dtype_name, sizes = op.key
    dtype = DTYPES[dtype_name]
    for index, n in enumerate(sizes):
        values = [memory(op.parts[id(m)][index][0], n, dtype).double() for m in members]
        power = 1 << (len(values).bit_length() - 1)
        for extra in range(power, len(values)):
            values[extra - power] = _adasum_pair(values[extra - power], values[extra])
        values = values[:power]
        while len(values) > 1:
            values = [_adasum_pair(a, b) for a, b in zip(values[::2], values[1::2])]
        for member in chosen:
            memory(op.parts[id(member)][index][0], n, dtype).copy_(values[0].to(dtype))


def _adasum_pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    ab, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - ab / (2 * aa) if aa else 1) * a + (1 - ab / (2 * bb) if bb else 1) * b


def _exchange(op: Op, members: list[Any], chosen: list[Any]) -> None:
    for position, member in enumerate(members):
        for peer, ptr, n in op.parts[id(member)][1] if member in chosen else []:
            blocks = [b for b in op.parts[id(members[peer])][0] if b[0] == position and b[2] == n]
            assert len(blocks) == 1, f"nobody sends {n} bytes from {peer} to {position}"
            if n:
                memory(ptr, n).copy_(memory(blocks[0][1], n))
