"""Broadcast and gathering of parameters, optimizer states and Python objects."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

import cloudpickle
import torch

from troupe.torch import _context
from troupe.torch._tree import flatten, slots, staging, unflatten
from troupe.torch.ops import allgather, broadcast_async_, synchronize
from troupe.torch.process_sets import ProcessSet, global_process_set

Parameters = Union[Mapping[str, torch.Tensor], Iterable[tuple[str, torch.Tensor]]]


def broadcast_parameters(params: Parameters, root_rank: int) -> None:
    """Overwrites parameters with ``root_rank``'s.

    Args:
        params: a state dict or a list of (name, tensor), of the same names on all ranks.
        root_rank: the rank whose values win.

    Raises:
        ValueError: ``params`` is neither.
    """
    if isinstance(params, Mapping):
        items = sorted(params.items())
    else:
        try:
            items = [(name, value) for name, value in params]
        except (TypeError, ValueError):
            raise ValueError(
                f"params must be a state dict or a list of (name, tensor), not {type(params)}"
            ) from None
    _broadcast_tensors([(n, p) for n, p in items if isinstance(p, torch.Tensor)], root_rank)


def _broadcast_tensors(items: list[tuple[str, torch.Tensor]], root_rank: int) -> None:
    started = []
    for name, tensor in items:
        work = staging(tensor)
        handle = broadcast_async_(work, root_rank, name=f"broadcast.{name}")
        started.append((handle, tensor, work))
    for handle, tensor, work in started:
        synchronize(handle)
        if work.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(work)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Optional[torch.nn.Module] = None
) -> None:
    """Overwrites an optimizer's state and hyperparameters with ``root_rank``'s.

    Works before the first step too: whatever state the root has, possibly none, is what all have
    afterwards. ``model`` is accepted for compatibility.

    Raises:
        ValueError: the optimizer is LBFGS, whose state cannot be broadcast.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    context = _context.current()
    is_root = context.rank == root_rank
    skeleton, tensors = flatten(optimizer.state_dict()) if is_root else (None, [])
    skeleton = broadcast_object(skeleton, root_rank, name="optimizer.skeleton")
    if not is_root:
        tensors = [torch.empty(slot.shape, dtype=slot.dtype) for slot in slots(skeleton)]
    _broadcast_tensors([(f"optimizer.{i}", t) for i, t in enumerate(tensors)], root_rank)
    if not is_root:
        optimizer.load_state_dict(unflatten(skeleton, tensors))


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """``root_rank``'s object, pickled and sent to all; the root gets its own back."""
    context = _context.current()
    label = name or "broadcast_object"
    is_root = context.rank == root_rank
    data = torch.empty(0, dtype=torch.uint8)
    if is_root and context.size > 1:
        data = torch.frombuffer(bytearray(cloudpickle.dumps(obj)), dtype=torch.uint8)
    if context.size == 1 or process_set.size() == 1:
        return obj
    length = torch.tensor([data.numel()], dtype=torch.int64)
    synchronize(broadcast_async_(length, root_rank, f"{label}.size", process_set))
    if not is_root:
        data = torch.empty(int(length.item()), dtype=torch.uint8)
    synchronize(broadcast_async_(data, root_rank, f"{label}.data", process_set))
    return obj if is_root else pickle.loads(data.numpy().tobytes())


def allgather_object(
    obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """All ranks' objects, ordered by rank."""
    context = _context.current()
    label = name or "allgather_object"
    data = torch.frombuffer(bytearray(cloudpickle.dumps(obj)), dtype=torch.uint8)
    lengths = context.gather_ints([data.numel()], f"{label}.size", process_set.team)
    gathered = allgather(data, f"{label}.data", process_set)
    objects = []
    begin = 0
    for (length,) in lengths:
        objects.append(pickle.loads(gathered[begin:begin + length].numpy().tobytes()))
        begin += length
    return objects
