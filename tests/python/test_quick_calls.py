"""Calls with a few small plain values, which take a shorter way than others: nothing shows it."""

from __future__ import annotations

import enum
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import troupe

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
SOON_S = 60.0


class Colour(enum.IntEnum):
    RED = 3


class Name(str):
    """Text that is more than text."""


class Odd(tuple):
    """A sequence that is more than one."""


reads = 0


def interrupt() -> int:
    """Ctrl-C while a value is read, once."""
    global reads
    reads += 1
    if reads == 1:
        raise KeyboardInterrupt
    return reads


def refuse() -> None:
    raise OSError("it cannot be read here")


class Unreadable:
    """Is sent as a call of a function, which its reader makes."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> tuple:
        return interrupt if self.how == "interrupt" else refuse, ()


class Plain:
    """An actor with methods that return what they are told."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.calls = 0

    def same(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return (args, kwargs) if kwargs else args[0] if len(args) == 1 else args

    def count(self) -> int:
        return self.calls

    def fail(self, text: str) -> None:
        raise KeyError(text)

    def give_lock(self) -> Any:
        return threading.Lock()

    def give_unreadable(self, how: str) -> Any:
        return Unreadable(how)

    def give_generator(self) -> Any:
        return (i for i in range(3))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def keep_context(self) -> str:
        self.kept.append(troupe.current())
        return str(self.kept[-1].task_id)

    def tasks_kept(self) -> list[Any]:
        return [context.task_id for context in self.kept]

    def leave(self) -> None:
        troupe.exit_actor("enough")

    def crash(self) -> None:
        sys.exit(3)

    def fork(self) -> int:
        child = os.fork()
        if child == 0:
            return 1  # The child comes out of the method, and must not answer.
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def fork_and_raise(self) -> int:
        child = os.fork()
        if child == 0:
            raise ValueError("in the child")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


Actor = troupe.remote(Plain)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    troupe.init(num_cpus=8)
    yield
    troupe.shutdown()


@pytest.fixture
def plain() -> Any:
    """An actor whose methods have been called before, so that calls of them are quick."""
    actor = Actor.remote()
    assert soon(actor.same.remote(0)) == 0
    return actor


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


VALUES = [None, True, False, 0, -1, 2**31, -(2**63), 2**5000, 0.5, -0.0, math.inf, "",
          "é\U0001f600",
          "\ud800", "x" * 4095, "x" * 4096, b"", b"\0\xff", b"x" * 5000, (), (1, "a", None),
          ((1, 2), (3,)), [1, [2]], {"a": 1}, {1: {2}}, Colour.RED, Name("n"), Odd((1,)),
          range(3)]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_values_and_their_types_come_back(plain: Any, value: Any) -> None:
    got = soon(plain.same.remote(value))
    assert got == value
    assert type(got) is type(value)
    assert repr(soon([plain.same.remote(value), plain.same.remote(value)])) == repr([value, value])
    args, kwargs = soon(plain.same.remote(1, value, by=value))
    assert (args, kwargs) == ((1, value), {"by": value})


def test_a_list_of_refs_of_all_kinds_is_read_in_order(plain: Any) -> None:
    @troupe.remote
    def task(x: int) -> int:
        return x + 1

    refs = [plain.same.remote(1), task.remote(1), troupe.put([3]), plain.same.remote([0, 1, 2, 3]),
            plain.same.remote(None)]
    assert soon(refs) == [1, 2, [3], [0, 1, 2, 3], None]
    assert soon(refs) == [1, 2, [3], [0, 1, 2, 3], None]  # And once more.
    with pytest.raises(KeyError, match="first"):
        soon([plain.same.remote(1), plain.fail.remote("first"), plain.fail.remote("second")])
    done = plain.fail.remote("done")
    troupe.wait([done])
    slow = plain.sleep.remote(0.3)
    with pytest.raises(KeyError, match="done"):
        soon([slow, done])


def test_the_traceback_of_an_error_is_of_the_users_code(plain: Any) -> None:
    for _ in range(2):  # The first call of a method takes the long way.
        with pytest.raises(KeyError, match="what") as caught:
            soon(plain.fail.remote("what"))
        text = caught.value.remote_traceback
        frames = [line for line in text.splitlines() if line.lstrip().startswith("File")]
        assert len(frames) == 1, text
        assert "in fail" in frames[0]


def test_results_that_are_not_plain_take_the_long_way(plain: Any) -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match="generator"):
            soon(plain.give_generator.remote())
        with pytest.raises(troupe.SerializationError, match="lock"):
            soon(plain.give_lock.remote())
    assert soon(plain.same.remote(5)) == 5


def test_what_reading_a_value_raises_is_raised(plain: Any) -> None:
    global reads
    for _ in range(2):
        with pytest.raises(OSError, match="it cannot be read here"):
            soon([plain.same.remote(1), plain.give_unreadable.remote("refuse")])
        reads = 0
        refs = [plain.same.remote(1), plain.give_unreadable.remote("interrupt")]
        with pytest.raises(KeyboardInterrupt):
            soon(refs)
        assert soon(refs) == [1, 2]


def test_each_call_has_a_context_of_its_own(plain: Any) -> None:
    ids = [soon(plain.keep_context.remote()) for _ in range(4)]
    assert len(set(ids)) == 4
    assert soon(plain.tasks_kept.remote()) == ids


def test_what_was_cancelled_or_is_too_late_does_not_run(plain: Any) -> None:
    before = soon(plain.count.remote())
    busy = plain.sleep.remote(1.0)
    cancelled = [plain.same.remote(i) for i in range(3)]
    late = plain.same.options(timeout=0.2).remote(1)
    for ref in cancelled:
        troupe.cancel(ref)
    for ref in cancelled:
        with pytest.raises(troupe.TaskCancelledError):
            soon(ref)
    with pytest.raises(troupe.GetTimeoutError):
        soon(late)
    soon(busy)
    assert soon(plain.count.remote()) == before


@pytest.mark.parametrize("way", ["leave", "crash"])
def test_no_call_runs_behind_the_end_of_the_actor(plain: Any, way: str) -> None:
    ending = getattr(plain, way).remote()
    behind = [plain.same.remote(i) for i in range(5)]
    for ref in [ending, *behind]:
        with pytest.raises(troupe.ActorDiedError):
            soon(ref)


def test_a_forked_child_ends_where_it_comes_out_of_the_method(plain: Any) -> None:
    for _ in range(2):
        assert soon(plain.fork.remote()) == 0
        assert soon(plain.fork_and_raise.remote()) == 1
    assert soon(plain.same.remote(1)) == 1
