"""Actors of Python on a real cluster: calls, results, errors, handles, names."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe

from actor_cases import Async, Chain, Counter, Echo, OddError, Streams

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
SOON_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for the tests of this module."""
    troupe.init(num_cpus=16, resources={"widget": 1})
    yield
    troupe.shutdown()


@pytest.fixture(scope="module")
def echo() -> Any:
    return Echo.remote()


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def test_calls_run_in_order_and_keep_state() -> None:
    counter = Counter.options(num_cpus=0.5).remote(10, step=2)
    refs = [counter.add.remote() for _ in range(1000)]  # All in flight at once.
    assert soon(refs) == [10 + 2 * i for i in range(1, 1001)]
    assert soon(counter.add.remote(by=5)) == 2015
    assert soon(counter.pid.remote()) != os.getpid()


def test_arguments_and_results_of_all_kinds(echo: Any) -> None:
    values = [None, True, -1, 2**80, 0.5, "text", b"bytes", [1, [2]], (1,), {"a": {1}}, {2, 3}]
    assert soon([echo.same.remote(value) for value in values]) == values
    assert soon(echo.both.remote(1, second=2, third=3)) == (1, 2, {"third": 3})
    factor = 3
    assert soon(echo.same.remote(lambda x: factor * x))(5) == 15


def test_refs_as_arguments_are_their_values_in_order(echo: Any) -> None:
    counter = Counter.remote()
    gate = Async.remote()
    slow = gate.meet.remote()
    held = counter.add.remote(slow)
    behind = counter.add.remote(10)  # Must not overtake the one that waits.
    nested = echo.get_inside.remote({"ref": behind})
    ready, rest = troupe.wait([held, behind], timeout=0.2)
    assert not ready and rest == [held, behind]
    soon(gate.open.remote())
    assert soon([held, behind]) == [1, 11]
    assert soon(nested) == 11
    assert soon(echo.kinds.remote(held, troupe.put("x"), key := 5)) == ["int", "str", "int"] and key
    assert soon(troupe.get(echo.same.remote([behind]))[0]) == 11  # It came back as a ref.


def test_the_error_of_an_argument_is_that_of_the_call(echo: Any) -> None:
    with pytest.raises(OddError, match="number 5"):
        soon(echo.same.remote(echo.odd.remote()))
    bad = echo.odd.remote()
    troupe.wait([bad], timeout=SOON_S)
    with pytest.raises(troupe.ActorTaskError) as info:
        soon(echo.same.remote(bad))
    assert isinstance(info.value, OddError) and info.value.number == 5


def test_an_exception_keeps_its_type_its_fields_and_its_traceback(echo: Any) -> None:
    with pytest.raises(OddError) as info:
        soon(echo.odd.remote())
    error = info.value
    assert isinstance(error, troupe.ActorTaskError) and isinstance(error, troupe.TroupeError)
    assert isinstance(error.__cause__, OddError) and error.__cause__.number == error.number == 5
    assert 'raise OddError("number", 5)' in str(error) and "Echo.odd" in str(error)
    assert "_host" not in error.remote_traceback
    with pytest.raises(FileNotFoundError):
        soon(echo.os_error.remote("/nowhere/at/all"))
    with pytest.raises(troupe.ActorTaskError, match="LocalError: stays here") as bare:
        soon(echo.local.remote())
    assert bare.value.__cause__ is None and bare.value.exc_type == "LocalError"
    with pytest.raises(RecursionError):
        soon(echo.deep.remote(1_000_000))
    assert soon(echo.same.remote("alive")) == "alive"


def test_an_error_that_goes_through_an_actor_is_still_the_first(echo: Any) -> None:
    other = Echo.remote()
    with pytest.raises(OddError) as info:
        soon(other.call.remote(echo, "odd"))
    assert isinstance(info.value.__cause__, troupe.ActorTaskError)
    assert isinstance(info.value.__cause__.__cause__, OddError)


