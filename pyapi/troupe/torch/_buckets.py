"""Flat buckets that carry gradients.

The layout is a pure function of the parameter list, so all ranks agree on it without talking:
parameters in reverse registration order, roughly the order in which backward produces gradients,
filled into buckets of one dtype. The first bucket is small, so that communication starts early.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


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
    """Splits parameters into buckets; buckets are in the order of their last member."""
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


def layout_hash(params: Sequence[torch.Tensor], plans: Sequence[Plan]) -> int:
    """A number that differs when two ranks' parameters or buckets differ."""
    text = repr([(str(p.dtype), tuple(p.shape)) for p in params])
    text += repr([(str(plan.dtype), plan.indices) for plan in plans])
    return zlib.crc32(text.encode())


class Bucket:
    """The memory of one bucket: ``flat`` on the CPU and a view of it per parameter.

    ``extra`` more elements at the end carry the number of samples behind the gradients.
    """

    def __init__(self, plan: Plan, params: Sequence[torch.Tensor], extra: int) -> None:
        self.indices = plan.indices
        self.params = [params[i] for i in plan.indices]
        self.numel = sum(p.numel() for p in self.params)
        self.flat = torch.zeros(self.numel + extra, dtype=plan.dtype)
        self.views: list[torch.Tensor] = []
        begin = 0
        for param in self.params:
            self.views.append(self.flat[begin:begin + param.numel()].view(param.shape))
            begin += param.numel()
        self.missing = 0
        self.launched = False
        self.reset()

    def reset(self) -> None:
        """Ready for the next pass."""
        self.missing = len(self.params)
        self.launched = False
