"""Cancelling calls: what runs is interrupted, what follows is not."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cancel_cases as cases
import pytest
from cancel_cases import notes

import troupe
from troupe.actors._interrupts import Interrupts, TaskInterrupt

from processes import until, wait_gone

pytestmark = [pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def assert_cancelled(ref: Any) -> None:
    with pytest.raises(troupe.TaskCancelledError):
        soon(ref)


def begun(path: Path) -> int:
    """Waits until a task has begun; the pid of its process."""
    until(lambda: bool(notes(str(path))), True)
    return int(notes(str(path))[0].partition("-")[2])


class Request:
    def __init__(self) -> None:
        self.cancelled = False
        self.has_heard = False

    def heard(self) -> None:
        self.has_heard = True


class TestInterrupts:
    @pytest.fixture
    def interrupts(self) -> Iterator[Interrupts]:
        made = Interrupts()
        number = made.install()
        yield made
        signal.signal(number, signal.SIG_DFL)

    def tell(self, interrupts: Interrupts) -> None:
        signal.raise_signal(interrupts.install())

    def test_what_runs_is_interrupted_once(self, interrupts: Interrupts) -> None:
        request = Request()
        cleaned = []

        def task() -> None:
            try:
                request.cancelled = True
                self.tell(interrupts)
            finally:
                self.tell(interrupts)
                cleaned.append(True)

        with pytest.raises(TaskInterrupt):
            interrupts.run(request, task)
        assert cleaned == [True]
        assert request.has_heard
        self.tell(interrupts)

    def test_what_was_cancelled_before_does_not_begin(self, interrupts: Interrupts) -> None:
        request = Request()
        request.cancelled = True
        with pytest.raises(TaskInterrupt):
            interrupts.run(request, pytest.fail)
        assert request.has_heard

    def test_another_one_is_left_alone(self, interrupts: Interrupts) -> None:
        def task() -> str:
            self.tell(interrupts)
            return "done"

        self.tell(interrupts)
        assert interrupts.run(Request(), task) == "done"
        self.tell(interrupts)

    def test_whenever_the_signal_comes(self, interrupts: Interrupts) -> None:
        """Each call is cancelled at another moment; none but the cancelled one is ever hit."""
        chance = random.Random(7)
        interrupted = 0
        number = interrupts.install()
        for _ in range(3000):
            request, following = Request(), Request()

            def cancel(*_: Any, request: Request = request) -> None:
                request.cancelled = True
                signal.raise_signal(number)

            signal.signal(signal.SIGALRM, cancel)
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 60e-6))
            try:
                try:
                    interrupts.run(request, sum, range(chance.randrange(2000)))
                finally:
                    assert interrupts._open is None
            except TaskInterrupt:
                interrupted += 1
                assert request.cancelled
            assert interrupts.run(following, sum, range(2000)) == sum(range(2000))
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert 0 < interrupted < 3000
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


@pytest.mark.integration
class TestOnACluster:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def cluster(cls) -> Iterator[None]:
        troupe.init(num_cpus=4)
        yield
        troupe.shutdown()

    # ---- tasks ----

    @pytest.mark.parametrize("task", [
        pytest.param(cases.compute, id="computes"),
        pytest.param(cases.wait_for_lock, id="waits for a lock"),
        pytest.param(cases.wait_for_events, id="waits for events"),
        pytest.param(cases.wait_for_ref, id="waits for a ref"),
        pytest.param(cases.sleep.options(node="node0", node_soft=True), id="sleeps elsewhere")])
    def test_a_task_that_runs_ends_whatever_it_waits_for(self, task: Any, tmp_path: Path) -> None:
        path = tmp_path / "x"
        ref = task.remote(str(path))
        pid = begun(path)
        troupe.cancel(ref)
        assert_cancelled(ref)
        until(lambda: soon(cases.quick.remote(1))[0], 1)
        if task is not cases.compute:
            return
        # Its process is free again, or it would not be given the next one.
        until(lambda: soon(cases.quick.remote(1))[1] == pid, True)

    def test_a_task_hears_a_keyboard_interrupt_and_cleans_up(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        ref = cases.sleep.remote(str(path))
        begun(path)
        troupe.cancel(ref)
        until(lambda: notes(str(path))[1:], ["TaskInterrupt", "cleaned"])
        assert_cancelled(ref)

    def test_a_task_whose_time_is_up_is_interrupted(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        with pytest.raises(troupe.GetTimeoutError):
            soon(cases.sleep.options(timeout=1).remote(str(path)))
        until(lambda: notes(str(path))[1:], ["TaskInterrupt", "cleaned"])

    def test_a_task_of_a_process_of_its_own_cleans_up_and_ends(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        ref = cases.sleep.options(max_calls=1).remote(str(path))
        pid = begun(path)
        troupe.cancel(ref)
        assert_cancelled(ref)
        assert not wait_gone([pid], SOON_S)
        assert notes(str(path))[1:] == ["TaskInterrupt", "cleaned"]

    def test_a_signal_that_ends_no_wait_is_sent_again_until_one_does(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        ref = cases.miss_a_signal.remote(str(path))
        begun(path)
        troupe.cancel(ref)
        assert_cancelled(ref)
        until(lambda: notes(str(path))[1:], ["missed", "TaskInterrupt", "cleaned"])

    def test_force_ends_the_process_of_a_task(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        ref = cases.heedless.remote(str(path))
        pid = begun(path)
        troupe.cancel(ref)
        until(lambda: notes(str(path))[1:], ["interrupted"])
        assert_cancelled(ref)
        assert soon(cases.quick.remote(1))[1] != pid  # That one is still busy.
        troupe.cancel(ref, force=True)
        assert not wait_gone([pid], SOON_S)
        again = cases.heedless.remote(str(tmp_path / "y"))
        pid = begun(tmp_path / "y")
        troupe.cancel(again, force=True)
        assert not wait_gone([pid], SOON_S)
        assert_cancelled(again)
        assert soon([cases.quick.remote(i) for i in range(4)])[3][0] == 3
        assert len(notes(str(tmp_path / "y"))) == 1  # It was not tried again.

    def test_a_task_that_waits_for_an_argument_does_not_run(self, tmp_path: Path) -> None:
        loop = cases.Loop.remote()
        never = loop.hire.remote(str(tmp_path / "never"))
        ref = cases.quick.remote(never)
        troupe.cancel(ref)
        assert_cancelled(ref)
        troupe.cancel(never)
        assert_cancelled(never)

    def test_children_go_with_their_parent(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        ref = cases.parent.remote(str(path), 3)
        leaves = ["x.0", "x.1", "x.2", "x.p.0", "x.p.1", "x.p.p.0"]
        for leaf in leaves:
            begun(tmp_path / leaf)
        troupe.cancel(ref)
        assert_cancelled(ref)
        for leaf in leaves:
            until(lambda leaf=leaf: notes(str(tmp_path / leaf))[-1], "cleaned")

    def test_children_stay_if_that_is_wanted(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        ref = cases.parent.remote(str(path), 1)
        begun(path)
        pid = begun(tmp_path / "x.0")
        troupe.cancel(ref, recursive=False)
        assert_cancelled(ref)
        until(lambda: soon(cases.quick.remote(1))[0], 1)
        assert len(notes(str(tmp_path / "x.0"))) == 1
        os.kill(pid, signal.SIGKILL)

    def test_a_ref_that_has_travelled_cancels_the_call(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        ref = cases.sleep.remote(str(path))
        begun(path)
        soon(cases.Worker.remote().give.remote([ref]))
        assert_cancelled(ref)
        until(lambda: notes(str(path))[-1], "cleaned")

    def test_what_is_over_stays_as_it_is(self) -> None:
        ref = cases.quick.remote(7)
        assert soon(ref)[0] == 7
        troupe.cancel(ref)
        troupe.cancel(ref, force=True)
        assert soon(ref)[0] == 7
        put = troupe.put(1)
        troupe.cancel(put)
        assert soon(put) == 1

    def test_no_task_is_hit_by_the_cancellation_of_another(self) -> None:
        """Tasks are cancelled about when they end; those that are not all give their results."""
        chance = random.Random(11)
        troupe.get([cases.quick.remote(i) for i in range(8)])
        cancelled = 0
        for _ in range(150):
            refs = [cases.spin.remote(chance.randrange(20_000)) for _ in range(4)]
            kept = [cases.quick.remote(i) for i in range(4)]
            time.sleep(chance.uniform(0, 0.004))
            for ref in refs:
                troupe.cancel(ref)
            assert [value for value, _ in soon(kept)] == [0, 1, 2, 3]
            for ref in refs:
                try:
                    soon(ref)
                except troupe.TaskCancelledError:
                    cancelled += 1
        assert cancelled > 0

    # ---- generators ----

    @pytest.mark.parametrize("force", [False, True])
    def test_a_generator_of_a_task(self, force: bool, tmp_path: Path) -> None:
        path = tmp_path / "x"
        values = cases.numbers.remote(str(path), 1)
        pid = begun(path) if soon(next(values)) == 0 else 0
        troupe.cancel(values, force=force)
        assert_cancelled(next(values))
        assert next(values, None) is None
        assert not wait_gone([pid], SOON_S)
        assert notes(str(path))[1:] == ([] if force else ["cleaned"])
        troupe.cancel(values)

    def test_a_generator_of_an_actor(self, tmp_path: Path) -> None:
        worker = cases.Worker.remote()
        values = worker.values.remote(str(tmp_path / "x"))
        with pytest.raises(ValueError, match="troupe.kill"):
            troupe.cancel(values, force=True)
        assert [soon(next(values)) for _ in range(2)] == [1, 2]
        troupe.cancel(values)
        assert_cancelled(next(values))
        assert next(values, None) is None
        until(lambda: notes(str(tmp_path / "x")), ["cleaned"])

    def test_a_generator_that_has_not_begun(self, tmp_path: Path) -> None:
        values = cases.numbers.remote(str(tmp_path / "x"), 1)
        troupe.cancel(values)
        assert_cancelled(next(values))
        assert list(values) == []

    # ---- actors ----

    def test_a_method_that_runs_goes_on_and_can_ask(self, tmp_path: Path) -> None:
        path = str(tmp_path / "x")
        worker = cases.Worker.remote()
        ref = worker.stay.remote(path)
        waits = worker.write.remote(path)
        until(lambda: notes(path), ["began"])
        with pytest.raises(ValueError, match="troupe.kill"):
            troupe.cancel(ref, force=True)
        troupe.cancel(waits)
        troupe.cancel(ref)
        assert_cancelled(ref)
        assert_cancelled(waits)
        until(lambda: notes(path), ["began", "over"])

    def test_the_children_of_a_method_go_with_it(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        worker = cases.Worker.remote()
        ref = worker.hire.remote(str(path))
        begun(path)
        troupe.cancel(ref)
        assert_cancelled(ref)
        until(lambda: notes(str(path))[-1], "cleaned")
        soon(worker.write.remote(str(tmp_path / "y")))  # It does not wait any more.

    def test_an_async_method_and_its_children(self, tmp_path: Path) -> None:
        path = str(tmp_path / "x")
        loop = cases.Loop.remote()
        ref = loop.hire.remote(path)
        begun(tmp_path / "x.child")
        troupe.cancel(ref)
        assert_cancelled(ref)
        until(lambda: notes(path), ["began", "cancelled"])
        until(lambda: notes(f"{path}.child")[-1], "cleaned")
        assert soon(loop.same.remote(5)) == 5

    @pytest.mark.parametrize("wrong", [None, 1, "ref", [1]])
    def test_what_is_no_ref_is_refused(self, wrong: Any) -> None:
        with pytest.raises(TypeError, match="cancel"):
            troupe.cancel(wrong)
