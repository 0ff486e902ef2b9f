"""Flat buckets that carry gradients.

The layout is a pure function of the parameter list, so all ranks agree on it without talking:
parameters in reverse registration order, roughly the order in which backward produces gradients,
filled into buckets of one dtype. The first bucket is small, so that communication starts early.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, Union

import torch

from troupe import _horovod
from troupe.torch._devices import Place
from troupe.torch._sparse import SparseParameter
from troupe.torch._tree import copy_into, nbytes

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20

Groups = Union[int, Sequence[Sequence[torch.Tensor]]]


@dataclass
class Plan:
    """Which parameters, by index, go into one bucket."""

    dtype: torch.dtype
    indices: list[int]


def plan_buckets(
    params: Sequence[torch.Tensor],
    first_bytes: int = FIRST_BUCKET_BYTES,
    bucket_bytes: int = BUCKET_BYTES,
) -> list[Plan]:
    """Splits parameters into buckets; buckets are in the order of their last member.

    A bucket ends with the parameter that fills it; with 0 bytes that is each one.
    """
    done: list[Plan] = []
    open_plans: dict[torch.dtype, Plan] = {}
    filled: dict[torch.dtype, int] = {}
    for index in reversed(range(len(params))):
        param = params[index]
        plan = open_plans.setdefault(param.dtype, Plan(param.dtype, []))
        plan.indices.append(index)
        filled[param.dtype] = filled.get(param.dtype, 0) + param.numel() * param.element_size()
        if filled[param.dtype] >= (bucket_bytes if done else first_bytes):
            done.append(open_plans.pop(param.dtype))
            filled[param.dtype] = 0
    done.extend(open_plans.values())
    return done


def plan_groups(
    params: Sequence[torch.Tensor], groups: Groups, limits: Sequence[int] = ()
) -> list[Plan]:
    """Buckets of a user's choice: groups of parameters, or a number of groups of equal length.

    A group of several dtypes is a bucket of each. Parameters in no group are split by ``limits``,
    as by :func:`plan_buckets`. Buckets come in the order of their first member, from the back.
    """
    places = {id(param): index for index, param in enumerate(params)}
    if isinstance(groups, int):
        share, more = divmod(len(params), groups)
        begins = [i * share + min(i, more) for i in range(groups + 1)]
        chosen = [list(range(*pair)) for pair in zip(begins, begins[1:], strict=False)]
    else:
        chosen = [[places[id(t)] for t in group if id(t) in places] for group in groups]
    plans: list[Plan] = []
    for members in chosen:
        by_dtype: dict[torch.dtype, Plan] = {}
        for index in sorted(members, reverse=True):
            dtype = params[index].dtype
            by_dtype.setdefault(dtype, Plan(dtype, [])).indices.append(index)
        plans.extend(by_dtype.values())
    grouped = {index for plan in plans for index in plan.indices}
    rest = [index for index in range(len(params)) if index not in grouped]
    for plan in plan_buckets([params[index] for index in rest], *limits):
        plans.append(Plan(plan.dtype, [rest[index] for index in plan.indices]))
    return sorted(plans, key=lambda plan: -min(plan.indices))


def bucket_limits(
    bucket_bytes: Union[int, str, None], may_tune: bool = True
) -> Optional[tuple[int, ...]]:
    """Arguments of :func:`plan_buckets` for a user's choice.

    If it is None TROUPE_BUCKET_BYTES says, else what is set for Horovod, which is tuned only if it
    ``may_tune``. None is for "auto": the choice is to be made from how long steps take.

    Raises:
        ValueError: neither "auto" nor a number of bytes of at least 0.
    """
    given: Union[int, str, None] = bucket_bytes
    source = "bucket_bytes"
    if given is None:
        given, source = os.environ.get("TROUPE_BUCKET_BYTES") or None, "TROUPE_BUCKET_BYTES"
    if given is None:
        given, source = _horovod.bucket_bytes(may_tune), "HOROVOD_FUSION_THRESHOLD"
    if given is None:
        return ()
    if given == "auto":
        return None
    try:
        number = -1 if isinstance(given, (bool, float)) else int(given)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ValueError(
            f'{source} must be "auto" or a number of bytes, 0 for no buckets, not {given!r}')
    return min(FIRST_BUCKET_BYTES, number), number


def layout_hash(params: Sequence[torch.Tensor], plans: Sequence[Plan]) -> int:
    """A number that differs when two ranks' parameters or buckets differ."""
    text = repr([(str(p.dtype), tuple(p.shape)) for p in params])
    text += repr([(str(plan.dtype), plan.indices) for plan in plans])
    return zlib.crc32(text.encode())


