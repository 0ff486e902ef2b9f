"""What ``troupe chaos`` makes of what it sees; its agent's processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from troupe.cli._chaos_agent import DISK_THREAD, CannotDo, ChaosAgent, node_daemon
from troupe.cli._chaos_watch import Look, Watch, longest_pause, look_at, wait

from processes import until


def looks(*steps: tuple[float, int, int], epoch: int = 1, recomputed: int = 0) -> list[Look]:
    """From (seconds, step, members)."""
    return [Look(at, "running", epoch, step, members, "died" if epoch > 1 else "formed",
                 {"steps_replayed": 0, "steps_recomputed": recomputed, "samples_returned": 0})
            for at, step, members in steps]


def test_a_pause_counts_until_the_next_step_or_the_last_look() -> None:
    assert longest_pause([]) == 0
    assert longest_pause(looks((0, 1, 2), (1, 2, 2), (3, 2, 2), (3.5, 3, 2))) == 2.5
    assert longest_pause(looks((0, 1, 2), (1, 2, 2), (4, 2, 2))) == 3
    assert longest_pause(looks((0, 5, 2), (1, 4, 2), (2, 6, 2))) == 2  # A lower one is no new one.


def test_the_effect_of_a_worker_that_was_replaced() -> None:
    watch = Watch()
    watch.before = looks((0, 10, 4), (1, 20, 4))
    watch.after = looks((1.5, 22, 3), (2, 25, 3), (4, 40, 4), (5, 50, 4), epoch=3, recomputed=2)
    effect = watch.effect("kill", "worker w1#1 on a", 1.2)
    assert (effect.whole_s, effect.epochs, effect.steps_recomputed) == (2.8, 2, 2)
    assert (effect.calm_s, effect.stood_s, effect.went_on) == (1.0, 2.0, True)
    assert effect.reason == "died"


def test_the_effect_of_a_run_that_stands() -> None:
    watch = Watch()
    watch.before = looks((0, 10, 2), (1, 20, 2))
    watch.after = looks((1.5, 20, 1), (60, 20, 1))
    effect = watch.effect("kill", "w", 1.2)
    assert (effect.whole_s, effect.went_on, effect.stood_s, effect.reason) == (None, False, 59, "")


def test_a_run_has_settled_when_it_is_whole_and_makes_steps() -> None:
    watch = Watch()
    assert not watch.settled(2, 0, False)
    watch.before = looks((0, 10, 2))
    watch.after = looks((1, 11, 2), (2, 12, 2))
    assert watch.settled(2, 1, False)
    assert not watch.settled(3, 1, False)  # One is missing.
    assert not watch.settled(2, 5, False)  # The fault lasts.
    watch.after = looks((1, 11, 2), (2, 12, 2), (5, 12, 2), (7, 12, 2))
    assert not watch.settled(2, 1, False)  # It stands.


def test_a_death_takes_a_while_to_be_noticed() -> None:
    watch = Watch()
    watch.before = looks((0, 10, 2))
    watch.after = looks((1, 11, 2), (5, 30, 2))
    assert not watch.settled(2, 1, True)
    watch.after += looks((6, 31, 2), epoch=2)
    assert watch.settled(2, 1, True)
    watch.after = looks((1, 11, 2), (29, 98, 2), (30, 99, 2))
    assert watch.settled(2, 1, True)  # There was none.


def test_looking_ends_with_the_run_and_at_the_deadline() -> None:
    now = iter(range(100))
    seen: list[Look] = []
    left = iter(looks((0, 1, 1), (1, 2, 1)))
    assert not wait(seen, lambda: next(left, None), lambda _: None, lambda: False,
                    lambda: next(now), 50)
    assert len(seen) == 2
    assert not wait(seen, lambda: seen[0], lambda _: None, lambda: False, lambda: next(now), 50)


def test_a_look_counts_active_members() -> None:
    run = {"state": "running", "epoch": 3, "epoch_reason": "w1 died", "steps_replayed": 1,
           "steps_recomputed": 2, "samples_returned": 3,
           "workers": [{"rank": 0, "version": 7}, {"rank": -1, "version": 9},
                       {"rank": 1, "version": 6}]}
    look = look_at(run, 2.0)
    assert (look.step, look.members, look.counts["samples_returned"]) == (7, 2, 3)


def test_a_process_that_is_stopped_goes_on_by_itself() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        def stat() -> str:
            return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

        agent = ChaosAgent()
        agent.stop(process.pid, 0.5)
        until(stat, "T", limit_s=10)
        until(stat, "S", limit_s=10)
        agent.kill(process.pid)
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_the_disk_is_written_to_for_as_long_as_was_asked(tmp_path: Path) -> None:
    def written() -> int:
        lines = Path(f"/proc/{os.getpid()}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))

    before, began = written(), time.monotonic()
    ChaosAgent().load_disk(str(tmp_path), 0.3)
    for thread in threading.enumerate():
        if thread.name == DISK_THREAD:
            thread.join(30)
            assert not thread.is_alive()
    assert time.monotonic() - began >= 0.3
    assert written() - before >= 4 << 20
    assert list(tmp_path.iterdir()) == []


def test_an_agent_outside_a_node_says_so() -> None:
    with pytest.raises(CannotDo, match="no troupe-node is above"):
        node_daemon()
