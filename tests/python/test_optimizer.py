"""DistributedOptimizer: equal to training on the whole batch, in bucket order, safe to redo."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch

import troupe.torch as hvd
from troupe.errors import CollectiveMismatchError
from troupe.torch import _buckets
from troupe.torch.elastic import ElasticSampler, TorchState, batches

from fake_core import FakeCluster, FakeGroup, Killed, Rank, run_ranks

_seeding = threading.Lock()  # ranks are threads and share torch's generator


def make_model(seed: int = 0) -> torch.nn.Module:
    with _seeding:
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 3)
        ).double()


DATA = torch.linspace(-1, 1, 12 * 6, dtype=torch.float64).reshape(12, 6).sin()
TARGET = torch.linspace(0, 1, 12 * 3, dtype=torch.float64).reshape(12, 3).cos()


def loss_of(model: torch.nn.Module, rows: Any) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(DATA[rows]), TARGET[rows])


def params_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def close(a: list[torch.Tensor], b: list[torch.Tensor], tolerance: float = 1e-12) -> bool:
    return all(torch.allclose(x, y, rtol=tolerance, atol=tolerance) for x, y in zip(a, b))


def reference(steps: int = 4, make: Any = torch.optim.SGD, **kwargs: Any) -> list[torch.Tensor]:
    model = make_model()
    optimizer = make(model.parameters(), **kwargs)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, slice(0, 12)).backward()
        optimizer.step()
    return params_of(model)


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several buckets even for a small model."""
    monkeypatch.setattr(_buckets.plan_buckets, "__defaults__", (300, 1200))


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_equals_the_whole_batch(kind: str, small_buckets: None) -> None:
    make, kwargs = {
        "sgd": (torch.optim.SGD, {"lr": 0.3}),
        "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        "adam": (torch.optim.Adam, {"lr": 0.05}),
    }[kind]

    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            make(model.parameters(), **kwargs), named_parameters=model.named_parameters()
        )
        assert isinstance(optimizer, make) and len(optimizer._reducer.buckets) > 2
        mine = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, mine).backward()
            optimizer.step()
        return params_of(model)

    results = run_ranks(3, fn)
    assert close(results[0], reference(make=make, **kwargs))
    assert all(torch.equal(a, b) for r in results[1:] for a, b in zip(results[0], r))


def test_buckets_start_during_backward_in_order(small_buckets: None) -> None:
    def fn() -> list[str]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        loss_of(model, slice(0, 4)).backward()
        started = [bucket.launched for bucket in optimizer._reducer.buckets]
        assert not any(started) and optimizer._reducer.averaged  # nothing is left for step()
        optimizer.step()
        first = optimizer._reducer.buckets[0].params
        sum(p.sum() for p in first).backward()  # A part of the model: the rest may follow.
        assert optimizer._reducer.buckets[0].launched and not optimizer._reducer.averaged
        with pytest.raises(AssertionError, match="zero_grad"):
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
        return []

    names: dict[str, list[str]] = {}
    cluster = FakeCluster(
        2, before=lambda m, kind, name: names.setdefault(m.name, []).append(name)
    )
    run_ranks(2, fn, cluster)
    gradient_ops = [n for n in names["w0"] if n.startswith("optimizer.0.")]
    half = len(gradient_ops) // 2
    assert gradient_ops == [f"optimizer.0.{i}" for i in range(half)] * 2
    assert half > 2 and names["w0"] == names["w1"]


def test_layout_is_a_function_of_the_parameters() -> None:
    params = [torch.zeros(n, dtype=d) for n, d in
              [(10, torch.float32), (20, torch.float64), (30, torch.float32), (5, torch.float32)]]
    plans = _buckets.plan_buckets(params, first_bytes=100, bucket_bytes=1000)
    assert [(p.dtype, p.indices) for p in plans] == [
        (torch.float32, [3, 2]), (torch.float64, [1]), (torch.float32, [0])]
    again = _buckets.plan_buckets([p.clone() for p in params], 100, 1000)
    assert _buckets.layout_hash(params, plans) == _buckets.layout_hash(params, again)
    assert _buckets.layout_hash(params, plans) != _buckets.layout_hash(params[1:], plans)


