"""Gradient compressors: what is exact, what is fed back, and what survives a changing group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import troupe.torch as hvd
from troupe.errors import CollectiveMismatchError
from troupe.torch import _buckets, _powersgd, _topk
from troupe.torch.compression import (
    Collectives,
    Compression,
    GradientBucket,
    GradientCompressor,
    PowerSGD,
    TopK,
)
from troupe.torch.elastic import ElasticSampler, TorchState, batches

from fake_core import FakeCluster, FakeGroup, Killed, Rank, run_ranks
from test_elastic import Log, finish, kill_at, start, trainer
from test_optimizer import (
    DATA,
    TARGET,
    close,
    loss_of,
    make_model,
    params_of,
    reference,
)

Make = Callable[[], GradientCompressor]


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several buckets even for a small model."""
    monkeypatch.setattr(_buckets.plan_buckets, "__defaults__", (300, 1200))


def full_rank() -> GradientCompressor:
    return PowerSGD(rank=64, start_after=0, min_compression_rate=0)


def low_rank() -> GradientCompressor:
    return PowerSGD(rank=1, start_after=0, min_compression_rate=0, seed=3)


def everything() -> GradientCompressor:
    return TopK(ratio=1.0)


def a_tenth() -> GradientCompressor:
    return TopK(ratio=0.1)


def wrap(model: torch.nn.Module, make: Make, lr: float = 0.3, **options: Any) -> Any:
    return hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=lr), compression=make(), **options
    )


def errors_of(optimizer: Any) -> list[torch.Tensor]:
    state = optimizer._reducer._rounds.compressor._state
    return [state[key][1].clone() for key in sorted(state) if key[1] == "error"]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


# -- identities -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [full_rank, everything])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_without_loss_equals_the_whole_batch(make: Make, op: Any, small_buckets: None) -> None:
    def fn() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        model = make_model()
        optimizer = wrap(model, make, 0.3 if op == hvd.Average else 0.1, op=op)
        assert len(optimizer._reducer.buckets) > 2
        mine = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, mine).backward()
            optimizer.step()
        return params_of(model), errors_of(optimizer)

    results = run_ranks(3, fn)
    assert close(results[0][0], reference(lr=0.3), 1e-10)
    assert all(same(results[0][0], params) for params, _ in results[1:])
    # One rank's gradient may lie outside of what the sum spans; all ranks' errors cancel out.
    for errors in zip(*(errors for _, errors in results)):
        assert float(sum(errors).abs().max()) < 1e-12


@pytest.mark.parametrize("make", [low_rank, a_tenth])
def test_results_and_errors_add_up_to_all_gradients(make: Make, small_buckets: None) -> None:
    """Nothing is lost: what is not in the sum yet is in some rank's error."""
    def fn() -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        model = make_model()
        optimizer = wrap(model, make, lr=1.0, op=hvd.Sum)
        before = params_of(model)
        every = [torch.zeros_like(p) for p in before]
        generator = torch.Generator().manual_seed(hvd.rank())
        for _ in range(5):
            optimizer.zero_grad()
            grads = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in before]
            for total, grad in zip(every, grads):
                total += grad
            sum((p * g).sum() for p, g in zip(model.parameters(), grads)).backward()
            optimizer.step()
        moved = [a - b for a, b in zip(before, params_of(model))]
        errors = [torch.zeros_like(p) for p in before]
        for bucket, error in zip(optimizer._reducer.buckets, errors_of(optimizer)):
            parts = error.split([p.numel() for p in bucket.params])
            for index, part in zip(bucket.indices, parts):
                errors[index] = part.view(before[index].shape)
        return moved, errors, every

    results = run_ranks(3, fn)
    for index, moved in enumerate(results[0][0]):
        errors = sum(r[1][index] for r in results)
        wanted = sum(r[2][index] for r in results)
        assert torch.allclose(moved + errors, wanted, rtol=1e-11, atol=1e-11)
    assert max(float(e.abs().max()) for e in results[0][1]) > 0.1  # something was left out
    assert all(same(results[0][0], r[0]) for r in results[1:])


