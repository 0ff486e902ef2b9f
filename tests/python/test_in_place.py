"""Commits that are held in place: what is gone back to is always a commit, bit for bit."""

from __future__ import annotations

import collections
import random
from pathlib import Path
from typing import Any, Optional

import pytest
import torch

import troupe.torch as hvd
from troupe.errors import HorovodInternalError
from troupe.torch._tree import nbytes
from troupe.torch.elastic import TorchState
from troupe.torch.elastic import _in_place as in_place

import test_elastic
import test_replay
from fake_core import FakeCluster, FakeGroup, Killed, run_ranks
from fake_operations import Op, memory
from in_place_training import (
    Hook,
    KillIn,
    Log,
    Member,
    Once,
    reduce,
    scale,
    scale_unseen,
    train,
)
from test_elastic import DATA, kill_at
from test_optimizer import make_model
from test_states import picture

LEARN, WHOLE = 3, 4  # version 3 is the first that may be held in place; 4, 8, ... are whole


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models are held in place too, and after few steps."""
    monkeypatch.setattr(in_place, "LEARN_COMMITS", LEARN)
    monkeypatch.setattr(in_place, "WHOLE_EVERY", WHOLE)
    monkeypatch.setattr(in_place, "LEAST_BYTES", 1)


def test_commits_of_an_ordinary_loop_are_held_in_place() -> None:
    log = Log()
    reasons = train(FakeCluster(2), 2, log)
    assert set(reasons.values()) == {""}
    assert log.held == {3, 5, 6, 7, 9, 10, 11, 13, 14, 15}


def test_nothing_is_copied_when_it_is_held() -> None:
    def fn() -> None:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=.1, momentum=1))

        def loop(state: Any) -> None:
            for _ in range(3):
                model(DATA[:4]).sum().backward()
                optimizer.step()
                state.commit()
            assert state.held_in_place
            for handler in state._handlers.values():
                live = {t.data_ptr() for t in handler.snapshot.sources}
                assert {t.data_ptr() for t in handler._light.tensors} == live

        hvd.elastic.run(loop)(TorchState(model, optimizer))

    run_ranks(1, fn)


@pytest.mark.parametrize("victim", ["w0", "w1", "w2"])
@pytest.mark.parametrize("operation", range(8, 26))
def test_a_death_at_any_operation(victim: str, operation: int) -> None:
    log = Log()
    cluster = FakeCluster(3, before=kill_at(victim, operation))
    train(cluster, 3, log)
    assert log.held and [e["size"] for e in cluster.history] == [3, 2]


@pytest.mark.parametrize("round_", range(12))
def test_random_lives(round_: int) -> None:
    test_elastic.test_random_lives(round_)


@pytest.mark.parametrize("receivers", [{"w0"}, {"w1"}, {"w0", "w2"}])
def test_who_has_the_result_rolls_the_others_forward(receivers: set[str]) -> None:
    test_elastic.test_who_has_the_result_rolls_the_others_forward(receivers, 1)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_steps_are_finished_from_kept_gradients(
    victim: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_replay._buckets.plan_buckets, "__defaults__", (300, 1200))
    test_replay.test_a_death_in_the_reduction_computes_nothing_again(1, victim, 1, caplog)


# ---- the first departure of a run, and a death in it ----


def test_a_collective_before_commit_costs_nothing_by_itself() -> None:
    log = Log()
    reasons = train(FakeCluster(2), 2, log, after=Once(5, reduce))
    assert "collectives between" in reasons["w0"] and reasons["w0"] == reasons["w1"]
    assert log.held == {3, 5} and log.begun == {"w0": [0], "w1": [0]}


def lost_by_all(victim: str = "w1") -> tuple[Log, FakeCluster]:
    log = Log()
    cluster = FakeCluster(3, before=KillIn("by hand", victim))
    train(cluster, 3, log, after=Once(6, reduce))
    return log, cluster


@pytest.mark.parametrize("victim", ["w0", "w1", "w2"])
def test_a_death_in_it_takes_all_back_to_the_last_whole_commit(victim: str) -> None:
    log, cluster = lost_by_all(victim)
    others = {"w0", "w1", "w2"} - {victim}
    assert {name: log.begun[name] for name in others} == {name: [0, 4] for name in others}
    warned = {name for name, kind, message in cluster.told if "written over" in message}
    assert warned == others
    assert not log.held - {3, 5, 6}  # and from then on all are copied


def test_a_mutant_that_trusts_what_is_written_over_is_caught(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place.InPlace, "usable", lambda self: True)
    with pytest.raises(AssertionError):
        lost_by_all()


def test_who_has_committed_gives_to_those_who_have_lost() -> None:
    """The collective reaches w0 alone, which commits step 7; then nobody needs commit 6."""
    log = Log()

    def deliver(op: Op, members: list[FakeGroup]) -> Optional[set[str]]:
        return {"w0"} if "by hand" in op.text and len(log.begun["w0"]) == 1 else None

    train(FakeCluster(3, deliver=deliver), 3, log, after=Once(6, reduce))
    assert log.begun == {name: [0, 7] for name in ("w0", "w1", "w2")}


@pytest.mark.parametrize("write", [scale, scale_unseen])
def test_who_is_at_the_boundary_gives_to_those_who_have_written(write: Hook) -> None:
    """w0 still leaves commit 6; w2 has written to it by hand and is in the next reduction."""
    log = Log()
    begun: collections.Counter[str] = collections.Counter()

    def before(member: FakeGroup, kind: str, name: str) -> None:
        cluster, epoch = member.cluster, member.cluster.epoch
        if epoch is None or epoch.number != 1:
            return
        with cluster.cond:
            if kind == "boundary" and member.name == "w0" and epoch.boundaries[id(member)] == 5:
                assert cluster.cond.wait_for(lambda: epoch.aborted, 20)
            if name == "optimizer.0.0":
                begun[member.name] += 1
                cluster.cond.notify_all()
                if member.name == "w1" and begun["w1"] == 7:
                    assert cluster.cond.wait_for(lambda: begun["w2"] == 7, 20)
                    raise Killed()

    train(FakeCluster(3, before=before), 3, log, before=lambda member: write(member) if
          member.state.step == 6 else None)
    assert log.begun["w0"] == log.begun["w2"] == [0, 6]


def test_who_has_not_stepped_gives_to_those_who_have_lost() -> None:
    """The gradients reach w0 alone, which steps and is in a collective when the epoch ends."""
    log = Log()
    seen = collections.Counter()

    def deliver(op: Op, members: list[FakeGroup]) -> Optional[set[str]]:
        if op.kind == "allreduce" and op.text.startswith("optimizer.0."):
            seen["steps"] += 1
            if seen["steps"] == 7:
                return {"w0"}
        return None

    train(FakeCluster(3, deliver=deliver), 3, log, after=Once(6, reduce, "w0"))
    assert log.begun == {name: [0, 6] for name in ("w0", "w1", "w2")}


@pytest.mark.parametrize("write", [scale, scale_unseen])
def test_a_write_by_hand_costs_nothing_by_itself(write: Hook) -> None:
    log = Log()
    reasons = train(FakeCluster(2), 2, log, before=Once(5, write))
    assert all("written between" in reason for reason in reasons.values())
    assert log.held == {3, 5} and log.begun == {"w0": [0], "w1": [0]}


@pytest.mark.parametrize("write", [scale, scale_unseen])
def test_a_write_by_hand_before_a_failure_is_not_part_of_what_is_gone_back_to(write: Hook) -> None:
    log = Log()

    def before(member: Member) -> None:
        write(member)
        reduce(member)

    train(FakeCluster(3, before=KillIn("by hand", "w1")), 3, log, before=Once(6, before))
    assert log.begun["w0"] == log.begun["w2"] == [0, 4]


@pytest.mark.parametrize("write", [scale, scale_unseen])
def test_what_writes_by_hand_from_the_beginning_is_copied(write: Hook) -> None:
    log = Log()

    def before(member: Member) -> None:
        write(member)
        reduce(member)

    def kill(member: FakeGroup, kind: str, text: str) -> None:
        if member.name == "w1" and "by hand" in text and len(log.commits) == 6:
            raise Killed()

    train(FakeCluster(3, before=kill), 3, log, before=before)
    assert not log.held and log.begun["w0"] == log.begun["w2"] == [0, 6]


def test_restoring_by_hand_before_the_step_is_exact() -> None:
    log = Log()

    def back(member: Member) -> None:
        member.optimizer.synchronize()
        member.model(DATA[:3])  # whatever fails in a forward pass
        member.state.restore()
        assert member.bits() == log.commits[member.state.version]
        raise hvd.HostsUpdatedInterrupt()

    reasons = train(FakeCluster(2), 2, log, before=Once(6, back))
    assert all("by hand" in reason for reason in reasons.values())
    assert log.begun == {"w0": [0, 6], "w1": [0, 6]}


def test_restoring_by_hand_after_the_step_is_agreed_on_by_all() -> None:
    """The first time the newest whole commit is what there is; then each commit is."""
    log = Log()

    def back(member: Member) -> None:
        member.state.restore()
        assert member.bits() == log.commits[member.state.version]
        raise hvd.HostsUpdatedInterrupt()

    first, second = Once(5, back), Once(6, back)
    train(FakeCluster(2), 2, log, after=lambda m: (first(m), second(m))[1])
    assert log.begun == {"w0": [0, 4, 6], "w1": [0, 4, 6]}


def test_a_step_that_fails_half_way_is_undone() -> None:
    log = Log()

    def spoil(member: Member) -> None:
        inner = type(member.optimizer).__mro__[1]
        original = inner.step

        def half(self: Any, closure: Any = None) -> None:
            inner.step = original
            scale(member)
            raise MemoryError("half-way")

        inner.step = half
        try:
            member.optimizer.step()
        except MemoryError:
            member.state.restore()

    train(FakeCluster(1), 1, log, before=Once(6, spoil))
    assert log.begun == {"w0": [0, 4]}


def test_loading_a_state_by_hand_keeps_the_commit() -> None:
    """The optimizer says so beforehand, so what was held in place is copied in time."""
    log = Log()

    def load(member: Member) -> None:
        member.optimizer.load_state_dict(member.optimizer.state_dict())
        member.state.restore()
        assert member.bits() == log.commits[6] and not member.state.held_in_place
        raise hvd.HostsUpdatedInterrupt()

    train(FakeCluster(2), 2, log, before=Once(6, load))
    assert log.begun == {"w0": [0, 6], "w1": [0, 6]}


@pytest.mark.parametrize("round_", range(40))
def test_random_departures_and_deaths(round_: int) -> None:
    """Whatever departs and whoever dies: what all begin with is one commit. Names the round."""
    rng = random.Random(round_)

    def at(step: int, what: Hook) -> Hook:  # each time, so that all members do the same
        return lambda member: what(member) if member.state.step == step else None

    def load(member: Member) -> None:
        member.optimizer.load_state_dict(member.optimizer.state_dict())

    before = at(rng.randrange(3, 9), rng.choice([scale, scale_unseen, reduce, load]))
    after = at(rng.randrange(3, 9), rng.choice([scale, reduce]))
    counts: dict[str, int] = collections.Counter()
    deaths = {name: rng.randrange(10, 40) for name in rng.sample(["w0", "w1", "w2", "w3"], 2)}

    def kill(member: FakeGroup, kind: str, text: str) -> None:
        counts[member.name] += 1
        if counts[member.name] == deaths.get(member.name):
            raise Killed()

    log = Log()
    train(FakeCluster(4, before=kill), 4, log, before=before, after=after)
    assert log.held


def test_several_steps_in_a_commit_are_copied() -> None:
    log = test_elastic.Log()
    cluster = FakeCluster(3, before=kill_at("w1", 17))
    ranks = test_elastic.start(cluster, 3, test_elastic.trainer(log, every=3))
    test_elastic.finish(cluster, ranks, log)


def test_a_member_that_fails_while_it_receives_keeps_its_commit() -> None:
    """w1 and w2 are behind and receive; the source dies half-way, with part of it written."""
    log = Log()
    seen = collections.Counter()

    def deliver(op: Op, members: list[FakeGroup]) -> Optional[set[str]]:
        if op.kind == "allreduce" and op.text.startswith("optimizer.0."):
            seen["steps"] += 1
            if seen["steps"] == 7:
                return {"w0"}  # w0 commits 7 and is the source
        return None

    def before(group: FakeGroup, kind: str, name: str) -> None:
        epoch = group.cluster.epoch
        if kind != "transfer" or epoch is None or epoch.number != 2:
            return
        seen[group.name] += 1
        if seen[group.name] < 3:  # two small ones, then the tensors
            return
        if group.name == "w0":
            raise Killed()
        for parameter in log.members[group.name].model.parameters():
            memory(parameter.data_ptr(), nbytes(parameter)).zero_()

    train(FakeCluster(3, before=before, deliver=deliver), 3, log)
    assert log.begun["w1"] == log.begun["w2"] == [0, 6] and seen["w1"] == 3


def test_what_an_optimizer_writes_unseen_is_lost_all_the_same() -> None:
    """Through .data, and in few elements only."""

    class Old(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                p.data.view(-1)[:1] -= 0.1

    def fn() -> None:
        model = torch.nn.Linear(2000, 1, bias=False)
        optimizer = hvd.DistributedOptimizer(Old(model.parameters(), lr=0.1))

        def loop(state: Any) -> None:
            for _ in range(3):
                model(torch.ones(1, 2000)).sum().backward()
                optimizer.step()
                state.commit()
            assert state.held_in_place
            model(torch.ones(1, 2000)).sum().backward()
            optimizer.step()
            with pytest.raises(HorovodInternalError, match="written over"):
                state.restore()

        hvd.elastic.run(loop)(TorchState(model, optimizer))

    run_ranks(1, fn)


def test_durable_commits_are_copied_and_only_they(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on at once after a durable commit; what is on disk is that commit's bits."""
    monkeypatch.setattr(in_place, "WHOLE_EVERY", 1000)
    pictures: dict[int, Any] = {}
    held: list[int] = []

    def make() -> tuple[Any, Any, Any]:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
        durable = hvd.elastic.DurableCommits(tmp_path, every=5, keep=1)
        return model, optimizer, TorchState(model, optimizer, durable=durable)

    def train() -> None:
        model, optimizer, state = make()

        def loop(state: Any) -> None:
            for _ in range(13):
                model(DATA[:4]).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                state.commit()
                pictures[state.version] = picture(model, optimizer)
                if state.held_in_place:
                    held.append(state.version)

        hvd.elastic.run(loop)(state)

    def resume() -> Any:
        model, optimizer, state = make()
        return hvd.elastic.run(lambda s: (s.version, picture(model, optimizer)))(state)

    run_ranks(1, train)
    assert held == [3, 4, 6, 7, 8, 9, 11, 12, 13]
    (resumed,) = run_ranks(1, resume)
    assert resumed == (10, pictures[10])


