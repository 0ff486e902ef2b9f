"""State that follows a joiner while the members train: the same bits, whoever dies meanwhile."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Optional

import pytest
import torch

import troupe.torch as hvd
from troupe.torch.elastic import ElasticSampler, TorchState, batches
from troupe.torch.elastic import _following as following
from troupe.torch.elastic import _in_place as in_place

import test_elastic
from fake_core import FakeCluster, FakeGroup, Killed, Rank
from test_elastic import Log, finish, start, trainer
from test_optimizer import make_model, params_of

JOIN_AT = 4  # The step in which the joiner gets ready.


class Taken(list):
    """The versions that joiners have taken over from a transfer beside the training."""


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """Small states follow too, and soon."""
    monkeypatch.setattr(following, "CALM_COMMITS", 2)
    monkeypatch.setattr(following, "LEAST_BYTES", 1)
    monkeypatch.setattr(in_place, "LEAST_BYTES", 1)
    monkeypatch.setattr(TorchState.__init__, "__defaults__", (None, None, None, True, None))
    versions = Taken()
    take = following.Following.take

    def counted(self: following.Following) -> None:
        take(self)
        versions.append(self.version)

    monkeypatch.setattr(following.Following, "take", counted)
    return versions


class Joiners:
    """Starts one in a step of w0, which ends when the joiner is ready."""

    def __init__(self, cluster: FakeCluster, at: int = JOIN_AT) -> None:
        self.cluster, self.at = cluster, at
        self.ranks: list[Rank] = []
        self.main: Any = None

    def on_step(self, group: FakeGroup, step: int) -> None:
        if group.name == "w0" and step == self.at and not self.ranks:
            self.ranks.append(Rank(self.cluster, "late", self.main, 9))
            with self.cluster.cond:
                assert self.cluster.cond.wait_for(lambda: self.ranks[0].group.offer, 20)


def run(cluster: FakeCluster, size: int, log: Log, at: int = JOIN_AT, every: int = 1) -> Joiners:
    joiners = Joiners(cluster, at)
    joiners.main = trainer(log, joiners.on_step, every)
    ranks = start(cluster, size, joiners.main)
    for rank in ranks:
        rank.join()
    finish(cluster, ranks + joiners.ranks, log)
    return joiners


def test_a_joiner_makes_its_first_step_as_a_follower(taken: Taken) -> None:
    log = Log()
    cluster = FakeCluster(2)
    run(cluster, 2, log)
    assert [e["size"] for e in cluster.history] == [2, 3]
    (version,) = taken
    step = min(step for step, epoch in log.shares if epoch == 2)
    assert version == step  # a commit per step
    assert {rank: len(counted) for rank, (_, counted) in log.shares[step, 2].items()} == {
        0: 4, 1: 4, 2: 0}
    assert {len(c) for _, c in log.shares[step + 1, 2].values()} == {4}


def test_nobody_waits_for_the_transfer_before_the_gradients_are_under_way(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    did: dict[str, list[str]] = collections.defaultdict(list)

    def before(member: FakeGroup, kind: str, name: str) -> None:
        if cluster.epoch is not None and cluster.epoch.number == 2:
            did[member.name].append(kind)

    finish_transfer = FakeGroup.finish_transfer

    def finished(self: FakeGroup, handle: int, timeout_s: float) -> int:
        before(self, "waited", "")
        return finish_transfer(self, handle, timeout_s)

    monkeypatch.setattr(FakeGroup, "finish_transfer", finished)
    cluster = FakeCluster(2, before=before)
    run(cluster, 2, log)
    plain = ["transfer", "waited"] * 2
    agree = ["allgather", "barrier"]
    gradients = ["allreduce"]
    assert len(taken) == 1
    assert did["w0"][:8] == [*agree, *plain, "transfer", *gradients]
    assert did["w1"][:3] == [*agree, *gradients]
    assert did["late"][:8] == [*agree, *plain, "transfer", *gradients]
    assert "waited" in did["w0"][8:] and "waited" in did["late"][8:]


@pytest.mark.parametrize("who", ["w0", "w1", "late"])
@pytest.mark.parametrize("operation", range(1, 14))
def test_a_death_at_any_operation_after_the_join(who: str, operation: int) -> None:
    log = Log()
    counts: dict[str, int] = collections.Counter()

    def before(member: FakeGroup, kind: str, name: str) -> None:
        epoch = cluster.epoch
        if epoch is None or epoch.number != 2:
            return
        counts[member.name] += 1
        if member.name == who and counts[who] == operation:
            raise Killed()

    cluster = FakeCluster(2, before=before)
    run(cluster, 2, log)
    assert [e["size"] for e in cluster.history][:3] == [2, 3, 2]


@pytest.mark.parametrize("in_follow", [True, False])
def test_if_all_who_hold_the_state_die_the_joiner_begins_anew(in_follow: bool) -> None:
    """What it has received in part is nothing to go on from."""
    first: list[Any] = []
    entered: list[Any] = []
    calls: dict[str, int] = collections.Counter()

    def before(member: FakeGroup, kind: str, name: str) -> None:
        epoch = cluster.epoch
        if epoch is None or epoch.number != 2 or member.name != "w0":
            return
        calls["transfer"] += kind == "transfer"
        if calls["transfer"] == 3 and in_follow or kind == "boundary":
            raise Killed()

    cluster = FakeCluster(1, before=before)
    joiners = Joiners(cluster)

    def main(group: FakeGroup) -> None:
        hvd.init()
        model = make_model(seed=3 if group.name == "late" else 4)
        if group.name == "late":
            first.extend(p.clone() for p in params_of(model))
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
        sampler = ElasticSampler(range(40), seed=7)
        state = TorchState(model, optimizer, sampler=sampler, step=0)

        def loop(state: Any) -> None:
            if group.name == "late" and hvd.size() == 1:
                same = all(torch.equal(a, b) for a, b in zip(first, params_of(model)))
                entered.append((state.step, state.version, same, len(optimizer.state)))
            for indices in batches(state.sampler, 4):
                joiners.on_step(group, state.step)
                optimizer.zero_grad()
                model(test_elastic.DATA[indices]).pow(2).mean().backward()
                optimizer.step()
                state.step += 1
                state.commit()

        hvd.elastic.run(loop)(state)

    joiners.main = main
    (oldest,) = start(cluster, 1, main)
    assert oldest.join().ended == "killed" and joiners.ranks[0].join().error is None
    (alone,) = cluster.history[2]["members"]
    if in_follow:
        assert not alone["has_state"] and entered == [(0, 0, True, 0)]
    else:  # It had the state, and has made the step.
        assert alone["has_state"] and alone["version"] > JOIN_AT


def joined(taken: Taken, body: Callable[[Any, Any, Any, list[int]], None],
           before: Optional[Callable[[FakeGroup, str, str], None]] = None) -> list[Any]:
    """Trains with two members and a joiner by the user's ``body``; the final values of all."""
    cluster = FakeCluster(2, before=before)
    joiners = Joiners(cluster, 6)

    def main(group: FakeGroup) -> Any:
        hvd.init()
        model = make_model(seed=hash(group.name) % 1000)
        sgd = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(sgd)
        sampler = ElasticSampler(range(48), seed=7)
        state = TorchState(model, optimizer, sampler=sampler, step=0, scale=1.0)

        def loop(state: Any) -> None:
            for indices in batches(state.sampler, 2):
                joiners.on_step(group, state.step)
                body(state, model, optimizer, indices)

        hvd.elastic.run(loop)(state)
        return [*params_of(model), torch.tensor([state.step, state.scale, state.version])]

    joiners.main = main
    ranks = start(cluster, 2, main)
    outcomes = [rank.join() for rank in ranks]  # The joiner is started meanwhile.
    outcomes.extend(rank.join() for rank in joiners.ranks)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    assert len(outcomes) == 3
    for outcome in outcomes[1:]:
        assert all(torch.equal(a, b) for a, b in zip(outcome.value, outcomes[0].value))
    return list(taken)


