"""Async and threaded actors, generators, tasks, arrays, restarts: on a real cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe.actors import _session

from actor_cases import (
    Arrays,
    Async,
    Counter,
    Echo,
    Ledger,
    Streams,
    Threads,
    count_to,
    die_once,
    fail,
    fibonacci,
    square,
)
from processes import until, wait_gone

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
SOON_S = 60.0
LARGE = 1 << 20  # Elements of 8 bytes: far over what travels inside messages.


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for the tests of this module."""
    troupe.init(num_cpus=16)
    yield
    troupe.shutdown()


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def files() -> list[str]:
    """Names of the shared buffers that are there to stay."""
    store = _session.current_store()
    assert store is not None
    return sorted(os.listdir(store.folder))


# ---- async and threads ----


def test_async_methods_run_at_once_on_one_thread() -> None:
    actor = Async.remote()
    refs = [actor.meet.remote() for _ in range(500)]
    until(lambda: soon(actor.count.remote()), 500)
    soon(actor.open.remote())
    assert max(soon(refs)) == 500
    assert soon(actor.plain.remote()) == soon(actor.thread.remote())
    with pytest.raises(LookupError, match="async"):
        soon(actor.fails.remote())


def test_an_async_actor_awaits_others() -> None:
    assert sorted(soon(Async.remote().ask.remote(Counter.remote(), 50))) == list(range(1, 51))


def test_max_concurrency_bounds_async_calls(tmp_path: Path) -> None:
    actor = Async.options(max_concurrency=3).remote()
    refs = [actor.meet.remote(str(tmp_path / "third")) for _ in range(3)]
    behind = actor.open.remote()  # Nobody lets it in.
    until((tmp_path / "third").exists, True)
    assert troupe.wait([behind], timeout=0.5)[0] == []
    troupe.cancel(refs[0])
    soon(behind)
    assert soon(refs[1:]) == [3, 3]


def test_a_cancelled_or_late_async_method_is_stopped() -> None:
    actor = Async.remote()
    ref = actor.forever.remote()
    until(lambda: troupe.wait([ref], timeout=0)[0], [])
    soon(actor.count.remote())  # It has begun: calls begin in order.
    troupe.cancel(ref)
    with pytest.raises(troupe.TaskCancelledError):
        soon(ref)
    until(lambda: soon(actor.ends.remote()), ["forever"])
    with pytest.raises(troupe.GetTimeoutError):
        soon(actor.forever.options(timeout=0.2).remote())
    until(lambda: soon(actor.ends.remote()), ["forever", "forever"])


def test_threads() -> None:
    actor = Threads.options(max_concurrency=4).remote(4)
    assert len(set(soon([actor.meet.remote() for _ in range(4)]))) == 4


# ---- generators ----


def test_a_generator_is_read_as_it_runs_and_only_so_far_ahead() -> None:
    actor = Streams.remote()
    values = actor.numbers.options(look_ahead=3).remote(1000)
    assert soon([next(values) for _ in range(5)]) == [0, 1, 2, 3, 4]
    made, closed = soon(actor.state.remote())
    assert 5 <= made <= 8 and closed == 0
    values.close()
    values.close()
    until(lambda: soon(actor.state.remote())[1], 1)
    assert soon(actor.state.remote())[0] <= 9
    with pytest.raises(StopIteration):
        next(values)
    dropped = actor.numbers.remote(1000)
    next(dropped)
    del dropped
    until(lambda: soon(actor.state.remote())[1], 2)


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}])
def test_readers_that_drop_generators_do_not_block_the_actor(options: dict[str, int]) -> None:
    actor = Streams.options(**options).remote()
    for _ in range(300):  # The calls ahead are cancelled one by one while the actor takes them up.
        values = actor.numbers.remote(1000)
        next(values)
        del values
    until(lambda: soon(actor.state.remote())[1], 300)


def test_a_generator_whose_calls_come_too_late_does_not_block_the_actor(tmp_path: Path) -> None:
    actor = Streams.remote()
    values = actor.numbers.options(timeout=0.5, look_ahead=2).remote(1000)
    assert soon(next(values)) == 0
    waits = actor.wait_for_file.remote(str(tmp_path / "go"))
    with pytest.raises(troupe.GetTimeoutError):
        for value in values:
            soon(value)
    (tmp_path / "go").touch()
    soon(waits)
    assert soon(actor.state.remote())[1] == 1


def test_a_generator_that_its_restarted_actor_does_not_know_is_an_error() -> None:
    actor = Streams.options(max_restarts=1, max_task_retries=1).remote()
    values = actor.numbers.remote(1000)
    assert soon(next(values)) == 0
    soon(actor.state.remote())  # All calls ahead are answered.
    troupe.kill(actor, no_restart=False)
    until(lambda: soon(actor.state.remote()), (0, 0))
    other = actor.numbers.remote(5)
    assert soon(next(other)) == 0
    with pytest.raises(troupe.ActorTaskError, match="not held here any more"):
        for i in range(1, 1000):
            assert soon(next(values)) == i
    assert soon(list(other)) == [1, 2, 3, 4]