def test_the_first_steps_are_not_compressed() -> None:
    def fn(make: Any) -> list[list[torch.Tensor]]:
        model = make_model()
        optimizer = wrap(model, make)
        trace = []
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, slice(6 * hvd.rank(), 6 * hvd.rank() + 6)).backward()
            optimizer.step()
            trace.append(params_of(model))
        return trace

    late = run_ranks(2, lambda: fn(lambda: PowerSGD(1, start_after=2, min_compression_rate=0)))[0]
    plain = run_ranks(2, lambda: fn(everything))[0]
    assert close(late[1], plain[1])
    assert not close(late[2], plain[2], 1e-4)


@pytest.mark.parametrize("make", [low_rank, a_tenth])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_an_overflow_is_seen_and_does_not_come_back(make: Make, bad: float) -> None:
    def fn() -> list[tuple[bool, bool]]:
        model = make_model()
        optimizer = wrap(model, make)
        seen = []
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, slice(6 * hvd.rank(), 6 * hvd.rank() + 6)).backward()
            if step == 1:
                # All is launched here; as if backward had given it, the gradients start anew.
                optimizer.abandon_step()
                list(model.parameters())[2].grad[0, 0] = bad if hvd.rank() == 0 else 1.0
            optimizer.synchronize()
            finite = all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())
            errors = all(bool(torch.isfinite(e).all()) for e in errors_of(optimizer))
            seen.append((finite, errors))
            if step != 1:  # as a loss scaler does
                with optimizer.skip_synchronize():
                    optimizer.step()
        return seen

    assert run_ranks(2, fn) == [[(True, True), (False, True), (True, True)]] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make", [full_rank, everything])
def test_narrow_dtypes(make: Make, dtype: torch.dtype) -> None:
    def fn() -> list[float]:
        weight = torch.nn.Parameter(torch.zeros(4, 3, dtype=dtype))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), compression=make())
        # 40000 on each of two ranks: their sum would overflow float16, their mean does not.
        (weight * torch.full((4, 3), 40000.0, dtype=dtype)).sum().backward()
        optimizer.step()
        return (-weight.detach()).flatten().tolist()

    first, second = run_ranks(2, fn)
    wanted = float(torch.tensor(40000.0, dtype=dtype))
    assert first == second == pytest.approx([wanted] * 12, rel=1e-2)


# -- with the sampler -------------------------------------------------------------------------


@pytest.mark.parametrize("make", [full_rank, everything])
def test_weights_follow_counted_samples(make: Make, small_buckets: None) -> None:
    """Unequal shares, one rank a ghost: equal to one process with all samples."""
    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = wrap(model, make)
        state = TorchState(model, optimizer, sampler=ElasticSampler(range(11), shuffle=False))
        for indices in batches(state.sampler, 3):
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
    assert close(results[0], params_of(model), 1e-10)
    assert same(results[0], results[2])


# -- order ------------------------------------------------------------------------------------


def test_rounds_start_during_backward_in_one_order(small_buckets: None) -> None:
    names: dict[str, list[str]] = {}

    def rounds(rank: int) -> list[tuple[int, int]]:
        """(bucket, collective of the bucket), in the order of their starts."""
        parts = [n.split(".")[2:] for n in names[f"w{rank}"] if n.startswith("optimizer.0.")]
        return [(int(part[0]), int(part[1])) for part in parts if len(part) == 2]

    def fn() -> tuple[int, int]:
        model = make_model()
        optimizer = wrap(model, low_rank)
        loss_of(model, slice(0, 4)).backward()
        assert optimizer._reducer.averaged and not optimizer._reducer.in_flight
        started = rounds(hvd.rank())
        optimizer.step()
        return len(optimizer._reducer.buckets), len(rounds(hvd.rank())) - len(started)

    cluster = FakeCluster(2, before=lambda m, kind, n: names.setdefault(m.name, []).append(n))
    (buckets, left), _ = run_ranks(2, fn, cluster)
    # P and what is not compressed of a bucket, then Q of the one before; nothing is sent if empty.
    expected = [(0, 1), (0, 2)]
    for index in range(1, buckets):
        expected += [(index, 1), (index, 2), (index - 1, 3)]
    expected.append((buckets - 1, 3))
    assert buckets > 2 and len(rounds(0)) > 2 * buckets
    assert rounds(0) == [item for item in expected if item in rounds(0)]
    assert left <= 1 and names["w0"] == names["w1"]
    assert names["w0"][1] == "optimizer.0.enter"