def step(state: Any, model: Any, optimizer: Any, indices: list[int]) -> None:
    optimizer.zero_grad()
    model(test_elastic.DATA[indices]).pow(2).mean().backward()
    optimizer.step()


def test_what_is_set_before_the_step_is_not_overwritten(taken: Taken) -> None:
    """Rates and plain values that follow from the step number, and clipped gradients."""

    def body(state: Any, model: Any, optimizer: Any, indices: list[int]) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + state.step)
        state.step += 1
        state.scale *= 0.5
        optimizer.zero_grad()
        model(test_elastic.DATA[indices]).pow(2).mean().backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with optimizer.skip_synchronize():
            optimizer.step()
        state.commit()

    assert len(joined(taken, body)) == 1


def test_collectives_of_the_users_have_the_others_wait(taken: Taken) -> None:
    def body(state: Any, model: Any, optimizer: Any, indices: list[int]) -> None:
        step(state, model, optimizer, indices)
        hvd.allreduce(torch.ones(1), name="loss")
        state.step += 1
        state.commit()

    assert joined(taken, body) == []


def test_so_do_those_before_the_first_step_of_a_call(taken: Taken) -> None:
    entered: set[int] = set()

    def body(state: Any, model: Any, optimizer: Any, indices: list[int]) -> None:
        key = id(state), hvd.epoch()
        if key not in entered:
            entered.add(key)
            hvd.allreduce(torch.ones(1), name="evaluation")
        step(state, model, optimizer, indices)
        state.step += 1
        state.commit()

    assert joined(taken, body) == []


