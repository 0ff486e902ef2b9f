"""Large values between hosts with memory of their own, and processes that share one.

host0 shares the memory of this machine, where the driver is; host1 and host2 have their own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe._cluster import find_bin_dir
from troupe.actors import _pulls

from conftest import need_hosts
from hosts import Hosts, missing
from network import limit_rate
from object_cases import AsyncHolder, Holder, double, files, make, make_several, store
from processes import until, wait_gone

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(240)]
numpy = pytest.importorskip("numpy")
SOON_S = 100.0
COUNT = 2_000_000  # 16 MB
LARGE = 40_000_000  # 320 MB: over what a message can carry.
SLOW_GBITS = 0.5


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    need_hosts(missing())
    folder = tmp_path_factory.mktemp("h")
    with Hosts(folder, Path(find_bin_dir()), count=3, cpus=8, own_memory=(1, 2)) as made:
        for space in made.spaces[1:]:
            limit_rate(space, SLOW_GBITS)
        troupe.init(address=made.address, key_file=str(made.key_file))
        try:
            yield made
        finally:
            troupe.shutdown()


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def on(index: int, **options: Any) -> Any:
    return Holder.options(node=f"host{index}", **options).remote()


def ours() -> dict[str, int]:
    """What the driver's host has in memory that somebody refers to."""
    return files(os.path.join(store().base, "objects"))


def copies(holder: Any) -> list[int]:
    return sorted(soon(holder.files.remote("copies")).values())


def kill_makers(path: Path) -> list[int]:
    """Ends the processes that a task has run in since the last time, and says which they were."""
    makers = [int(line) for line in path.read_text().split()]
    path.write_text("")
    for pid in makers:
        os.kill(pid, signal.SIGKILL)
    assert not wait_gone(makers, SOON_S)
    return makers


def test_who_sees_the_same_memory_is_on_one_host(hosts: Hosts) -> None:
    here, other, third = soon([on(i).identity.remote() for i in range(3)])
    assert here == store().identity
    assert len({here, other, third}) == 3  # On one kernel, with one address family, all the same.


def test_processes_of_one_host_map_what_others_get_as_bytes(hosts: Hosts) -> None:
    near, far = on(0), on(1)
    array = numpy.arange(COUNT)
    expected = (0, COUNT - 1, COUNT)
    assert soon([near.ends.remote(array), far.ends.remote(array)]) == [expected] * 2
    assert soon(near.pulled.remote()) == 0
    assert soon(far.pulled.remote()) == array.nbytes
    for holder in near, far:
        result = soon(holder.make.remote(COUNT))
        assert numpy.array_equal(result, array)
        assert soon(far.ends.remote(holder.make.remote(COUNT))) == expected
        box = soon(holder.put.remote(COUNT))
        assert soon([near.read.remote(box), far.read.remote(box)]) == [expected] * 2
    del result, box
    until(ours, {})


def test_results_and_arguments_larger_than_a_message(hosts: Hosts) -> None:
    far = on(1)
    ref = far.make.remote(LARGE)
    result = soon(ref)
    assert (result[0], result[-1], len(result)) == (0, LARGE - 1, LARGE)
    assert soon(far.ends.remote(result)) == (0, LARGE - 1, LARGE)
    assert soon(on(2).numbers.remote(1 << 21))[-1] == float((1 << 21) - 1)  # No array, one pickle.
    del ref, result
    until(lambda: soon(far.files.remote("objects")), {})
    until(ours, {})


def test_a_result_is_with_its_caller_when_its_maker_has_ended(hosts: Hosts) -> None:
    near, far = on(0), on(1)
    ref = near.make.remote(COUNT)
    assert troupe.wait([ref], timeout=SOON_S)[0]
    pid = soon(near.pid.remote())
    troupe.kill(near)
    assert not wait_gone([pid], SOON_S)
    expected = (0, COUNT - 1, COUNT)
    # By the driver, which sends it on, and by the receiver, which asks the driver for it.
    assert soon([far.ends.remote(ref), on(2).read.remote([ref])]) == [expected] * 2


