"""Groups that span hosts: collectives in two levels, deaths on either host, a host cut off."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe._cluster import find_bin_dir

from collective_cases import KINDS, run_cases
from conftest import need_hosts
from hosts import Hosts, missing
from processes import wait_gone
from test_integration_elastic import check, train

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    need_hosts(missing())
    bin_dir = Path(find_bin_dir())
    with Hosts(tmp_path_factory.mktemp("hosts"), bin_dir, count=2, cpus=8) as made:
        yield made


def test_collectives_in_two_levels_match_numpy(hosts: Hosts) -> None:
    def fn(seed: int, count: int) -> Any:
        import troupe.torch as hvd

        hvd.init()
        layout = (hvd.local_size(), hvd.cross_size(), hvd.is_homogeneous())
        return layout, run_cases(seed, count)

    uneven = {(2, 2, False), (2, 1, False), (1, 2, False)}
    for workers, layouts in ((4, {(2, 2, True)}), (3, uneven)):
        with hosts.executor(workers, strategy="spread") as executor:
            results = executor.run(fn, (workers, 6 * len(KINDS)))
        assert {layout for layout, _ in results} == layouts
        assert [rank for _, (rank, _) in results] == list(range(workers))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_on_either_host(hosts: Hosts, tmp_path: Path, victim: int) -> None:
    with hosts.executor(2, 4, workers=4, strategy="spread") as executor:
        handle = executor.submit(
            train, (str(tmp_path), {"epochs": 3, "sizes": [4]}),
            {"victim": victim, "where": "backward"},
        )
        check(tmp_path, handle.result(120), 4)
        epochs = handle.epochs()  # The first may be without who is slow to start.
        assert len(epochs) >= 3 and epochs[-1]["size"] == 4
        assert {member["host"] for member in epochs[-1]["members"]} == {"host0", "host1"}
        died = [e for e in handle.events() if e["kind"] == "worker" and e["state"] == "died"]
        assert len(died) == 1


@pytest.mark.parametrize(
    "cut", ["until its members are evicted", "until its node is dead", "the head only"]
)
def test_a_host_that_is_cut_off_is_put_aside_and_returns(
    hosts: Hosts, tmp_path: Path, cut: str
) -> None:
    """Where only the head cannot hear it, its lease ends, though the other host hears it."""
    begin, end = (hosts.mute, hosts.unmute) if cut == "the head only" else (hosts.cut, hosts.mend)
    with trained_until_it_shrinks(hosts, tmp_path) as (executor, handle):
        begin(1)
        try:
            wait_for(handle, lambda epochs: epochs[-1]["size"] == 2)
            assert {member["host"] for member in handle.epochs()[-1]["members"]} == {"host0"}
            if cut == "until its node is dead":
                wait_for(handle, lambda _: "host1" not in alive(executor))
        finally:
            end(1)
        check(tmp_path, handle.result(120), 4)
        returned = {member["host"] for member in handle.epochs()[-1]["members"]}
        assert returned == {"host0", "host1"}
        assert alive(executor) == {"host0", "host1"}


@pytest.mark.parametrize("cut", ["the head", "every host"])
def test_where_nobody_is_heard_nobody_is_put_aside(hosts: Hosts, tmp_path: Path, cut: str) -> None:
    """For longer than members have. Hosts that hear each other do not even notice."""
    begin, end = (hosts.mute, hosts.unmute) if cut == "the head" else (hosts.cut, hosts.mend)
    with hosts.executor(4, strategy="spread") as executor:
        handle = executor.submit(
            train, (str(tmp_path), {"epochs": 1, "sizes": [4]}), {"victim": -1}
        )
        wait_for(handle, bool)
        for index in (0, 1):
            begin(index)
        time.sleep(4)  # the fault itself
        for index in (0, 1):
            end(index)
        check(tmp_path, handle.result(120), 4)
        # What was silent for kLinkSilence is connected anew, by the same members.
        sizes = {epoch["size"] for epoch in handle.epochs()}
        assert sizes == {4}
        if cut == "the head":
            assert len(handle.epochs()) == 1


def test_a_host_that_only_the_head_cannot_hear_at_the_end_is_not_waited_for(hosts: Hosts) -> None:
    """All finish, but half of them cannot say so: the run ends with the results that are here."""
    def fn() -> int:
        import time

        import torch

        import troupe.torch as hvd

        hvd.init()
        state: Any = hvd.elastic.TorchState(torch.nn.Linear(2, 2), step=0, together=False)

        @hvd.elastic.run
        def loop(state: Any) -> None:
            while state.step < 200:
                hvd.allreduce(torch.ones(10), name="x")
                time.sleep(0.005)
                state.together = state.together or hvd.size() == 4
                if state.together:  # Who is slow to start joins before it can be over.
                    state.step += 1
                state.commit()

        loop(state)
        return int(state.step)

    with hosts.executor(
        2, 4, workers=4, strategy="spread", cpus_per_worker=hosts.cpus / 2
    ) as executor:
        handle = executor.submit(fn)
        wait_for(handle, lambda epochs: bool(epochs) and epochs[-1]["size"] == 4)
        hosts.mute(1)
        try:
            assert handle.wait(60), handle.status()
        finally:
            hosts.unmute(1)
        assert set(handle.result(10)) == {200}


def test_workers_of_a_node_daemon_that_was_killed_are_replaced(
    hosts: Hosts, tmp_path: Path
) -> None:
    with trained_until_it_shrinks(hosts, tmp_path) as (_, handle):
        members = handle.epochs()[-1]["members"]
        lost = {member["pid"] for member in members if member["host"] == "host1"}
        hosts.kill("node1")
        hosts.start_node(1)
        wait_for(handle, lambda epochs: epochs[-1]["size"] == 4 and not lost & {
            member["pid"] for member in epochs[-1]["members"]})
        assert not wait_gone([int(pid) for pid in lost], 10)
        check(tmp_path, handle.result(120), 4)


def test_of_two_nodes_of_one_name_the_later_one_stays(hosts: Hosts, tmp_path: Path) -> None:
    earlier = hosts.node(1)
    hosts.start_node(1)
    assert earlier.wait(30) == 1
    assert "Each node needs a --name of its own" in hosts.log("node1")
    with hosts.executor(4, strategy="spread", cpus_per_worker=hosts.cpus / 2) as executor:
        handle = executor.submit(
            train, (str(tmp_path), {"epochs": 1, "sizes": [4]}), {"victim": -1}
        )
        check(tmp_path, handle.result(120), 4)
        assert alive(executor) == {"host0", "host1"}


@contextlib.contextmanager
def trained_until_it_shrinks(
    hosts: Hosts, folder: Path
) -> Iterator[tuple[troupe.Executor, troupe.RunHandle]]:
    """Trains with four members, two on each host, and has made steps with all of them.

    A host has room for two: what is lost can only come back there.
    """
    with hosts.executor(
        2, 4, workers=4, strategy="spread", cpus_per_worker=hosts.cpus / 2
    ) as executor:
        handle = executor.submit(
            train, (str(folder), {"epochs": 3, "sizes": [4], "shrinks": True}), {"victim": -1}
        )
        # The second report says that every member has committed the first step with four.
        wait_for(handle, lambda _: steps_with(handle, 4) >= 2)
        yield executor, handle


def steps_with(handle: troupe.RunHandle, size: int) -> int:
    reports = [event["value"] for event in handle.events() if event["kind"] == "report"]
    return sum(report["size"] == size for report in reports)


def alive(executor: troupe.Executor) -> set[str]:
    return {node["host"] for node in executor.cluster()["nodes"] if node["alive"]}


def wait_for(handle: Any, condition: Any, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition(handle.epochs()):
        assert time.monotonic() < deadline, handle.epochs()
        assert not handle.done(), handle.epochs()
        time.sleep(0.05)