def test_it_must_be_asked_for(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchState.__init__, "__defaults__", (None, None, None, False, None))
    assert joined(taken, by_hand(range(0))) == []


def by_hand(at: range) -> Callable[[Any, Any, Any, list[int]], None]:
    def body(state: Any, model: Any, optimizer: Any, indices: list[int]) -> None:
        if state.step in at:
            with torch.no_grad():
                for param in model.parameters():
                    param.mul_(0.75)
        step(state, model, optimizer, indices)
        state.step += 1
        state.commit()

    return body


def test_who_writes_to_the_state_by_hand_waits(taken: Taken) -> None:
    assert joined(taken, by_hand(range(100))) == []


def test_the_first_write_by_hand_of_all_is_not_missed(
    taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    assert joined(taken, by_hand(range(7, 8))) == [7]  # The step that the joiner follows in.
    assert "it is sent again" in caplog.text


def test_a_mutant_that_does_not_look_is_caught(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchState, "_confirm_followers", lambda self: None)
    with pytest.raises(AssertionError):
        joined(taken, by_hand(range(7, 8)))


def test_state_that_is_replaced_by_hand_is_sent_again(
    taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    """Momentum that is dropped: other tensors than those that were watched, and another layout."""

    def body(state: Any, model: Any, optimizer: Any, indices: list[int]) -> None:
        if state.step == 7:
            optimizer.state.clear()
        step(state, model, optimizer, indices)
        state.step += 1
        state.commit()

    assert joined(taken, body) == [7] and "it is sent again" in caplog.text


def test_a_write_to_a_transposed_tensor_is_noticed() -> None:
    tensor = torch.zeros(3, 2).t()
    stamps = in_place.Stamps([tensor])
    assert stamps.hold()
    tensor.mul_(2)
    assert not stamps.hold()


def test_a_collective_of_the_users_in_the_step_has_the_state(taken: Taken) -> None:
    sums: dict[int, set[float]] = collections.defaultdict(set)

    def body(state: Any, model: Any, optimizer: Any, indices: list[int]) -> None:
        if state.step == 7:
            hvd.allreduce(torch.ones(1), name="once")
            sums[state.step].add(float(sum(p.sum() for p in model.parameters())))
        step(state, model, optimizer, indices)
        state.step += 1
        state.commit()

    assert joined(taken, body) == [7] and len(sums[7]) == 1


def test_after_the_last_step_of_a_data_epoch_the_others_wait(taken: Taken) -> None:
    """What comes next is not a step: an evaluation, say."""
    log = Log()
    cluster = FakeCluster(2)
    run(cluster, 2, log, at=7)  # The last of the data epoch: 60 samples, 8 a step.
    assert list(taken) == [] and [e["size"] for e in cluster.history] == [2, 3]


def test_followers_have_no_share_until_the_step_is_done() -> None:
    sampler = ElasticSampler(range(20), shuffle=False)
    sampler.rank, sampler.num_replicas = 0, 3
    sampler.follow([1])
    taken = iter(batches(sampler, 2))
    assert next(taken) == [0, 1] and next(taken) == [4, 5]  # rank 2 has [2, 3] and [6, 7]
    sampler.note_step()
    assert next(taken) == [8, 9]
    sampler.commit()
    assert sampler._shares == collections.deque()
    assert next(taken) == [14, 15]


@pytest.mark.parametrize("round_", range(12))
def test_random_lives(round_: int) -> None:
    test_elastic.test_random_lives(round_)


@pytest.mark.parametrize("round_", range(12))
def test_random_lives_with_commits_in_place(
    round_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LEARN_COMMITS", 2), ("WHOLE_EVERY", 4), ("LEAST_BYTES", 1)):
        monkeypatch.setattr(in_place, name, value)
    test_elastic.test_random_lives(round_)
