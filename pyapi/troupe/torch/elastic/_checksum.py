"""Whether all ranks hold the same parameters.

Ranks that began alike and apply the same averaged gradients stay alike, bit for bit. A rank that
has changed a parameter by itself (a write by hand on one rank, another learning rate, a random
number) trains on without an error, and all contribute gradients of models that are not the same.
So at the first commit and at every ``every``-th one each rank takes digests of its parameters and
the ranks compare one number. Only if it differs do they compare tensor by tensor, to name the
culprit, and all of them raise the same error.

Compared are the parameters that a DistributedOptimizer of the state updates on all ranks, and the
frozen ones of their modules. Buffers are not, since running statistics differ by nature, nor what
other optimizers train. Tensors of up to WHOLE_BYTES are taken whole, of larger ones another of
PARTS parts each time, so a difference that stays is found after PARTS comparisons at the latest.
Reading a sixteenth of the parameters every hundredth step is far less than what the optimizer reads
in each.
"""

from __future__ import annotations

import collections
import os
import zlib
from collections.abc import Sequence
from typing import Any, Optional

import torch

from troupe import _native
from troupe.errors import ParametersDifferError
from troupe.torch import _context
from troupe.torch._tree import nbytes
from troupe.torch.elastic.handlers import ModelHandler, OptimizerHandler, StateHandler

DEFAULT_EVERY = 100  # commits
WHOLE_BYTES = 64 << 10
PARTS = 16
VARIABLE = "TROUPE_CHECK_PARAMETERS_EVERY"
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_NAMED = 8  # ranks in a message
_MASK = (1 << 63) - 1  # A digest travels as an int64.