def test_an_unused_layer_and_a_collective_of_the_user(small_buckets: None) -> None:
    def fn() -> list[torch.Tensor]:
        with_all = hvd.rank() == 0
        model = torch.nn.ModuleList(torch.nn.Linear(8, 8).double() for _ in range(4))
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = wrap(model, low_rank)
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.ones(1, 8, dtype=torch.float64)
            for layer in model if with_all else [model[3], model[1]]:
                x = layer(x)
            x.sum().backward()
            hvd.allreduce(x.detach(), name="between")
            optimizer.step()
        return params_of(model)

    first, second = run_ranks(2, fn)
    assert same(first, second)


def test_different_compressors_are_an_error() -> None:
    def fn() -> None:
        model = make_model()
        optimizer = wrap(model, lambda: PowerSGD(rank=1 + hvd.rank()))
        with pytest.raises(CollectiveMismatchError):
            loss_of(model, slice(0, 4)).backward()
            optimizer.step()

    run_ranks(2, fn)


def test_a_compressor_of_the_user() -> None:
    class Halved(GradientCompressor):
        def reduce(self, bucket: GradientBucket, group: Collectives) -> Iterator[None]:
            rows = group.all_gather(bucket.flat)
            yield
            bucket.flat.copy_(rows.sum(0) / 2)

    def fn(make: Any) -> list[torch.Tensor]:
        model = make_model()
        optimizer = wrap(model, make, lr=0.6 if make is Halved else 0.3)
        loss_of(model, slice(6 * hvd.rank(), 6 * hvd.rank() + 6)).backward()
        optimizer.step()
        return params_of(model)

    assert close(run_ranks(2, lambda: fn(Halved))[0], run_ranks(2, lambda: fn(everything))[0])


# -- a changing group -------------------------------------------------------------------------


@pytest.mark.parametrize("make", [low_rank, a_tenth])
@pytest.mark.parametrize("at", range(6))
def test_a_failed_step_leaves_the_error_alone(make: Make, at: int, small_buckets: None) -> None:
    """The victim dies at its n-th collective of the third step; the others redo nothing here."""
    seen: dict[str, int] = {}

    def before(member: FakeGroup, kind: str, name: str) -> None:
        if member.name == "w1" and "third" in seen and name.startswith("optimizer.0."):
            seen["third"] += 1
            if seen["third"] == at + 1:
                raise Killed()

    def main(group: FakeGroup) -> Any:
        hvd.init()
        model = make_model()
        optimizer = wrap(model, make)
        for step in range(3):
            if step == 2:
                hvd.barrier()
                seen.setdefault("third", 0)
                old, errors = params_of(model), errors_of(optimizer)
                assert errors
            optimizer.zero_grad()
            try:
                loss_of(model, slice(4 * hvd.rank(), 4 * hvd.rank() + 4)).backward()
                optimizer.step()
            except hvd.HorovodInternalError:
                assert step == 2
        assert same(old, params_of(model)) and same(errors, errors_of(optimizer))
        assert not optimizer._reducer.in_flight
        assert not optimizer._reducer._rounds.compressor._staged
        return True

    cluster = FakeCluster(3, before=before)
    ranks = [Rank(cluster, f"w{i}", main, i) for i in range(3)]
    outcomes = [rank.join() for rank in ranks]
    assert [r.error for r in outcomes] == [None] * 3
    assert [r.value for r in outcomes] == [True, None, True]


