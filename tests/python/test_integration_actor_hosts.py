"""Actors on several hosts: arrays between them, a host that is lost, cut off, or hard to reach."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe._cluster import find_bin_dir

import lossy_link
from actor_cases import Counter, Echo, Ledger
from actor_host_cases import (
    Asker,
    Gate,
    Peer,
    SavedWitness,
    Sequence,
    Source,
    Visitor,
    Witness,
    read,
)
from conftest import PYAPI, need_hosts
from daemons import state, states
from hosts import Hosts, missing
from processes import until

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0
CPP_PROGRAM = Path(os.environ.get("TROUPE_BUILD_DIR") or PYAPI.parent) / "tests" / "python_peer"
ALL_UP = {"host0": "alive", "host1": "alive", "host2": "alive"}
CPUS = 8.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Three hosts, with this process as a driver outside of them."""
    need_hosts(missing())
    folder = tmp_path_factory.mktemp("hosts")
    with Hosts(folder, Path(find_bin_dir()), count=3, cpus=CPUS) as made:
        troupe.init(address=made.address, key_file=str(made.key_file))
        try:
            yield made
        finally:
            troupe.shutdown()


@pytest.fixture
def hosts(cluster: Hosts) -> Hosts:
    """What a test has cut or lost is there again when the next one begins."""
    until(states, ALL_UP)
    return cluster


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def host_is(index: int, wanted: str) -> None:
    until(lambda: states()[f"host{index}"], wanted)


def restarts(handle: Any) -> int:
    """How often the head has started the actor again."""
    (count,) = [a["restarts"] for a in state()["actors"] if a["id"] == handle.native_ref().id]
    return int(count)


def on(index: int) -> dict[str, Any]:
    """Options: rather on this host, and on another if it is lost."""
    return {"node": f"host{index}", "node_soft": True}


def test_actors_of_different_hosts_pass_arrays_both_ways(hosts: Hosts) -> None:
    numpy = pytest.importorskip("numpy")
    # Each calls the other at the same time, so one thread would wait for itself.
    zero, one = (Peer.options(node=f"host{i}", max_concurrency=2).remote() for i in (0, 1))
    assert soon([zero.host.remote(), one.host.remote()]) == ["host0", "host1"]
    array = numpy.arange(1 << 19, dtype=numpy.float64)  # 4 MiB
    refs = [first.through.remote(second, array) for first, second in ((zero, one), (one, zero))]
    for result in soon(refs):
        assert numpy.array_equal(result, array * 2 + 1)
    there = zero.double.remote(array)  # A result as an argument for the other host.
    assert numpy.array_equal(soon(one.double.remote(there)), array * 4)
    # A ref inside another value is asked for at the host that it came from, or at the driver.
    boxes = [soon(zero.put.remote(1 << 19)), [troupe.put(numpy.arange(1 << 19))]]
    assert soon([one.total.remote(box) for box in boxes]) == [(1 << 19) * ((1 << 19) - 1) // 2] * 2


def test_actors_of_a_cpp_program_on_two_hosts(hosts: Hosts) -> None:
    if not CPP_PROGRAM.exists():
        pytest.skip(f"{CPP_PROGRAM} is not built")
    zero, one = (
        troupe.cpp_actor([str(CPP_PROGRAM)], "troupe::testing::Abacus", [start], node=node)
        for start, node in ((10, "host0"), (20, "host1")))
    assert soon(zero.AddTo.remote(one, 1)) == 21
    assert soon(one.AddTo.remote(zero, 2)) == 12
    assert soon(zero.Join.remote(["x" * (4 << 20), "y"], "")) == "x" * (4 << 20) + "y"


def test_a_named_actor_outlives_its_driver_and_is_found_by_the_next(hosts: Hosts) -> None:
    begin = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent)]!r}
import troupe
from actor_cases import Counter
troupe.init(address={hosts.address!r}, key_file={str(hosts.key_file)!r})
"""
    first = begin + """
