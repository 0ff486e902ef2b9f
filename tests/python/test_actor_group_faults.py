"""Groups of actors while heads and nodes are killed, drained and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from actor_groups_cases import Trainer
from learner_cases import Learner

import troupe
from troupe._cluster import find_bin_dir

from conftest import PYAPI
from daemons import LocalCluster, state, states
from processes import until

SOON_S = 60.0

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes."""
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    with LocalCluster(tmp_path_factory.mktemp("groups"), Path(find_bin_dir()), 2, 4.0) as made:
        yield made


@pytest.fixture
def cluster(running: LocalCluster) -> Iterator[LocalCluster]:
    """With this process as a driver, whose groups end with the test."""
    running.revive()
    troupe.init(address=running.address, key_file=str(running.key_file))
    try:
        until(states, {"node0": "alive", "node1": "alive"})
        yield running
    finally:
        running.revive()
        troupe.shutdown()


def made(name: str, size: int, **sizes: int) -> troupe.ActorGroup:
    group = Trainer.group(size, name=name, **sizes).remote(name)
    assert group.wait(timeout=SOON_S)
    return group


def alive(group: troupe.ActorGroup) -> list[int]:
    return [m.number for m in group.members() if m.state == "alive"]


def test_a_training_outlives_heads(cluster: LocalCluster) -> None:
    group = made("heads", 2, max_size=4)
    run = group.train.run(200, 0.02)
    for size in (3, 4):
        cluster.kill("head")
        cluster.revive()
        group.resize(size)  # Asked of the next head.
        assert group.wait(size, timeout=SOON_S)
    assert [r["step"] for r in troupe.get(run, timeout=SOON_S)] == [200] * 4
    group.end()
    until(lambda: [a for a in state()["actors"] if a["state"] == "alive"], [])


def test_no_sample_is_lost_when_heads_and_a_node_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    group = Learner.options(num_cpus=1, scheduling_strategy="SPREAD").group(
        3, min_size=1, name="learn").remote()
    assert group.wait(timeout=SOON_S)
    pids = troupe.get(group.pid.remote(), timeout=SOON_S)
    run = group.train.run(4, pause_s=0.02, until_there=str(tmp_path / "last"))
    cluster.kill("head")
    cluster.revive()
    os.kill(pids[2], signal.SIGKILL)
    cluster.kill("head")  # The death is its successor's business.
    cluster.revive()
    assert group.wait(3, timeout=SOON_S)
    cluster.kill("node1")
    assert group.wait(3, timeout=SOON_S)
    (tmp_path / "last").touch()
    results = troupe.get(run, timeout=SOON_S)
    assert len(results) == 3
    assert [r["seen"] for r in results] == [[4]] * 3
    assert len({(r["hash"], r["step"]) for r in results}) == 1
    group.end()


def test_what_a_head_was_told_just_before_it_died_is_done_by_the_next(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    group = made("orders", 3, min_size=1)
    call = group.members()[1].handle.wait_for.remote(str(tmp_path / "go"))
    until(lambda: len(list(tmp_path.iterdir())), 1)
    group.drain(1, "maintenance", deadline_s=100)
    group.resize(2)
    cluster.kill("head")
    (tmp_path / "go").touch()
    assert troupe.get(call, timeout=SOON_S) > 0
    cluster.revive()
    until(lambda: alive(group), [0, 2])
    group.end()
    cluster.kill("head")
    cluster.revive()
    until(lambda: [a for a in state()["actors"] if a["state"] not in ("dead",)], [])


def test_members_leave_a_node_that_is_drained(cluster: LocalCluster) -> None:
    group = Trainer.options(num_cpus=1, scheduling_strategy="SPREAD").group(
        2, min_size=1, name="nodes").remote("nodes")
    assert group.wait(timeout=SOON_S)
    run = group.train.run(300, 0.02)
    there = {a["id"]: a["node"] for a in state()["actors"]}
    leaver = next(m for m in group.members() if there[m.handle._native.id] == "node1")
    command = [sys.executable, "-m", "troupe", "drain", "node1", "--deadline", "60", "--address",
               cluster.address, "--key-file", str(cluster.key_file)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": PYAPI}, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    until(lambda: leaver.number in [m.number for m in group.members()], False)
    results = troupe.get(run, timeout=SOON_S)
    assert [r["left"] for r in results].count(True) == 1
    assert [r["step"] for r in results if not r["left"]] == [300] * 2
    assert {a["node"] for a in state()["actors"] if a["state"] == "alive"} == {"node0"}
    group.end()
    cluster.kill("node1")  # It takes work again when it is started anew.


def test_members_of_a_node_that_is_lost_go_on_elsewhere(cluster: LocalCluster) -> None:
    group = Trainer.options(num_cpus=1, scheduling_strategy="SPREAD").group(
        2, min_size=1, name="lost").remote("lost")
    assert group.wait(timeout=SOON_S)
    run = group.train.run(200, 0.02)
    cluster.kill("node1")
    assert [r["step"] for r in troupe.get(run, timeout=SOON_S)] == [200] * 2
    group.end()


def test_a_detached_group_outlives_its_driver(cluster: LocalCluster, tmp_path: Path) -> None:
    code = f"""
import sys
sys.path[:0] = [{str(PYAPI)!r}, {str(Path(__file__).parent)!r}]
import troupe
from actor_groups_cases import Trainer
troupe.init(address={cluster.address!r}, key_file={str(cluster.key_file)!r})
for name, lifetime in (("stays", "detached"), ("goes", None)):
    assert Trainer.group(1, name=name, lifetime=lifetime).remote(name).wait(timeout=60)
print("made", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE,
                          stdin=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "made\n"
        driver.send_signal(signal.SIGKILL)
    until(lambda: [g["name"] for g in state()["actor_groups"] if not g["ended"]], ["stays"])
    stays = troupe.get_group("stays")
    assert troupe.get(stays.add.run(1), timeout=SOON_S) == [1]
    stays.end()
