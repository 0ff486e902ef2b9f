"""Batch normalization over all ranks is that of the whole batch; and what happens in backward."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import troupe.torch as hvd

from fake_core import run_ranks

CHANNELS = 3
TOLERANCES = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-4, torch.float64: 1e-12}
SHAPES = {"rows": (), "images": (4, 5), "volumes": (2, 3, 2)}


def batch(rows: int, rest: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Far from zero, where a mean of squares minus the square of a mean would be noise."""
    generator = torch.Generator().manual_seed(7)
    numbers = torch.randn(rows, CHANNELS, *rest, generator=generator, dtype=torch.float64)
    return (numbers * torch.tensor([0.1, 1.0, 9.0]).view(1, -1, *[1] * len(rest)) + 30).to(dtype)


def layer_of(kind: Any, **options: Any) -> Any:
    layer = kind(CHANNELS, **options)
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([0.5, -1.0, 2.0]))
            layer.bias.copy_(torch.tensor([0.1, 0.2, -3.0]))
    return layer


def pass_through(layer: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Two passes; of the sum of squares, which does not depend on x, the loss would tell little."""
    x = x.clone().requires_grad_()
    for _ in range(2):
        y = layer(x)
        y.pow(3).sum().backward()
    values = {"y": y.detach(), "x.grad": x.grad}
    values.update({f"{n}.grad": p.grad for n, p in layer.named_parameters()})
    values.update(dict(layer.named_buffers()))
    return {name: value.clone() for name, value in values.items() if value is not None}


def whole_batch(x: torch.Tensor, **options: Any) -> dict[str, torch.Tensor]:
    """What torch's own layer makes of all rows."""
    kind = {2: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}[x.dim()]
    return pass_through(layer_of(kind, **options).double(), x)


@pytest.mark.parametrize("rows", [(4, 4), (5, 2, 1), (6, 0)], ids=["even", "uneven", "empty"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False},
                                     {"momentum": None, "eps": 0.1}],
                         ids=["usual", "plain", "untracked", "cumulative"])
def test_is_batch_norm_of_the_whole_batch(
    rows: Sequence[int], shape: str, options: dict[str, Any]
) -> None:
    x = batch(sum(rows), SHAPES[shape], torch.float64)

    def fn() -> dict[str, torch.Tensor]:
        mine = x.split(list(rows))[hvd.rank()]
        return pass_through(layer_of(hvd.SyncBatchNorm, **options).double(), mine)

    got = run_ranks(len(rows), fn)
    wanted = whole_batch(x, **options)
    for name, value in wanted.items():
        parts = [values[name] for values in got]
        if name in ("y", "x.grad"):
            result = torch.cat(parts)
        elif name.endswith(".grad"):  # Each rank has its share; the optimizer averages them.
            result = sum(parts)
        else:
            assert all(torch.equal(part, parts[0]) for part in parts), name
            result = parts[0]
        assert torch.allclose(result, value, rtol=1e-9, atol=1e-9), name


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_types(dtype: torch.dtype) -> None:
    x = batch(8, (3,), dtype)

    def fn() -> torch.Tensor:
        layer = layer_of(hvd.SyncBatchNorm)
        if dtype == torch.float64:
            layer = layer.double()
        return layer(x.chunk(2)[hvd.rank()]).detach()

    result = torch.cat(run_ranks(2, fn))
    assert result.dtype == dtype
    tolerance = TOLERANCES[dtype]
    wanted = layer_of(torch.nn.BatchNorm1d).double()(x.double())
    torch.testing.assert_close(result.double(), wanted, rtol=tolerance, atol=tolerance)


def test_evaluation_and_a_group_of_one_are_the_ordinary_layer() -> None:
    x = batch(6, (4, 4))

    def evaluate() -> torch.Tensor:
        layer = layer_of(hvd.SyncBatchNorm).eval()
        layer.running_mean.fill_(29.0)
        return layer(x[: 1 + hvd.rank()]).detach()  # No collective: the shapes differ.

    ordinary = layer_of(torch.nn.BatchNorm2d).eval()
    ordinary.running_mean.fill_(29.0)
    assert torch.equal(run_ranks(2, evaluate)[1], ordinary(x[:2]))

    def alone() -> dict[str, torch.Tensor]:
        return pass_through(layer_of(hvd.SyncBatchNorm), x)

    for name, value in pass_through(layer_of(torch.nn.BatchNorm2d), x).items():
        assert torch.equal(run_ranks(1, alone)[0][name], value), name


def test_errors() -> None:
    def fn() -> None:
        with pytest.raises(ValueError, match=r"shape \(N, C, ...\), not \[3\]"):
            hvd.SyncBatchNorm(3)(torch.ones(3))
        with pytest.raises(ValueError, match=r"of 3 features got an input of shape \[2, 4\]"):
            hvd.SyncBatchNorm(3)(torch.ones(2, 4))
        with pytest.raises(ValueError, match="more than one value per channel"):
            hvd.SyncBatchNorm(3)(torch.ones(1 - hvd.rank(), 3))

    run_ranks(2, fn)


def test_convert() -> None:
    inner = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4, eps=0.2))
    model = torch.nn.Sequential(inner, torch.nn.BatchNorm1d(5, affine=False).eval())
    before = copy.deepcopy(model.state_dict())
    weight = inner[1].weight
    made = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    first, second = made[0][1], made[1]
    assert isinstance(first, hvd.SyncBatchNorm) and isinstance(second, hvd.SyncBatchNorm)
    assert first.eps == 0.2 and first.weight is weight  # An optimizer may hold it.
    assert first.training and not second.training and second.weight is None
    assert made.state_dict().keys() == before.keys()
    assert hvd.SyncBatchNorm.convert_sync_batchnorm(made)[0][1] is first


def test_a_collective_in_backward_leaves_later_gradients_alone() -> None:
    """They belong to a bucket that must not be sent before it is full."""
    def layers() -> list[torch.nn.Linear]:
        torch.manual_seed(3)
        return [torch.nn.Linear(4, 4) for _ in range(2)]

    models = [layers(), layers()]
    x = [batch(2, (4,))[rank, :, :] - 30 for rank in range(2)]

    def fn() -> list[torch.Tensor]:
        first, second = models[hvd.rank()]
        params = [*first.parameters(), *second.parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.0))
        total = hvd.allreduce(first(x[hvd.rank()]), op=hvd.Sum)
        second(total).square().sum().backward()
        optimizer.synchronize()
        return [p.grad for p in params]

    got = run_ranks(2, fn)
    first, second = layers()
    (second(first(x[0]) + first(x[1])).square().sum()).backward()
    wanted = [p.grad for p in [*first.parameters(), *second.parameters()]]
    for values in got:
        for value, right in zip(values, wanted, strict=True):
            torch.testing.assert_close(value, right)
