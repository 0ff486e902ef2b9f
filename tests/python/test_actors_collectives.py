"""Collective groups of actors: every collective, every way to make a group, or to lose one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from actor_group_cases import Member

import troupe
from troupe import collective
from troupe.actors import _session
from troupe.collective import ReduceOp

from conftest import EXAMPLES
from processes import until

SOON_S = 60.0

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    troupe.init(num_cpus=16)
    yield
    troupe.shutdown()


def members(count: int, **options: Any) -> list[Any]:
    return [Member.options(num_cpus=0.1, **options).remote() for _ in range(count)]


def all_of(actors: list[Any], method: str, *args: Any, **kwargs: Any) -> list[Any]:
    return troupe.get([getattr(a, method).remote(*args, **kwargs) for a in actors], timeout=SOON_S)


def joined(count: int, name: str, **options: Any) -> list[Any]:
    made = members(count, **options)
    troupe.get([a.join.remote(count, i, name) for i, a in enumerate(made)], timeout=SOON_S)
    return made


def known_by_all(actors: list[Any], name: str, size: int) -> None:
    """All of them are in the group, and know it."""
    until(lambda: [view["size"] for view in all_of(actors, "wait", name, 30.0)],
          [size] * len(actors))


def status_of(name: str) -> dict[str, Any]:
    return dict(_session.current().actors.collective("status", {"name": name}, 10.0))


def _failed(refs: list[Any]) -> set[int]:
    """Which of them have failed, when all have ended."""
    failed = set()
    for i, ref in enumerate(refs):
        try:
            troupe.get(ref, timeout=SOON_S)
        except troupe.TroupeError:
            failed.add(i)
    return failed


class TestEveryCollective:
    def test_results_are_those_of_all_ranks(self) -> None:
        ranks = joined(3, "kinds")
        assert all_of(ranks, "place", "kinds") == [(i, 3, True) for i in range(3)]
        results = all_of(ranks, "all_kinds", "kinds")
        mine = [[10 * rank + i for i in range(3)] for rank in range(3)]
        total = [30, 33, 36]
        assert results[2]["reduce"] == total
        for rank, result in enumerate(results):
            assert result["broadcast"] == mine[1]
            assert result["allgather"] == mine
            assert result["reducescatter"] == [t + 3 * rank for t in total]
        assert results[2]["passed"] == mine[0]

    @pytest.mark.parametrize(("op", "wanted"), [
        (ReduceOp.SUM, 6.0), (ReduceOp.PRODUCT, 6.0), (ReduceOp.MAX, 3.0), (ReduceOp.MIN, 1.0),
        (ReduceOp.AVERAGE, 2.0)])
    def test_reductions(self, op: ReduceOp, wanted: float) -> None:
        name = f"op-{op.name}"
        ranks = joined(3, name)
        refs = [a.allreduce.remote(float(i + 1), name, op) for i, a in enumerate(ranks)]
        assert troupe.get(refs, timeout=SOON_S) == [[wanted] * 4] * 3

    def test_tensors_of_torch(self) -> None:
        ranks = joined(2, "tensors")
        for plain, turned, half in all_of(ranks, "tensors", "tensors"):
            assert plain == [[1.5] * 3] * 2
            assert turned == [[0.0, 9.0], [3.0, 12.0], [6.0, 15.0]]
            assert half == [3.0] * 4

    def test_large_arrays(self) -> None:
        ranks = joined(2, "large")
        count = 8 << 20
        refs = [a.allreduce.remote(1.0, "large", count=count) for a in ranks]
        for result in troupe.get(refs, timeout=SOON_S):
            assert result == [2.0] * count


class TestGroups:
    def test_a_driver_makes_one_of_handles_in_any_order(self) -> None:
        actors = members(3)
        collective.create_collective_group(actors, 3, [2, 0, 1], group_name="made")
        assert [place[0] for place in all_of(actors, "all_kinds", "made") and
                all_of(actors, "place", "made")] == [2, 0, 1]
        with pytest.raises(ValueError, match="already"):
            collective.create_collective_group(actors, 3, [0, 1, 2], group_name="made")
        collective.destroy_collective_group("made")
        for actor in actors:
            with pytest.raises(troupe.CollectiveGroupError, match="destroyed"):
                troupe.get(actor.allreduce.remote(1.0, "made"), timeout=SOON_S)
        collective.create_collective_group(actors, 3, [0, 1, 2], group_name="made")
        assert all_of(actors, "allreduce", 1.0, "made") == [[3.0] * 4] * 3

    def test_an_actor_is_in_several_at_once(self) -> None:
        a, b, c = members(3)
        collective.create_collective_group([a, b], 2, [0, 1], group_name="left")
        collective.create_collective_group([b, c], 2, [0, 1], group_name="right")
        for _ in range(3):
            left = [actor.allreduce.remote(1.0, "left") for actor in (a, b)]
            right = [actor.allreduce.remote(2.0, "right") for actor in (b, c)]
            assert troupe.get(left, timeout=SOON_S) == [[2.0] * 4] * 2
            assert troupe.get(right, timeout=SOON_S) == [[4.0] * 4] * 2

    def test_it_ends_with_its_members(self) -> None:
        ranks = joined(2, "brief")
        all_of(ranks, "allreduce", 1.0, "brief")
        assert status_of("brief")["phase"] == "active"
        all_of(ranks, "leave", "brief")
        assert all_of(ranks, "place", "brief") == [(-1, -1, False)] * 2
        with pytest.raises(RuntimeError, match="left"):
            status_of("brief")
        again = troupe.get([a.join.remote(2, 1 - i, "brief") for i, a in enumerate(ranks)],
                           timeout=SOON_S)
        assert again == [None, None]
        assert all_of(ranks, "allreduce", 1.0, "brief") == [[2.0] * 4] * 2

    def test_a_driver_is_no_member(self) -> None:
        with pytest.raises(troupe.NotInWorkerError, match="create_collective_group"):
            collective.init_collective_group(2, 0)


class TestWrongUse:
    def test_sizes_that_contradict(self) -> None:
        actors = members(3)
        with pytest.raises(ValueError, match="ranks"):
            collective.create_collective_group(actors, 2, [0, 1])
        with pytest.raises(ValueError, match="ranks"):
            collective.create_collective_group(actors, 3, [0, 1, 1])
        with pytest.raises(ValueError, match="twice"):
            collective.create_collective_group([actors[0]] * 2, 2, [0, 1])
        troupe.get(actors[0].join.remote(2, 0, "odd"), timeout=SOON_S)
        with pytest.raises(troupe.ActorTaskError, match="of 2 members, not"):
            troupe.get(actors[1].join.remote(3, 1, "odd"), timeout=SOON_S)
        with pytest.raises(troupe.ActorTaskError, match="rank 0 .* is that of actor"):
            troupe.get(actors[1].join.remote(2, 0, "odd"), timeout=SOON_S)

    def test_a_group_that_is_not_there_or_not_mine(self) -> None:
        (actor,) = members(1)
        with pytest.raises(troupe.ActorTaskError, match='no collective group "nowhere"'):
            troupe.get(actor.allreduce.remote(1.0, "nowhere"), timeout=SOON_S)
        theirs = joined(2, "theirs")
        with pytest.raises(troupe.ActorTaskError, match="none of those"):
            troupe.get(actor.allreduce.remote(1.0, "theirs"), timeout=SOON_S)
        assert len(theirs) == 2  # Their handles are kept: an actor without one ends.

    def test_dead_actors_make_no_group(self) -> None:
        actors = members(2)
        troupe.kill(actors[0])
        with pytest.raises(ValueError, match="dead"):
            collective.create_collective_group(actors, 2, [0, 1], group_name="dead")

    def test_collectives_that_do_not_match_fail_on_every_side(self) -> None:
        ranks = joined(2, "mismatch")
        refs = [ranks[0].allreduce.remote(1.0, "mismatch"),
                ranks[1].allreduce.remote(1.0, "mismatch", count=5)]
        for ref in refs:
            with pytest.raises(troupe.CollectiveMismatchError, match=r"float32\[4\].*float32\[5\]"):
                troupe.get(ref, timeout=SOON_S)
        assert all_of(ranks, "allreduce", 2.0, "mismatch") == [[4.0] * 4] * 2

    def test_who_asks_for_what_cannot_be_does_not_get_out_of_step(self) -> None:
        actors = members(3)
        collective.create_collective_group(actors, 3, range(3), group_name="step", elastic=True)
        known_by_all(actors[:2], "step", 2)
        for _ in range(3):
            with pytest.raises(ValueError, match="rank 7"):
                troupe.get(actors[0].broadcast.remote(1.0, 7, "step"), timeout=SOON_S)
            assert all_of(actors[:2], "allreduce", 1.0, "step") == [[2.0] * 4] * 2
        began = time.monotonic()
        known_by_all(actors, "step", 3)
        assert time.monotonic() - began < 8.0  # no plan that never comes about
        assert all_of(actors, "broadcast", 1.0, 2, "step") == [1.0] * 3

    def test_nobody_waits_longer_than_its_deadline(self) -> None:
        ranks = joined(2, "late")
        all_of(ranks, "allreduce", 1.0, "late")
        with pytest.raises(troupe.CollectiveTimeoutError, match="not every member"):
            troupe.get(ranks[0].allreduce.remote(1.0, "late", timeout_s=0.5), timeout=SOON_S)
        # What it had given to the sum may have been enough for the other.
        with contextlib.suppress(troupe.CollectiveGroupChangedError):
            assert troupe.get(ranks[1].allreduce.remote(1.0, "late", timeout_s=5),
                              timeout=SOON_S) == [2.0] * 4
        refs = [rank.allreduce.remote(2.0, "late") for rank in ranks]
        if _failed(refs):  # Then both, where one had begun before it heard of the end.
            refs = [rank.allreduce.remote(2.0, "late") for rank in ranks]
        assert troupe.get(refs, timeout=SOON_S) == [[4.0] * 4] * 2

    def test_a_group_that_is_not_complete_says_who_is_missing(self) -> None:
        a, b = members(2)
        all_of([a, b], "pid")  # One that only starts is missing for another reason.
        collective.create_collective_group([a, b], 2, [0, 1], group_name="half")
        with pytest.raises(troupe.CollectiveTimeoutError, match="rank 1: .*awaited"):
            troupe.get(a.allreduce.remote(1.0, "half", timeout_s=0.5), timeout=SOON_S)
        assert all_of([a, b], "allreduce", 1.0, "half") == [[2.0] * 4] * 2

    def test_send_and_receive_that_do_not_meet(self) -> None:
        ranks = joined(3, "pairs")
        all_of(ranks, "allreduce", 1.0, "pairs")
        refs = [ranks[0].send.remote(1, 8, "pairs"), ranks[1].recv.remote(0, 9, "pairs")]
        for ref in refs:
            with pytest.raises(troupe.CollectiveMismatchError, match=r"float32\[8\]"):
                troupe.get(ref, timeout=SOON_S)
        with pytest.raises(troupe.CollectiveTimeoutError, match="send"):
            troupe.get(ranks[0].send.remote(2, 8, "pairs", 0.5), timeout=SOON_S)
        with pytest.raises(troupe.ActorTaskError, match="rank 0"):
            troupe.get(ranks[0].send.remote(0, 8, "pairs", 5.0), timeout=SOON_S)
        refs = [ranks[0].send.remote(2, 8, "pairs"), ranks[2].recv.remote(0, 8, "pairs")]
        assert troupe.get(refs, timeout=SOON_S)[1] == 28.0


class TestDeaths:
    def test_a_fixed_group_goes_on_when_the_actor_is_back(self) -> None:
        ranks = joined(3, "fixed", max_restarts=3)
        all_of(ranks, "allreduce", 1.0, "fixed")
        with pytest.raises(troupe.ActorError):
            troupe.get(ranks[1].die.remote(), timeout=SOON_S)
        for rank in (ranks[0], ranks[2]):
            until(lambda rank=rank: _failed([rank.wait.remote("fixed", 0.0)]), {0})  # It has heard.
            with pytest.raises(troupe.CollectiveTimeoutError, match="rank 1"):
                troupe.get(rank.allreduce.remote(1.0, "fixed", timeout_s=0.3), timeout=SOON_S)
        troupe.get(ranks[1].join.remote(3, 1, "fixed"), timeout=SOON_S)
        # Nobody had begun a collective, so none fails.
        assert all_of(ranks, "allreduce", 1.0, "fixed") == [[3.0] * 4] * 3
        # Ranks are as before.
        assert [place[0] for place in all_of(ranks, "place", "fixed")] == [0, 1, 2]

    def test_what_is_tried_again_by_all_succeeds(self) -> None:
        """A death in a collective fails it for all; one between two collectives fails none."""
        ranks = joined(3, "again", max_restarts=-1)
        all_of(ranks, "allreduce", 1.0, "again")
        for busy in (True, False, True, False):
            waiting = [rank.allreduce.remote(1.0, "again") for rank in ranks[:2] if busy]
            time.sleep(0.1 * busy)  # they are inside
            assert _failed([*waiting, ranks[2].die.remote()]) == set(range(len(waiting) + 1))
            troupe.get(ranks[2].join.remote(3, 2, "again"), timeout=SOON_S)
            assert all_of(ranks, "allreduce", 1.0, "again") == [[3.0] * 4] * 3

    def test_who_waits_in_a_collective_is_told_of_a_death_at_once(self) -> None:
        ranks = joined(3, "sudden", max_restarts=1)
        all_of(ranks, "allreduce", 1.0, "sudden")
        waiting = [rank.allreduce.remote(1.0, "sudden") for rank in ranks[:2]]
        time.sleep(0.2)  # they are inside
        begun = time.monotonic()
        ranks[2].die.remote()
        for ref in waiting:
            with pytest.raises(troupe.CollectiveGroupChangedError):
                troupe.get(ref, timeout=SOON_S)
        assert time.monotonic() - begun < 5.0

    def test_a_fixed_group_ends_when_an_actor_is_dead_for_good(self) -> None:
        ranks = joined(2, "final")
        all_of(ranks, "allreduce", 1.0, "final")
        waiting = ranks[0].allreduce.remote(1.0, "final")
        troupe.kill(ranks[1])
        told = []
        for ref in (waiting, ranks[0].allreduce.remote(1.0, "final", timeout_s=5)):
            with pytest.raises(troupe.CollectiveGroupError) as error:
                troupe.get(ref, timeout=SOON_S)
            told.append(str(error.value))
        assert re.search("rank 1 .*is dead", " ".join(told)), told
        # Another actor may take its rank in a group of the same name.
        (other,) = members(1)
        troupe.get(other.join.remote(2, 1, "final"), timeout=SOON_S)
        assert all_of([ranks[0], other], "allreduce", 1.0, "final") == [[2.0] * 4] * 2

    def test_an_elastic_group_goes_on_with_those_that_live(self) -> None:
        actors = members(4, max_restarts=5)
        collective.create_collective_group(actors, 4, range(4), group_name="elastic", elastic=True,
                                           min_size=2)
        known_by_all(actors, "elastic", 4)
        refs = [a.train.remote(300, "elastic", 0.01) for a in actors]
        time.sleep(0.5)  # the training goes on
        troupe.kill(actors[0], no_restart=False)
        results = troupe.get(refs[1:], timeout=SOON_S)
        assert [r["step"] for r in results] == [300] * 3
        assert [r["total"] for r in results] == [300.0] * 3
        assert all(r["changes"] >= 1 for r in results)

    def test_who_was_stopped_for_too_long_may_come_back(self) -> None:
        actors = members(3)
        collective.create_collective_group(actors, 3, range(3), group_name="asleep", elastic=True)
        known_by_all(actors, "asleep", 3)
        pid = troupe.get(actors[2].pid.remote(), timeout=SOON_S)
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: [m["state"] for m in status_of("asleep")["members"]].count("member"), 2)
        finally:
            os.kill(pid, signal.SIGCONT)
        # One error for its callers, as for those of any member, and then it is back.
        with pytest.raises(troupe.CollectiveGroupChangedError):
            troupe.get(actors[2].allreduce.remote(1.0, "asleep"), timeout=SOON_S)
        known_by_all(actors, "asleep", 3)
        assert all_of(actors, "allreduce", 1.0, "asleep") == [[3.0] * 4] * 3


@pytest.mark.parametrize("seed", [1, 2])
def test_weights_flow_between_groups_while_members_of_both_are_killed(seed: int) -> None:
    """The example checks by itself that weights are exact, whole, and never go back."""
    command = [sys.executable, str(EXAMPLES / "weights.py"), "--steps", "1200", "--kill-every",
               "0.5", "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    found = re.search(r"(\d+) killed, weights \[1200\.0\], (\d+) pushes", done.stdout)
    assert found, done.stdout[-2000:]
    assert int(found.group(1)) >= 5 and int(found.group(2)) >= 5, done.stdout
