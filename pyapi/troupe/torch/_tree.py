"""Nested state dicts as a skeleton and a flat list of tensors.

The skeleton is small and picklable; the tensors travel and are copied as raw memory.
"""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Slot:
    """Stands for tensor ``index`` in a skeleton."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __deepcopy__(self, memo: Any) -> Slot:
        return self


@dataclass(frozen=True)
class SparseSlot:
    """Stands for a sparse COO tensor in a skeleton, whose parts are tensors of the list."""

    indices: Any
    values: Any
    shape: tuple[int, ...]


_CONSTANT = frozenset(
    (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device))


@functools.lru_cache(maxsize=1 << 14)
def _slot(index: int, shape: torch.Size, dtype: torch.dtype) -> Slot:
    return Slot(index, tuple(shape), dtype)


def flatten(tree: Any) -> tuple[Any, list[torch.Tensor]]:
    """(skeleton, tensors) of a tree of dicts, lists and tuples; tensors are not copied.

    The skeleton is the caller's: nothing in it changes with the tree.
    """
    tensors: list[torch.Tensor] = []
    return _flatten(tree, tensors), tensors


def _flatten(node: Any, tensors: list[torch.Tensor]) -> Any:
    if type(node) in _CONSTANT:
        return node
    if isinstance(node, torch.Tensor):
        if node.layout == torch.sparse_coo:
            whole = node.detach().coalesce()
            indices, values = (_flatten(p, tensors) for p in (whole.indices(), whole.values()))
            return SparseSlot(indices, values, tuple(node.shape))
        tensors.append(node)
        return _slot(len(tensors) - 1, node.shape, node.dtype)
    if isinstance(node, dict) and not _of_values(node):
        mine: dict[Any, Any] = OrderedDict() if isinstance(node, OrderedDict) else {}
        for key, value in node.items():
            mine[key] = _flatten(value, tensors)
        return mine
    if isinstance(node, list):
        return [_flatten(value, tensors) for value in node]
    if isinstance(node, tuple):
        values = [_flatten(value, tensors) for value in node]
        return type(node)(*values) if hasattr(node, "_fields") else tuple(values)
    return copy.deepcopy(node)


def _of_values(node: Any) -> bool:
    """Whether it is a Counter, defaultdict or the like of plain values, which stays what it is."""
    kinds = (torch.Tensor, Slot, SparseSlot, dict, list, tuple)
    return type(node) not in (dict, OrderedDict) and not any(
        isinstance(value, kinds) for value in node.values())


def unflatten(skeleton: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The tree that :func:`flatten` took apart, with these tensors."""
    if isinstance(skeleton, Slot):
        return tensors[skeleton.index]
    if isinstance(skeleton, SparseSlot):
        indices, values = (unflatten(s, tensors) for s in (skeleton.indices, skeleton.values))
        return torch.sparse_coo_tensor(indices, values, skeleton.shape).coalesce()
    if isinstance(skeleton, dict) and not _of_values(skeleton):
        items = [(key, unflatten(value, tensors)) for key, value in skeleton.items()]
        return OrderedDict(items) if isinstance(skeleton, OrderedDict) else dict(items)
    if isinstance(skeleton, list):
        return [unflatten(value, tensors) for value in skeleton]
    if isinstance(skeleton, tuple):
        values = [unflatten(value, tensors) for value in skeleton]
        return type(skeleton)(*values) if hasattr(skeleton, "_fields") else tuple(values)
    return skeleton


def slots(skeleton: Any) -> list[Slot]:
    """All slots of a skeleton in the order of their tensors."""
    found: list[Slot] = []
    _collect(skeleton, found)
    return sorted(found, key=lambda slot: slot.index)


def _collect(node: Any, found: list[Slot]) -> None:
    if isinstance(node, Slot):
        found.append(node)
    elif isinstance(node, SparseSlot):
        found.extend((node.indices, node.values))
    elif isinstance(node, dict):
        for value in node.values():
            _collect(value, found)
    elif isinstance(node, (list, tuple)):
        for value in node:
            _collect(value, found)


def same_layout(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Whether two lists of tensors agree in number, shapes and dtypes."""
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype for x, y in zip(a, b, strict=True)
    )


def copy_into(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies tensors pairwise in place, in few calls where this torch can."""
    if not targets:
        return
    with torch.no_grad():
        foreach_copy = getattr(torch, "_foreach_copy_", None)
        if foreach_copy is not None:
            foreach_copy(list(targets), list(sources))
            return
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


def mark_written(tensor: torch.Tensor) -> None:
    """Tells autograd that memory behind ``tensor`` was written from outside of torch."""
    with torch.no_grad():
        tensor.detach().as_strided((0,), (1,)).zero_()


def nbytes(tensor: torch.Tensor) -> int:
    """Size of the tensor's elements in bytes."""
    return tensor.numel() * tensor.element_size()


def staging(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself if its memory can be sent as it is, else a contiguous copy on the CPU."""
    plain = tensor.detach()
    if plain.device.type == "cpu" and plain.is_contiguous():
        return plain
    return plain.to("cpu", copy=True).contiguous()


def structure(skeleton: Any) -> Any:
    """A skeleton without its plain values: equal for trees that hold the same keys and slots.

    No tree with sparse tensors is equal to another one: what it has of them are no live tensors.
    """
    if isinstance(skeleton, Slot):
        return skeleton
    if isinstance(skeleton, SparseSlot):
        return object()
    if isinstance(skeleton, dict):
        return {key: structure(value) for key, value in skeleton.items()}
    if isinstance(skeleton, (list, tuple)):
        return [structure(value) for value in skeleton]
    return None


def differences(saved: Any, live: Any, most: int = 4) -> str:
    """How the tensors of two skeletons differ, for people; empty if they do not."""
    old, new = _layout(saved, ""), _layout(live, "")
    found = [
        f"{path} is {old.get(path, 'missing')} there and {new.get(path, 'missing')} here"
        for path in [*old, *(path for path in new if path not in old)]
        if old.get(path) != new.get(path)
    ]
    if len(found) > most:
        found[most:] = [f"and {len(found) - most} more"]
    return ", ".join(found)


def _layout(node: Any, path: str) -> dict[str, str]:
    """What each tensor of a skeleton is, by its path."""
    if isinstance(node, Slot):
        return {path: f"{str(node.dtype).replace('torch.', '')}{list(node.shape)}"}
    children: Any = ()
    if isinstance(node, SparseSlot):
        children = (("indices", node.indices), ("values", node.values))
    elif isinstance(node, dict):
        children = node.items()
    elif isinstance(node, (list, tuple)):
        children = enumerate(node)
    prefix = f"{path}." if path else ""
    found: dict[str, str] = {}
    for key, child in children:
        found.update(_layout(child, f"{prefix}{key}"))
    return found