class Bucket:
    """The memory of one bucket's result: ``flat`` at ``place`` and a view of it per parameter.

    ``extra`` more elements at the end carry the number of samples behind the gradients. After a
    step the parameters' gradients are the views. Gradients that still are when the next step
    begins are its input, so its result then goes to a second flat.
    """

    def __init__(
        self, plan: Plan, params: Sequence[torch.Tensor], extra: int, place: Place
    ) -> None:
        self.indices = plan.indices
        self.place = place
        self.params = [params[i] for i in plan.indices]
        self.numel = sum(p.numel() for p in self.params)
        self.extra = torch.zeros(extra, dtype=plan.dtype, device=place.device)
        self._spare: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        self.flat, self.views = self._new_flat(plan.dtype)
        self.sparse: list[SparseParameter] = []  # Of the plan, but not in the flat.
        self.missing = 0
        self.launched = False
        self.reset()

    def _new_flat(self, dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
        flat = torch.zeros(
            self.numel + self.extra.numel(), dtype=dtype, device=self.place.device
        )
        views = []
        begin = 0
        for param in self.params:
            views.append(flat[begin:begin + param.numel()].view(param.shape))
            begin += param.numel()
        return flat, views

    def drop_sparse(self) -> None:
        """Leaves out parameters that have a sparse gradient, for good: it travels by itself."""
        self.leave_out([
            SparseParameter(p, int(p.grad.sparse_dim()))
            for p in self.params if p.grad is not None and p.grad.is_sparse
        ])

    def leave_out(self, found: list[SparseParameter]) -> None:
        """Has no place in the flat for these of its parameters."""
        if not found:
            return
        self.sparse.extend(found)
        gone = {id(sparse.param) for sparse in found}
        self.params = [p for p in self.params if id(p) not in gone]
        self.numel = sum(p.numel() for p in self.params)
        self._spare = []
        self.flat, self.views = self._new_flat(self.flat.dtype)

    def every(self) -> list[torch.Tensor]:
        """All parameters of the plan, those with a sparse gradient last."""
        return [*self.params, *(sparse.param for sparse in self.sparse)]

    def choose_flat(self) -> None:
        """Makes ``flat`` memory that no present gradient lies in."""
        present = [p.grad for p in self.params if p.grad is not None]
        grads = [grad.data_ptr() for grad in present if self.in_place(grad)]
        flats = [(self.flat, self.views), *self._spare]
        free = [f for f in flats if not any(_holds(f[0], grad) for grad in grads)]
        chosen = free[0] if free else self._new_flat(self.flat.dtype)
        self._spare = [other for other in flats if other is not chosen][:1]
        self.flat, self.views = chosen

    def pack(self, weight: float, factor: float) -> None:
        """Copies the gradients times ``factor`` into the flat; zeros for those without."""
        views, grads = [], []
        with torch.no_grad():
            for param, view in zip(self.params, self.views, strict=True):
                grad = param.grad
                if grad is None or weight == 0.0:
                    view.zero_()
                    continue
                views.append(view)
                grads.append(grad.detach().to_dense() if grad.is_sparse else grad.detach())
            copy_into(views, grads)
            if factor not in (0.0, 1.0):
                self.flat.mul_(factor)

    def direct(self) -> Optional[list[torch.Tensor]]:
        """All gradients, if their memory can be sent as it is, in order; else None."""
        grads = []
        for param in self.params:
            grad = param.grad
            if grad is None or not self.in_place(grad) or not grad.is_contiguous():
                return None
            grads.append(grad)
        return grads

    def in_place(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is of the flat's kind."""
        return not tensor.is_sparse and tensor.device == self.place.device

    def reset(self) -> None:
        """Ready for the next pass."""
        self.missing = len(self.params) + len(self.sparse)
        self.launched = False


def _holds(flat: torch.Tensor, address: int) -> bool:
    return flat.data_ptr() <= address < flat.data_ptr() + nbytes(flat)
