"""Handles of actors that come and go while the head is killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from handle_cases import Holder, Thing

import troupe
from troupe._cluster import find_bin_dir

from daemons import LocalCluster, state, states
from processes import until, wait_gone

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0
ALL_UP = {"node0": "alive", "node1": "alive"}
DECIDED_S = 8.0  # A head that was started has decided then, if it knows enough.


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes."""
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    with LocalCluster(tmp_path_factory.mktemp("h"), Path(find_bin_dir()), 2, 4.0) as made:
        yield made


@pytest.fixture
def cluster(running: LocalCluster) -> Iterator[LocalCluster]:
    """With this process as a driver, whose actors end with the test."""
    running.revive()
    troupe.init(address=running.address, key_file=str(running.key_file))
    try:
        until(states, ALL_UP)
        yield running
    finally:
        running.revive()
        troupe.shutdown()


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def gone(pid: int) -> None:
    assert not wait_gone([pid], SOON_S)


def living() -> set[str]:
    return {actor["id"] for actor in state()["actors"] if actor["state"] != "dead"}


def still_there(pid: int) -> None:
    """Also when a new head has had time to decide."""
    assert wait_gone([pid], DECIDED_S) == [pid]


def test_what_is_dropped_while_there_is_no_head_ends_when_there_is_one(
    cluster: LocalCluster
) -> None:
    thing, kept = Thing.remote(), Thing.remote()
    pid, other = soon([thing.pid.remote(), kept.pid.remote()])
    cluster.kill("head")
    del thing
    cluster.start_head()
    gone(pid)
    still_there(other)
    assert soon(kept.pid.remote()) == other
    del kept
    gone(other)


def test_a_handle_that_is_passed_on_while_there_is_no_head(cluster: LocalCluster) -> None:
    thing, holder = Thing.remote(), Holder.options(node="node1").remote()
    pid = soon(thing.pid.remote())
    soon(holder.pid.remote())
    cluster.kill("head")
    soon(holder.keep.remote(thing))
    del thing
    cluster.start_head()
    still_there(pid)
    assert soon(holder.pid_of_kept.remote()) == pid
    soon(holder.forget.remote())
    gone(pid)


def test_a_new_head_waits_for_a_process_that_stands_still(cluster: LocalCluster) -> None:
    thing, holder, lost = Thing.remote(), Holder.remote(), Thing.remote()
    pid, stopped, last = soon([thing.pid.remote(), holder.pid.remote(), lost.pid.remote()])
    soon(holder.keep.remote(thing))
    del thing
    soon(holder.pid_of_kept.remote())
    os.kill(stopped, signal.SIGSTOP)
    try:
        cluster.kill("head")
        del lost
        cluster.start_head()
        still_there(pid)
        assert wait_gone([last], 0) == [last]  # As long as it may hold that, too.
    finally:
        os.kill(stopped, signal.SIGCONT)
    gone(last)
    assert soon(holder.pid_of_kept.remote()) == pid
    soon(holder.forget.remote())
    gone(pid)


def test_heads_that_die_again_and_again(cluster: LocalCluster) -> None:
    holders = [Holder.options(node=f"node{i % 2}").remote() for i in range(3)]
    soon([holder.pid.remote() for holder in holders])
    dropped: list[int] = []
    for turn in range(4):
        thing, short = Thing.remote(), Thing.remote()
        pid, other = soon([thing.pid.remote(), short.pid.remote()])
        at, to = holders[turn % 3], holders[(turn + 1) % 3]
        soon(at.keep.remote([thing, short]))
        del thing, short
        cluster.kill("head")
        soon(to.keep.remote(soon(at.give.remote())[0]))
        soon(at.forget.remote())
        cluster.start_head()
        gone(other)
        assert soon(to.pid_of_kept.remote()) == pid
        soon(to.forget.remote())
        dropped.append(pid)
    for pid in dropped:
        gone(pid)
    until(lambda: len(living()) == len(holders), True)
