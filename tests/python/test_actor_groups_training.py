"""Groups of actors train with troupe.torch, and lose nothing whatever happens to their members."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from learner_cases import BATCH, SAMPLES, Learner, Served, train

import troupe
from troupe import collective
from troupe.actors import _session

from processes import until

SOON_S = 90.0

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(240)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    troupe.init(num_cpus=16)
    yield
    troupe.shutdown()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def made(name: str, size: int, **sizes: int) -> troupe.ActorGroup:
    group = Learner.group(size, name=name, **sizes).remote()
    assert group.wait(timeout=SOON_S)
    return group


def check(results: list[dict[str, Any]], data_epochs: int) -> None:
    """All agree, and have seen every sample as often as there were data epochs."""
    assert {r["hash"] for r in results} == {results[0]["hash"]}
    assert [r["seen"] for r in results] == [[data_epochs]] * len(results)
    assert {r["step"] for r in results} == {results[0]["step"]}


def epoch_of(name: str) -> int:
    actors = _session.current().actors
    return int(actors.collective("status", {"name": name}, 10.0)["epoch"])


def members_of(name: str) -> int:
    actors = _session.current().actors
    status = actors.collective("status", {"name": name}, 10.0)
    return [m["state"] for m in status["members"]].count("member")


def begun(name: str, size: int) -> None:
    """They train: the group has formed."""
    until(lambda: epoch_of(name) > 0 and members_of(name) == size, True)


def test_a_group_trains_as_an_executor_does(name: str) -> None:
    group = made(name, 3)
    results = troupe.get(group.train.run(2), timeout=SOON_S)
    check(results, 2)
    assert [r["begun"] for r in results] == [[0]] * 3
    assert sorted(r["rank"] for r in results) == [0, 1, 2]
    assert results[0]["step"] == 2 * SAMPLES // (3 * BATCH)
    group.end()
    with troupe.Executor(3, cpus_per_worker=0.2, num_cpus=2, progress="off") as executor:
        assert executor.run(train, (2,))[0]["hash"] == results[0]["hash"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_sample_is_lost_when_members_are_killed(name: str, tmp_path: Path, seed: int) -> None:
    group = made(name, 3)
    pids = troupe.get(group.pid.remote(), timeout=SOON_S)
    last = tmp_path / "last"
    run = group.train.run(3, pause_s=0.02, until_there=str(last))
    begun(name, 3)
    time.sleep(0.2 * seed)
    os.kill(pids[seed], signal.SIGKILL)
    until(lambda: [m.state for m in group.members()].count("alive"), 2)
    begun(name, 3)
    last.touch()
    results = troupe.get(run, timeout=SOON_S)
    assert len(results) == 3
    check(results, 3)
    group.end()


def test_members_join_and_leave_at_steps(name: str, tmp_path: Path) -> None:
    group = made(name, 2, max_size=4)
    last = tmp_path / "last"
    run = group.train.run(6, pause_s=0.01, until_there=str(last))
    begun(name, 2)
    group.resize(4)
    begun(name, 4)
    group.drain(0, "maintenance", deadline_s=SOON_S)  # The oldest; another comes for it.
    until(lambda: 0 in [m.number for m in group.members()], False)
    begun(name, 4)
    group.resize(3)
    until(lambda: len(group.members()), 3)
    begun(name, 3)
    last.touch()
    results = troupe.get(run, timeout=SOON_S)
    assert len(results) == 3
    check(results, 6)
    group.end()


def test_who_was_put_aside_comes_back_with_the_state_of_the_others(
    name: str, tmp_path: Path
) -> None:
    group = made(name, 3)
    pids = troupe.get(group.pid.remote(), timeout=SOON_S)
    last = tmp_path / "last"
    run = group.train.run(3, pause_s=0.02, until_there=str(last))
    begun(name, 3)
    os.kill(pids[1], signal.SIGSTOP)
    try:
        until(lambda: members_of(name), 2)
    finally:
        os.kill(pids[1], signal.SIGCONT)
    begun(name, 3)
    last.touch()
    results = troupe.get(run, timeout=SOON_S)
    assert len(results) == 3
    check(results, 3)
    assert troupe.get(group.pid.remote(), timeout=SOON_S) == pids
    group.end()


def test_commits_on_disk_outlive_all_members(name: str, tmp_path: Path) -> None:
    group = made(name, 3)
    pids = troupe.get(group.pid.remote(), timeout=SOON_S)
    last = tmp_path / "last"
    run = group.train.run(3, pause_s=0.02, durable=str(tmp_path / "commits"),
                          until_there=str(last))
    until(lambda: bool(list((tmp_path / "commits").glob("*/commit-*"))), True)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    last.touch()
    results = troupe.get(run, timeout=SOON_S)
    check(results, 3)
    assert all(r["begun"][0] > 0 for r in results)
    group.end()


def test_who_joins_when_the_others_are_done_begins_nothing_of_its_own(
    name: str, tmp_path: Path
) -> None:
    group = made(name, 2, min_size=1)
    pids = troupe.get(group.pid.remote(), timeout=SOON_S)
    last = tmp_path / "last"
    run = group.train.run(2, pause_s=0.01, until_there=str(last), late_s=3.0)
    begun(name, 2)
    os.kill(pids[1], signal.SIGKILL)
    until(lambda: [m.state for m in group.members()], ["alive", "alive"])
    last.touch()
    results = troupe.get(run, timeout=SOON_S)
    assert len(results) == 1
    check(results, 2)
    again = troupe.get(group.train.run(1), timeout=SOON_S)
    assert len(again) == 2
    check(again, 1)
    group.end()


def test_it_stays_bound_from_call_to_call(name: str) -> None:
    group = made(name, 3)
    bound = troupe.get(group.bind.remote(), timeout=SOON_S)
    assert sorted(bound) == [(0, 3), (1, 3), (2, 3)]
    for _ in range(3):
        assert troupe.get(group.sum.remote(2.0), timeout=SOON_S) == [6.0] * 3
    ranks = [e["RANK"] for e in troupe.get(group.environment.remote(), timeout=SOON_S)]
    assert sorted(ranks) == ["0", "1", "2"]
    check(troupe.get(group.train.run(1), timeout=SOON_S), 1)
    check(troupe.get(group.train.run(1), timeout=SOON_S), 1)
    troupe.get(group.unbind.remote(), timeout=SOON_S)
    assert troupe.get(group.plain_sum.remote(name), timeout=SOON_S) == [3.0] * 3
    group.end()


def test_another_group_beside_it_gets_the_weights(name: str) -> None:
    group = made(name, 2)
    servers = [Served.remote() for _ in range(2)]
    trainers = [m.handle for m in group.members()]
    following = [s.follow.remote(f"{name}-served", trainers, 5) for s in servers]
    run = group.train.run(4, pause_s=0.05, served=f"{name}-served")
    assert troupe.get(following, timeout=SOON_S) == [5, 5]
    check(troupe.get(run, timeout=SOON_S), 4)
    group.end()


def test_actors_of_no_group_train_in_one_made_of_them(name: str) -> None:
    actors = [Learner.remote() for _ in range(3)]
    collective.create_collective_group(actors, 3, range(3), group_name=name, elastic=True)
    check(troupe.get([a.train.remote(1, group=name) for a in actors], timeout=SOON_S), 1)


def test_actors_of_a_cluster_below_are_no_members(name: str) -> None:
    group = made(name, 1)
    assert "size 1" in troupe.get(group.members()[0].handle.below.remote(), timeout=SOON_S)
    group.end()


class TestWrongUse:
    def test_who_is_not_there_is_named(self, name: str) -> None:
        group = made(name, 2)
        first, second = (m.handle for m in group.members())
        with pytest.raises(troupe.TroupeError, match=second._native.id) as caught:
            troupe.get(first.bind.remote(elastic_timeout=1.0), timeout=SOON_S)
        assert "elastic_timeout" in str(caught.value)
        both = [first.bind.remote(), second.bind.remote()]
        assert sorted(troupe.get(both, timeout=SOON_S)) == [(0, 2), (1, 2)]
        group.end()

    def test_of_groups(self, name: str) -> None:
        group = made(name, 2)
        with pytest.raises(troupe.CollectiveGroupError, match="no collective group"):
            troupe.get(group.members()[0].handle.bind.remote("nowhere"), timeout=SOON_S)
        assert troupe.get(group.plain_sum.remote(name), timeout=SOON_S) == [2.0] * 2
        for error in _errors(group.bind.remote()):
            assert isinstance(error, ValueError) and "one by one" in str(error)
        other = made(f"{name}-2", 2)
        troupe.get(other.bind.remote(), timeout=SOON_S)
        for error in _errors(other.plain_sum.remote(f"{name}-2")):
            assert isinstance(error, ValueError) and "trains in collective group" in str(error)
        for error in _errors(other.bind.remote(name)):
            assert isinstance(error, ValueError) and "shutdown()" in str(error)
        group.end()
        other.end()

    def test_of_a_fixed_group(self, name: str) -> None:
        actors = [Learner.remote() for _ in range(2)]
        collective.create_collective_group(actors, 2, range(2), group_name=name)
        for error in _errors([a.bind.remote(name) for a in actors]):
            assert isinstance(error, ValueError) and "fixed" in str(error)

    def test_outside_of_actors(self) -> None:
        import troupe.torch as hvd

        with pytest.raises(troupe.NotInWorkerError):
            hvd.init(group="train")


def _errors(refs: list[Any]) -> list[BaseException]:
    errors = []
    for ref in refs:
        with pytest.raises(Exception) as caught:
            troupe.get(ref, timeout=SOON_S)
        errors.append(caught.value)
    return errors