def test_all_values_of_many_generators_at_once() -> None:
    for actor in (Streams.remote(), Streams.options(max_concurrency=3).remote(), Async.remote()):
        both = zip(actor.numbers.remote(200), actor.numbers.remote(200))
        assert [tuple(soon(pair)) for pair in both] == [(i, i) for i in range(200)]


def test_an_error_in_mid_stream_comes_at_its_place() -> None:
    actor = Streams.remote()
    values = actor.fails_at.remote(3)
    assert soon([next(values) for _ in range(3)]) == [0, 1, 2]
    failed = next(values)
    with pytest.raises(KeyError, match="at 3") as info:
        soon(failed)
    assert isinstance(info.value, troupe.ActorTaskError)
    assert list(values) == []
    values = actor.dies_at.options(look_ahead=1).remote(2)
    assert soon([next(values), next(values)]) == [0, 1]
    with pytest.raises(troupe.ActorDiedError):
        soon(next(values))
    assert list(values) == []


def test_async_generators() -> None:
    first, second = Async.remote(), Async.remote()
    assert soon(first.read.remote(second, 30)) == list(range(30))
    assert soon(second.ends.remote()) == ["numbers"]
    values = second.numbers.remote(1000)
    next(values)
    values.close()
    until(lambda: soon(second.ends.remote()), ["numbers", "numbers"])


def test_a_generator_of_arrays() -> None:
    before = files()
    totals = [soon(ref).sum() for ref in Streams.remote().arrays.remote(4, LARGE)]
    assert totals == [i * LARGE for i in range(4)]
    until(files, before)


# ---- tasks ----


def test_tasks() -> None:
    refs = [square.remote(i) for i in range(50)]
    assert soon(refs) == [i * i for i in range(50)]
    assert soon(square.remote(square.remote(3))) == 81
    with pytest.raises(ValueError, match="on purpose"):
        soon(fail.remote("on purpose"))
    offset = 7

    @troupe.remote(num_cpus=0.1)
    def shift(x: int) -> int:
        return x + offset

    assert soon(shift.options(num_cpus=0.2).remote(1)) == 8
    with pytest.raises(TypeError, match="is a task"):
        square(3)
    with pytest.raises(troupe.PlacementError, match="CPU 1000"):
        soon(square.options(num_cpus=1000).remote(1))


def test_nested_tasks() -> None:
    assert soon(fibonacci.remote(4)) == 3


def test_a_task_whose_process_dies_runs_again(tmp_path: Path) -> None:
    assert soon(die_once.remote(str(tmp_path / "first"))) > 0
    with pytest.raises(troupe.WorkerCrashedError):
        soon(die_once.options(max_retries=0).remote(str(tmp_path / "second")))


def test_a_generator_as_a_task() -> None:
    assert soon(list(count_to.remote(10))) == list(range(10))
    values = count_to.remote(1000)
    assert soon(next(values)) == 0
    values.close()


# ---- arrays ----


def test_large_arrays_are_shared_read_only_and_freed() -> None:
    numpy = pytest.importorskip("numpy")
    actor = Arrays.remote()
    before = files()
    array = numpy.arange(LARGE, dtype=float)
    assert soon(actor.sum.remote(array)) == (float(array.sum()), False)
    until(files, before)  # The argument goes with its call.
    kept = troupe.put(array)
    assert len(files()) == len(before) + 1
    assert soon([actor.sum.remote(kept) for _ in range(3)]) == [(float(array.sum()), False)] * 3
    assert not troupe.get(kept).flags.writeable
    del kept
    until(files, before)
    result = soon(actor.ones.remote(LARGE))
    assert result.sum() == LARGE and not result.flags.writeable
    until(files, before)  # Mapped, it needs no name.
    assert result.sum() == LARGE
    ref = actor.ones.remote(LARGE)
    assert soon(actor.sum.remote(ref))[0] == LARGE  # From actor to actor, by name.
    never_read = actor.ones.remote(LARGE)
    troupe.wait([never_read], timeout=SOON_S)
    del ref, never_read
    until(files, before)
    (inner,) = soon(Arrays.remote().put.remote(LARGE))
    assert soon(inner).sum() == 7.0 * LARGE
    small = numpy.ones((3, 4))
    back = soon(Echo.remote().same.remote(small))
    assert (back == small).all() and not back.flags.writeable


