"""Sparse gradients of a DistributedOptimizer: each rank's rows, gathered, with the dense beside."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import troupe.torch as hvd
from troupe.errors import CollectiveMismatchError
from troupe.torch import _buckets
from troupe.torch._tree import flatten, slots, structure, unflatten
from troupe.torch.elastic import ElasticSampler, TorchState, batches

from fake_core import FakeCluster, FakeGroup, Killed, Rank, run_ranks
from test_optimizer import close, params_of


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several buckets even for a small model."""
    monkeypatch.setattr(_buckets.plan_buckets, "__defaults__", (300, 1200))


class Words(torch.nn.Module):
    """Two embeddings around a layer, so that buckets have both kinds."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.first = torch.nn.Embedding(7, 3, sparse=sparse, dtype=torch.float64)
        self.layer = torch.nn.Linear(3, 3, dtype=torch.float64)
        self.second = torch.nn.Embedding(4, 3, sparse=sparse, dtype=torch.float64)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel(), dtype=torch.float64).view_as(p))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (self.layer(self.first(rows)) * self.second(rows % 4)).sin().sum()


ROWS = [[0, 1, 1], [1, 5], [6, 2, 3, 0]]


def words_by_hand(steps: int, ranks: int = 3) -> list[torch.Tensor]:
    model = Words(sparse=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (sum(model(torch.tensor(rows)) for rows in ROWS[:ranks]) / ranks).backward()
        optimizer.step()
    return params_of(model)


@pytest.mark.parametrize("options", [
    {}, {"sparse_as_dense": True}, {"bucket_bytes": 0}, {"bucket_bytes": 1 << 20}, {"groups": 2},
    {"compression": hvd.Compression.bf16}, {"gradient_predivide_factor": 2.0},
    {"compression": "topk"}, {"bucket_bytes": "auto"},
], ids=str)
def test_sparse_gradients_arrive_as_they_come(options: dict[str, Any], small_buckets: None) -> None:
    def fn() -> list[torch.Tensor]:
        model = Words(sparse=True)
        mine = dict(options)
        if mine.get("compression") == "topk":
            mine["compression"] = hvd.Compression.topk(1.0)  # Each rank's own.
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **mine)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.tensor(ROWS[hvd.rank()])).backward()
            kinds = [p.grad.is_sparse for p in model.parameters()]
            assert kinds == [not options.get("sparse_as_dense"), False, False, kinds[0]]
            if kinds[0]:
                assert model.first.weight.grad.indices().tolist() == [[0, 1, 2, 3, 5, 6]]
            optimizer.step()
        return params_of(model)

    results = run_ranks(3, fn)
    tolerance = 2e-2 if options.get("compression") is hvd.Compression.bf16 else 1e-12
    assert close(results[0], words_by_hand(3), tolerance)
    assert all(torch.equal(a, b) for r in results[1:] for a, b in zip(results[0], r))


def test_sparse_gradients_of_some_steps_and_ranks_only() -> None:
    """A rank without a gradient has no entries; a dense one of a known parameter becomes sparse."""
    def fn() -> list[list[float]]:
        layer = torch.nn.Embedding(4, 1, sparse=True)
        torch.nn.init.zeros_(layer.weight)
        other = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([layer.weight, other], lr=1.0), op=hvd.Sum)
        found = []
        for step in range(4):
            optimizer.zero_grad()
            loss = other.sum()
            if step == 0 or hvd.rank() == step % 2:
                rows = torch.tensor([hvd.rank(), 3])
                loss = loss + (layer(rows) if step < 3 else layer.weight[rows]).sum()
            loss.backward()
            mean = hvd.allreduce(torch.tensor([1.0]), name="between", op=hvd.Sum)
            assert mean.item() == 2.0
            optimizer.step()
            found.append((-layer.weight.detach()).flatten().tolist())
        return found

    wanted = [[1, 1, 0, 2], [1, 2, 0, 3], [2, 2, 0, 4], [2, 3, 0, 5]]
    assert run_ranks(2, fn) == [wanted, wanted]


def test_sparse_gradients_are_accumulated_and_weighted() -> None:
    def fn() -> list[float]:
        layer = torch.nn.Embedding(3, 1, sparse=True, dtype=torch.float64)
        torch.nn.init.zeros_(layer.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=1.0), backward_passes_per_step=2)
        sampler = ElasticSampler(range(5), shuffle=False)
        optimizer.attach_sampler(sampler)
        for count, indices in enumerate(batches(sampler, 1)):  # 2 steps of 2, then 1 and a ghost
            if count == 2:
                optimizer.set_backward_passes_per_step(1)
            layer(torch.tensor([hvd.rank()] * len(indices))).mean().backward()
            if count > 0:
                optimizer.step()
                optimizer.zero_grad()
            sampler.commit()
        return (-layer.weight.detach()).flatten().tolist()

    first, second = run_ranks(2, fn)
    assert first == second == [2.0, 1.0, 0.0]


@pytest.mark.parametrize("beside", [False, True])
def test_a_first_sparse_gradient_that_some_ranks_lack_is_an_error_on_all(beside: bool) -> None:
    """Whether it had a bucket for itself, or shared it with what is dense."""
    def fn() -> None:
        layer = torch.nn.Embedding(3, 1, sparse=True)
        other = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([layer.weight, *([other] if beside else [])], lr=1.0))
        if hvd.rank() == 0:
            layer(torch.tensor([0])).sum().backward()
        optimizer.step()

    with pytest.raises(CollectiveMismatchError, match="sparse gradients"):
        run_ranks(2, fn)


def test_sparse_gradients_are_averages_or_sums() -> None:
    def fn() -> None:
        layer = torch.nn.Embedding(3, 1, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=1.0), op=hvd.Max)
        with pytest.raises(ValueError, match="sparse_as_dense"):
            layer(torch.tensor([0])).sum().backward()
            optimizer.step()

    run_ranks(2, fn)


@pytest.mark.parametrize("victim", ["sparse gradients of", "indices of", "values of"])
def test_a_death_among_sparse_gradients_is_replayed(victim: str) -> None:
    times: dict[str, int] = {}
    seen: list[tuple[str, int]] = []

    def before(member: FakeGroup, kind: str, name: str) -> None:
        if member.name == "w1" and victim in name:
            times[name] = times.get(name, 0) + 1
            if times[name] == 3:
                raise Killed()

    def main(group: FakeGroup) -> list[torch.Tensor]:
        hvd.init()
        model = Words(sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        state = TorchState(model, optimizer, sampler=ElasticSampler(range(14), shuffle=False),
                           step=0, did=[])

        @hvd.elastic.run
        def train(state: Any) -> list[list[int]]:
            for indices in batches(state.sampler, 1):
                optimizer.zero_grad()
                seen.append((group.name, state.step))
                model(torch.tensor([indices[0] % 7])).backward()
                optimizer.step()
                lost = list(indices.lost_ranks)
                state.did = [*state.did, (indices[0], indices.step_size, lost)]
                state.step += 1
                state.commit()
            return state.did

        train(state)
        return params_of(model)

    cluster = FakeCluster(3, before=before)
    outcomes = [rank.join() for rank in [Rank(cluster, f"w{i}", main, i) for i in range(3)]]
    assert [r.error for r in outcomes] == [None] * 3 and outcomes[1].ended == "killed"
    assert len(seen) == len(set(seen))  # Nothing was computed again.
    steps = [[0, 1, 2], [3, 4, 5], [6, 8], [7, 9], [10, 11], [12, 13]]
    model = Words(sparse=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in steps:
        optimizer.zero_grad()
        (sum(model(torch.tensor([row % 7])) for row in rows) / len(rows)).backward()
        optimizer.step()
    for rank in (0, 2):
        assert close(outcomes[rank].value, params_of(model))


def test_sparse_tensors_of_a_state_are_taken_apart_and_put_together() -> None:
    made = torch.sparse_coo_tensor([[3, 1, 3]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], (5, 2))
    tree = {"state": {0: {"momentum_buffer": made, "plain": torch.ones(2)}}}
    skeleton, tensors = flatten(tree)
    assert [tuple(slot.shape) for slot in slots(skeleton)] == [(1, 2), (2, 2), (2,)]
    again = unflatten(skeleton, [tensor.clone() for tensor in tensors])
    assert torch.equal(again["state"][0]["momentum_buffer"].to_dense(), made.to_dense())
    # What was taken apart is a copy, so nothing may be restored by writing to it.
    assert structure(skeleton) != structure(skeleton)


def test_momentum_of_sparse_gradients_is_restored_and_sent() -> None:
    """SGD keeps it as a sparse tensor, whose entries change in number from commit to commit."""
    def before(member: FakeGroup, kind: str, name: str) -> None:
        if member.name == "w1" and "values of" in name and len(seen) >= 8:
            raise Killed()

    seen: list[str] = []

    def main(group: FakeGroup) -> list[float]:
        hvd.init()
        layer = torch.nn.Embedding(6, 1, sparse=True, dtype=torch.float64)
        torch.nn.init.zeros_(layer.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.5))
        state = TorchState(layer, optimizer, step=0)

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.step < 6:
                optimizer.zero_grad()
                layer(torch.tensor([state.step % 3])).sum().backward()
                seen.append(group.name)
                optimizer.step()
                state.step += 1
                state.commit()

        train(state)
        return layer.weight.detach().flatten().tolist()

    cluster = FakeCluster(3, before=before)
    outcomes = [rank.join() for rank in [Rank(cluster, f"w{i}", main, i) for i in range(3)]]
    assert [r.error for r in outcomes] == [None] * 3 and outcomes[1].ended == "killed"
    layer = torch.nn.Embedding(6, 1, dtype=torch.float64)
    torch.nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.5)
    for step in range(6):
        optimizer.zero_grad()
        layer(torch.tensor([step % 3])).sum().backward()
        optimizer.step()
    for rank in (0, 2):
        assert outcomes[rank].value == pytest.approx(layer.weight.detach().flatten().tolist())
