"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from troupe.torch import _context
from troupe.torch._movements import allgather
from troupe.torch._operations import Sum
from troupe.torch._reductions import allreduce


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Shape (C) as one that broadcasts over (N, C, ...), in the type to calculate in."""
    return values.to(_wide(like)).view(1, -1, *[1] * (like.dim() - 2))


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return tensor.dtype if tensor.dtype == torch.float64 else torch.float32


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count (1), means (C) and sums of squared distances from them (C), of all ranks' elements.

    Each rank combines the same numbers in the same order, so all get the same bits.
    """
    channels = x.shape[1]
    flat = x.detach().to(_wide(x)).transpose(0, 1).flatten(1)
    count = flat.shape[1]
    mine = torch.zeros(1, 2 * channels + 1, dtype=torch.float64, device=x.device)
    if count:
        var, mean = torch.var_mean(flat, dim=1, unbiased=False)
        mine[0, 0] = count
        mine[0, 1:channels + 1] = mean
        mine[0, channels + 1:] = var.double() * count
    everybodys = allgather(mine)
    counts, means, squares = everybodys.split([1, channels, channels], dim=1)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total
    return total, mean, (squares + counts * (means - mean) ** 2).sum(0)


class _SyncBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Optional[torch.Tensor],
                bias: Optional[torch.Tensor], module: SyncBatchNorm, share: float) -> torch.Tensor:
        total, mean, squares = _moments(x)
        if float(total) <= 1:
            raise ValueError(
                "SyncBatchNorm expects more than one value per channel when training; all ranks "
                f"together have {int(total)}, this one an input of shape {list(x.shape)}"
            )
        variance = squares / total
        if module.running_mean is not None and module.running_var is not None:
            module.running_mean.lerp_(mean.to(module.running_mean.dtype), share)
            unbiased = squares / (total - 1)
            module.running_var.lerp_(unbiased.to(module.running_var.dtype), share)
        inverse = (variance + module.eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, inverse, total)
        scale = inverse if weight is None else inverse * weight.double()
        result = (x.to(_wide(x)) - _per_channel(mean, x)).mul_(_per_channel(scale, x))
        if bias is not None:
            result += _per_channel(bias, x)
        return result.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight, mean, inverse, total = ctx.saved_tensors
        gradient = grads[0].to(_wide(x))
        centered = x.to(_wide(x)) - _per_channel(mean, x)
        others = [d for d in range(x.dim()) if d != 1]
        by_bias = gradient.sum(others)
        by_weight = (gradient * centered).sum(others) * inverse.to(gradient.dtype)
        to_input = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([by_bias, by_weight]).double()
            mean_bias, mean_weight = (allreduce(sums, op=Sum) / total).chunk(2)
            scale = inverse if weight is None else inverse * weight.double()
            to_input = (
                gradient - _per_channel(mean_bias, x)
                - centered * _per_channel(mean_weight * inverse, x)
            ).mul_(_per_channel(scale, x)).to(x.dtype)
        if weight is not None and ctx.needs_input_grad[1]:
            to_weight = by_weight.to(weight.dtype)
        if ctx.needs_input_grad[2]:
            to_bias = by_bias.to(weight.dtype if weight is not None else x.dtype)
        return to_input, to_weight, to_bias, None, None


class SyncBatchNorm(_BatchNorm):
    """``torch.nn.BatchNorm*d`` with the mean and variance, in training, of all ranks' batches.

    Takes inputs of shape (N, C, ...) in float16, bfloat16, float32 or float64, on the CPU or a GPU;
    batches may differ in size, and be empty. A forward pass gathers 2 C + 1 numbers of each rank, a
    backward pass sums 2 C up, so all ranks must run the layers alike. ``running_var`` takes in the
    unbiased variance. In evaluation, and in a group of one, it is the ordinary layer.

    Raises:
        ValueError: the input has fewer than two dimensions, or all ranks together have only one
            value per channel.
        HorovodInternalError: a peer died or the epoch changed.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"SyncBatchNorm takes inputs of shape (N, C, ...), not {list(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalized input, of the same shape and type."""
        self._check_input_dim(input)
        from_batch = self.training or self.running_mean is None
        if not from_batch or _context.current().size == 1:
            return super().forward(input)
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm of {self.num_features} features got an input of shape "
                f"{list(input.shape)}")
        share = 0.0
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            share = self.momentum
            if share is None:  # An average of all batches so far.
                share = 1.0 / float(self.num_batches_tracked)
        return _SyncBatchNorm.apply(input, self.weight, self.bias, self, share)

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module) -> torch.nn.Module:
        """``module`` with every ``BatchNorm*d`` in it replaced, parameters and buffers kept."""
        made = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            made = cls(module.num_features, module.eps, module.momentum, module.affine,
                       module.track_running_stats)
            made.train(module.training)
            for name, value in [*module._parameters.items(), *module._buffers.items()]:
                setattr(made, name, value)
        for name, child in module.named_children():
            made.add_module(name, cls.convert_sync_batchnorm(child))
        return made