def test_after_run_the_last_commit_is_whole() -> None:
    def fn() -> None:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=.1, momentum=1))
        state = TorchState(model, optimizer)

        def step() -> None:
            model(DATA[:4]).sum().backward()
            optimizer.step()

        def loop(state: Any) -> None:
            for _ in range(3):
                step()
                state.commit()
            assert state.held_in_place

        hvd.elastic.run(loop)(state)
        kept = picture(model, optimizer)
        step()
        state.restore()
        assert picture(model, optimizer) == kept

    run_ranks(1, fn)


def test_the_environment_can_ask_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_COMMIT_COPIES", "always")
    log = Log()
    cluster = FakeCluster(3, before=KillIn("by hand", "w1"))
    train(cluster, 3, log, after=Once(6, reduce))
    assert not log.held and log.begun["w0"] == [0, 6]
    monkeypatch.setenv("TROUPE_COMMIT_COPIES", "sometimes")
    with pytest.raises(ValueError, match="auto or always"):
        TorchState(make_model())


def test_the_error_says_what_to_do() -> None:
    def fn() -> None:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=.1, momentum=1))
        failed = []

        def loop(state: Any) -> None:
            while not failed:
                model(DATA[:4]).sum().backward()
                optimizer.step()
                if state.held_in_place:
                    failed.append(1)
                    with pytest.raises(HorovodInternalError, match="TROUPE_COMMIT_COPIES=always"):
                        state.restore()
                    return
                state.commit()

        hvd.elastic.run(loop)(TorchState(model, optimizer))

    run_ranks(1, fn)