@pytest.mark.parametrize("given,environment,buckets", [
    (0, "", 6), (1 << 30, "7", 1), (None, "0", 6), (None, "", 1), (2000, "", 2),
])
def test_bucket_bytes(
    given: Any, environment: str, buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TROUPE_BUCKET_BYTES", environment)

    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.3), bucket_bytes=given)
        assert len(optimizer._reducer.buckets) == buckets
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, slice(6 * hvd.rank(), 6 * hvd.rank() + 6)).backward()
            optimizer.step()
        return params_of(model)

    assert close(run_ranks(2, fn)[0], reference(lr=0.3))
    monkeypatch.setenv("TROUPE_BUCKET_BYTES", "some")
    with pytest.raises(ValueError, match="TROUPE_BUCKET_BYTES must"):
        _buckets.bucket_limits(None)


def test_gradients_become_views_of_the_result_without_copies(
    small_buckets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while they are views already: then the result goes to other memory."""
    from troupe.torch import _reducer as module

    copies: list[Any] = []
    monkeypatch.setattr(module, "copy_into", lambda targets, sources: copies.extend(targets))

    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.3))
        flats: list[list[int]] = []
        for step in range(6):
            optimizer.zero_grad(set_to_none=step < 2)
            loss_of(model, slice(6 * hvd.rank(), 6 * hvd.rank() + 6)).backward()
            kept = [p.grad.clone() for p in model.parameters()]
            given = [p.grad for p in model.parameters()]
            optimizer.synchronize()
            assert all(torch.equal(a, b) for a, b in zip(kept, given))  # inputs stay
            with optimizer.skip_synchronize():
                optimizer.step()
            buckets = optimizer._reducer.buckets
            flats.append([b.flat.data_ptr() for b in buckets])
            assert all(p.grad is v for b in buckets for p, v in zip(b.params, b.views))
        assert flats[0] == flats[1] == flats[3] == flats[5] and flats[2] == flats[4]
        assert not set(flats[0]) & set(flats[2])
        return params_of(model)

    assert close(run_ranks(2, fn)[0], reference(steps=6, lr=0.3)) and not copies


def test_gradients_that_accumulate_over_steps(small_buckets: None) -> None:
    """Whoever does not zero gradients adds to the averaged ones, as with one process."""
    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(4):
            loss_of(model, slice(6 * hvd.rank(), 6 * hvd.rank() + 6)).backward()
            optimizer.step()
        return params_of(model)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss_of(model, slice(0, 12)).backward()
        optimizer.step()
    assert close(run_ranks(2, fn)[0], params_of(model))


def test_gradients_of_other_layouts_keep_them() -> None:
    def fn() -> None:
        layer = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=1.0))
        before = layer.weight.detach().clone()
        (layer.weight * (hvd.rank() + 1)).sum().backward()
        (layer.bias * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
        assert torch.allclose(before - layer.weight.detach(), torch.tensor(1.5))
        assert layer.weight.grad.stride() == layer.weight.stride()

    run_ranks(2, fn)


def test_different_models_are_an_error() -> None:
    def fn() -> None:
        model = torch.nn.Linear(4, 2 + hvd.rank())
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(CollectiveMismatchError):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    run_ranks(2, fn)


def test_clipping_with_skip_synchronize() -> None:
    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        loss_of(model, slice(6 * hvd.rank(), 6 * hvd.rank() + 6)).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with optimizer.skip_synchronize():
            optimizer.step()
        return params_of(model)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss_of(model, slice(0, 12)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    assert close(run_ranks(2, fn)[0], params_of(model))


def test_accumulation_and_too_many_passes() -> None:
    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.3), backward_passes_per_step=2
        )
        for _ in range(4):
            optimizer.zero_grad()
            for part in range(2):
                begin = 6 * hvd.rank() + 3 * part
                (loss_of(model, slice(begin, begin + 3)) / 2).backward()
            optimizer.step()
        for _ in range(2):
            loss_of(model, slice(0, 3)).backward()
        with pytest.raises(AssertionError, match="backward_passes_per_step"):
            loss_of(model, slice(0, 3)).backward()
        return params_of(model)

    assert close(run_ranks(2, fn)[0], reference(lr=0.3))


def test_unused_and_frozen_parameters() -> None:
    def fn() -> list[torch.Tensor]:
        with _seeding:
            torch.manual_seed(0)
            used, unused, frozen = (torch.nn.Linear(2, 2) for _ in range(3))
        for p in frozen.parameters():
            p.requires_grad_(False)
        every = [*used.parameters(), *unused.parameters(), *frozen.parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(every, lr=0.5))
        before = [p.detach().clone() for p in every]
        layer = used if hvd.rank() == 0 else unused  # each rank uses another layer
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        moved = [not torch.equal(a, b) for a, b in zip(before, every)]
        assert moved == [True] * 4 + [False] * 2
        return [p.detach() for p in every]

    first, second = run_ranks(2, fn)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@pytest.mark.parametrize("options", [
    {"gradient_predivide_factor": 2.0}, {"op": hvd.Sum}, {"compression": hvd.Compression.bf16},
])
def test_options(options: dict[str, Any]) -> None:
    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.3 if "op" not in options else 0.15), **options
        )
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, slice(6 * hvd.rank(), 6 * hvd.rank() + 6)).backward()
            optimizer.step()
        return params_of(model)

    tolerance = 2e-2 if "compression" in options else 1e-12
    assert close(run_ranks(2, fn)[0], reference(lr=0.3), tolerance)


def test_argument_errors() -> None:
    def fn() -> None:
        model = make_model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        named = list(model.named_parameters())
        for kwargs, match in [
            ({"named_parameters": named[1:]}, "lacks 1"),
            ({"named_parameters": [("a", p) for _, p in named]}, "unique"),
            ({"named_parameters": [p for _, p in named]}, "tuples"),
            ({"op": 9}, "op 9 is not supported"),
            ({"op": hvd.Min, "compression": hvd.Compression.topk(0.1)}, "Average or Sum"),
            ({"op": hvd.Adasum, "gradient_predivide_factor": 2.0}, "Average only"),
            ({"op": hvd.Adasum, "compression": hvd.Compression.topk(0.1)}, "Average or Sum"),
            ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "Average only"),
            ({"backward_passes_per_step": 0}, "at least 1"),
            ({"groups": -1}, "groups"),
            ({"groups": True}, "groups"),
            ({"groups": [[model[0].weight], [model[0].weight]]}, "one of the groups only"),
            ({"groups": [[torch.zeros(1)]]}, "no parameter of the optimizer"),
            ({"groups": [model[0].weight]}, "list of lists"),
            ({"process_set": 3}, "process_set"),
            ({"process_set": hvd.ProcessSet([0])}, "add_process_set"),
            ({"bucket_bytes": -1}, "bucket_bytes must"),
            ({"bucket_bytes": 2.5}, "bucket_bytes must"),
            ({"bucket_bytes": True}, "bucket_bytes must"),
        ]:
            with pytest.raises(ValueError, match=match):
                hvd.DistributedOptimizer(sgd, **kwargs)
        with pytest.raises(ValueError, match="LBFGS"):
            hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters()))

    run_ranks(1, fn)


def test_scheduler_and_added_group() -> None:
    def fn() -> list[torch.Tensor]:
        model = make_model()
        layers = list(model)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layers[0].parameters(), lr=0.3))
        optimizer.add_param_group(
            {"params": [*layers[2].parameters(), *layers[3].parameters()], "lr": 0.3}
        )
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model, slice(6 * hvd.rank(), 6 * hvd.rank() + 6)).backward()
            optimizer.step()
            scheduler.step()
        return params_of(model)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, slice(0, 12)).backward()
        optimizer.step()
        scheduler.step()
    assert close(run_ranks(2, fn)[0], params_of(model))


def test_user_collective_between_backward_and_step(small_buckets: None) -> None:
    """A rank with an unused layer still issues its buckets before the user's own collective."""
    def fn() -> float:
        layers = torch.nn.ModuleList(torch.nn.Linear(20, 20) for _ in range(4))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=0.1))
        x = torch.ones(1, 20)
        for layer in layers if hvd.rank() == 0 else [layers[3], layers[1]]:
            x = layer(x)
        loss = x.sum()
        loss.backward()
        mean = hvd.allreduce(loss.detach().reshape(1), name="loss")
        optimizer.step()
        return float(mean)

    first, second = run_ranks(2, fn)
    assert first == second


