"""Actors while the head is killed, stopped and started again, and while its store is."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe._cluster import find_bin_dir

from actor_cases import Counter, Echo, Ledger, square
from conftest import PYAPI
from daemons import LocalCluster, state, states
from head_fault_cases import Born
from processes import Script, until, wait_gone

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0
CPUS = 8.0
ALL_UP = {"node0": "alive", "node1": "alive"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes."""
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    with LocalCluster(tmp_path_factory.mktemp("head"), Path(find_bin_dir()), 2, CPUS) as made:
        yield made


@pytest.fixture
def cluster(running: LocalCluster) -> Iterator[LocalCluster]:
    """With this process as a driver, whose actors end with the test.

    What the test before has killed or stopped is there again when it begins.
    """
    running.revive()
    troupe.init(address=running.address, key_file=str(running.key_file))
    try:
        until(states, ALL_UP)
        yield running
    finally:
        running.revive()
        for actor in state()["actors"]:
            if actor["name"] and actor["state"] != "dead":
                troupe.kill(troupe.get_actor(actor["name"]))
        troupe.shutdown()


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


@contextlib.contextmanager
def asked(ask: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Asks for something that cannot be before the body is done; yields its result."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        future = thread.submit(ask)
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(timeout=0.5)
        yield lambda: future.result(timeout=SOON_S)


def in_bundle(group: Any, number: int) -> Any:
    where = {"placement_group": group, "placement_group_bundle_index": number}
    return Counter.options(**where).remote()


def ends(pid: int) -> None:
    assert wait_gone([pid], 20) == []


def test_actors_go_on_without_a_head_and_new_ones_come_with_it(cluster: LocalCluster) -> None:
    counter, echo = Counter.options(node="node0").remote(), Echo.options(node="node1").remote()
    pid, *_ = soon([counter.pid.remote(), echo.same.remote(1)])
    cluster.kill("head")
    for number in range(1, 201):
        assert soon(counter.add.remote()) == number
    # Echo has never called this one, and may have to ask the head where it is.
    through = echo.call.remote(counter, "add")
    with asked(lambda: Counter.remote(5).add.remote()) as new:
        cluster.start_head()
    assert soon([new(), through]) == [6, 201]
    assert soon([counter.add.remote(), counter.pid.remote()]) == [202, pid]


@pytest.mark.parametrize("made", [0, 1, 10])
def test_a_head_killed_while_actors_are_made_makes_each_once(
    cluster: LocalCluster, tmp_path: Path, made: int
) -> None:
    actors = [Born.remote(str(tmp_path / str(number))) for number in range(20)]
    refs = [actor.path.remote() for actor in actors]
    until(lambda: len(list(tmp_path.iterdir())) >= made, True)
    cluster.kill("head")
    cluster.start_head()
    assert soon(refs) == [str(tmp_path / str(number)) for number in range(20)]
    assert [len(Path(path).read_text().splitlines()) for path in soon(refs)] == [1] * 20


def test_a_node_that_dies_while_there_is_no_head_is_noticed(cluster: LocalCluster) -> None:
    there = {"node": "node1", "node_soft": True}
    saved = Ledger.options(**there).remote()
    mortal = Counter.options(node="node1").remote()
    aside = Counter.options(node="node0").remote()
    soon([saved.add.remote(4), mortal.add.remote(), aside.add.remote()])
    cluster.kill("head")
    cluster.kill("node1")
    late = saved.add.options(retries=1).remote(3)
    assert soon(aside.add.remote()) == 2
    cluster.start_head()
    try:
        until(lambda: states().get("node1", "dead"), "dead", limit_s=10)
        assert soon(late) == 7
        with pytest.raises(troupe.ActorDiedError, match="node1"):
            soon(mortal.add.remote())
        assert soon(aside.add.remote()) == 3
    finally:
        cluster.start_node(1)
    until(states, ALL_UP)
    assert soon(Counter.options(node="node1").remote().add.remote()) == 1


def test_who_calls_an_actor_that_died_while_there_is_no_head(cluster: LocalCluster) -> None:
    mortal = Counter.remote()
    detached = Ledger.options(name="again", lifetime="detached").remote()
    pids = soon([mortal.pid.remote(), detached.pid.remote()])
    soon(detached.add.remote(2))
    cluster.kill("head")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    ends(pids[1])
    with pytest.raises(troupe.GetTimeoutError):
        soon(mortal.add.options(timeout=1).remote())
    called = mortal.add.remote()
    cluster.start_head()
    with pytest.raises(troupe.ActorDiedError):
        soon(called)
    assert soon(detached.add.options(retries=1).remote(3)) == 5
    assert soon(detached.state.remote()) == (5, 2, 2)
    troupe.kill(troupe.get_actor("again"))


def test_an_actor_that_is_ready_before_its_head_is(cluster: LocalCluster, tmp_path: Path) -> None:
    go, mark = tmp_path / "go", tmp_path / "mark"
    actor = Born.remote(str(mark), str(go))
    ref = actor.path.remote()
    until(mark.exists, True)
    cluster.kill("head")
    go.touch()
    time.sleep(0.2)  # It is ready, and has nobody to tell.
    cluster.start_head()
    assert troupe.get(ref, timeout=5) == str(mark)
    assert len(mark.read_text().splitlines()) == 1


def test_a_name_is_not_waited_for_longer_than_is_said(cluster: LocalCluster) -> None:
    kept = Counter.options(name="kept").remote()
    soon(kept.add.remote())
    cluster.kill("head")
    begun = time.monotonic()
    with pytest.raises(troupe.GetTimeoutError, match="kept"):
        troupe.get_actor("kept", timeout=1)
    assert time.monotonic() - begun < 5
    cluster.start_head()
    assert soon(troupe.get_actor("kept").add.remote()) == 2


def test_a_placement_group_is_as_it_was(cluster: LocalCluster) -> None:
    group = troupe.placement_group([{"CPU": 2}, {"CPU": 2}], strategy="SPREAD")
    assert group.wait(timeout=SOON_S)
    actors = [in_bundle(group, number) for number in (0, 1)]
    pids = soon([actor.pid.remote() for actor in actors])
    cluster.kill("head")
    cluster.start_head()
    group.resize(add=[{"CPU": 1}])
    assert group.wait(timeout=SOON_S)
    assert soon([actor.pid.remote() for actor in actors]) == pids
    assert soon(in_bundle(group, 2).add.remote()) == 1
    group.remove()
    for pid in pids:
        ends(pid)


def test_what_was_removed_before_its_node_heard_is_gone(cluster: LocalCluster) -> None:
    """The node cannot hear of it from the head that was told, only from the next one."""
    group = troupe.placement_group([{"CPU": CPUS}], bundle_label_selector=[["host=node1"]])
    assert group.wait(timeout=SOON_S), group.reason
    pid = soon(in_bundle(group, 0).pid.remote())
    with cluster.stopped("node1"):
        group.remove()
        cluster.kill("head")
        cluster.start_head()
    ends(pid)
    assert soon(Counter.options(node="node1", num_cpus=CPUS).remote().add.remote()) == 1


@pytest.mark.parametrize("driver_dies", [False, True])
@pytest.mark.parametrize("parent_dies", [False, True])
def test_exactly_those_survive_whose_owners_do(
    cluster: LocalCluster, tmp_path: Path, driver_dies: bool, parent_dies: bool
) -> None:
    code = f"""
import sys, time
sys.path[:0] = {[str(Path(__file__).parent)]!r}
import troupe
from head_fault_cases import Parent
from actor_cases import Counter
troupe.init(address={cluster.address!r}, key_file={str(cluster.key_file)!r})
own = Counter.options(name="own").remote()
parent = Parent.options(name="parent", lifetime="detached").remote()
print("pids", troupe.get(own.pid.remote()), *troupe.get(parent.hire.remote("child")), flush=True)
time.sleep(600)
"""
    with Script(tmp_path / "driver.py", code, str(cluster.folder), str(PYAPI)) as driver:
        own, parent, child = map(int, driver.read_until("pids").split()[1:])
        cluster.kill("head")
        dead, alive = set(), {own, parent, child}
        if driver_dies:
            driver.kill(signal.SIGKILL)
            dead |= {own}
        if parent_dies:
            os.kill(parent, signal.SIGKILL)
            dead |= {parent, child}
        cluster.start_head()
        for pid in dead:
            ends(pid)
        until(lambda: named() == {name for name, pid in
                                  (("own", own), ("parent", parent), ("child", child))
                                  if pid not in dead}, True, limit_s=20)
        time.sleep(0.5)  # Nobody follows them.
        assert all(Path("/proc", str(pid)).exists() for pid in alive - dead)
        if not parent_dies:
            troupe.kill(troupe.get_actor("parent"))
            ends(child)


def named() -> set[str]:
    """Names of the actors that live."""
    return {a["name"] for a in state()["actors"] if a["name"] and a["state"] == "alive"}


def test_tasks_are_done_whoever_dies_meanwhile(cluster: LocalCluster) -> None:
    refs = [square.options(num_cpus=0.5).remote(x) for x in range(100)]
    cluster.kill("head")
    refs += [square.options(num_cpus=0.5).remote(x) for x in range(100, 150)]
    cluster.start_head()
    assert soon(refs) == [x * x for x in range(150)]


def test_a_head_that_stands_still_for_longer_than_a_lease(cluster: LocalCluster) -> None:
    counter = Counter.remote()
    pid = soon(counter.pid.remote())
    with cluster.stopped("head"):
        end = time.monotonic() + 4.0  # Twice a lease.
        calls = 0
        while time.monotonic() < end:
            calls += 1
            assert soon(counter.add.remote()) == calls
        with asked(lambda: Counter.remote(7).add.remote()) as new:
            cluster.running["head"].send_signal(signal.SIGCONT)
    assert soon(new()) == 8
    assert soon([counter.pid.remote(), counter.add.remote()]) == [pid, calls + 1]
    until(states, ALL_UP)


def test_a_head_that_is_told_to_end_while_a_run_goes_on(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    there, go = tmp_path / "there", tmp_path / "go"

    def train() -> int:
        there.touch()
        limit = time.monotonic() + SOON_S
        while not go.exists() and time.monotonic() < limit:
            time.sleep(0.01)
        return 7

    executor = troupe.Executor(1, address=cluster.address, key_file=str(cluster.key_file),
                               progress="off")
    with executor, concurrent.futures.ThreadPoolExecutor(1) as thread:
        values = thread.submit(executor.run, train)
        until(there.exists, True)
        cluster.running["head"].terminate()
        status = cluster.running["head"].wait(SOON_S)
        cluster.start_head()  # Before it is judged: without a head the run would not end.
        go.touch()
        assert values.result(SOON_S) == [7]
        assert status == 0


def test_a_run_that_goes_on_is_known_to_the_next_head(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Its epoch, who its members are; and its driver is told of each epoch once."""
    def train() -> None:
        limit = time.monotonic() + SOON_S
        while not (tmp_path / "go").exists() and time.monotonic() < limit:
            time.sleep(0.01)

    with troupe.Executor(2, address=cluster.address, key_file=str(cluster.key_file),
                         progress="off") as executor:
        handle = executor.submit(train)
        until(lambda: [epoch["epoch"] for epoch in handle.epochs()], [1])
        before = handle.status()
        cluster.kill("head")
        cluster.start_head()
        for what in ("epoch", "state", "reason", "workers"):
            until(lambda what=what: handle.status()[what], before[what])
        (tmp_path / "go").touch()
        handle.result(SOON_S)
        assert [epoch["epoch"] for epoch in handle.epochs()] == [1]


@pytest.mark.parametrize("size", [10, 100_000, 1_000_000])
@pytest.mark.parametrize("lost", ["the head", "the head and the worker"])
def test_who_has_returned_is_in_the_results_of_the_next_head(
    cluster: LocalCluster, tmp_path: Path, size: int, lost: str
) -> None:
    """A small one is in the store, a large one with its worker, or lost; it is never left out."""
    def train() -> bytes:
        rank = int(os.environ["TROUPE_RANK"])
        (tmp_path / f"pid-{rank}").write_text(str(os.getpid()))
        while rank == 1 and not (tmp_path / "go").exists():  # Rank 0 returns at once.
            time.sleep(0.01)
        return bytes([rank]) * size

    with troupe.Executor(2, address=cluster.address, key_file=str(cluster.key_file),
                         progress="off") as executor:
        handle = executor.submit(train)
        until(lambda: [e["state"] for e in handle.events() if e["kind"] == "worker"][-1:],
              ["finished"])
        handle.resize(2)  # Answered when all before it is kept.
        cluster.kill("head")
        if lost == "the head and the worker":
            pid = int((tmp_path / "pid-0").read_text())
            os.kill(pid, signal.SIGKILL)
            assert not wait_gone([pid], SOON_S)
        cluster.start_head()
        (tmp_path / "go").touch()
        if lost == "the head" or size == 10:
            assert handle.result(SOON_S) == [bytes(size), b"\1" * size]
        else:
            with pytest.raises(troupe.TroupeError, match="the result of w[01]#1 is lost"):
                handle.result(SOON_S)


def test_a_store_that_is_lost_is_filled_again(cluster: LocalCluster) -> None:
    counter = Counter.options(name="before").remote()
    group = troupe.placement_group([{"CPU": 1}], name="room")
    assert group.wait(timeout=SOON_S)
    pid = soon(counter.pid.remote())
    cluster.kill("redis")
    assert soon(counter.add.remote()) == 1
    with asked(lambda: Counter.options(name="late").remote(5)) as late:
        cluster.start_redis()  # It has nothing.
    assert soon(late().add.remote()) == 6
    cluster.kill("head")
    cluster.start_head()
    assert soon(troupe.get_actor("before").pid.remote()) == pid
    assert soon(troupe.get_actor("late").add.remote()) == 7
    troupe.get_placement_group("room").remove()


def test_nothing_is_left_of_a_cluster_whose_head_and_store_are_both_lost(
    cluster: LocalCluster
) -> None:
    counter = Counter.options(name="gone").remote()
    detached = Counter.options(name="gone too", lifetime="detached").remote()
    group = troupe.placement_group([{"CPU": CPUS - 1}, {"CPU": CPUS - 1}])
    assert group.wait(timeout=SOON_S)
    pids = soon([counter.pid.remote(), detached.pid.remote()])
    cluster.kill("head")
    cluster.kill("redis")
    cluster.start_redis()
    cluster.start_head()
    for pid in pids:
        ends(pid)
    with pytest.raises(troupe.ActorDiedError):
        soon(counter.add.remote())
    with pytest.raises(troupe.TroupeError):
        troupe.get_actor("gone too", timeout=10)
    wide = [Counter.options(num_cpus=CPUS, node=f"node{i}").remote() for i in (0, 1)]
    assert soon([actor.add.remote() for actor in wide]) == [1, 1]
