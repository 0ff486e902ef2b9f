"""Routes between members that are cut while all of them still reach the head."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe._cluster import find_bin_dir

from conftest import need_hosts
from hosts import Hosts, missing
from test_integration_elastic import check, train

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(240)]

BOTH, ONE_WAY = [(0, 1), (1, 0)], [(1, 0)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    need_hosts(missing())
    with Hosts(tmp_path_factory.mktemp("routes"), Path(find_bin_dir()), count=2, cpus=1) as made:
        yield made


def executor(hosts: Hosts) -> troupe.Executor:
    """One worker per host."""
    return hosts.executor(1, 2, workers=2, strategy="spread", cpus_per_worker=1)


def submit(made: troupe.Executor, folder: Path, epochs: int) -> Any:
    return made.submit(train, (str(folder), {"epochs": epochs, "sizes": [2]}), {"victim": -1})


def wait(what: Callable[[], bool], run: Any, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, run.events()[-20:]
        assert not run.done(), run.events()[-20:]
        time.sleep(0.02)


def events(run: Any, kind: str) -> list[dict[str, Any]]:
    return [event for event in run.events() if event["kind"] == kind]


@pytest.mark.parametrize("routes", [BOTH, ONE_WAY], ids=["both ways", "one way"])
def test_a_cut_is_told_and_the_group_goes_on_and_is_whole_again_after_it(
    hosts: Hosts, tmp_path: Path, routes: list[tuple[int, int]]
) -> None:
    with executor(hosts) as made:
        run = submit(made, tmp_path, 3)
        wait(lambda: bool(run.epochs()) and run.epochs()[-1]["size"] == 2, run)
        for route in routes:
            hosts.part(*route)
        try:
            wait(lambda: run.epochs()[-1]["size"] == 1, run)
            told = events(run, "unreachable")
            assert told and "cannot reach" in told[0]["message"]
            steps = len(events(run, "report"))
            wait(lambda: len(events(run, "report")) > steps + 20, run)  # alone
        finally:
            for route in routes:
                hosts.rejoin(*route)
        wait(lambda: run.epochs()[-1]["size"] == 2, run, 90)
        check(tmp_path, run.result(120), 2)
    assert not [e for e in events(run, "worker") if e["state"] == "died"]


def test_a_replacement_that_cannot_be_reached_costs_the_group_no_step(
    hosts: Hosts, tmp_path: Path
) -> None:
    with executor(hosts) as made:
        run = submit(made, tmp_path, 3)
        wait(lambda: bool(run.epochs()) and run.epochs()[-1]["size"] == 2, run)
        for route in BOTH:
            hosts.part(*route)
        try:
            victim = next(m for m in run.epochs()[-1]["members"] if m["host"] == "host1")
            os.kill(int(victim["pid"]), signal.SIGKILL)
            wait(lambda: len(events(run, "unreachable")) >= 2, run, 90)
            epochs = len(run.epochs())
            steps = len(events(run, "report"))
            wait(lambda: len(events(run, "report")) > steps + 50, run)
            assert len(run.epochs()) == epochs  # It trains, undisturbed by who wants to join.
        finally:
            for route in BOTH:
                hosts.rejoin(*route)
        wait(lambda: run.epochs()[-1]["size"] == 2, run, 90)
        check(tmp_path, run.result(120), 2)