@pytest.mark.parametrize("numbers", [1, COUNT])  # COUNT: they lie in a file.
def test_a_task_runs_again_if_its_result_is_lost_with_its_maker(
    hosts: Hosts, tmp_path: Path, numbers: int
) -> None:
    path = tmp_path / "pids"
    offset = numpy.full(numbers, 3)
    retried, once = (make.options(node="host1", max_retries=n).remote(COUNT * 2, str(path), offset)
                     for n in (1, 0))
    offset[0] = 5  # It is computed from what it was called with.
    troupe.wait([retried, once], num_returns=2, timeout=SOON_S)
    makers = kill_makers(path)
    with pytest.raises(troupe.OwnerDiedError):
        soon(once)
    result = soon(retried)
    assert (result[0], result[-1], len(result)) == (3, COUNT * 2 + 2, COUNT * 2)
    last = int(path.read_text().split()[-1])
    assert last not in makers
    del retried, once, result
    assert not wait_gone([last], SOON_S)
    until(ours, {})


def test_several_results_that_are_lost_are_computed_again_together(
    hosts: Hosts, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    small, large, larger = make_several.options(node="host1", max_retries=1).remote(
        [1, COUNT * 2, COUNT * 2 + 1], str(path))
    troupe.wait([small, large, larger], num_returns=3, timeout=SOON_S)
    kill_makers(path)
    assert [len(soon(part)) for part in (larger, small, large)] == [COUNT * 2 + 1, 1, COUNT * 2]
    assert len(kill_makers(path)) == 1  # One run has given both again.
    del larger, large
    assert len(soon(small)) == 1
    until(ours, {})


def test_what_is_lost_is_computed_again_for_whoever_reads_it(
    hosts: Hosts, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    ref = make.options(node="host1", max_retries=3).remote(COUNT * 2, str(path), [4])
    troupe.wait([ref], timeout=SOON_S)
    near, far = on(0), on(2)
    expected = (4, COUNT * 2 + 3, COUNT * 2)
    kill_makers(path)
    # Inside a value its receivers ask its owner, both at once: it runs once more.
    assert soon([near.read.remote([ref]), far.read.remote([ref])]) == [expected] * 2
    assert len(kill_makers(path)) == 1
    # As an argument: of an actor, and of another task, whose result is lost as well.
    copy = double.options(node="host2", max_retries=1).remote(ref, str(tmp_path / "copies"))
    assert soon(far.ends.remote(ref)) == expected
    troupe.wait([copy], timeout=SOON_S)
    assert len(kill_makers(path)) == len(kill_makers(tmp_path / "copies")) == 1
    assert soon(on(0).ends.remote(copy)) == (8, 2 * (COUNT * 2 + 3), COUNT * 2)
    assert len(path.read_text().split()) == 1
    del ref, copy
    until(ours, {})


def test_what_was_lost_too_often_is_told_to_its_readers(hosts: Hosts, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    ref = make.options(node="host1", max_retries=0).remote(COUNT * 2, str(path), [4])
    troupe.wait([ref], timeout=SOON_S)
    kill_makers(path)
    assert soon(on(2).read_error.remote([ref])).startswith("OwnerDiedError")
    with pytest.raises(troupe.OwnerDiedError):
        soon(on(2).ends.remote(ref))
    assert path.read_text() == ""


def test_several_values_and_generators(hosts: Hosts) -> None:
    far = on(1)
    parts = far.__troupe_call__.options(num_returns=2).remote(
        lambda self, n: (self.make(n), self.make(n + 1)), COUNT * 2)
    assert [len(part) for part in soon(parts)] == [COUNT * 2, COUNT * 2 + 1]


def test_a_host_pulls_a_value_once(hosts: Hosts) -> None:
    actors = [on(2) for _ in range(3)]
    soon([actor.pid.remote() for actor in actors])
    ref = troupe.put(numpy.arange(COUNT))
    assert soon([a.ends.remote(ref) for a in actors]) == [(0, COUNT - 1, COUNT)] * 3
    assert sum(soon([a.pulled.remote() for a in actors])) == COUNT * 8
    assert COUNT * 8 in copies(actors[0])


def pulling(holder: Any, size: int) -> None:
    """Waits until a value of this size is being pulled on the holder's host."""
    until(lambda: any(name.endswith(".part") and 0 < there < size for name, there in
                      soon(holder.files.remote("copies")).items()), True)


def test_whoever_needs_it_next_goes_on_with_a_pull(hosts: Hosts) -> None:
    size = LARGE * 8
    source, first, second, watcher = on(1), on(2), on(2), on(2)
    box = soon(source.put.remote(LARGE))
    soon([second.pid.remote(), watcher.pid.remote()])
    pid = soon(first.pid.remote())
    lost = first.read.remote(box)
    pulling(watcher, size)
    read = second.read.remote(box)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(troupe.ActorDiedError):
        soon(lost)
    assert soon(read) == (0, LARGE - 1, LARGE)
    assert 0 < soon(second.pulled.remote()) < size


def test_a_home_that_dies_is_an_error_and_leaves_no_part(hosts: Hosts) -> None:
    source, reader, watcher = on(1), on(2), on(2)
    box = soon(source.put.remote(LARGE))
    soon([reader.pid.remote(), watcher.pid.remote()])
    pid = soon(source.pid.remote())
    error = reader.read_error.remote(box)
    pulling(watcher, LARGE * 8)
    os.kill(pid, signal.SIGKILL)
    text = soon(error)
    assert text.startswith("OwnerDiedError") and "has ended while it was read" in text
    until(lambda: [n for n in soon(watcher.files.remote("copies")) if n.endswith(".part")], [])


def test_a_pull_ends_in_time_and_goes_on_later(hosts: Hosts) -> None:
    (ref,) = soon(on(2).put.remote(LARGE))
    before = _pulls.pulled_bytes
    troupe.wait([ref], timeout=SOON_S)
    with pytest.raises(troupe.GetTimeoutError, match="goes on with what has come"):
        troupe.get(ref, timeout=1.5)  # It takes over 5 s.
    part = _pulls.pulled_bytes - before
    assert 0 < part < LARGE * 8
    assert len(soon(ref)) == LARGE
    assert _pulls.pulled_bytes - before == LARGE * 8


def test_an_event_loop_does_not_wait_for_a_pull(hosts: Hosts) -> None:
    reader = AsyncHolder.options(node="host2").remote()
    box = soon(on(1).put.remote(LARGE))
    soon(reader.beat.remote(0.01))
    values = [reader.ends.remote(box[0]), reader.read.remote(box)]
    pause = soon(reader.beat.remote(1.0))
    assert pause < 0.5  # It takes over 5 s.
    assert soon(values) == [(0, LARGE - 1, LARGE)] * 2


def test_a_driver_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    import subprocess
    import sys

    from conftest import PYAPI

    code = """
import numpy, os, signal, sys, troupe
from troupe.actors import _session
troupe.init(num_cpus=1, object_store_memory=8 << 20)
refs = [troupe.put(numpy.ones(600_000)) for _ in range(3)]
store = _session.current().store
print(store.base, store.spill_folder, len(os.listdir(store.spill_folder)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                          env={**os.environ, "PYTHONPATH": str(PYAPI)}, timeout=SOON_S)
    base, spilled, count = done.stdout.split()
    assert int(count) == 2
    until(lambda: [path for path in (base, spilled) if os.path.exists(path)], [])


def test_memory_of_a_killed_host_is_given_back(hosts: Hosts) -> None:
    """Its processes could not tidy up: the next node of this machine does."""
    holder = on(0)
    box = soon(holder.put.remote(COUNT))
    pid = soon(holder.pid.remote())
    assert len(ours()) == 1
    os.kill(pid, signal.SIGKILL)
    assert not wait_gone([pid], SOON_S)
    store().sweep()
    assert ours() == {}
    with pytest.raises(troupe.OwnerDiedError):
        soon(box[0])


def test_threads_of_one_process_pull_a_value_once(hosts: Hosts) -> None:
    (ref,) = soon(on(1).put.remote(COUNT))
    before = _pulls.pulled_bytes
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(len(soon(ref)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [COUNT] * 4
    assert _pulls.pulled_bytes - before == COUNT * 8
