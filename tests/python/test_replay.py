"""Steps whose reduction a death interrupts: reduced again, not computed again, nothing lost."""

from __future__ import annotations

import collections
import json
import logging
from typing import Any, Optional

import pytest
import torch

import troupe.torch as hvd
from troupe.errors import HorovodInternalError
from troupe.torch import _buckets
from troupe.torch.elastic import ElasticSampler, TorchState, batches

import fake_ledger
from fake_core import FakeCluster, FakeGroup, Killed, Rank
from fake_operations import Op
from test_elastic import BATCH, DATA, TARGET, Log, finish, start, trainer
from test_optimizer import make_model, params_of

BUCKETS = 3


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several buckets even for a small model."""
    monkeypatch.setattr(_buckets.plan_buckets, "__defaults__", (300, 1200))


class Deaths:
    """Kills members ahead of chosen operations, given as (epoch, member, name, n-th time).

    Who dies in a reduction does so when all the others have begun it.
    """

    def __init__(self, *deaths: tuple[int, str, str, int]) -> None:
        self.left = list(deaths)
        self._seen: dict[tuple[int, str, str], int] = collections.Counter()

    def __call__(self, member: FakeGroup, kind: str, name: str) -> None:
        cluster, epoch = member.cluster, member.cluster.epoch
        if epoch is None:
            return
        with cluster.cond:
            key = (epoch.number, member.name, name or kind)
            self._seen[key] += 1
            cluster.cond.notify_all()
            times = self._seen[key]
            if (*key, times) not in self.left:
                return
            self.left.remove((*key, times))
            if name.startswith("optimizer."):
                others = [m.name for m in epoch.members if m is not member]
                assert cluster.cond.wait_for(lambda: all(
                    self._seen[epoch.number, other, "optimizer.0.0"] >= times for other in others
                ), 20)
        raise Killed()


def recomputed(log: Log) -> dict[tuple[str, int], int]:
    return {key: times for key, times in log.computed.items() if times > 1}


def replays(caplog: pytest.LogCaptureFixture) -> int:
    return sum("was reduced again" in record.getMessage() for record in caplog.records)


def lost_ranks(log: Log) -> set[tuple[int, ...]]:
    return {done[2] for ways in log.commits.values() for way in ways for done in way} - {()}


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("bucket", range(BUCKETS))
def test_a_death_in_the_reduction_computes_nothing_again(
    bucket: int, victim: int, every: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "troupe.elastic")
    log = Log()
    deaths = Deaths((1, f"w{victim}", f"optimizer.0.{bucket}", 4))
    cluster = FakeCluster(3, before=deaths)
    finish(cluster, start(cluster, 3, trainer(log, every=every)), log)
    assert not deaths.left and [e["size"] for e in cluster.history] == [3, 2]
    assert recomputed(log) == {} and replays(caplog) == 2
    assert lost_ranks(log) == {(victim,)}
    assert not [t for t in cluster.transfers if t[0] == 2]


@pytest.mark.parametrize("receivers", [{"w0"}, {"w1", "w2"}])
def test_a_bucket_that_reached_some_is_reduced_again_by_all(receivers: set[str]) -> None:
    """Nobody has the whole result, and sums over different members must not mix."""
    log = Log()
    times = collections.Counter()

    def deliver(op: Op, members: list[FakeGroup]) -> Optional[set[str]]:
        times[op.text] += 1
        return receivers if op.text == "optimizer.0.1" and times[op.text] == 4 else None

    cluster = FakeCluster(3, deliver=deliver)
    finish(cluster, start(cluster, 3, trainer(log)), log)
    assert [e["size"] for e in cluster.history] == [3, 3] and recomputed(log) == {}
    assert lost_ranks(log) == set()  # all of them live


@pytest.mark.parametrize("where", ["interrupted step", "optimizer.0.0", "optimizer.0.2"])
@pytest.mark.parametrize("second", ["w0", "w2", "w3"])
def test_a_second_death_while_the_step_is_saved(second: str, where: str) -> None:
    log = Log()
    deaths = Deaths((1, "w1", "optimizer.0.2", 4), (2, second, where, 1))
    cluster = FakeCluster(4, before=deaths)
    finish(cluster, start(cluster, 4, trainer(log)), log)
    assert not deaths.left and [e["size"] for e in cluster.history] == [4, 3, 2]
    assert recomputed(log) == {}
    assert lost_ranks(log) == {tuple(sorted((1, int(second[1]))))}


def recovery(cluster: FakeCluster) -> list[tuple[str, int, int, int]]:
    """What was told: by whom, steps replayed and recomputed, samples returned."""
    told = [(name, json.loads(text)) for name, kind, text in cluster.told if kind == "recovered"]
    return [(name, said["steps_replayed"], said["steps_recomputed"], said["samples_returned"])
            for name, said in told]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_replay_is_told_once_with_what_went_back(victim: int) -> None:
    log = Log()
    cluster = FakeCluster(3, before=Deaths((1, f"w{victim}", "optimizer.0.1", 4)))
    finish(cluster, start(cluster, 3, trainer(log)), log)
    assert recovery(cluster) == [("w1" if victim == 0 else "w0", 1, 0, BATCH)]


@pytest.mark.parametrize("every", [1, 3])
def test_steps_after_a_commit_are_told_when_computed_again(every: int) -> None:
    """One joins with the next view, so nothing is replayed; all go back."""
    log = Log()
    deaths = Deaths((1, "w1", "optimizer.0.2", 5))
    late: list[Rank] = []

    def before(member: FakeGroup, kind: str, name: str) -> None:
        try:
            deaths(member, kind, name)
        except Killed:
            if member.name == "w1":  # someone without state: the loop takes over
                late.append(Rank(cluster, "late", main, 3))
                with cluster.cond:
                    assert cluster.cond.wait_for(lambda: late[0].group.offer, 20)
            raise

    cluster = FakeCluster(3, before=before)
    main = trainer(log, every=every)
    ranks = start(cluster, 3, main)
    for rank in ranks:
        rank.join()
    finish(cluster, ranks + late, log)
    # The fifth step ends the data epoch; with a commit every three steps the fourth goes too.
    assert recovery(cluster) == [("w0", 0, {1: 1, 3: 2}[every], 0)]


def test_all_others_die_in_one_step() -> None:
    log = Log()
    deaths = Deaths((1, "w1", "optimizer.0.2", 4), (2, "w0", "optimizer.0.1", 1))
    cluster = FakeCluster(3, before=deaths)
    finish(cluster, start(cluster, 3, trainer(log)), log)
    assert [e["size"] for e in cluster.history] == [3, 2, 1]
    assert recomputed(log) == {} and lost_ranks(log) == {(0, 1)}


def test_the_whole_result_at_some_makes_the_others_follow() -> None:
    """In the second reduction of a step, whose last bucket reaches one of three survivors."""
    log = Log()
    last = f"optimizer.0.{BUCKETS - 1}"

    def deliver(op: Op, members: list[FakeGroup]) -> Optional[set[str]]:
        first = op.text == last and len(members) == 3 and not hit
        if first:
            hit.append(1)
        return {"w2"} if first else None

    hit: list[int] = []
    deaths = Deaths((1, "w1", "optimizer.0.2", 4))
    cluster = FakeCluster(4, before=deaths, deliver=deliver)
    finish(cluster, start(cluster, 4, trainer(log)), log)
    assert [e["size"] for e in cluster.history] == [4, 3, 3]
    assert {chain for epoch, chain, _ in cluster.transfers if epoch == 3} == {(1, 0, 2)}
    assert lost_ranks(log) == {(1,)} and recomputed(log) == {}


def test_with_a_joiner_the_step_is_done_again() -> None:
    log = Log()
    late: list[Rank] = []
    deaths = Deaths((1, "w1", "optimizer.0.1", 4))

    def before(member: FakeGroup, kind: str, name: str) -> None:
        try:
            deaths(member, kind, name)
        except Killed:
            late.append(Rank(cluster, "late", main, 3))
            with cluster.cond:
                assert cluster.cond.wait_for(lambda: late[0].group.offer, 20)
            raise

    cluster = FakeCluster(3, before=before)
    main = trainer(log)
    ranks = start(cluster, 3, main)
    for rank in ranks:
        rank.join()
    finish(cluster, ranks + late, log)
    assert [e["size"] for e in cluster.history] == [3, 3]
    assert recomputed(log) == {("w0", 3): 2, ("w2", 3): 2} and lost_ranks(log) == set()


def small_training(group: FakeGroup, seen: list[Any], swallow: bool = False,
                   callbacks: bool = False) -> list[torch.Tensor]:
    hvd.init()
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    state = TorchState(model, optimizer, sampler=ElasticSampler(range(20), shuffle=False), step=0)
    if callbacks:
        state.register_reset_callbacks([lambda: None])

    @hvd.elastic.run
    def train(state: Any) -> None:
        for indices in batches(state.sampler, 2):
            optimizer.zero_grad()
            seen.append((group.name, state.step, list(indices)))
            torch.nn.functional.mse_loss(model(DATA[indices]), TARGET[indices]).backward()
            try:
                optimizer.step()
            except HorovodInternalError:
                if not swallow:
                    raise
            state.step += 1
            state.commit()

    train(state)
    return params_of(model)


def by_hand(steps: list[list[list[int]]]) -> list[torch.Tensor]:
    """Trains one model on each step's shares as the core sums them: in rank order, then divided."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for shares in steps:
        total: list[Any] = [[] for _ in model.parameters()]
        for indices in shares:
            model.zero_grad()
            torch.nn.functional.mse_loss(model(DATA[indices]), TARGET[indices]).backward()
            for parts, p in zip(total, model.parameters()):
                parts.append(p.grad * (len(indices) / 2) if len(indices) != 2 else p.grad.clone())
        mean = sum(len(indices) / 2 for indices in shares) / len(shares)
        for parts, p in zip(total, model.parameters()):
            p.grad = torch.stack(parts).sum(0) / len(parts)
            if mean != 1.0:
                p.grad.mul_(1.0 / mean)
        optimizer.step()
    return params_of(model)


