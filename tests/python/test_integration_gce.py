"""``provider: gce`` on a fake Compute Engine whose instances are processes, of real nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fleets
from conftest import PYAPI
from processes import MARK, assert_nothing_left, free_port, until

pytest.importorskip("cryptography", reason="the fake Compute Engine signs with it")
pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]

IMAGE = "projects/debian-cloud/global/images/family/debian-12"
WORKS = ("import troupe\nwith troupe.Executor(1, progress='off') as executor:\n"
         "    print('worked', executor.run(lambda: 7))\n")


class Cloud(fleets.FakeCloud):
    """A fake Compute Engine in a process of its own."""

    def __init__(self, *settings: str, market: str = "", **variables: str) -> None:
        super().__init__("gce", *settings, market=market, **variables)

    def instances(self, *wanted: str) -> dict[str, dict[str, Any]]:
        """By the names of their nodes."""
        return {one["labels"]["troupe-node"]: one for one in self.state()["instances"]
                if not wanted or one["status"] in wanted}


class Fleet(fleets.Fleet):
    """``troupe up`` beside a cloud."""

    def __init__(self, folder: Path, mark: str, cloud: Cloud) -> None:
        super().__init__(folder, mark, HOME=str(folder), **cloud.environment)
        self.cloud = cloud

    def up(self, training: str, pool: str = "", more: str = "",
           autoscaler: str = "") -> subprocess.Popen[str]:
        (self.folder / "train.py").write_text(training)
        path = self.folder / "fleet.yaml"
        pool = pool or ("instance_types: [n2-standard-4, e2-standard-2],"
                        " zones: [us-central1-a, us-central1-b]")
        path.write_text(
            f"name: Demo_1\nprovider: gce\ngce: {{image: {IMAGE}, interval: 300ms}}\n"
            f"head: {{listen: '127.0.0.1:{free_port()}'}}\n"
            f"training: {{command: ['{sys.executable}', train.py], min_workers: 1,"
            "  max_workers: 2}\n"
            f"autoscaler: {{tick: 200ms, cooldown: 1s, drain_timeout: 10s{autoscaler}}}\n"
            f"pools: [{{name: spot, market: spot, max_workers: 2, {pool}}}]\n{more}")
        return self.start("up", str(path))

    def ends(self, up: subprocess.Popen[str], told: str, then: dict[str, Any]) -> str:
        """Gives an order when a line holds ``told``; all that it says until its end."""
        out = self.read_until(up, told)
        self.cloud.order(**then)
        return out + up.communicate(timeout=60)[0]


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    return f"{os.getpid()}-{request.node.name}"


@pytest.fixture
def fleet(mark: str) -> Iterator[Fleet]:
    cloud = Cloud("launch_s=0.2", "shutdown_s=0.2", "operation_s=0.1", "acpi_s=8",
                  PYTHONPATH=str(PYAPI), **{MARK: mark},
                  PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    try:
        with tempfile.TemporaryDirectory(prefix="gcf-") as folder:  # Short, for sockets.
            yield Fleet(Path(folder), mark, cloud)
            until(lambda: cloud.instances("PROVISIONING", "STAGING", "RUNNING"), {}, limit_s=10)
    finally:
        cloud.end()
    assert_nothing_left(mark)


def test_a_training_loses_a_node_and_gets_another(fleet: Fleet) -> None:
    with fleet.up(fleet.seen_training(fleets.NODE, 4)) as up:
        try:
            fleet.await_seen(up, 2)
            lost = fleet.cloud.instances("RUNNING")["spot-1"]
            fleet.cloud.order(do="preempt", instance=lost["name"])
            fleet.await_seen(up, 3)
            lost = fleet.cloud.instances("RUNNING")["spot-2"]
            fleet.cloud.order(do="preempt", instance=lost["name"], lead_s=0)
            out, _ = up.communicate(timeout=120)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert re.search(r"notice: node spot-1 drains within .* preempt \(gcp: ", out), out
    assert re.search(r"seen \['spot-1', 'spot-2', 'spot-3', 'spot-4'", out), out


def test_no_capacity_is_waited_out(fleet: Fleet) -> None:
    fleet.cloud.order(do="set_capacity", capacity=0)
    with fleet.up(WORKS) as up:
        try:
            out = fleet.ends(up, "launch in pool spot failed",
                             {"do": "set_capacity", "type": "e2-standard-2", "capacity": 1})
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert re.search(r"no capacity: pool spot: bulkInsert of .*_RESOURCE_POOL_EXHAUSTED", out), out
    assert "worked [7]" in out


@pytest.mark.parametrize("fault", [
    {"how": "throttle", "method": "instances.*", "count": 3},
    {"how": "error", "method": "*", "count": 2},
    {"how": "lost", "method": "instances.bulkInsert", "count": 1},
    {"how": "garbage", "method": "instances.aggregatedList", "count": 1}],
    ids=["throttling", "hiccups", "a lost answer", "garbage"])
def test_faults_are_waited_out_and_make_nothing_twice(fleet: Fleet, fault: dict[str, Any]) -> None:
    fleet.cloud.order(do="fault", **fault)
    with fleet.up(WORKS) as up:
        try:
            out, _ = up.communicate(timeout=90)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert "worked [7]" in out
    assert "failed" not in out
    assert "spot-2" not in out


def test_a_zone_out_of_reach_is_no_reason_to_end_its_nodes(fleet: Fleet) -> None:
    with fleet.up(fleet.seen_training(fleets.NODE, 2)) as up:
        try:
            until(lambda: len(fleet.cloud.instances("RUNNING")), 1)
            zone = fleet.cloud.instances("RUNNING")["spot-1"]["zone"].rpartition("/")[2]
            fleet.cloud.order(do="unreachable", zone=zone)
            fleet.await_seen(up, 2)
            fleet.cloud.order(do="unreachable", zone=zone, on=False)
            out, _ = up.communicate(timeout=60)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert re.search(r"seen \['spot-1', 'spot-2'\]", out), out


def test_a_node_that_does_not_boot_is_told_with_what_it_has_printed(fleet: Fleet) -> None:
    more = "nodes: {setup: ['echo the disk is full >&2; exit 3']}\n"
    with fleet.up("import time; time.sleep(100)", more=more,
                  autoscaler=", launch_timeout: 3s") as up:
        try:
            out = fleet.interrupted(up, "had printed")
        finally:
            up.kill()
    assert re.search(r"spot-1 never came up; its machine had printed: .*the disk is full", out), out


@pytest.mark.parametrize(("pool", "told"), [
    ("instance_types: [x9-huge-1], zones: [us-central1-a]",
     r"machineType': 'x9-huge-1'.*see pools\[\].instance_types and pools\[\].zones"),
    ("instance_types: [n2-standard-4], zones: [mars-north1-a]", r"mars-north1-a.*see pools"),
    ("instance_types: [n2-standard-4], zones: [us-central1-a], image: nobody",
     r"global/images/nobody.*see gce.image")])
def test_what_is_wrong_is_told_with_the_key(fleet: Fleet, pool: str, told: str) -> None:
    with fleet.up("import time; time.sleep(100)", pool) as up:
        try:
            out = fleet.interrupted(up, "launch in pool spot failed")
        finally:
            up.kill()
    assert re.search(told, out), out


def test_credentials_that_expire_are_renewed_and_bad_ones_told(fleet: Fleet) -> None:
    with fleet.up(fleet.seen_training(fleets.NODE, 2)) as up:
        try:
            until(lambda: len(fleet.cloud.instances("RUNNING")), 1)
            fleet.cloud.order(do="expire")
            out, _ = up.communicate(timeout=90)
        finally:
            up.kill()
    assert up.returncode == 0, out
    fleet.environment["GOOGLE_APPLICATION_CREDENTIALS"] = "/nowhere.json"
    with fleet.up(WORKS) as up:
        try:
            out = fleet.interrupted(up, "nowhere")
        finally:
            up.kill()
    assert "credentials cannot be read: /nowhere.json" in out