@pytest.mark.parametrize("make", [low_rank, a_tenth])
@pytest.mark.parametrize("victim,operation", [
    ("w0", 5), ("w0", 9), ("w1", 12), ("w2", 13), ("w0", 14), ("w1", 20), ("w2", 31), ("w0", 37),
])
def test_training_through_a_death(make: Make, victim: str, operation: int) -> None:
    log = Log()
    cluster = FakeCluster(3, before=kill_at(victim, operation))
    finish(cluster, start(cluster, 3, trainer(log, compress=make)), log)
    assert [e["size"] for e in cluster.history] == [3, 2]


@pytest.mark.parametrize("make", [low_rank, a_tenth, lambda: PowerSGD(1, 4, 0)])
def test_a_joiner_is_where_the_others_are(make: Make) -> None:
    """It has no error, the same first Q and the same number of steps; all end with equal bits."""
    log = Log()
    cluster = FakeCluster(2)
    later: list[Rank] = []
    made: list[GradientCompressor] = []

    def compress() -> GradientCompressor:
        made.append(make())
        return made[-1]

    def on_step(group: FakeGroup, step: int) -> None:
        if group.name == "w0" and step == 3 and not later:
            later.append(Rank(cluster, "late", main, 2))
            with cluster.cond:
                assert cluster.cond.wait_for(lambda: later[0].group.offer, 20)

    main = trainer(log, on_step, compress=compress)
    ranks = start(cluster, 2, main)
    for rank in ranks:
        rank.join()
    finish(cluster, ranks + later, log)
    assert [e["size"] for e in cluster.history] == [2, 3]
    assert len(made) == 3 and len({c.steps for c in made}) == 1 and made[0].steps > 4


def test_state_of_a_compressor() -> None:
    compressor = GradientCompressor()
    bucket = GradientBucket(0, torch.zeros(2), [])
    one, two = torch.ones(1), torch.ones(2)
    compressor.keep(bucket, "mine", one, shared=False)
    assert compressor.recall(bucket, "mine") is None  # not before the step is complete
    compressor.rollback()
    compressor.commit()
    assert compressor.recall(bucket, "mine") is None and compressor.steps == 1
    compressor.keep(bucket, "mine", one, shared=False)
    compressor.keep(bucket, "ours", two, shared=True)
    compressor.commit()
    assert compressor.recall(bucket, "mine") is one and compressor.recall(bucket, "ours") is two
    compressor.enter_epoch(7, 40)
    assert compressor.recall(bucket, "mine") is one and compressor.recall(bucket, "ours") is None
    assert (compressor.epoch, compressor.steps) == (7, 40)
    compressor.keep(bucket, "ours", two, shared=True)
    compressor.commit()
    compressor.forget_errors()
    assert compressor.recall(bucket, "mine") is None and compressor.recall(bucket, "ours") is two


def test_load_state_dict_drops_the_error() -> None:
    def fn() -> None:
        model = make_model()
        optimizer = wrap(model, low_rank)
        loss_of(model, slice(6 * hvd.rank(), 6 * hvd.rank() + 6)).backward()
        optimizer.step()
        assert errors_of(optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        assert not errors_of(optimizer)

    run_ranks(2, fn)


# -- it learns ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [low_rank, a_tenth])
def test_converges_like_the_plain_optimizer(make: Make) -> None:
    def fn(compression: Any) -> float:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.2), compression=compression()
        )
        for _ in range(150):
            optimizer.zero_grad()
            loss_of(model, slice(6 * hvd.rank(), 6 * hvd.rank() + 6)).backward()
            optimizer.step()
        return float(torch.nn.functional.mse_loss(model(DATA), TARGET).detach())

    first = float(torch.nn.functional.mse_loss(make_model()(DATA), TARGET).detach())
    plain = run_ranks(2, lambda: fn(everything))[0]
    compressed = run_ranks(2, lambda: fn(make))[0]
    assert plain < 0.2 * first
    assert compressed < 1.5 * plain


