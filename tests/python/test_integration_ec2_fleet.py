"""``provider: ec2`` on a fake EC2 whose instances are processes: trainings of real nodes."""

from __future__ import annotations

import json
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

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]

ZONES = "zones: [us-east-1a, us-east-1b]"


class Cloud(fleets.FakeCloud):
    """A fake EC2 in a process of its own."""

    def __init__(self, *settings: str, market: str = "", **variables: str) -> None:
        super().__init__("ec2", *settings, market=market, **variables)

    def instances(self, *wanted: str) -> dict[str, dict[str, Any]]:
        """By the names of their nodes."""
        return {one["tags"]["troupe-node"]: one for one in self.state()["instances"]
                if not wanted or one["state"] in wanted}


class Fleet(fleets.Fleet):
    """``troupe up`` beside a cloud."""

    def __init__(self, folder: Path, mark: str, cloud: Cloud) -> None:
        super().__init__(folder, mark, HOME=str(folder), **cloud.environment)
        self.cloud = cloud

    def up(self, training: str, more: str = "", autoscaler: str = "",
           pools: str = "") -> subprocess.Popen[str]:
        (self.folder / "train.py").write_text(training)
        pools = pools or ("[{name: spot, market: spot, max_workers: 2,"
                          f" instance_types: [m5.large, c5.xlarge], {ZONES}}}]")
        path = self.folder / "fleet.yaml"
        path.write_text(
            "name: demo\nprovider: ec2\nec2: {image: ami-0123456789abcdef0, interval: 300ms}\n"
            f"head: {{listen: '127.0.0.1:{free_port()}'}}\n"
            f"training: {{command: ['{sys.executable}', train.py], min_workers: 1,"
            "  max_workers: 2}\n"
            f"autoscaler: {{tick: 200ms, cooldown: 1s, drain_timeout: 60s{autoscaler}}}\n"
            f"pools: {pools}\n{more}")
        return self.start("up", str(path))


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    return f"{os.getpid()}-{request.node.name}"


@pytest.fixture
def fleet(mark: str) -> Iterator[Fleet]:
    cloud = Cloud("launch_s=0.2", "shutdown_s=0.2", PYTHONPATH=str(PYAPI), **{MARK: mark},
                  PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    try:
        with tempfile.TemporaryDirectory(prefix="ecf-") as folder:  # Short, for sockets.
            yield Fleet(Path(folder), mark, cloud)
            assert not cloud.instances("pending", "running")
    finally:
        cloud.end()
    assert_nothing_left(mark)


def test_a_training_loses_a_node_and_gets_another(fleet: Fleet) -> None:
    with fleet.up(fleet.seen_training(fleets.NODE, 4)) as up:
        try:
            fleet.await_seen(up, 2)
            lost = fleet.cloud.instances("running")["spot-1"]
            fleet.cloud.order(do="interrupt", instance=lost["instance"], lead_s=12)
            fleet.await_seen(up, 3)
            lost = fleet.cloud.instances("running")["spot-2"]
            fleet.cloud.order(do="interrupt", instance=lost["instance"], lead_s=0)
            out, _ = up.communicate(timeout=120)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert re.search(r"notice: node spot-1 drains within .* preempt \(aws: terminate at", out), out
    assert re.search(r"spot-2 has ended: i-\w+: Server.SpotInstanceTermination", out), out
    assert re.search(r"seen \['spot-1', 'spot-2', 'spot-3', 'spot-4'", out), out
    # The market told what the file does not, and that is what was paid.
    assert re.search(r"price of pool spot: \$0\.\d+ per node-hour, was \$0\n", out), out
    _, told = fleet.run("accounts", "--json")
    account = json.loads(told)
    assert 0 < sum(account["dollars"].values()) < 1, told
    until(lambda: fleet.cloud.instances("shutting-down"), {}, limit_s=10)


def test_no_capacity_is_waited_out(fleet: Fleet) -> None:
    for kind in ("m5.large", "c5.xlarge"):
        fleet.cloud.order(do="set_capacity", type=kind, capacity=0)
    with fleet.up("import troupe\nwith troupe.Executor(1, progress='off') as executor:\n"
                  "    print('worked', executor.run(lambda: 7))\n") as up:
        try:
            out = fleet.read_until(up, "launch in pool spot failed")
            fleet.cloud.order(do="set_capacity", type="c5.xlarge", capacity=1)
            out += up.communicate(timeout=60)[0]
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert re.search(r"no capacity: CreateFleet of \S+ in us-east-1[ab]: \w+", out), out
    assert "worked [7]" in out


def test_a_clock_that_is_wrong_is_told_and_right_again_nothing_is_lost(fleet: Fleet) -> None:
    fleet.cloud.order(do="shift_clock", by_s=7200)
    with fleet.up("import troupe\nwith troupe.Executor(1, progress='off') as executor:\n"
                  "    print('worked', executor.run(lambda: 7))\n") as up:
        try:
            out = fleet.read_until(up, "this host's clock is 7200 s behind EC2's")
            fleet.cloud.order(do="shift_clock", by_s=0)
            out += up.communicate(timeout=60)[0]
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert "worked [7]" in out


def test_a_node_that_does_not_boot_is_told_with_what_it_has_printed(fleet: Fleet) -> None:
    more = "nodes: {setup: ['echo the disk is full >&2; exit 3']}\n"
    with fleet.up("import time; time.sleep(100)", more, ", launch_timeout: 3s") as up:
        try:
            out = fleet.interrupted(up, "had printed")
        finally:
            up.kill()
    assert re.search(r"terminate spot-1: it did not come up within 3 s", out), out
    assert re.search(r"spot-1 never came up; its machine had printed: .*the disk is full", out), out
    _, told = fleet.run("why", "spot-1")
    assert "the disk is full" in told


@pytest.fixture
def two_regions(mark: str, tmp_path: Path) -> Iterator[Fleet]:
    market = tmp_path / "market.json"
    market.write_text(json.dumps({"pools": [
        {"zone": zone, "type": "m5.large", "points": [[0.0, 4, price]]}
        for zone, price in (("us-east-1a", 0.02), ("eu-west-1a", 0.03))]}))
    cloud = Cloud("launch_s=0.2", "shutdown_s=0.2", market=str(market), PYTHONPATH=str(PYAPI),
                  **{MARK: mark}, PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    cloud.environment["AWS_REGION"] = "us-east-1"
    try:
        with tempfile.TemporaryDirectory(prefix="ecr-") as folder:
            yield Fleet(Path(folder), mark, cloud)
            assert not cloud.instances("pending", "running")
    finally:
        cloud.end()
    assert_nothing_left(mark)


def test_a_training_goes_on_in_another_region_when_one_dries_up(two_regions: Fleet) -> None:
    fleet, cloud = two_regions, two_regions.cloud
    pools = ("[{name: east, market: spot, max_workers: 2, instance_types: [m5.large]},"
             " {name: west, market: spot, max_workers: 2, region: eu-west-1,"
             " instance_types: [m5.large], zones: [eu-west-1a], image: ami-0fedcba9876543210}]")
    with fleet.up(fleet.seen_training(fleets.NODE, 4), pools=pools) as up:
        try:
            fleet.await_seen(up, 2)
            assert {one["zone"] for one in cloud.instances("running").values()} == {"us-east-1a"}
            cloud.order(do="outage", zone="us-east-1a", lead_s=60)
            out, _ = up.communicate(timeout=120)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert re.search(r"seen \['east-1', 'east-2', 'west-\d+', 'west-\d+'\]", out), out
    assert re.search(r"price of pool west: \$0.03 per node-hour", out), out
