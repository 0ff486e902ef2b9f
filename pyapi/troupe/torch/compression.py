"""Compression of what travels.

Two kinds: a :class:`Compressor` is a pair of functions around one all-reduce, such as a cast to 16
bits and back; a :class:`GradientCompressor` is an object that reduces a bucket of gradients with
collectives of its own and may keep state between steps.
"""

from __future__ import annotations

from typing import Any

import torch

from troupe.torch._gradient_compression import (
    Collectives,
    ErrorFeedback,
    GradientBucket,
    GradientCompressor,
)
from troupe.torch._powersgd import PowerSGD
from troupe.torch._topk import TopK

__all__ = [
    "BF16Compressor", "Collectives", "Compression", "Compressor", "ErrorFeedback", "FP16Compressor",
    "GradientBucket", "GradientCompressor", "NoneCompressor", "PowerSGD", "TopK",
    "check_compression",
]


class Compressor:
    """Base of compressors; subclass it for your own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor to reduce and a context for :meth:`decompress`."""
        raise NotImplementedError("compress")

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Undoes :meth:`compress` on the reduced tensor."""
        raise NotImplementedError("decompress")


class NoneCompressor(Compressor):
    """Leaves the tensor as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class _CastCompressor(Compressor):
    dtype = torch.float16

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if tensor.dtype.is_floating_point:
            return tensor.to(cls.dtype), tensor.dtype
        return tensor, tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx) if tensor.dtype != ctx else tensor


class FP16Compressor(_CastCompressor):
    """Floating-point tensors travel as float16."""

    dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Floating-point tensors travel as bfloat16: the range of float32 at half the bytes."""

    dtype = torch.bfloat16


class Compression:
    """The compressors that ship with Troupe.

    ``none``, ``fp16`` and ``bf16`` are passed as they are; ``powersgd`` and ``topk``, for
    ``DistributedOptimizer`` only, are called first: ``compression=Compression.powersgd(rank=4)``.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    powersgd = PowerSGD
    topk = TopK


def check_compression(compression: Any, predivide: float) -> None:
    """Raises ValueError if this is no compression that ``DistributedOptimizer`` can use."""
    if isinstance(compression, GradientCompressor):
        if predivide != 1.0:
            raise ValueError(
                f"{type(compression).__name__} sums gradients in its own way; "
                "leave gradient_predivide_factor at 1"
            )
        return
    if isinstance(compression, type) and issubclass(compression, GradientCompressor):
        raise ValueError(
            f"compression={compression.__name__} is a class; pass an object: "
            f"{compression.__name__}(...)"
        )
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError(
            f"compression must be a Compressor or a GradientCompressor object, not {compression!r}"
        )
