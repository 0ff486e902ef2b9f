"""DistributedOptimizer's options: operations, process sets, Adasum, groups."""

from __future__ import annotations

import pickle
import time
import warnings
from typing import Any

import pytest
import torch

import troupe.torch as hvd
from troupe.torch import _buckets
from troupe.torch.elastic import ElasticSampler, TorchState, batches

from fake_core import FakeCluster, FakeGroup, Killed, Rank, run_ranks
from test_optimizer import close, loss_of, make_model, params_of, reference

OPS = {"average": hvd.Average, "sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max,
       "product": hvd.Product}
COMBINED = {"average": lambda t: t.mean(0), "sum": lambda t: t.sum(0),
            "min": lambda t: t.min(0).values, "max": lambda t: t.max(0).values,
            "product": lambda t: t.prod(0)}


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several buckets even for a small model."""
    monkeypatch.setattr(_buckets.plan_buckets, "__defaults__", (300, 1200))


def share(rank: int) -> slice:
    return slice(4 * rank, 4 * rank + 4)


def local_gradients(rank: int) -> list[torch.Tensor]:
    model = make_model()
    loss_of(model, share(rank)).backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("op", list(OPS))
def test_each_operation(op: str, small_buckets: None) -> None:
    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), op=OPS[op])
        loss_of(model, share(hvd.rank())).backward()
        optimizer.synchronize()
        return [p.grad.clone() for p in model.parameters()]

    every = [local_gradients(rank) for rank in range(3)]
    wanted = [COMBINED[op](torch.stack(grads)) for grads in zip(*every)]
    for result in run_ranks(3, fn):
        assert close(result, wanted, 1e-14)


# -- process sets -------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "fp16", "topk"])
def test_a_process_set_averages_among_its_members(compression: str, small_buckets: None) -> None:
    def fn() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        ends = hvd.add_process_set([0, 2])
        model = make_model()
        kinds = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16,
                 "topk": hvd.Compression.topk(1.0)}
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(),
            compression=kinds[compression], process_set=ends)
        assert optimizer.process_set is ends
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model, share(hvd.rank())).backward()
            grads = [p.grad.clone() for p in model.parameters()]
            optimizer.step()
        return grads, params_of(model)

    def alone(ranks: list[int]) -> list[torch.Tensor]:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            (sum(loss_of(model, share(rank)) for rank in ranks) / len(ranks)).backward()
            optimizer.step()
        return params_of(model)

    results = run_ranks(3, fn)
    tolerance = 2e-3 if compression == "fp16" else 1e-12
    assert close(results[0][1], alone([0, 2]), tolerance)
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[2][1]))
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[2][0]))
    assert all(torch.equal(a, b) for a, b in zip(results[1][1], alone([1])))


def test_optimizers_of_overlapping_sets_and_of_all_ranks_side_by_side() -> None:
    """Ranks use different optimizers first, so names must count within each set."""
    def fn() -> list[float]:
        low, high = hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2])
        weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
        made = [hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), process_set=s)
                for w, s in zip(weights, (low, high, hvd.global_process_set))]
        for _ in range(2):
            for weight, optimizer in zip(weights, made):
                optimizer.zero_grad()
                (weight * 2.0**hvd.rank()).sum().backward()
                optimizer.step()
        return [float(w.detach()) for w in weights]

    third = -14 / 3
    wanted = [[-3, -2, third], [-3, -6, third], [-8, -6, third]]
    for values, expected in zip(run_ranks(3, fn), wanted):
        assert values == pytest.approx(expected)


def test_tuned_buckets_of_a_process_set() -> None:
    def fn() -> float:
        ends = hvd.add_process_set([0, 2])
        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), process_set=ends, bucket_bytes="auto")
        for _ in range(3):
            optimizer.zero_grad()
            (weight * (hvd.rank() + 1)).sum().backward()
            optimizer.step()
        return float(weight[0].detach())

    assert run_ranks(3, fn) == [-6.0, -6.0, -6.0]


def test_a_removed_process_set_is_told() -> None:
    def fn() -> None:
        both = hvd.add_process_set([0, 1])
        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), process_set=both)
        assert hvd.remove_process_set(both)
        with pytest.raises(ValueError, match="add_process_set"):
            weight.sum().backward()
            optimizer.step()

    run_ranks(2, fn)


# -- Adasum -------------------------------------------------------------------------------------


def adasum_of(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    dot = (a * b).sum()
    return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b


def combined_by_hand(steps: int, make: Any, passes: int = 1) -> list[torch.Tensor]:
    """Both ranks step with their own optimizers from the common parameters."""
    models = [make_model() for _ in range(2)]
    optimizers = [make(model.parameters()) for model in models]
    for _ in range(steps):
        before = params_of(models[0])
        for rank, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            for _ in range(passes):
                loss_of(model, share(rank)).backward()
            optimizer.step()
        deltas = [[p - old for p, old in zip(params_of(model), before)] for model in models]
        after = [old + adasum_of(*[delta[i] for delta in deltas]) for i, old in enumerate(before)]
        for model in models:
            with torch.no_grad():
                for p, new in zip(model.parameters(), after):
                    p.copy_(new)
    return params_of(models[0])


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_adasum_combines_what_the_steps_changed(kind: str, passes: int) -> None:
    def make(params: Any) -> Any:
        if kind == "adam":
            return torch.optim.Adam(params, lr=0.05)
        return torch.optim.SGD(params, lr=0.1, momentum=0.9)

    def fn() -> list[torch.Tensor]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            make(model.parameters()), op=hvd.Adasum, backward_passes_per_step=passes)
        assert isinstance(optimizer, (torch.optim.Adam, torch.optim.SGD))
        assert optimizer.backward_passes_per_step == passes and optimizer.op == hvd.Adasum
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(passes):
                loss_of(model, share(hvd.rank())).backward()
            local = [p.grad.clone() for p in model.parameters()]
            optimizer.synchronize()
            assert all(torch.equal(a, p.grad) for a, p in zip(local, model.parameters()))
            optimizer.step()
        return params_of(model)

    results = run_ranks(2, fn)
    assert close(results[0], combined_by_hand(3, make, passes), 1e-12)
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_adasum_of_a_process_set_and_compressed() -> None:
    def make(params: Any) -> Any:
        return torch.optim.SGD(params, lr=0.1)

    def fn() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        pair = hvd.add_process_set([0, 1])
        found = []
        for compression in (hvd.Compression.none, hvd.Compression.bf16):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(
                make(model.parameters()), op=hvd.Adasum, process_set=pair, compression=compression)
            for _ in range(2):
                optimizer.zero_grad()
                loss_of(model, share(hvd.rank())).backward()
                optimizer.step()
            found.append(params_of(model))
        return found[0], found[1]

    results = run_ranks(3, fn)
    wanted = combined_by_hand(2, make)
    assert close(results[0][0], wanted) and close(results[1][1], wanted, 5e-3)
    alone = make_model()
    optimizer = make(alone.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(alone, share(2)).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(results[2][0], params_of(alone)))


def test_what_does_not_go_with_adasum() -> None:
    def fn() -> None:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
        with pytest.raises(AssertionError, match="skip_synchronize"):
            with optimizer.skip_synchronize():
                pass
        weight.sum().backward()
        with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
            weight.sum().backward()
        optimizer.zero_grad()
        assert optimizer.step(lambda: (weight * 3).sum()) == 6.0

    run_ranks(1, fn)


def test_a_death_in_adasum_leaves_the_parameters_alone() -> None:
    def before(member: FakeGroup, kind: str, name: str) -> None:
        if member.name == "w1" and kind == "adasum":
            raise Killed()

    def main(group: FakeGroup) -> bool:
        hvd.init()
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=0.3), op=hvd.Adasum)
        old = params_of(model)
        loss_of(model, share(hvd.rank())).backward()
        with pytest.raises(hvd.HorovodInternalError):
            optimizer.step()
        return all(torch.equal(a, b) for a, b in zip(old, model.parameters()))

    cluster = FakeCluster(3, before=before)
    outcomes = [rank.join() for rank in [Rank(cluster, f"w{i}", main, i) for i in range(3)]]
    assert [r.value for r in outcomes] == [True, None, True] and outcomes[1].ended == "killed"


@pytest.mark.parametrize("option", ["adasum", "process set"])
def test_a_step_that_cannot_be_reduced_again_begins_at_the_last_commit(option: str) -> None:
    """Every commit stands, though they would be held in place by now with another option."""
    seen: list[tuple[str, int]] = []
    kind = "adasum" if option == "adasum" else "allreduce"
    steps = 72  # More than the commits after which others are held in place.
    dies = 70

    def before(member: FakeGroup, what: str, name: str) -> None:
        if member.name == "w1" and what == kind and ("w1", dies) in seen:
            deadline = time.monotonic() + 20
            while not {("w0", dies), ("w2", dies)} <= set(seen):  # They are in the same step.
                assert time.monotonic() < deadline
                time.sleep(1e-3)
            raise Killed()

    def main(group: FakeGroup) -> list[float]:
        hvd.init()
        weight = torch.nn.Parameter(torch.zeros(300_000))
        chosen = {"op": hvd.Adasum} if option == "adasum" else {
            "process_set": hvd.add_process_set([0, 1, 2])}
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0, momentum=0.5), **chosen)
        state = TorchState(optimizer=optimizer, weight=torch.nn.ParameterList([weight]), step=0)

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.step < steps:
                optimizer.zero_grad()
                seen.append((group.name, state.step))
                weight.sum().backward()
                optimizer.step()
                state.step += 1
                state.commit()
                assert not state.held_in_place

        train(state)
        return [float(weight[0]), float(weight[-1])]

    cluster = FakeCluster(3, before=before)
    outcomes = [rank.join() for rank in [Rank(cluster, f"w{i}", main, i) for i in range(3)]]
    assert [r.error for r in outcomes] == [None] * 3 and outcomes[1].ended == "killed"
    plain = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([plain], lr=1.0, momentum=0.5)
    for _ in range(steps):  # Equal deltas are combined to what each is.
        optimizer.zero_grad()
        plain.sum().backward()
        optimizer.step()
    for rank in (0, 2):
        assert outcomes[rank].value == pytest.approx([float(plain)] * 2)
        assert [step for name, step in seen if name == f"w{rank}"].count(dies) == 2


def test_ranks_of_different_sets_are_no_difference_for_the_checksum() -> None:
    def fn() -> None:
        ends = hvd.add_process_set([0, 2])
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), process_set=ends)
        state = TorchState(model, optimizer, check_parameters_every=1)

        @hvd.elastic.run
        def train(state: Any) -> None:
            for _ in range(2):
                optimizer.zero_grad()
                loss_of(model, share(hvd.rank())).backward()
                optimizer.step()
                state.commit()

        train(state)

    run_ranks(3, fn)


def test_a_ghost_changes_nothing_in_adasum() -> None:
    def fn() -> float:
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
        sampler = ElasticSampler(range(3), shuffle=False)
        optimizer.attach_sampler(sampler)
        for indices in batches(sampler, 1):  # Two samples, then one and a ghost.
            optimizer.zero_grad()
            (weight * (indices[0] + 1)).sum().backward()
            optimizer.step()
            sampler.commit()
        return float(weight.detach())

    # Parallel deltas 1 and 2: (1 - 2/2) 1 + (1 - 2/8) 2 = 1.5; then 3 alone.
    assert run_ranks(2, fn) == [-4.5, -4.5]


# -- groups -------------------------------------------------------------------------------------


def test_groups_are_the_buckets() -> None:
    params = [torch.nn.Parameter(torch.zeros(n, dtype=d)) for n, d in
              [(1, torch.float32), (2, torch.float32), (3, torch.float64), (4, torch.float32),
               (5, torch.float32)]]

    def indices(groups: Any) -> list[list[int]]:
        return [plan.indices for plan in _buckets.plan_groups(params, groups, (0, 0))]

    assert indices(1) == [[2], [4, 3, 1, 0]]
    assert indices(2) == [[4, 3], [2], [1, 0]]
    assert indices(9) == [[4], [3], [2], [1], [0]]
    assert indices([[params[0], params[4]], [params[1], params[3]]]) == [[2], [3, 1], [4, 0]]
    assert indices([[params[2], torch.zeros(1)]]) == [[4], [3], [2], [1], [0]]


def test_a_group_waits_for_all_of_its_gradients() -> None:
    def fn() -> list[torch.Tensor]:
        model = make_model()
        params = list(model.parameters())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params, lr=0.3), groups=[[params[0], params[-1]], params[2:4]])
        assert [b.params for b in optimizer._reducer.buckets][-1] == [params[-1], params[0]]
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, share(hvd.rank())).backward()
            optimizer.step()
        return params_of(model)

    assert close(run_ranks(3, fn)[0], reference(lr=0.3))


def test_num_groups_is_the_deprecated_name() -> None:
    def fn() -> None:
        model = make_model()

        def made(**kwargs: Any) -> Any:
            return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), **kwargs)

        with pytest.warns(DeprecationWarning, match="use groups"):
            assert len(made(num_groups=3)._reducer.buckets) == 3
        with pytest.warns(DeprecationWarning, match="use groups"):
            assert len(made(num_groups=3, groups=4)._reducer.buckets) == 4
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(made(groups=0)._reducer.buckets) == len(made()._reducer.buckets)

    run_ranks(1, fn)


def test_a_process_set_of_an_optimizer_can_be_pickled_before_it_is_used() -> None:
    copied = pickle.loads(pickle.dumps(hvd.ProcessSet([0, 1])))
    assert copied._wanted == [0, 1]