def test_tensors_are_writable_and_private() -> None:
    torch = pytest.importorskip("torch")
    actor = Arrays.remote()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        for size in (4, LARGE):
            tensor = torch.zeros(2, size, dtype=dtype)
            back = soon(actor.tensor.remote(tensor))
            assert back.shape == tensor.shape and back.dtype == dtype
            assert not tensor.any() and bool(back.all())
            back += 1
    strided = torch.arange(12.0).reshape(3, 4).t().requires_grad_()
    back = soon(Echo.remote().same.remote(strided))
    assert torch.equal(back, strided) and back.requires_grad


def test_too_much_is_an_error_and_not_a_full_disk() -> None:
    numpy = pytest.importorskip("numpy")
    store = _session.current_store()
    assert store is not None
    # Of this process none; an actor of another test may hold its own.
    until(lambda: [name for name in files() if name.startswith(store.owner)], [])
    before = store.limit_bytes, store.spill_limit_bytes
    store.limit_bytes, store.spill_limit_bytes = 0, 0
    try:
        store.tidy()  # Else memory that waits to be used again would do.
        store.limit_bytes = store.used_bytes() + (12 << 20)
        kept = troupe.put(numpy.ones(LARGE))
        with pytest.raises(troupe.ObjectStoreFullError, match="object_store_memory"):
            troupe.put(numpy.ones(LARGE))
        del kept
        troupe.put(numpy.ones(LARGE))
    finally:
        store.limit_bytes, store.spill_limit_bytes = before


def test_a_killed_process_leaves_no_buffers(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    before = files()
    actor = Arrays.remote()
    there = tmp_path / "there"
    ref = actor.hold.remote(numpy.ones(LARGE), str(there))
    until(there.exists, True)
    os.kill(int(there.read_text()), signal.SIGKILL)
    with pytest.raises(troupe.ActorDiedError):
        soon(ref)
    until(files, before)  # The caller's, freed with the call.
    owner = Arrays.remote()
    (inner,) = soon(owner.put.remote(LARGE))
    (name,) = set(files()) - set(before)
    troupe.kill(owner)
    with pytest.raises(troupe.ActorDiedError):  # at once, whatever its process still does
        soon(owner.put.remote(1))
    assert not wait_gone([int(name.partition("-")[0])], SOON_S)
    with pytest.raises(troupe.OwnerDiedError):
        soon(inner)
    store = _session.current_store()
    assert store is not None

    def swept() -> list[str]:
        store.sweep()
        return files()

    until(swept, before)


# ---- death and restarts ----


def test_an_actor_that_ends_takes_its_calls_with_it() -> None:
    for end, cause in (("exit", "ended: exit code 3"), ("signal", "ended: signal SIGKILL"),
                       ("kill", "killed")):
        actor = Counter.remote()
        pid = soon(actor.pid.remote())
        if end == "exit":
            ref = actor.die.remote(3)
        elif end == "signal":
            os.kill(pid, signal.SIGKILL)
            ref = actor.add.remote()
        else:
            troupe.kill(actor)
            ref = actor.add.remote()
        with pytest.raises(troupe.ActorDiedError, match=cause):
            soon(ref)
        with pytest.raises(troupe.ActorDiedError, match=cause):
            soon(actor.add.remote())
        assert not wait_gone([pid], 20)


def test_exit_actor() -> None:
    actor = Counter.options(max_restarts=3).remote()
    leaving = actor.leave.remote("done here")
    behind = [actor.add.remote() for _ in range(50)]
    for ref in (leaving, *behind):
        with pytest.raises(troupe.ActorDiedError):
            soon(ref)
    with pytest.raises(troupe.ActorDiedError, match="done here"):
        soon(actor.add.remote())


def test_a_restart_begins_anew_without_saved_state() -> None:
    actor = Counter.options(max_restarts=1).remote(100)
    assert soon(actor.add.remote()) == 101
    troupe.kill(actor, no_restart=False)
    assert soon(actor.add.options(retries=1).remote()) == 101
    troupe.kill(actor, no_restart=False)
    with pytest.raises(troupe.ActorDiedError):
        soon(actor.add.options(retries=1).remote())


def test_saved_state_has_each_effect_once(tmp_path: Path) -> None:
    ledger = Ledger.options(max_task_retries=-1).remote()
    assert soon([ledger.add.remote(1) for _ in range(100)]) == list(range(1, 101))
    pid = soon(ledger.pid.remote())
    refs = [ledger.add.remote(1) for _ in range(200)]
    os.kill(pid, signal.SIGKILL)
    assert soon(refs) == list(range(101, 301))
    total, calls, incarnation = soon(ledger.state.remote())
    assert (total, calls, incarnation) == (300, 300, 2)
    assert soon(ledger.add_and_die.remote(5, str(tmp_path / "died"))) == 305
    assert soon(ledger.state.remote()) == (305, 301, 3)
