"""Values live as long as a ref to them does, wherever that is."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ownership_cases import (
    LARGE,
    Shelf,
    files_in,
    forked,
    give_each,
    large_and_pid,
    length,
    make_shelf,
    put_large,
    put_nested,
    put_on,
    start_waiting,
    unfold,
    unsure,
)

import troupe
from troupe.actors import _session

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0
TASKS = 10_000
IDLE_S = 17.0  # A process of the pool that nobody needs is ended before that.


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for the tests of this module; idle processes of its tasks end soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TROUPE_TASK_IDLE_S", "10")
        troupe.init(num_cpus=4)
        yield
        troupe.shutdown()


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def until(what: Callable[[], bool], limit_s: float = SOON_S) -> None:
    """Waits for an event that nothing tells of."""
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, "it has not come about in time"
        time.sleep(0.02)


def files() -> set[str]:
    gc.collect()
    store = _session.current().store
    assert store is not None
    return files_in(store.folder)


def counts() -> list[int]:
    """Objects that others refer to, refs of others that are held here, messages on their way."""
    gc.collect()
    counted: list[int] = _session.current().refs.native.counts
    return counted


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_value_outlives_the_task_that_has_put_it() -> None:
    before = files()
    large, pid = soon(put_large.remote(3.0))
    end = time.monotonic() + IDLE_S
    until(lambda: not alive(pid) or time.monotonic() > end)
    assert alive(pid)  # It is needed, so it is not ended as others are.
    assert soon(large[0]).sum() == 3.0 * LARGE
    assert soon(length.remote(large)) == 3.0 * LARGE
    large.clear()
    until(lambda: files() <= before)
    until(lambda: not alive(pid))


def test_a_process_that_nobody_needs_ends() -> None:
    pid = soon(put_nested.remote(1, 1))[1]  # What it has put is dropped at once.
    until(lambda: not alive(pid))


def test_refs_in_refs() -> None:
    nested, _ = soon(put_nested.remote("deep", 3))
    assert unfold(nested) == "deep"
    shelf = Shelf.remote()
    soon(shelf.keep.remote(nested))
    del nested
    gc.collect()
    assert soon(shelf.read.remote()) == "deep"
    again = soon(shelf.give.remote())
    soon(shelf.forget.remote())
    assert unfold(again) == "deep"


def test_a_ref_of_what_is_not_there_yet_outlives_its_task(tmp_path: Path) -> None:
    path = tmp_path / "go"
    (pending,), _ = soon(start_waiting.remote(str(path), "there"))
    assert troupe.wait([pending], timeout=0) == ([], [pending])
    path.touch()
    assert soon(pending) == "there"


def test_refs_in_an_actors_state() -> None:
    before = files()
    shelf = Shelf.remote()
    data = troupe.put(np.ones(LARGE))
    soon(shelf.keep.remote([data]))
    del data
    gc.collect()
    assert soon(shelf.read.remote()).sum() == LARGE
    assert len(files() - before) == 1
    soon(shelf.forget.remote())
    until(lambda: files() <= before)


def test_a_ref_is_passed_on_and_dropped() -> None:
    before = files()
    first, second = Shelf.remote(), Shelf.remote()
    data = troupe.put(np.ones(LARGE))
    soon(first.keep.remote([data]))
    del data
    soon(first.pass_on.remote(second))
    assert soon(second.read.remote()).sum() == LARGE
    soon(second.forget.remote())
    until(lambda: files() <= before)


def test_what_only_an_actor_refers_to_keeps_the_task_that_has_put_it() -> None:
    shelf = Shelf.remote()
    pid = soon(put_on.remote(shelf))
    end = time.monotonic() + IDLE_S
    until(lambda: not alive(pid) or time.monotonic() > end)
    assert soon(shelf.read.remote()).sum() == LARGE
    soon(shelf.forget.remote())
    until(lambda: not alive(pid))


def test_items_of_a_generator_outlive_it() -> None:
    before = files()
    items = [soon(ref) for ref in give_each.remote(3)]
    assert [soon(item[0])[0] for item in items] == [0, 1, 2]
    items.clear()
    until(lambda: files() <= before)


def test_values_of_a_process_that_was_killed_go_with_it() -> None:
    before = files()
    shelf = Shelf.remote()
    kept = soon(shelf.make.remote())
    assert len(files() - before) == 1
    os.kill(soon(shelf.pid.remote()), signal.SIGKILL)
    until(lambda: files() <= before)
    with pytest.raises(troupe.OwnerDiedError):
        soon(kept[0])


def test_tasks_with_a_process_of_their_own() -> None:
    here = put_large.options(runtime_env={"env_vars": {"A": "1"}})
    large, pid = soon(here.remote(2.0))
    assert soon(large[0]).sum() == 2.0 * LARGE
    large.clear()
    gc.collect()
    until(lambda: not alive(pid))


def test_results_that_nobody_reads_keep_and_free_what_they_refer_to() -> None:
    before = files()
    result = put_large.remote(1.0)
    troupe.wait([result])
    assert len(files() - before) == 1
    shelf = Shelf.remote()
    soon(shelf.keep.remote(result))  # By value, with the ref in it.
    del result
    gc.collect()
    assert soon(shelf.give.remote())[1] > 0
    assert soon(soon(shelf.give.remote())[0][0]).sum() == LARGE
    soon(shelf.forget.remote())
    until(lambda: files() <= before)


def test_forks_count_nothing() -> None:
    shelf = Shelf.remote()
    data = [troupe.put(np.ones(LARGE))]
    soon(shelf.keep.remote(data))
    assert soon(forked.remote(data)) == 0
    child = os.fork()
    if child == 0:
        data.clear()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert soon(shelf.read.remote()).sum() == LARGE


def test_the_death_of_an_owner_is_told() -> None:
    shelf = Shelf.remote()
    made = soon(shelf.make.remote())
    assert soon(made[0]).sum() == LARGE
    (unread,) = soon(shelf.make.remote())
    os.kill(soon(shelf.pid.remote()), signal.SIGKILL)
    with pytest.raises(troupe.exceptions.OwnerDiedError, match="has ended, and its value with it"):
        soon(unread)
    assert isinstance(troupe.exceptions.OwnerDiedError("x"), troupe.exceptions.ObjectLostError)


def test_a_large_result_outlives_the_process_that_has_made_it() -> None:
    """It is its caller's from the start, so there is nothing to compute again."""
    large, pid = large_and_pid.remote(3.0)
    pid = soon(pid)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    assert soon(large_and_pid.remote(1.0)[0]).sum() == LARGE  # What the dead leave is cleared.
    assert soon(length.remote([large])) == 3.0 * LARGE
    assert soon(large).sum() == 3.0 * LARGE


