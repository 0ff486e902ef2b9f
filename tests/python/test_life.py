"""How actors begin and end, the order of their calls, and what every actor can be asked."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import life_cases as cases
import pytest

import troupe

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(120)]
SOON_S = 30.0


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def notes(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").split() if path.exists() else []


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    troupe.init(num_cpus=4, resources={"whole": 1})
    yield
    troupe.shutdown()


# ---- beginnings ----


def test_an_actor_waits_for_its_arguments_and_its_maker_does_not(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    late = cases.wait_for.remote(str(gate), 5)
    model = cases.Model.remote(1, late, troupe.put(3))
    counts = [model.count.remote() for _ in range(3)]
    other = cases.Model.remote()
    told = other.tell.remote(model)  # A handle that waits is an argument like a ref.
    assert "coming" in repr(model) and model == model
    _, left = troupe.wait([*counts, told], num_returns=1, timeout=0)
    assert len(left) == 4
    gate.touch()
    assert soon(model.all.remote()) == (1, 5, 3)
    assert sorted([*soon(counts), soon(told)]) == [1, 2, 3, 4]
    assert soon(cases.Model.remote([model]).all.remote()) == ([model],)


def test_an_actor_that_waits_takes_no_room_from_what_it_waits_for(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    whole = cases.wait_for.options(resources={"whole": 1})
    model = cases.Model.options(resources={"whole": 1}).remote(whole.remote(str(gate), 5))
    assert soon(model.all.remote()) == (5,)


def test_an_argument_that_fails_is_the_reason(tmp_path: Path) -> None:
    failed = cases.fail.remote()
    with pytest.raises(ValueError, match="no such model"):
        soon(failed)
    for model in (cases.Model.remote(failed), cases.Model.remote(cases.fail.remote())):
        with pytest.raises(troupe.TroupeError, match="no such model"):
            soon(model.all.remote())


def test_an_actor_can_be_killed_before_it_starts(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    model = cases.Model.remote(cases.wait_for.remote(str(gate)))
    waits = model.count.remote()
    troupe.kill(model)
    with pytest.raises(troupe.ActorDiedError, match="before it was started"):
        soon(waits)
    gate.touch()
    with pytest.raises(troupe.ActorDiedError, match="before it was started"):
        soon(model.count.remote())


# ---- order ----


@pytest.mark.parametrize("kind", [
    troupe.remote(num_cpus=0.01, max_concurrency=2)(cases.Gate), cases.AsyncGate],
    ids=["threaded", "async"])
def test_a_call_without_its_argument_holds_none_back(kind: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    actor = kind.options(name=f"gate-{tmp_path.name}").remote()
    found = troupe.get_actor(f"gate-{tmp_path.name}")
    late = cases.wait_for.remote(str(gate), 0)
    held = [actor.see.remote(late), found.see.remote(late)]
    assert soon(actor.see.remote(1)) == [1]
    assert soon(found.see.remote(2)) == [1, 2]
    gate.touch()
    soon(held)
    assert soon(actor.see.remote(3)) == [1, 2, 0, 0, 3]


def test_an_actor_that_runs_one_call_at_a_time_keeps_their_order(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    actor = troupe.remote(num_cpus=0.01)(cases.Gate).remote()
    refs = [actor.see.remote(cases.wait_for.remote(str(gate), 0)), actor.see.remote(1)]
    assert troupe.wait(refs, timeout=0) == ([], refs)
    gate.touch()
    assert soon(refs)[1] == [0, 1]


def test_an_actor_may_allow_another_order(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    kind = troupe.remote(num_cpus=0.01)(cases.Gate)
    for options in ({"max_concurrency": 2}, {"concurrency_groups": {"io": 1}}):
        with pytest.raises(ValueError, match="keep no order"):
            kind.options(allow_out_of_order_execution=False, **options)
    with pytest.raises(TypeError, match="bool"):
        kind.options(allow_out_of_order_execution="yes")
    with pytest.raises(ValueError, match="keep no order"):
        cases.AsyncGate.options(allow_out_of_order_execution=False).remote()
    actor = kind.options(allow_out_of_order_execution=True).remote()
    late = actor.see.remote(cases.wait_for.remote(str(gate), 0))
    assert soon(actor.see.remote(1)) == [1]
    gate.touch()
    assert soon(late) == [1, 0]


def test_wait_and_get_take_generators(tmp_path: Path) -> None:
    slow = cases.gated_numbers.remote(str(tmp_path), 2)
    quick = cases.gated_numbers.remote(str(tmp_path), 0)
    ready, left = troupe.wait([slow, quick], timeout=SOON_S)
    assert ready == [quick] and left == [slow]
    assert troupe.get(quick) is quick and list(quick) == []
    with pytest.raises(troupe.GetTimeoutError):
        troupe.get(slow, timeout=0)
    (tmp_path / "0").touch()
    assert troupe.wait([slow], timeout=SOON_S)[0] == [slow]
    assert soon(next(slow)) == 0
    assert troupe.wait([slow], timeout=0)[0] == []
    (tmp_path / "1").touch()
    assert [soon(ref) for ref in soon([slow])[0]] == [1]
    assert troupe.wait([slow], timeout=0)[0] == [slow]


# ---- what every actor has ----


def test_every_actor_says_that_it_is_ready_and_runs_functions() -> None:
    model = cases.Model.remote(7)
    for handle in (model, soon(model.own.remote())[0]):
        assert soon([handle.__ray_ready__.remote(), handle.__troupe_ready__.remote()]) == [True] * 2
        assert soon(handle.__ray_call__.remote(lambda self, x: self.parts[0] + x, 1)) == 8
    with pytest.raises(AttributeError):
        _ = model.__ray_something__
    last = model.count.remote()
    ended = model.__ray_terminate__.remote()
    assert soon(last) == 1
    with pytest.raises(troupe.ActorDiedError, match="asked to end"):
        soon(ended)


def test_an_attribute_may_have_the_name_of_a_method() -> None:
    shadowed = cases.Shadowed.remote()
    assert soon(shadowed.value.remote()) == 5


def test_an_actor_calls_itself_by_its_own_handle() -> None:
    model = cases.Model.remote()
    own, id = soon(model.own.remote())
    assert own == model and own._native.id == id
    assert soon(own.count.remote()) == 1


# ---- ends ----


@pytest.mark.parametrize("how", ["leave", "exit"])
def test_an_actor_that_leaves_runs_its_exit_handlers(how: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    actor = cases.Leaver.options(max_restarts=5).remote(str(path))
    ref = actor.leave.remote() if how == "leave" else actor.exit.remote(0)
    behind = actor.pid.remote()
    with pytest.raises(troupe.ActorDiedError, match=r"enough|sys.exit\(\)"):
        soon(ref)
    with pytest.raises(troupe.ActorDiedError):
        soon(behind)
    assert notes(path)[1:] == ["exit-handler"]


def test_an_actor_that_exits_with_a_status_is_restarted(tmp_path: Path) -> None:
    path = tmp_path / "x"
    actor = cases.Leaver.options(max_restarts=1).remote(str(path))
    with pytest.raises(troupe.ActorDiedError):
        soon(actor.exit.remote(3))
    assert soon(actor.pid.options(retries=1).remote()) > 0
    assert [note.partition("-")[0] for note in notes(path)] == ["made", "exit", "made"]
    with pytest.raises(troupe.ActorDiedError):
        soon(actor.exit.remote("a reason"))
    with pytest.raises(troupe.ActorDiedError):
        soon(actor.pid.options(retries=1).remote())


@pytest.mark.parametrize("how", ["leave", "exit"])
def test_an_async_actor_that_leaves(how: str) -> None:
    actor = cases.AsyncLeaver.remote()
    with pytest.raises(troupe.ActorDiedError, match=r"enough|sys.exit\(\)"):
        soon(actor.leave.remote() if how == "leave" else actor.exit.remote(0))


def test_a_task_that_exits_has_no_result(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(troupe.WorkerCrashedError):
        soon(cases.exit_task.remote(str(path), 0))
    assert notes(path) == ["ran"]
    with pytest.raises(troupe.WorkerCrashedError):
        soon(cases.exit_task.options(max_retries=1).remote(str(path), 1))
    assert notes(path) == ["ran"] * 3
    with pytest.raises(troupe.NotInWorkerError):
        soon(cases.leave_task.remote())


# ---- handles and what is dropped ----


def test_a_handle_found_by_name_retries_as_its_actor_says(tmp_path: Path) -> None:
    actor = cases.DiesOnce.options(name="dies-once").remote()
    soon(actor.__troupe_ready__.remote())
    found = troupe.get_actor("dies-once")
    assert soon(found.die.remote(str(tmp_path / "x"))) == "alive"


@pytest.mark.parametrize("wrong", [None, 3, b"name", ""])
def test_what_is_no_name_is_not_looked_for(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="the name of an actor"):
        troupe.get_actor(wrong)


def test_a_generator_that_is_dropped_before_it_begins_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    actor = cases.DiesOnce.remote()
    dropped = [actor.values.remote(str(tmp_path)), cases.gated_numbers.remote(str(tmp_path), 1)]
    del dropped
    values = actor.values.remote(str(tmp_path))
    troupe.kill(actor)
    del values
    gc.collect()
    with pytest.raises(troupe.ActorDiedError):
        soon(actor.die.remote(str(tmp_path)))
    assert soon(next(cases.gated_numbers.remote(str(tmp_path.parent), 0), troupe.put(5))) == 5
    assert not caplog.records
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err


def test_an_actor_class_is_no_base() -> None:
    with pytest.raises(TypeError, match="derive from the class itself"):
        class Derived(cases.Model):  # type: ignore[misc]
            """Cannot be."""


def test_there_is_nothing_to_wait_for() -> None:
    assert troupe.wait([]) == ([], [])
    with pytest.raises(ValueError, match="num_returns"):
        troupe.wait([], num_returns=2)
