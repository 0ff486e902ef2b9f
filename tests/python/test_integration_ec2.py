"""``provider: ec2``: what ``troupe up`` asks of EC2, and what it makes of the answers."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fleets
from processes import assert_nothing_left, free_port, until

pytest.importorskip("moto")
import ec2_gate

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.venv_only,
              pytest.mark.timeout(120)]

KEY_ID = next(iter(ec2_gate.KEYS))
SECRETS = tuple(ec2_gate.KEYS.values())
POOLS = ("[{name: spot, market: spot, max_workers: 4, instance_types: [c5.large, m5.large],"
         " zones: [us-east-1a, us-east-1b], max_price: 0.9}]")


class Fleet(fleets.Fleet):
    """One of a file for EC2, with keys in its environment."""

    def __init__(self, folder: Path, mark: str, gate: ec2_gate.Gate, image: str) -> None:
        super().__init__(folder, mark, HOME=str(folder), AWS_ACCESS_KEY_ID=KEY_ID,
                         AWS_SECRET_ACCESS_KEY=ec2_gate.KEYS[KEY_ID],
                         AWS_EC2_METADATA_DISABLED="true")
        for name in list(self.environment):
            if name.startswith("AWS_") and "ACCESS" not in name and "METADATA" not in name:
                del self.environment[name]
        self.gate, self.image = gate, image
        self.out = ""

    def up(self, more: str = "", pools: str = POOLS) -> subprocess.Popen[str]:
        path = self.folder / "fleet.yaml"
        path.write_text(
            "name: demo\nprovider: ec2\n"
            f"ec2: {{region: us-east-1, endpoint: '{self.gate.url}', interval: 200ms,"
            f" image: {self.image}{more}}}\n"
            f"head: {{listen: '127.0.0.1:{free_port()}'}}\n"
            f"training: {{command: ['{sys.executable}', -c, 'import time; time.sleep(100)'],"
            "  min_workers: 2, max_workers: 2}\n"
            "autoscaler: {tick: 100ms, cooldown: 300ms, cooldown_max: 500ms}\n"
            f"pools: {pools}\n")
        return self.start("up", str(path))

    def await_line(self, up: subprocess.Popen[str], text: str) -> None:
        """Until it says so."""
        assert up.stdout is not None
        for line in up.stdout:
            self.out += line
            if text in line:
                return
        raise AssertionError(f"{text!r} is not in:\n{self.out}")

    def end(self, up: subprocess.Popen[str]) -> str:
        """Ctrl-C; all that it has said."""
        up.send_signal(signal.SIGINT)
        self.out += up.communicate(timeout=60)[0]
        assert not any(secret in self.out for secret in SECRETS), self.out
        return self.out


@pytest.fixture(scope="module")
def gate() -> Iterator[ec2_gate.Gate]:
    gate = ec2_gate.Gate()
    yield gate
    gate.close()


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    return f"{os.getpid()}-{request.node.name}"


@pytest.fixture(scope="module")
def image(gate: ec2_gate.Gate) -> str:
    return str(gate.ec2.describe_images()["Images"][0]["ImageId"])


@pytest.fixture
def fleet(gate: ec2_gate.Gate, image: str, mark: str) -> Iterator[Fleet]:
    gate.asked.clear()
    gate.key_ids.clear()
    with tempfile.TemporaryDirectory(prefix="ec2-") as folder:  # Short, for sockets.
        yield Fleet(Path(folder), mark, gate, image)
    gate.fault = lambda form: None
    assert not gate.wrong
    left = gate.instances("pending", "running")
    for instance in left:
        gate.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    assert not left, "instances were left"
    assert not gate.ec2.describe_launch_templates()["LaunchTemplates"]
    assert_nothing_left(mark)


def test_instances_are_made_replaced_and_ended(fleet: Fleet) -> None:
    gate = fleet.gate
    with fleet.up(", tags: {team: vision}") as up:
        try:
            until(lambda: len(gate.instances("running")), 2)
            first = gate.instances("running")[0]
            tags = {tag["Key"]: tag["Value"] for tag in first["Tags"]}
            assert tags["troupe-cluster"] == "demo"
            assert tags["team"] == "vision"
            assert tags["Name"] == f"demo/{tags['troupe-node']}"
            assert first["InstanceLifecycle"] == "spot"
            assert first["InstanceType"] in ("c5.large", "m5.large")
            assert first["Placement"]["AvailabilityZone"] in ("us-east-1a", "us-east-1b")
            data = gate.ec2.describe_instance_attribute(
                InstanceId=first["InstanceId"], Attribute="userData")["UserData"]["Value"]
            script = base64.b64decode(data).decode()
            assert "TROUPE_JOIN_TOKEN='troupe-join-" in script
            assert f"'{tags['troupe-node']}'" in script
            subprocess.run(["sh", "-n"], input=script, text=True, check=True)
            request = next(form for form in gate.asked if form["Action"] == "CreateFleet")
            assert request["LaunchTemplateConfigs.1.Overrides.4.MaxPrice"].startswith("0.9")
            gate.ec2.terminate_instances(InstanceIds=[first["InstanceId"]])  # As an operator.
            fleet.await_line(up, f"{first['InstanceId']}: Client.UserInitiatedShutdown")
            fleet.await_line(up, f"node {tags['troupe-node']} is gone")
            until(lambda: len(gate.instances("running")), 2)
            fleet.end(up)
        finally:
            up.kill()
    assert gate.count("CreateLaunchTemplate") == gate.count("DeleteLaunchTemplate") == 3
    assert gate.count("CreateFleet") == 3


def test_throttling_is_no_failure_and_no_capacity_is_told(fleet: Fleet) -> None:
    refused = {"CreateFleet": 2, "DescribeInstances": 2, "CreateLaunchTemplate": 2}
    gate = fleet.gate

    def fault(form: ec2_gate.Form) -> tuple[int, str] | None:
        action = form["Action"]
        if refused.get(action, 0) > 0:
            refused[action] -= 1
            return 503, ec2_gate.refusal("RequestLimitExceeded")
        if action == "CreateFleet" and form["ClientToken"].endswith("-2"):
            return 200, (
                "<CreateFleetResponse><errorSet><item><errorCode>VcpuLimitExceeded</errorCode>"
                "<errorMessage>over it</errorMessage><launchTemplateAndOverrides><overrides>"
                "<instanceType>g5.xlarge</instanceType></overrides></launchTemplateAndOverrides>"
                "</item></errorSet></CreateFleetResponse>")
        return None

    gate.fault = fault
    with fleet.up() as up:
        try:
            fleet.await_line(up, "launch in pool spot failed")
            until(lambda: len(gate.instances("running")), 2)
            out = fleet.end(up)
        finally:
            up.kill()
    assert "no capacity: CreateFleet of g5.xlarge: VcpuLimitExceeded: over it" in out
    assert "L-3819A6DF" in out
    assert "RequestLimitExceeded" not in out
    assert out.count("launch in pool spot failed") == 1


def test_with_a_template_of_the_users_and_keys_that_a_program_hands_out(fleet: Fleet) -> None:
    gate = fleet.gate
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del fleet.environment[name]
    keys = fleet.folder / "keys.py"
    keys.write_text(
        f"import json, pathlib\nkeys = {list(ec2_gate.KEYS.items())!r}\n"
        "used = pathlib.Path(__file__).with_suffix('.used')\n"
        "key = keys[1 if used.exists() else 0]\nused.touch()\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': key[0], 'SecretAccessKey': key[1],"
        " 'SessionToken': 'tok+en', 'Expiration': '2999-01-01T00:00:00Z'}))\n")
    (fleet.folder / ".aws").mkdir()
    (fleet.folder / ".aws/config").write_text(
        f"[profile mine]\ncredential_process = {sys.executable} {keys}\n")
    made = gate.ec2.create_launch_template(
        LaunchTemplateName="mine", LaunchTemplateData={"ImageId": fleet.image,
                                                       "InstanceType": "t3.nano"})
    # The first key is good for no more than the first few requests.
    gate.fault = lambda form: ((400, ec2_gate.refusal("ExpiredToken"))
                               if gate.asked and len(gate.key_ids) == 1 and len(gate.asked) > 3
                               else None)
    try:
        with fleet.up(", profile: mine, launch_template: mine",
                      "[{name: base, market: on_demand, max_workers: 2}]") as up:
            try:
                until(lambda: len(gate.instances("running")), 2)
                until(lambda: len(gate.key_ids), 2)
                assert {i["InstanceType"] for i in gate.instances("running")} == {"t3.nano"}
                assert not any(i.get("InstanceLifecycle") for i in gate.instances("running"))
                out = fleet.end(up)
            finally:
                up.kill()
    finally:
        gate.ec2.delete_launch_template(
            LaunchTemplateId=made["LaunchTemplate"]["LaunchTemplateId"])
    assert "ExpiredToken" not in out and "failed" not in out
    assert gate.count("RunInstances") == 2
    assert "x-amz-security-token" in gate.signed


def test_what_is_wrong_is_told_with_the_remedy(fleet: Fleet) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del fleet.environment[name]
    with fleet.up() as up:
        try:
            fleet.await_line(up, "cannot see who else holds nodes of ")
            out = fleet.end(up)  # Where nothing can have been made nothing is waited for.
        finally:
            up.kill()
    for link in ("environment: AWS_ACCESS_KEY_ID is not set", "web identity: ", "profile: neither",
                 "container: ", "instance role: AWS_EC2_METADATA_DISABLED is true"):
        assert link in out
    assert not fleet.gate.asked


def test_an_ec2_that_hangs_holds_nobody_up(fleet: Fleet) -> None:
    gate, hang = fleet.gate, threading.Event()
    normal = gate.answer

    def answer(headers: dict[str, str], body: str) -> tuple[int, bytes]:
        if hang.is_set() or "Action=DescribeInstances" in body:
            return normal(headers, body)
        hang.wait(30)
        return 503, b""  # Nobody waits for it any more, and nothing is done.

    gate.answer = answer  # type: ignore[method-assign]
    try:
        with fleet.up(", timeout: 1s") as up:
            try:
                fleet.await_line(up, "launch spot-2")
                fleet.await_line(up, "no reply in time")
                hang.set()
                until(lambda: len(gate.instances("running")) >= 2, True)
                fleet.end(up)
            finally:
                up.kill()
    finally:
        gate.answer = normal  # type: ignore[method-assign]