def test_the_death_of_a_borrower_frees() -> None:
    before = files()
    shelf = Shelf.remote()
    data = troupe.put(np.ones(LARGE))
    soon(shelf.keep.remote([data]))
    del data
    assert len(files() - before) == 1
    troupe.kill(shelf)
    until(lambda: files() <= before)


def test_an_actor_that_a_task_has_made_outlives_it() -> None:
    shelf, pid = soon(make_shelf.remote("kept"))
    until(lambda: not alive(pid))
    assert soon(shelf.give.remote()) == "kept"


def test_tasks_whose_processes_die_are_right_and_leave_nothing() -> None:
    before, shared = files(), counts()[0]  # Actors of other tests have some.
    values = [troupe.put(value) for value in range(10)]
    pids: set[int] = set()
    for begin in range(0, TASKS, 1000):
        refs = [unsure.remote(i, i, [values[i % 10]] if i % 5 == 0 else [])
                for i in range(begin, begin + 1000)]
        for i, (total, pid) in enumerate(troupe.get(refs, timeout=SOON_S), begin):
            assert total == (i + i % 10 if i % 5 == 0 else i)
            pids.add(pid)
    assert len(pids) > 10  # Many have died.
    del refs, values
    until(lambda: counts()[0] <= shared and counts()[2] == 0 and files() <= before, 2 * SOON_S)
    until(lambda: not any(map(alive, pids)))