def test_weights_follow_counted_samples(small_buckets: None) -> None:
    """Ranks with unequal shares, one of them a ghost, equal one process with all samples."""
    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.3))
        state = TorchState(model, optimizer, sampler=ElasticSampler(range(11), shuffle=False))
        for indices in batches(state.sampler, 3):  # 9 samples, then 1, 1 and a ghost
            optimizer.zero_grad()
            loss_of(model, indices).backward()
            optimizer.step()
            state.sampler.commit()
        return params_of(model)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for rows in (slice(0, 9), slice(9, 11)):
        optimizer.zero_grad()
        loss_of(model, rows).backward()
        optimizer.step()
    results = run_ranks(3, fn)
    assert close(results[0], params_of(model))
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_in_narrow_dtypes(dtype: torch.dtype) -> None:
    def fn() -> float:
        weight = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
        sampler = ElasticSampler(range(3000), shuffle=False)
        optimizer.attach_sampler(sampler)
        for indices in batches(sampler, 2000):  # 1500 and 1500; then rank 1 is scaled down
            (weight * (hvd.rank() + 1)).sum().backward()
            optimizer.step()
            sampler.commit()
            assert len(indices) == 1500
        return float(weight.detach())

    assert run_ranks(2, fn) == [-1.5, -1.5]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_death_leaves_model_and_gradients_alone(at: int, small_buckets: None) -> None:
    def before(member: FakeGroup, kind: str, name: str) -> None:
        if member.name == "w1" and name == f"optimizer.0.{at}":
            raise Killed()

    def main(group: FakeGroup) -> Any:
        hvd.init()
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.3))
        old = params_of(model)
        mine = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
        plain = copy.deepcopy(model)
        loss_of(plain, mine).backward()
        local = [p.grad for p in plain.parameters()]
        with pytest.raises(hvd.HorovodInternalError):
            loss_of(model, mine).backward()
        assert all(torch.equal(a, b) for a, b in zip(old, model.parameters()))
        assert all(torch.equal(a, p.grad) for a, p in zip(local, model.parameters()))
        assert not optimizer._reducer.in_flight
        return True

    cluster = FakeCluster(3, before=before)
    ranks = [Rank(cluster, f"w{i}", main, i) for i in range(3)]
    outcomes = [rank.join() for rank in ranks]
    assert [r.error for r in outcomes] == [None] * 3
    assert [r.value for r in outcomes] == [True, None, True] and outcomes[1].ended == "killed"


