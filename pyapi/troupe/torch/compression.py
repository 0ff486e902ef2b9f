"""Compression of what travels: cast to 16 bits before the reduction and back after it."""

from __future__ import annotations

from typing import Any

import torch


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
    """The compressors that ship with Troupe."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