def test_wrong_calls(echo: Any) -> None:
    with pytest.raises(AttributeError, match="no method 'smae'; did you mean 'same'"):
        echo.smae.remote(1)
    with pytest.raises(TypeError, match=r"Echo.same.remote\(\.\.\.\)"):
        echo.same(1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'value'"):
        soon(echo.same.remote())
    with pytest.raises(TypeError, match=r"use Echo.remote\(\.\.\.\)"):
        Echo()
    with pytest.raises(troupe.SerializationError, match="argument 1 .a _thread.lock."):
        echo.both.remote(1, threading.Lock())
    with pytest.raises(troupe.SerializationError, match="argument 'lock'"):
        echo.both.remote(1, lock=[threading.Lock()])
    with pytest.raises(troupe.SerializationError, match="the result"):
        soon(echo.lock.remote())
    with pytest.raises(TypeError, match="has returned a generator"):
        soon(echo.not_a_stream.remote())
    with pytest.raises(TypeError, match="did you mean 'timeout'"):
        echo.same.options(timeuot=1)
    with pytest.raises(TypeError, match="get.. takes a ref"):
        troupe.get(5)  # type: ignore[arg-type]


def test_values_larger_than_a_message(echo: Any) -> None:
    there = soon(echo.same.remote({bytes(257 << 20)}))
    assert [len(value) for value in there] == [257 << 20]
    assert list(map(len, soon(echo.huge.remote(257 << 20)))) == [257 << 20]


def test_bad_options() -> None:
    for options, why in [
        ({"num_cpu": 1}, "did you mean 'num_cpus'"), ({"num_cpus": -1}, "num_cpus"),
        ({"num_gpus": "one"}, "num_gpus"), ({"max_restarts": 1.5}, "max_restarts"),
        ({"lifetime": "long"}, "detached"), ({"get_if_exists": True}, "needs a name"),
        ({"resources": {"CPU": 1}}, "num_cpus"), ({"max_concurrency": 0}, "max_concurrency"),
        ({"scheduling_strategy": "PACKED"}, "SPREAD"), ({"name": 5}, "name"),
        ({"resources": {f"r{i}": 1 for i in range(10_000)}}, "at most 64 resources, not 10000"),
        ({"runtime_env": {"conda": []}}, "env_vars"), ({"label_selector": "zone=a"}, "label"),
    ]:
        with pytest.raises((TypeError, ValueError), match=why):
            Counter.options(**options)


def test_get_with_a_timeout_and_wait(echo: Any) -> None:
    gate = Async.remote()
    refs = [gate.meet.remote(), gate.plain.remote()]
    ready, rest = troupe.wait(refs, timeout=SOON_S)
    assert ready == [refs[1]] and rest == [refs[0]]
    with pytest.raises(troupe.GetTimeoutError, match="the call goes on"):
        troupe.get(refs[0], timeout=0.05)
    with pytest.raises(TimeoutError):
        troupe.get(refs, timeout=0)
    soon(gate.open.remote())
    assert soon(refs)[0] == 1
    ready, rest = troupe.wait(refs, num_returns=2, timeout=SOON_S)
    assert ready == refs and not rest
    assert refs[0].future().result(SOON_S) == 1
    for wrong in ([1], [refs[0], refs[0]]):
        with pytest.raises((TypeError, ValueError)):
            troupe.wait(wrong)


def test_a_call_that_blocks_ends_at_its_deadline_and_learns_of_it() -> None:
    blocked = Echo.remote()
    with pytest.raises(troupe.GetTimeoutError, match="deadline"):
        soon(blocked.sleep.options(timeout=0.2).remote(3600))
    assert soon(blocked.same.remote(1)) == 1  # The method has seen that nobody waits.
    remaining = soon(blocked.where.options(timeout=30).remote())[4]
    assert 0 < remaining <= 30


def test_cancel() -> None:
    actor = Echo.remote()
    running = actor.sleep.remote(3600)
    waiting = actor.same.remote(1)
    for ref in (waiting, running):
        troupe.cancel(ref)
        with pytest.raises(troupe.TaskCancelledError):
            soon(ref)
    assert soon(actor.same.remote(2)) == 2
    counter = Counter.remote()
    gate = Async.remote()
    held = counter.add.remote(gate.meet.remote())  # Keeps those behind it back.
    refs = [counter.add.remote(100) for _ in range(5)]
    for ref in refs[1:]:
        troupe.cancel(ref)
    soon(gate.open.remote())
    assert soon(held) == 1 and soon(refs[0]) == 101 and soon(counter.add.remote(1)) == 102


def test_a_cancelled_call_that_waits_in_its_actor_does_not_run(tmp_path: Path) -> None:
    actor = Echo.remote()
    soon(actor.same.remote(1))  # It is there: what is called now is sent now.
    running = actor.sleep.remote(3600)
    writes = [actor.write.remote(str(tmp_path / str(i))) for i in range(100)]
    for ref in writes[::2]:
        troupe.cancel(ref)
    troupe.cancel(running)  # It hears of that after the others: messages keep their order.
    soon(writes[1::2])
    left = [ref for ref in writes[::2] if (tmp_path / str(writes.index(ref))).exists()]
    assert left == []


def test_handles_travel(echo: Any) -> None:
    counter = Counter.remote(1)
    assert soon(echo.call.remote(counter, "add", 5)) == 6
    hired = soon(echo.hire.remote(40))
    assert soon(hired.add.remote(2)) == 42
    assert soon(echo.same.remote({"handle": counter}))["handle"] == counter
    boss = Echo.remote()
    theirs = soon(boss.hire.remote(0))
    soon(theirs.add.remote())
    troupe.kill(boss)
    with pytest.raises(troupe.ActorDiedError):  # It dies with who spawned it.
        soon(theirs.add.remote())


def test_a_call_down_a_chain_of_actors() -> None:
    assert soon(Chain.remote().down.remote(6)) == 6


def test_where_a_method_runs(echo: Any) -> None:
    actor_id, name, node, incarnation, remaining = soon(echo.where.remote())
    assert (name, node, incarnation) == ("Echo", "local", 1) and actor_id in repr(echo)
    assert remaining > 3600
    here = troupe.current()
    assert here.actor_id is None and here.node == "driver" and not here.cancelled()
    with pytest.raises(troupe.NotInWorkerError):
        troupe.exit_actor()


def test_named_actors() -> None:
    first = Counter.options(name="till").remote(5)
    with pytest.raises(troupe.ActorNameTakenError, match='"till" is taken'):
        Counter.options(name="till").remote()
    same = Counter.options(name="till", get_if_exists=True).remote(100)
    assert soon(same.add.remote(1)) == 6 and same == first
    found = troupe.get_actor("till")
    assert soon(found.add.remote(1)) == 7
    with pytest.raises(AttributeError, match="no method 'sub'"):
        found.sub.remote(1)
    troupe.kill(first)
    with pytest.raises(ValueError, match="no living actor is named 'nobody'"):
        troupe.get_actor("nobody")
    again = Counter.options(name="till").remote(1)
    assert soon(again.add.remote(1)) == 2
    stream = Streams.options(name="stream").remote()
    assert soon(list(troupe.get_actor("stream").numbers.remote(3))) == [0, 1, 2]
    del stream


def test_environment_of_an_actor() -> None:
    actor = Counter.options(runtime_env={"env_vars": {"COLOUR": "blue"}}).remote()
    assert soon(actor.env.remote("COLOUR")) == "blue"


def test_what_cannot_be_placed_says_why() -> None:
    for options, why in [({"num_cpus": 1000}, "CPU 1000"), ({"resources": {"gadget": 1}}, "gadget"),
                         ({"label_selector": {"zone": "moon"}}, "zone")]:
        with pytest.raises(troupe.PlacementError, match=why):
            soon(Counter.options(**options).remote().add.remote())
    holder = Counter.options(resources={"widget": 1}).remote()
    soon(holder.add.remote())
    waits = Counter.options(resources={"widget": 1}).remote()
    with pytest.raises(troupe.GetTimeoutError, match="widget"):
        soon(waits.add.options(timeout=2).remote())
    troupe.kill(holder)
    assert soon(waits.add.remote()) == 2 or soon(waits.add.remote()) >= 1


def test_a_constructor_that_raises() -> None:
    broken = Counter.remote(-1)
    with pytest.raises(troupe.ActorDiedError, match="start is negative") as info:
        soon(broken.add.remote())
    assert "ValueError" in info.value.remote_traceback and info.value.exc_type == "ValueError"


def test_a_full_mailbox_refuses() -> None:
    actor = Echo.options(max_pending_calls=1).remote()
    soon(actor.same.remote(1))
    refs = [actor.sleep.remote(3600) for _ in range(6)]
    ready, _ = troupe.wait(refs, num_returns=4, timeout=SOON_S)
    for ref in ready:
        with pytest.raises(troupe.PendingCallsLimitExceededError):
            troupe.get(ref)
    for ref in refs:
        troupe.cancel(ref)