def test_scripts_find_what_they_ask_an_optimizer_of_horovod() -> None:
    hvd.init()
    try:
        model = torch.nn.Linear(2, 2)
        made = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
            backward_passes_per_step=2, op=hvd.Sum)
        assert made._parameter_names == {model.weight: "weight", model.bias: "bias"}
        assert (made.backward_passes_per_step, made.op) == (2, hvd.Sum)
        assert made.process_set is hvd.global_process_set
        assert made.gradient_predivide_factor == 1.0
        made.set_backward_passes_per_step(3)
        assert made.backward_passes_per_step == 3
        plain = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        assert list(plain._parameter_names.values()) == [
            "allreduce.noname.0.0", "allreduce.noname.0.1"]
    finally:
        hvd.shutdown()


def test_scripts_find_names_where_horovod_has_them() -> None:
    from troupe.torch.elastic.state import SamplerStateHandler, TorchState
    from troupe.torch.mpi_ops import allreduce_async_, rank

    assert (allreduce_async_, rank) == (hvd.allreduce_async_, hvd.rank)
    assert TorchState is hvd.elastic.TorchState
    assert SamplerStateHandler is hvd.elastic.SamplerStateHandler
    assert "allreduce" in dir(hvd.mpi_ops)
    for module, name in ((hvd.mpi_ops, "nothing"), (hvd.elastic.state, "nothing")):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            getattr(module, name)