def test_equals_the_schedule_by_hand_to_the_bit() -> None:
    schedule = [
        [[0, 1], [2, 3], [4, 5]],
        [[6, 7], [10, 11]],  # rank 1 died with 8 and 9
        [[8, 9], [12, 13]],  # which come first now
        [[14, 15], [16, 17]],
        [[18], [19]],
    ]
    seen: list[Any] = []
    cluster = FakeCluster(3, before=Deaths((1, "w1", "optimizer.0.1", 2)))
    ranks = start(cluster, 3, lambda group: small_training(group, seen))
    results = [rank.join() for rank in ranks]
    assert [r.error for r in results] == [None] * 3 and results[1].ended == "killed"
    expected = by_hand(schedule)
    for rank in (0, 2):
        assert all(torch.equal(a, b) for a, b in zip(results[rank].value, expected))
        column = [shares[0 if rank == 0 else -1] for shares in schedule]
        assert [i for name, _, i in seen if name == f"w{rank}"] == column


def test_reset_callbacks_are_told_so_the_step_is_done_again() -> None:
    seen: list[Any] = []
    cluster = FakeCluster(3, before=Deaths((1, "w1", "optimizer.0.1", 2)))
    ranks = start(cluster, 3, lambda group: small_training(group, seen, callbacks=True))
    assert [rank.join().error for rank in ranks] == [None] * 3
    assert [step for name, step, _ in seen if name == "w0"].count(1) == 2


def test_a_swallowed_error_does_not_reach_the_next_view() -> None:
    """A step that fails for good in a view it has entered: what follows fails until run hears."""
    seen: list[Any] = []
    cluster = FakeCluster(3, before=Deaths((1, "w1", "optimizer.0.1", 2)))
    # w0 alone has callbacks, so the members do not all stand in the step.
    ranks = start(cluster, 3, lambda group: small_training(
        group, seen, swallow=True, callbacks=group.name == "w0"))
    results = [rank.join() for rank in ranks]
    assert [r.error for r in results] == [None] * 3
    assert all(torch.equal(a, b) for a, b in zip(results[0].value, results[2].value))


def test_a_ledger_that_forgets_what_was_given_back_is_caught(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_ledger.SampleLedger, "forgetful", True)
    log = Log()
    cluster = FakeCluster(3, before=Deaths((1, "w1", "optimizer.0.1", 4)))
    with pytest.raises(AssertionError):
        finish(cluster, start(cluster, 3, trainer(log)), log)
