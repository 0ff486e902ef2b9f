"""Groups of actors: made, called, resized, drained, killed, and found again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from actor_groups_cases import Trainer

import troupe

from daemons import state
from processes import until

SOON_S = 60.0

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    troupe.init(num_cpus=16)
    yield
    troupe.shutdown()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def made(name: str, size: int, **sizes: int) -> troupe.ActorGroup:
    group = Trainer.group(size, name=name, **sizes).remote(name)
    assert group.wait(timeout=SOON_S)
    return group


def numbers(group: troupe.ActorGroup, state: str = "alive") -> list[int]:
    return [m.number for m in group.members() if m.state == state]


class TestCalls:
    def test_a_call_goes_to_all_members(self, name: str) -> None:
        group = made(name, 3)
        assert troupe.get(group.add.remote(2, b=3), timeout=SOON_S) == [5, 5, 5]
        assert len(set(troupe.get(group.pid.remote(), timeout=SOON_S))) == 3
        first = group.members()[0].handle
        assert troupe.get(first.add.remote(1), timeout=SOON_S) == 1
        group.end()

    def test_a_run_has_the_results_of_all_by_number(self, name: str) -> None:
        group = made(name, 3)
        ids = [m.handle._native.id for m in group.members()]
        assert troupe.get(group.who.run(), timeout=SOON_S) == ids
        assert troupe.get(group.nap.options(timeout=60).run(0.1), timeout=SOON_S) == ["rested"] * 3
        group.end()

    def test_a_run_may_begin_before_anybody_is_there(self, name: str) -> None:
        group = Trainer.group(2, name=name).remote(name)
        assert troupe.get(group.add.run(1), timeout=SOON_S) == [1, 1]
        group.end()

    def test_large_arguments_reach_everybody(self, name: str) -> None:
        group = made(name, 2)
        ref = troupe.put(np.ones(1 << 20))
        results = troupe.get(group.add.run(ref, ref), timeout=SOON_S)
        assert [float(r.sum()) for r in results] == [2.0 * (1 << 20)] * 2
        group.end()

    def test_who_dies_in_a_run_does_its_part_in_its_next_life(
        self, name: str, tmp_path: Path
    ) -> None:
        group = made(name, 3)
        pids = troupe.get(group.pid.remote(), timeout=SOON_S)
        run = group.wait_for.run(str(tmp_path / "go"))
        until(lambda: len(list(tmp_path.iterdir())), 3)
        os.kill(pids[1], signal.SIGKILL)
        until(lambda: len(list(tmp_path.iterdir())), 4)  # Its next life has begun with it.
        (tmp_path / "go").touch()
        results = troupe.get(run, timeout=SOON_S)
        assert (results[0], results[2]) == (pids[0], pids[2]) and results[1] != pids[1]
        group.end()

    def test_who_comes_in_a_run_takes_part(self, name: str, tmp_path: Path) -> None:
        group = made(name, 1, max_size=3)
        run = group.wait_for.run(str(tmp_path / "go"))
        group.resize(3)
        until(lambda: len(list(tmp_path.iterdir())), 3)
        (tmp_path / "go").touch()
        assert len(set(troupe.get(run, timeout=SOON_S))) == 3
        group.end()

    def test_what_one_raises_fails_the_run(self, name: str, tmp_path: Path) -> None:
        group = made(name, 3)
        (tmp_path / "bad").touch()
        began = time.monotonic()
        with pytest.raises(ValueError, match="a bad batch"):
            troupe.get(group.fail_if.run(str(tmp_path / "bad")), timeout=SOON_S)
        assert time.monotonic() - began < 30  # Not until the others have slept enough.
        group.end()

    def test_nobody_waits_for_those_that_find_no_room(self, name: str, tmp_path: Path) -> None:
        group = Trainer.options(num_cpus=10).group(1, max_size=2, name=name).remote(name)
        run = group.wait_for.run(str(tmp_path / "go"))
        group.resize(2)
        until(lambda: [m.state for m in group.members()], ["alive", "starting"])
        (tmp_path / "go").touch()
        assert len(troupe.get(run, timeout=SOON_S)) == 1
        group.end()

    def test_nobody_waits_for_those_that_have_returned(self, name: str, tmp_path: Path) -> None:
        group = made(name, 3)
        assert troupe.get(group.sum_of_all.run(), timeout=SOON_S) == [3.0] * 3
        (tmp_path / "file").touch()
        began = time.monotonic()
        run = group.sum_of_those_left.run(str(tmp_path / "file"))
        assert troupe.get(run, timeout=SOON_S) == ["returned"]
        assert time.monotonic() - began > 4.0  # They might have been about to return.
        again = troupe.get(group.train.run(5), timeout=SOON_S)
        assert [r["step"] for r in again] == [5] * 3
        group.end()

    def test_a_run_can_be_cancelled(self, name: str, tmp_path: Path) -> None:
        group = made(name, 2)
        run = group.wait_for.run(str(tmp_path / "never"))
        troupe.cancel(run)
        with pytest.raises(troupe.TaskCancelledError):
            troupe.get(run, timeout=SOON_S)
        group.end()
        with pytest.raises(troupe.ActorDiedError, match="has ended: ended"):
            troupe.get(group.add.run(1), timeout=SOON_S)


class TestSizes:
    def test_it_grows_and_shrinks(self, name: str) -> None:
        group = made(name, 2, min_size=1, max_size=4)
        group.resize(4)
        assert group.wait(4, timeout=SOON_S)
        group.resize(1)
        until(lambda: numbers(group), [0])
        group.resize(2)
        assert group.wait(2, timeout=SOON_S)
        assert numbers(group) == [0, 4]  # A number is never used again.
        for size in (0, 5):
            with pytest.raises(ValueError, match="1"):
                group.resize(size)
        group.end()

    def test_who_is_drained_finishes_and_is_replaced(self, name: str, tmp_path: Path) -> None:
        group = made(name, 2)
        call = group.members()[0].handle.wait_for.remote(str(tmp_path / "go"))
        until(lambda: len(list(tmp_path.iterdir())), 1)
        group.drain(0, "maintenance", deadline_s=60)
        assert group.wait(2, timeout=SOON_S)
        assert numbers(group) == [1, 2] and numbers(group, "draining") == [0]
        (tmp_path / "go").touch()
        assert troupe.get(call, timeout=SOON_S) > 0
        until(lambda: [m.number for m in group.members()], [1, 2])
        group.end()

    def test_who_does_not_finish_is_ended(self, name: str, tmp_path: Path) -> None:
        group = made(name, 2)
        call = group.members()[0].handle.wait_for.remote(str(tmp_path / "never"))
        until(lambda: len(list(tmp_path.iterdir())), 1)
        group.drain(0, "spot notice", deadline_s=0.5)
        with pytest.raises(troupe.ActorDiedError, match="spot notice"):
            troupe.get(call, timeout=SOON_S)
        assert group.wait(2, timeout=SOON_S)
        group.end()

    def test_who_ends_itself_is_lost_and_too_few_end_the_group(self, name: str) -> None:
        group = made(name, 3, min_size=2)
        with pytest.raises(troupe.ActorDiedError):
            troupe.get(group.members()[1].handle.leave.remote(), timeout=SOON_S)
        until(lambda: [m.number for m in group.members()], [0, 2])
        troupe.kill(group.members()[0].handle)
        until(lambda: group.status()["ended"], True)
        assert "fewer than 2 members are left; member 0" in group.status()["reason"]
        with pytest.raises(troupe.ActorDiedError, match="fewer than 2"):
            group.members()

    def test_a_constructor_that_raises_ends_it_with_the_reason(self, name: str) -> None:
        group = Trainer.group(2, name=name).remote(name, fails=True)
        with pytest.raises(troupe.ActorDiedError, match="no data set"):
            troupe.get(group.add.run(1), timeout=SOON_S)

    def test_members_get_their_places_together(self, name: str) -> None:
        """With room for one of two that are needed at once, none is started."""
        big = Trainer.options(num_cpus=10)
        blocker = big.remote()
        troupe.get(blocker.pid.remote(), timeout=SOON_S)
        group = Trainer.options(num_cpus=5).group(2, name=name).remote(name)
        assert not group.wait(1, timeout=1.0)
        assert {m.state for m in group.members()} == {"starting"}
        troupe.kill(blocker)
        assert group.wait(timeout=SOON_S)
        group.end()


class TestEvents:
    def test_all_that_happens_is_told_in_order(self, name: str) -> None:
        group = made(name, 2, max_size=3)
        seen: list[troupe.GroupEvent] = []
        told = threading.Event()

        def note(event: troupe.GroupEvent) -> None:
            seen.append(event)
            if event.kind == "ended":
                told.set()

        group.on_event(note)
        group.members()[0].handle.die.remote()
        until(lambda: [e.kind for e in seen if e.member == 0], ["died", "alive"])
        group.resize(3)
        assert group.wait(3, timeout=SOON_S)
        group.drain(1, "because")
        until(lambda: [e.kind for e in seen if e.member == 1], ["draining", "left"])
        group.end("enough")
        assert told.wait(SOON_S)
        assert [e.sequence for e in seen] == sorted({e.sequence for e in seen})
        assert [e.detail for e in seen if e.kind in ("resized", "draining", "ended")] == [
            "2 -> 3", "because", "enough"]
        assert "its process" in next(e.detail for e in seen if e.kind == "died")

    def test_who_has_stopped_listening_is_told_nothing(self, name: str) -> None:
        group = made(name, 1)
        seen: list[troupe.GroupEvent] = []
        stop = group.on_event(seen.append)
        stop()
        group.end()
        until(lambda: group.status()["ended"], True)
        time.sleep(0.2)  # it would have been told by now
        assert seen == []


class TestCollectives:
    def test_each_group_has_a_collective_group(self, name: str) -> None:
        group = made(name, 3)
        assert troupe.get(group.sum_of_all.run(), timeout=SOON_S) == [3.0] * 3
        group.end()

    def test_training_goes_on_through_deaths_drains_and_resizes(self, name: str) -> None:
        group = made(name, 3, min_size=1, max_size=5)
        run = group.train.run(400, 0.01)
        time.sleep(1.0)  # it trains
        os.kill(_pid_of(group, 0), signal.SIGKILL)
        group.resize(5)
        assert group.wait(5, timeout=SOON_S)
        group.drain(1, "spot notice")
        until(lambda: 1 in [m.number for m in group.members()], False)
        results = troupe.get(run, timeout=SOON_S)
        assert [r["step"] for r in results if not r["left"]] == [400] * 5
        (left,) = [r for r in results if r["left"]]
        assert 0 < left["step"] < 400  # Its result counts although it has left.
        group.end()


def _pid_of(group: troupe.ActorGroup, number: int) -> int:
    """As the head knows it: the actor is busy."""
    actor = next(m.handle._native.id for m in group.members() if m.number == number)
    return int(next(a["pid"] for a in state()["actors"] if a["id"] == actor))


class TestNames:
    def test_it_is_found_by_name_and_travels(self, name: str) -> None:
        group = made(name, 2)
        assert troupe.get_group(name) == group

        @troupe.remote
        def call(theirs: troupe.ActorGroup) -> list[int]:
            return list(troupe.get(theirs.add.run(4), timeout=SOON_S))

        assert troupe.get(call.remote(group), timeout=SOON_S) == [4, 4]
        with pytest.raises(troupe.ActorNameTakenError, match="already"):
            Trainer.group(1, name=name).remote(name)
        group.end()
        group.end()
        with pytest.raises(ValueError, match="no group"):
            troupe.get_group(name)
        again = made(name, 1)
        assert again != group
        again.end()

    def test_it_ends_with_the_process_that_made_it(self, name: str, tmp_path: Path) -> None:
        code = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
import troupe
from actor_groups_cases import Trainer
troupe.init(num_cpus=2)
group = Trainer.group(2, name="theirs").remote("theirs")
assert group.wait(timeout=60)
print(*troupe.get(group.pid.run(), timeout=60), flush=True)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        pids = [int(pid) for pid in done.stdout.split()]
        until(lambda: [pid for pid in pids if Path(f"/proc/{pid}").exists()], [])


class TestWrongUse:
    def test_what_cannot_be_is_refused(self) -> None:
        for sizes in ({}, {"min_size": 3, "max_size": 2}, {"size": 0}, {"size": 65},
                      {"size": 2, "min_size": 3}):
            with pytest.raises((TypeError, ValueError), match="size|members"):
                Trainer.group(**sizes).remote("wrong")
        for options in ({"name": "one"}, {"lifetime": "detached"}, {"node": "here"}):
            with pytest.raises(ValueError, match="members of a group"):
                Trainer.options(**options).group(2)
        with pytest.raises(ValueError, match="label"):
            Trainer.options(label_selector=["in (a"]).group(1).remote("any")
        group = Trainer.group(1).remote("any")
        with pytest.raises(AttributeError, match="no method 'trian'"):
            group.trian.run()
        with pytest.raises(TypeError, match=r"\.run"):
            group.train(3)
        with pytest.raises(ValueError, match="member 7"):
            group.drain(7)
        group.end()