options = {"node": "host2", "lifetime": "detached", "name": "left"}
print(troupe.get(Counter.options(**options).remote(10).add.remote(), timeout=60))
"""
    second = begin + "print(troupe.get(troupe.get_actor('left').add.remote(), timeout=60))\n"
    try:
        assert [run_driver(code) for code in (first, second)] == ["11", "12"]
        assert soon(troupe.get_actor("left").add.remote()) == 13
        (actor,) = [a for a in state()["actors"] if a["name"] == "left"]
        assert (actor["node"], actor["restarts"]) == ("host2", 0)
    finally:
        troupe.kill(troupe.get_actor("left"))


def run_driver(code: str) -> str:
    """What another driver prints, which has ended then."""
    environment = {**os.environ, "PYTHONPATH": str(PYAPI)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True, timeout=SOON_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_a_slow_and_lossy_link_neither_loses_nor_doubles_calls(hosts: Hosts) -> None:
    numpy = pytest.importorskip("numpy")
    need_hosts(lossy_link.missing())
    sequence = Sequence.options(node="host1").remote()
    inside = Sequence.options(node="host0").remote()
    source = Source.options(node="host1").remote()
    soon([sequence.all.remote(), inside.all.remote()])
    array = numpy.ones(1 << 16)
    end = hosts.folder / "end-of-slow"
    hosts.impair(1, delay_ms=10, jitter_ms=10, loss=0.02)
    try:
        sent = source.send.remote(inside, "inside", str(end))
        refs = [sequence.take.remote("driver", i, array if i % 100 == 0 else None)
                for i in range(1000)]
        wanted = [(i, 65536.0 if i % 100 == 0 else 0.0) for i in range(1000)]
        assert soon(refs) == wanted
        end.touch()
        count = soon(sent)
        passed, lost = hosts.losses(1)
        assert lost > 0, f"no frame of {passed} was lost"
    finally:
        end.touch()
        hosts.repair(1)
    assert soon(sequence.all.remote()) == {"driver": list(range(1000))}
    assert soon(inside.all.remote()) == {"inside": list(range(count))}
    assert restarts(sequence) == restarts(source) == 0


def test_a_short_partition_restarts_nobody_and_costs_no_call(hosts: Hosts) -> None:
    """Longer than connections live without a word, shorter than a node is given."""
    end = hosts.folder / "end-of-short"
    zero = Sequence.options(max_restarts=1, node="host0").remote()
    one = Sequence.options(max_restarts=1, node="host1").remote()
    sources = [Source.options(max_restarts=1, node=f"host{i}").remote() for i in (0, 1)]
    lives = soon([zero.life.remote(), one.life.remote()])
    sent = [sources[0].send.remote(one, "outside", str(end)),
            sources[1].send.remote(zero, "cut", str(end))]
    until(lambda: sorted([*soon(zero.all.remote()), *soon(one.all.remote())]), ["cut", "outside"])
    hosts.cut(1)
    try:
        refs = [one.take.remote("driver", i) for i in range(500)]
        host_is(1, "suspect")
        refs += [one.take.remote("driver", i) for i in range(500, 1000)]
        time.sleep(1.3)  # the fault itself: by now connections have been given up
    finally:
        hosts.mend(1)
        end.touch()
    assert [number for number, _ in soon(refs)] == list(range(1000))
    outside, cut = soon(sent)
    assert soon(one.all.remote()) == {"outside": list(range(outside)), "driver": list(range(1000))}
    assert soon(zero.all.remote()) == {"cut": list(range(cut))}
    assert soon([zero.life.remote(), one.life.remote()]) == lives
    assert [restarts(actor) for actor in (zero, one, *sources)] == [0] * 4
    host_is(1, "alive")


def test_a_lost_host_costs_only_what_ran_there(hosts: Hosts, tmp_path: Path) -> None:
    saved = Ledger.options(**on(1)).remote()
    plain = Counter.options(max_restarts=1, **on(1)).remote(100)
    mortal = Counter.options(node="host1").remote()
    busy = Echo.options(max_restarts=1, max_concurrency=2, **on(1)).remote()
    asked, other = Counter.options(node="host0").remote(), Echo.options(node="host2").remote()
    assert soon([saved.add.remote(i) for i in range(1, 5)]) == [1, 3, 6, 10]
    soon([plain.add.remote(), mortal.add.remote(), busy.same.remote(1), asked.pid.remote()])
    # Not the first, if the order to start it was lost on a link that had just been mended.
    before = soon(saved.state.remote())[2]
    go = tmp_path / "go"
    lost, again = (busy.wait_for.options(retries=retries).remote(str(go)) for retries in (0, 1))
    calls = 0
    hosts.lose(1)
    try:
        late = [saved.add.options(retries=1).remote(10) for _ in range(3)]
        while states()["host1"] != "dead":
            calls += 1  # Nobody else waits for the verdict.
            assert soon(other.call.remote(asked, "add")) == calls
        assert calls > 20
        with pytest.raises(troupe.ActorDiedError, match="may have run"):
            soon(lost)
        assert soon(late) == [20, 30, 40]
        total, count, incarnation = soon(saved.state.remote())
        assert (total, count, incarnation) == (40, 7, before + 1)
        assert soon(plain.add.remote()) == 101  # It had no state to save.
        with pytest.raises(troupe.ActorDiedError, match="host1"):
            soon(mortal.add.remote())
        go.touch()
        assert soon(again) is None
        assert soon(asked.add.remote()) == calls + 1
        assert [restarts(actor) for actor in (saved, plain, busy, asked, other)] == [1, 1, 1, 0, 0]
        assert {a["node"] for a in state()["actors"] if a["state"] == "alive"} == {"host0", "host2"}
    finally:
        go.touch()
        hosts.mend(1)
        hosts.start_node(1)
    host_is(1, "alive")
    assert soon(Peer.options(node="host1").remote().host.remote()) == "host1"


def test_a_host_that_returns_does_not_bring_back_the_dead(hosts: Hosts, tmp_path: Path) -> None:
    """What is cut off with an actor may go on to call it, but not if its state is saved."""
    ran, heard, heard_saved = (tmp_path / name for name in ("ran", "heard", "heard-saved"))
    plain, saved = Witness.options(**on(1)).remote(str(ran)), SavedWitness.options(**on(1)).remote()
    for witness, path in ((plain, heard), (saved, heard_saved)):
        Asker.options(node="host1").remote().ask.remote(witness, str(path))
    assert soon([plain.tell.remote("driver"), saved.tell.remote("driver")]) == [(1, 1), (1, 1)]
    until(lambda: bool(read(heard) and read(heard_saved)), True)
    before = set(hosts.pids(1)) - {hosts.node(1).pid}
    hosts.cut(1)
    try:
        refs = [saved.tell.options(retries=1).remote("driver") for _ in range(50)]
        host_is(1, "dead")
        dead_at = time.monotonic()
        assert soon(refs) == [(2, number) for number in range(2, 52)]
        assert soon(plain.tell.options(retries=1).remote("driver")) == (2, 1)
        # Both incarnations run now; the first is heard by those who are cut off with it.
        until(lambda: read(heard)[-1][0] > dead_at, True)
        assert read(heard)[-1][1] == 1
    finally:
        hosts.mend(1)
    host_is(1, "alive")
    back_at = time.monotonic()
    assert not [pid for pid in before if Path("/proc", str(pid)).exists()]
    for number in range(2, 200):
        assert soon(plain.tell.remote("driver")) == (2, number)
    assert soon(saved.tell.remote("driver")) == (2, 52)
    assert soon(Peer.options(node="host1").remote().host.remote()) == "host1"
    assert {incarnation for when, incarnation in read(ran) if when > back_at} == {2}
    assert not [when for when, _ in read(heard) if when > back_at]
    assert not [when for when, _ in read(heard_saved) if when > dead_at]
    assert restarts(plain) == restarts(saved) == 1


def test_the_answer_of_a_life_that_is_over_is_not_taken(hosts: Hosts, tmp_path: Path) -> None:
    """The head does not hear a host; who calls an actor there still does."""
    gate = Gate.options(**on(1)).remote()
    ref = Visitor.options(node="host0").remote().visit.remote(gate, str(tmp_path))
    until((tmp_path / "begun-1").exists, True)
    hosts.mute(1)
    try:
        until((tmp_path / "begun-2").exists, True)
        (tmp_path / "open-1").touch()
        assert troupe.wait([ref], timeout=1.0)[0] == []
        (tmp_path / "open-2").touch()
        assert soon(ref) == 2
    finally:
        hosts.unmute(1)
    host_is(1, "alive")
    assert restarts(gate) == 1