# -- parts and arguments ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orthogonalise(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    p = torch.randn(57, 4, generator=generator, dtype=dtype)
    p[:, 2] = p[:, 0] - 2 * p[:, 1]  # dependent but for rounding
    p[:, 3] = 0
    span = p.clone()
    _powersgd._orthogonalise(p)
    gram = p.t() @ p
    assert torch.allclose(gram - torch.diag(torch.diag(gram)), torch.zeros(4, 4, dtype=dtype),
                          atol=1e-6)
    assert torch.allclose(torch.diag(gram)[:2], torch.ones(2, dtype=dtype), atol=1e-6)
    assert torch.equal(p[:, 3], torch.zeros(57, dtype=dtype))
    assert torch.allclose(p @ (p.t() @ span), span, atol=1e-4)


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    x = torch.rand(300_001, 2, dtype=torch.float32)
    before = torch.get_num_threads()
    sums = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            sums.append(_powersgd._column_sums(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(sums[0], sums[1])
    assert torch.allclose(sums[0], x.double().sum(0).float(), rtol=1e-5)


def test_the_first_q_depends_on_seed_epoch_and_bucket_only() -> None:
    def first(seed: int, epoch: int, index: int) -> torch.Tensor:
        compressor = PowerSGD(rank=2, seed=seed)
        compressor.enter_epoch(epoch, 0)
        bucket = GradientBucket(index, torch.zeros(12), [torch.zeros(4, 3)])
        return compressor._start(bucket, [torch.zeros(4, 3)], [2])[0]

    assert torch.equal(first(1, 2, 3), first(1, 2, 3))
    for other in [(0, 2, 3), (1, 1, 3), (1, 2, 0)]:
        assert not torch.equal(first(1, 2, 3), first(*other))


@pytest.mark.parametrize("numel", [1, 50, 70_000, 300_001])
@pytest.mark.parametrize("kind", ["normal", "sorted", "few", "nan"])
def test_largest(numel: int, kind: str) -> None:
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).abs()
    if kind == "sorted":
        x = x.sort().values
    elif kind == "few":  # less than k are not zero
        x[torch.arange(numel) % 1000 != 3] = 0
    elif kind == "nan":
        x[numel // 2] = float("nan")
    k = max(1, numel // 100)
    found = _topk._largest(x, k)
    assert found.unique().numel() == k
    wanted = torch.topk(x, k).values
    values = x[found].sort(descending=True).values
    if kind == "nan":
        assert bool(values.isnan().any()) and bool(wanted.isnan().any())
        values, wanted = values.nan_to_num(9.0).sort().values, wanted.nan_to_num(9.0).sort().values
    assert torch.equal(values, wanted)


def test_argument_errors() -> None:
    for make, match in [
        (lambda: PowerSGD(rank=0), "rank"), (lambda: PowerSGD(start_after=-1), "start_after"),
        (lambda: PowerSGD(min_compression_rate=-1), "min_compression_rate"),
        (lambda: TopK(0), "ratio"), (lambda: TopK(1.5), "ratio"),
    ]:
        with pytest.raises(ValueError, match=match):
            make()

    def fn() -> None:
        sgd = torch.optim.SGD(make_model().parameters(), lr=0.1)
        for kwargs, match in [
            ({"compression": Compression.topk}, r"pass an object: TopK\(\.\.\.\)"),
            ({"compression": "fp16"}, "Compressor"),
            ({"compression": TopK(), "gradient_predivide_factor": 2.0}, "predivide"),
        ]:
            with pytest.raises(ValueError, match=match):
                hvd.DistributedOptimizer(sgd, **kwargs)

    run_ranks(1, fn)


def test_alone_nothing_is_compressed() -> None:
    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = wrap(model, low_rank)
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, slice(0, 12)).backward()
            optimizer.step()
        return params_of(model)

    assert close(run_ranks(1, fn)[0], reference(lr=0.3))
