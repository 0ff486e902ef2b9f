"""What a TorchState saves, restores and receives, value by value."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import troupe.torch as hvd
from troupe.torch.elastic import (
    ElasticSampler,
    ObjectState,
    StateHandler,
    TorchState,
    batches,
    get_handler_registry,
    set_handler_registry,
)
from troupe.torch.elastic.handlers import Snapshot

from fake_core import FakeCluster, FakeGroup, Killed, Rank, run_ranks


class CountingOptimizer(torch.optim.Optimizer):
    """Keeps a Python int and a nested dict per parameter, as some optimizers do."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "note": ["a"]})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                entry = self.state[p]
                entry["count"] = entry.get("count", 0) + 1
                entry.setdefault("nested", {"sum": torch.zeros_like(p)})["sum"].add_(p.grad)
                p.sub_(group["lr"] * p.grad)


MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.1, amsgrad=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "counting": lambda params: CountingOptimizer(params, lr=0.1),
}


def make(kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    return model, MAKERS[kind](model.parameters())


def work(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: float = 1.0) -> None:
    optimizer.zero_grad()
    x = torch.arange(15, dtype=torch.float32).reshape(5, 3).mul(seed).sin()
    model(x).pow(2).sum().backward()
    optimizer.step()


def picture(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Everything that training depends on, copied."""
    def copied(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().clone().tolist()
        if isinstance(value, dict):
            return {k: copied(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [copied(v) for v in value]
        return value

    return [copied(dict(model.state_dict())), copied(optimizer.state_dict())]


@pytest.fixture
def alone() -> Any:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("kind", list(MAKERS))
def test_restore_goes_back_to_the_commit(kind: str, alone: None) -> None:
    model, optimizer = make(kind)
    state = TorchState(model, optimizer, step=0, seen=[1])
    work(model, optimizer)
    state.step, state.seen = 5, [1, 2]
    state.commit()
    kept = picture(model, optimizer)
    places = [p.data_ptr() for p in model.parameters()]
    work(model, optimizer, 2.0)
    optimizer.param_groups[0]["lr"] = 99.0
    state.step = 6
    state.seen.append(3)
    assert picture(model, optimizer) != kept
    state.restore()
    assert picture(model, optimizer) == kept and (state.step, state.seen) == (5, [1, 2])
    assert [p.data_ptr() for p in model.parameters()] == places  # in place: views stay valid
    work(model, optimizer, 3.0)
    state.restore()
    assert picture(model, optimizer) == kept  # the snapshot itself was not trained on


@pytest.mark.parametrize("kind", list(MAKERS))
def test_restore_before_the_first_step_empties_the_optimizer(kind: str, alone: None) -> None:
    model, optimizer = make(kind)
    state = TorchState(model, optimizer)
    kept = picture(model, optimizer)
    work(model, optimizer)
    state.restore()
    assert picture(model, optimizer) == kept
    work(model, optimizer, 2.0)
    state.restore()
    assert picture(model, optimizer) == kept


def test_writes_that_autograd_does_not_see_are_committed(alone: None) -> None:
    """Frozen averages written through .data, and running statistics written by a kernel."""
    average = torch.nn.Linear(300, 300)
    for p in average.parameters():
        p.requires_grad_(False)
    norm = torch.nn.BatchNorm1d(300)
    state = TorchState(average=average, norm=norm)
    state.commit()
    average.weight.data.mul_(0.5)
    norm(torch.arange(1200.0).reshape(4, 300))
    kept = [average.weight.clone(), norm.running_mean.clone(), norm.running_var.clone()]
    state.commit()
    average.weight.data.zero_()
    norm.reset_running_stats()
    state.restore()
    now = [average.weight, norm.running_mean, norm.running_var]
    assert all(torch.equal(a, b) for a, b in zip(kept, now))


def test_unchanged_frozen_parameters_are_not_copied_again() -> None:
    frozen = torch.nn.Parameter(torch.ones(200, 200), requires_grad=False)
    snapshot = Snapshot()
    snapshot.save({"w": frozen})
    snapshot.buffers[0][0, 1] = 7.0  # off the probe's grid: seen only if it is not overwritten
    snapshot.save({"w": frozen})
    assert snapshot.buffers[0][0, 1] == 7.0
    frozen.add_(1.0)
    snapshot.save({"w": frozen})
    assert torch.equal(snapshot.buffers[0], frozen)


def test_commit_writes_into_the_same_memory(alone: None) -> None:
    model, optimizer = make("adam")
    work(model, optimizer)
    state = TorchState(model, optimizer)
    handler = state._handlers["optimizer"]
    before = [b.data_ptr() for b in handler.snapshot.buffers]  # type: ignore[attr-defined]
    work(model, optimizer)
    state.commit()
    assert [b.data_ptr() for b in handler.snapshot.buffers] == before  # type: ignore[attr-defined]


def test_assigning_a_handled_value_saves_it(alone: None) -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    state = TorchState(first)
    state.model = second
    kept = second.weight.detach().clone()
    with torch.no_grad():
        second.weight.zero_()
    state.restore()
    assert torch.equal(second.weight, kept) and state.model is second


def test_commit_moves_the_ledger(alone: None) -> None:
    sampler = ElasticSampler(range(10), shuffle=False)
    state = TorchState(sampler=sampler)
    steps = batches(sampler, 4)
    next(steps)
    assert sampler._ledger.committed == 0
    state.commit()
    assert sampler._ledger.committed == 4
    next(steps)
    state.restore()
    assert sampler.remaining == 6
    assert next(batches(sampler, 4)) == [4, 5, 6, 7]


def test_a_handler_of_ones_own() -> None:
    class Box:
        def __init__(self, value: int) -> None:
            self.value = value

    class BoxHandler(StateHandler):
        saved = 0

        def save(self) -> None:
            self.saved = self.value.value

        def restore(self) -> None:
            self.value.value = self.saved

        def sync(self) -> None:
            self.value.value = hvd.broadcast_object(self.value.value, 0, name="box")

    old = get_handler_registry()
    set_handler_registry([*old, (Box, BoxHandler)])
    try:
        def fn() -> int:
            box = Box(10 + hvd.rank())
            return hvd.elastic.run(lambda state: state.box.value)(TorchState(box=box))

        assert run_ranks(2, fn) == [10, 10]
    finally:
        set_handler_registry(old)


@pytest.mark.parametrize("kind", list(MAKERS))
def test_a_receiver_gets_everything(kind: str) -> None:
    """Rank 1 starts with another model, another rate and no optimizer state."""
    lock = threading.Lock()

    def fn() -> Any:
        with lock:
            model, optimizer = make(kind)
        if hvd.rank() == 0:
            work(model, optimizer)
            optimizer.param_groups[0]["lr"] = 0.5
        else:
            work(model, optimizer, 3.0)
            if kind != "sgd":
                optimizer.state.clear()
        versions = [p._version for p in model.parameters()]
        state = TorchState(model, optimizer, step=hvd.rank() + 7)
        hvd.elastic.run(lambda state: None)(state)
        if hvd.rank() == 1:  # memory written from outside of torch must look written
            assert all(p._version > v for p, v in zip(model.parameters(), versions))
        received = picture(model, optimizer)
        work(model, optimizer, 2.0)
        state.restore()
        assert picture(model, optimizer) == received  # it was saved on arrival
        return received, state.step

    first, second = run_ranks(2, fn)
    assert first == second and first[1] == 7


def test_uncommitted_progress_survives_a_death_at_a_planned_change() -> None:
    """A leaves the epoch by plan, keeping its progress; B loses the same boundary to a death.

    Both then have the same number of commits behind them, so A's progress must count as newer.
    """
    left, dead = threading.Event(), threading.Event()

    def before(member: FakeGroup, kind: str, name: str) -> None:
        epoch = cluster.epoch
        if epoch is None or epoch.number != 1:
            return
        if kind == "boundary" and epoch.boundaries[id(member)] == 2:
            if member.name == "w1":
                assert left.wait(20)
                raise Killed()
            if member.name == "w2":
                assert dead.wait(20)
                with cluster.cond:
                    assert cluster.cond.wait_for(lambda: epoch.aborted, 20)

    cluster = FakeCluster(3, before=before)

    class Spy(ObjectState):
        def check_host_updates(self) -> None:
            try:
                super().check_host_updates()
            except hvd.HostsUpdatedInterrupt:
                left.set()
                raise

    def main(group: FakeGroup) -> list[tuple[int, int]]:
        hvd.init()
        state = Spy(step=0)
        seen = []

        @hvd.elastic.run
        def train(state: Any) -> None:
            seen.append((hvd.size(), state.step))
            while state.step < 6:
                hvd.allreduce(torch.ones(1))
                state.step += 1
                if state.step == 3 and group.name == "w0" and hvd.size() == 3:
                    with cluster.cond:  # a change is planned for this very boundary
                        cluster.epoch.leave_at = 3
                state.check_host_updates()

        train(state)
        return seen

    ranks = [Rank(cluster, f"w{i}", main, i) for i in range(3)]
    assert ranks[1].join().ended == "killed"
    dead.set()
    values = [ranks[i].join().value for i in (0, 2)]
    assert [ranks[i].error for i in (0, 2)] == [None, None]
    assert values == [[(3, 0), (2, 3)]] * 2


def test_optimizers_made_inside_the_function_agree_with_a_joiners() -> None:
    """A member that has made several optimizers and a joiner that made one use the same names."""
    cluster = FakeCluster(2)
    later: list[Rank] = []

    def main(group: FakeGroup) -> int:
        hvd.init()
        model = torch.nn.Linear(2, 1)
        state = TorchState(model, step=0)
        kept = []

        @hvd.elastic.run
        def train(state: Any) -> int:
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            kept.append(optimizer)
            while state.step < 6:
                if group.name == "w0" and state.step == 2 and not later:
                    later.append(Rank(cluster, "late", main, 2))
                    with cluster.cond:
                        assert cluster.cond.wait_for(lambda: later[0].group.offer, 20)
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                state.step += 1
                state.commit()
            return hvd.size()

        return train(state)

    founders = [Rank(cluster, f"w{i}", main, i) for i in range(2)]
    outcomes = [rank.join() for rank in founders] + [later[0].join()]
    assert [(rank.error, rank.value) for rank in outcomes] == [(None, 3)] * 3