class Checksum:
    """Compares the parameters of one TorchState.

    Args:
        every: commits between comparisons, 0 for none, alike on all ranks; None: what
            TROUPE_CHECK_PARAMETERS_EVERY says, else DEFAULT_EVERY.

    Raises:
        ValueError: it is no such number.
    """

    def __init__(self, every: Optional[int]) -> None:
        self.every = _every_from_env() if every is None else every
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 0:
            raise ValueError(
                f"check_parameters_every must be a number of commits, or 0, not {every!r}")

    def due(self, version: int) -> bool:
        """Whether the commit of this version is one after which parameters are compared."""
        return self.every > 0 and (version == 1 or version % self.every == 0)

    def compare(
        self, context: _context.Context, handlers: Sequence[tuple[str, StateHandler]], version: int
    ) -> None:
        """Raises on every rank if some rank's parameters differ. A collective.

        Raises:
            ParametersDifferError: they do.
            HorovodInternalError: a member died meanwhile.
        """
        if context.size == 1:
            return
        named = parameters_of(handlers)
        tensors = [tensor for _, tensor in named]
        digests = digests_of(tensors, version // max(1, self.every))
        kinds = zlib.crc32(",".join(sorted({t.device.type for t in tensors})).encode())
        packed = torch.tensor(digests, dtype=torch.int64)
        whole = int(_native.core().xxh64(packed.data_ptr(), nbytes(packed))) & _MASK
        context.flush_optimizers()
        rows = context.gather_ints([whole, kinds, len(named)], "checksum of parameters")
        # Digests are taken another way on other kinds of devices, which also round another way.
        if len(set(rows)) == 1 or len({row[1] for row in rows}) > 1:
            return
        if len({row[2] for row in rows}) > 1:
            counts = [row[2] for row in rows]
            text = ", ".join(map(str, counts[:_MOST_NAMED]))
            raise _error(context, version, "the number of parameters", counts, f"by rank {text}")
        table = context.gather_ints(digests, "checksums of tensors")
        for index, (name, tensor) in enumerate(named):
            column = [row[index] for row in table]
            if len(set(column)) > 1:
                what = f"{_context.DTYPE_NAMES.get(tensor.dtype, tensor.dtype)}{[*tensor.shape]}"
                raise _error(context, version, name, column, what)


def parameters_of(handlers: Sequence[tuple[str, StateHandler]]) -> list[tuple[str, torch.Tensor]]:
    """What must be alike on all ranks, by name, in an order that is alike too."""
    trained: dict[int, tuple[str, torch.Tensor]] = {}
    for name, handler in sorted(handlers, key=lambda item: item[0]):
        if isinstance(handler, OptimizerHandler) and getattr(handler.value, "alike", False):
            groups = handler.value.param_groups
            params = [param for group in groups for param in group["params"]]
            for index, param in enumerate(params):
                trained.setdefault(id(param), (f"{name} parameter {index}", param))
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, handler in sorted(handlers, key=lambda item: item[0]):
        if isinstance(handler, ModelHandler):
            mine = list(handler.value.named_parameters())
            if any(id(param) in trained for _, param in mine):
                for path, param in mine:
                    if id(param) in trained or not param.requires_grad:
                        found.setdefault(id(param), (f"{name}.{path}", param))
    for key, entry in trained.items():
        found.setdefault(key, entry)
    return [(name, p) for name, p in found.values() if p.layout == torch.strided and p.numel()]


def digests_of(tensors: Sequence[torch.Tensor], turn: int) -> list[int]:
    """A number per tensor that says which bits the part of it that has its turn holds."""
    found: list[int] = []
    sums: dict[torch.device, list[tuple[int, torch.Tensor]]] = collections.defaultdict(list)
    core = _native.core()
    with torch.no_grad():
        for index, tensor in enumerate(tensors):
            part = _part(tensor.detach(), turn)
            found.append(0)
            if part.device.type == "cpu":
                found[index] = int(core.xxh64(part.data_ptr(), nbytes(part))) & _MASK
            else:  # A sum of the bits as integers is exact in any order.
                sums[part.device].append((index, sum_of_bits(part)))
        for entries in sums.values():
            totals = torch.stack([total for _, total in entries]).tolist()
            for (index, _), total in zip(entries, totals, strict=True):
                found[index] = int(total) & _MASK
    return found


def _part(tensor: torch.Tensor, turn: int) -> torch.Tensor:
    """The elements whose turn it is, in logical order and in one piece."""
    count = tensor.numel()
    if count * tensor.element_size() <= WHOLE_BYTES:
        return tensor.reshape(-1).contiguous()
    length = -(-count // PARTS)
    first = min(turn % PARTS * length, count - length)
    if tensor.is_contiguous():
        return tensor.view(-1)[first:first + length]
    return torch.take(tensor, torch.arange(first, first + length, device=tensor.device))


def sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of a contiguous tensor's elements, taken for integers; wraps around."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor).reshape(-1)
    return tensor.view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64)


def _error(context: _context.Context, version: int, name: str, column: Sequence[int],
           what: str) -> ParametersDifferError:
    """Names the ranks that are unlike most, or unlike rank 0 if there is no majority."""
    value, votes = collections.Counter(column).most_common(1)[0]
    usual = value if 2 * votes > len(column) else column[0]
    unlike = [rank for rank, mine in enumerate(column) if mine != usual]
    hosts = [str(member["host"]) for member in context.view["members"]]
    named = ", ".join(f"rank {rank} on {hosts[rank]}" for rank in unlike[:_MOST_NAMED])
    more = f" and {len(unlike) - _MOST_NAMED} more" if len(unlike) > _MOST_NAMED else ""
    others = "most ranks" if usual == value and 2 * votes > len(column) else "rank 0"
    return ParametersDifferError(
        f"parameters differ between ranks at commit {version}: {name} ({what}) is not the same on "
        f"{named}{more} as on {others}. Something has changed it on some ranks only since the last "
        "comparison: a write outside of optimizer.step(), a learning rate or random numbers of a "
        f"rank's own. Find it with {VARIABLE}=1, which compares after every commit; if ranks are "
        f"meant to differ, set TorchState(..., check_parameters_every=0) or {VARIABLE}=0 on all",
        step=version, tensor=name, ranks=unlike)


def _every_from_env() -> Any:
    text = os.environ.get(VARIABLE) or str(DEFAULT_EVERY)
    if not text.isdecimal():
        raise ValueError(f"{VARIABLE} must be a number of commits, or 0 for never, not {text!r}")
    return int(text)
