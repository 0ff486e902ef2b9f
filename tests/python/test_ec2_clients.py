"""Botocore and the ``aws`` command take the fake EC2 for EC2, retries off."""

from __future__ import annotations

import base64
import importlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

from ec2_world import IMAGE
from fakecloud.ec2.catalog import TYPES
from fakecloud.ec2.market import Market, MarketFile, Pool
from fakecloud.ec2.service import FakeEc2
from fakecloud.ec2.sigv4 import Key
from fakecloud.ec2.traces import Point
from processes import until

pytestmark = [pytest.mark.venv_only, pytest.mark.timeout(60)]
QUICK = {"lag_s": 0, "launch_s": 0, "shutdown_s": 0.1, "throttle": None}
KEY = Key("AKIATESTER", "s3cret/+=")
GUEST = Key("ASIAGUEST", "other", "a/token+==", None)


def small_market() -> MarketFile:
    pools = [Pool("us-east-1a", TYPES["m5.large"], [Point(0, 4, 0.03)]),
             Pool("us-east-1b", TYPES["m5.large"], [Point(0, 2, 0.02)]),
             Pool("us-east-1b", TYPES["g4dn.xlarge"], [Point(0, 1, 0.2)]),
             Pool("us-west-2a", TYPES["m5.large"], [Point(0, 1, 0.01)])]
    return MarketFile(Market(pools), {})


@pytest.fixture(scope="module")
def session() -> Any:
    found = importlib.import_module("botocore.session").Session()
    found.set_credentials(KEY.id, KEY.secret)
    return found


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[FakeEc2]:
    keys = [Key(**{**vars(one), "denied": set()}) for one in (KEY, GUEST)]
    with FakeEc2(small_market(), QUICK, keys=keys, folder=tmp_path) as new:
        yield new


def client_of(session: Any, cloud: FakeEc2, region: str = "us-east-1", key: Key = KEY) -> Any:
    config = importlib.import_module("botocore.config").Config(
        retries={"total_max_attempts": 1}, read_timeout=20)
    return session.create_client(
        "ec2", region_name=region, endpoint_url=cloud.url, aws_access_key_id=key.id,
        aws_secret_access_key=key.secret, aws_session_token=key.token or None, config=config)


@pytest.fixture
def ec2(session: Any, cloud: FakeEc2) -> Any:
    return client_of(session, cloud)


def code_of(client: Any, action: str, **form: Any) -> tuple[str, int]:
    """The code that botocore has parsed, and the status."""
    error = importlib.import_module("botocore.exceptions").ClientError
    with pytest.raises(error) as caught:
        getattr(client, action)(**form)
    response = caught.value.response
    assert response["Error"]["Message"] and response["ResponseMetadata"]["RequestId"]
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def launch(ec2: Any, count: int = 1, spot: bool = True, **more: Any) -> list[dict[str, Any]]:
    market = {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {
        "SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}}}
    found = ec2.run_instances(ImageId=IMAGE, InstanceType="m5.large", MinCount=count,
                              MaxCount=count, **(market if spot else {}), **more)
    return list(found["Instances"])


def test_life_of_an_instance(ec2: Any, cloud: FakeEc2) -> None:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "cluster", "Value": "ü & <c>"}]}]
    [made] = launch(ec2, TagSpecifications=tags, MetadataOptions={"HttpTokens": "required"},
                    UserData="#!/bin/sh\necho up; exec sleep 1000\n")
    assert made["State"] == {"Code": 0, "Name": "pending"} and made["InstanceLifecycle"] == "spot"
    assert made["SpotInstanceRequestId"].startswith("sir-")
    ids = [made["InstanceId"]]
    ec2.get_waiter("instance_running").wait(InstanceIds=ids, WaiterConfig={"Delay": 1})
    found = ec2.describe_instances(Filters=[
        {"Name": "tag:cluster", "Values": ["ü & <c>"]},
        {"Name": "instance-state-name", "Values": ["running"]}])["Reservations"]
    shown = found[0]["Instances"][0]
    assert shown["InstanceId"] == ids[0] and shown["Placement"]["AvailabilityZone"] in (
        "us-east-1a", "us-east-1b")
    assert shown["PrivateIpAddress"].startswith("127.")
    until(lambda: ec2.get_console_output(InstanceId=ids[0])["Output"], "up\n", 10)
    ec2.create_tags(Resources=ids, Tags=[{"Key": "rack", "Value": ""}])
    change = ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"][0]
    assert change["CurrentState"] == {"Code": 32, "Name": "shutting-down"}
    ec2.get_waiter("instance_terminated").wait(InstanceIds=ids, WaiterConfig={"Delay": 1})
    shown = ec2.describe_instances(InstanceIds=ids)["Reservations"][0]["Instances"][0]
    assert shown["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert shown["StateTransitionReason"].startswith("User initiated (20")
    assert {tag["Key"] for tag in shown["Tags"]} == {"cluster", "rack"}


def test_fleet_from_a_template(ec2: Any) -> None:
    made = ec2.create_launch_template(LaunchTemplateName="node", LaunchTemplateData={
        "ImageId": IMAGE, "InstanceType": "m5.large",
        "UserData": base64.b64encode(b"#!/bin/sh\n").decode(),
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [
            {"Key": "a", "Value": "1"}]}]})["LaunchTemplate"]
    assert made["LatestVersionNumber"] == made["DefaultVersionNumber"] == 1
    [version] = ec2.describe_launch_template_versions(
        LaunchTemplateId=made["LaunchTemplateId"])["LaunchTemplateVersions"]
    assert version["LaunchTemplateData"]["TagSpecifications"][0]["Tags"] == [
        {"Key": "a", "Value": "1"}]
    fleet = ec2.create_fleet(
        Type="instant", LaunchTemplateConfigs=[{
            "LaunchTemplateSpecification": {"LaunchTemplateName": "node", "Version": "$Latest"},
            "Overrides": [
                {"AvailabilityZone": "us-east-1a", "WeightedCapacity": 1.0, "Priority": 1.0},
                {"AvailabilityZone": "us-east-1b"},
                {"AvailabilityZone": "us-east-1b", "InstanceType": "g4dn.xlarge",
                 "MaxPrice": "0.1"}]}],
        TargetCapacitySpecification={"TotalTargetCapacity": 9, "SpotTargetCapacity": 8,
                                     "OnDemandTargetCapacity": 1,
                                     "DefaultTargetCapacityType": "spot"},
        SpotOptions={"AllocationStrategy": "price-capacity-optimized"},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "b", "Value": "2"}]}])
    got = {(one["Lifecycle"], one["InstanceType"], one["LaunchTemplateAndOverrides"]["Overrides"][
        "AvailabilityZone"]): len(one["InstanceIds"]) for one in fleet["Instances"]}
    assert got == {("on-demand", "m5.large", "us-east-1a"): 1,
                   ("spot", "m5.large", "us-east-1a"): 4, ("spot", "m5.large", "us-east-1b"): 2}
    assert {one["ErrorCode"] for one in fleet["Errors"]} == {"UnfulfillableCapacity",
                                                             "SpotMaxPriceTooLow"}
    assert all(one["ErrorMessage"] and one["LaunchTemplateAndOverrides"]["Overrides"][
        "AvailabilityZone"] for one in fleet["Errors"])
    [shown] = ec2.describe_fleets(FleetIds=[fleet["FleetId"]])["Fleets"]
    assert shown["FulfilledCapacity"] == 7.0 and shown["FulfilledOnDemandCapacity"] == 1.0
    assert len(shown["Instances"]) == 3
    active = ec2.describe_fleet_instances(FleetId=fleet["FleetId"])["ActiveInstances"]
    assert len(active) == 7
    pages = ec2.get_paginator("describe_instances").paginate(
        Filters=[{"Name": "tag-key", "Values": ["b"]}], PaginationConfig={"PageSize": 5})
    seen = [one for page in pages for each in page["Reservations"] for one in each["Instances"]]
    assert len(seen) == 7
    assert {"a", "b", "aws:ec2:fleet-id"} <= {tag["Key"] for tag in seen[0]["Tags"]}
    ec2.delete_launch_template(LaunchTemplateName="node")
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []


def test_what_the_market_offers(session: Any, ec2: Any, cloud: FakeEc2) -> None:
    [shown] = ec2.describe_instance_types(InstanceTypes=["g4dn.xlarge"])["InstanceTypes"]
    assert shown["GpuInfo"]["Gpus"][0]["Count"] == 1 and shown["VCpuInfo"]["DefaultVCpus"] == 4
    assert "spot" in shown["SupportedUsageClasses"]
    zones = ec2.describe_availability_zones()["AvailabilityZones"]
    assert [(one["ZoneName"], one["State"]) for one in zones] == [
        ("us-east-1a", "available"), ("us-east-1b", "available")]
    assert len(ec2.describe_regions()["Regions"]) == 2
    west = client_of(session, cloud, "us-west-2")
    assert len(west.describe_instance_type_offerings(
        LocationType="availability-zone")["InstanceTypeOfferings"]) == 1
    cloud.order(do="set_price", zone="us-east-1a", price=0.031)
    start = time.time() - 60
    prices = ec2.describe_spot_price_history(
        StartTime=start, InstanceTypes=["m5.large"], AvailabilityZone="us-east-1a",
        ProductDescriptions=["Linux/UNIX"])["SpotPriceHistory"]
    assert [one["SpotPrice"] for one in prices] == ["0.031000", "0.030000"]
    assert abs(prices[0]["Timestamp"].timestamp() - time.time()) < 60


def test_every_class_of_error(session: Any, ec2: Any, cloud: FakeEc2) -> None:
    form: dict[str, Any] = {"ImageId": IMAGE, "InstanceType": "m5.large", "MinCount": 1,
                            "MaxCount": 1}
    spot = {**form, "InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {
        "MaxPrice": "0.001"}}}
    assert code_of(ec2, "run_instances", **spot) == ("SpotMaxPriceTooLow", 400)
    many = {**form, "MinCount": 5, "MaxCount": 5, "InstanceMarketOptions": {"MarketType": "spot"}}
    assert code_of(ec2, "run_instances", **many) == ("InsufficientInstanceCapacity", 500)
    cloud.order(do="set", settings={"spot_instances": 2, "on_demand_vcpus": 2})
    assert code_of(ec2, "run_instances", **many) == ("MaxSpotInstanceCountExceeded", 400)
    assert code_of(ec2, "run_instances", **{**form, "MinCount": 2, "MaxCount": 2}) == (
        "VcpuLimitExceeded", 400)
    assert code_of(ec2, "run_instances", DryRun=True, **form) == ("DryRunOperation", 412)
    cloud.order(do="deny", action="RunInstances", key=KEY.id)
    assert code_of(ec2, "run_instances", DryRun=True, **form) == ("UnauthorizedOperation", 403)
    guest = client_of(session, cloud, key=GUEST)
    assert code_of(guest, "run_instances", DryRun=True, **form) == ("DryRunOperation", 412)
    cloud.order(do="expire")
    assert code_of(guest, "describe_instances") == ("ExpiredToken", 400)
    wrong = client_of(session, cloud, key=Key(KEY.id, "wrong"))
    assert code_of(wrong, "describe_instances") == ("SignatureDoesNotMatch", 403)
    nobody = client_of(session, cloud, key=Key("NOBODY", "x"))
    assert code_of(nobody, "describe_instances") == ("InvalidClientTokenId", 403)
    cloud.order(do="enable", key=KEY.id, on=False)
    assert code_of(ec2, "describe_instances") == ("AuthFailure", 401)
    cloud.order(do="enable", key=KEY.id)
    assert code_of(ec2, "describe_vpcs") == ("InvalidAction", 400)
    assert code_of(ec2, "terminate_instances", InstanceIds=["i-0123456789abcdef0"]) == (
        "InvalidInstanceID.NotFound", 400)
    cloud.order(do="throttle", count=1)
    assert code_of(ec2, "describe_instances") == ("RequestLimitExceeded", 503)
    cloud.order(do="shift_clock", by_s=400)
    assert code_of(ec2, "describe_instances") == ("RequestExpired", 400)
    cloud.order(do="shift_clock", by_s=200)
    assert ec2.describe_instances()["Reservations"] == []


def test_a_lost_reply_and_a_client_token(session: Any, ec2: Any, cloud: FakeEc2) -> None:
    error = importlib.import_module("botocore.exceptions").HTTPClientError
    cloud.order(do="break", how="lost")
    with pytest.raises(error):
        launch(ec2, ClientToken="one")
    cloud.order(do="break", how="")
    [made] = launch(ec2, ClientToken="one")
    assert len(cloud.cloud.instances) == 1 and made["InstanceId"] in cloud.cloud.instances
    assert code_of(ec2, "run_instances", ImageId=IMAGE, MinCount=1, MaxCount=1,
                   ClientToken="one") == ("IdempotentParameterMismatch", 400)


def test_get_requests_with_botocores_signer(session: Any, cloud: FakeEc2) -> None:
    auth = importlib.import_module("botocore.auth")
    requests = importlib.import_module("botocore.awsrequest")
    credentials = importlib.import_module("botocore.credentials").Credentials(
        GUEST.id, GUEST.secret, GUEST.token)
    query = "Version=2016-11-15&Filter.1.Name=tag%3Aa&Filter.1.Value.1=b%2Bc%2F%C3%BC%20~&" \
            "Action=DescribeInstances"
    request = requests.AWSRequest("GET", f"{cloud.url}/?{query}")
    auth.SigV4Auth(credentials, "ec2", "us-east-1").add_auth(request)
    sent = urllib.request.Request(request.url, headers=dict(request.headers.items()))
    with urllib.request.urlopen(sent, timeout=10) as reply:
        assert b"<reservationSet>" in reply.read()


def test_credentials_of_a_role(session: Any, ec2: Any, cloud: FakeEc2) -> None:
    """Botocore finds them in the metadata of an instance, and the API takes them."""
    [made] = launch(ec2, IamInstanceProfile={"Name": "node"})
    utils = importlib.import_module("botocore.utils")
    url = cloud.do(lambda: cloud.machines.machines[made["InstanceId"]].url)
    fetcher = utils.InstanceMetadataFetcher(timeout=5, num_attempts=1, base_url=url)
    found = fetcher.retrieve_iam_role_credentials()
    assert found["role_name"] == "node"
    role = Key(found["access_key"], found["secret_key"], found["token"])
    client = client_of(session, cloud, key=role)
    assert len(client.describe_instances()["Reservations"]) == 1
    cloud.order(do="expire", key=role.id)
    assert code_of(client, "describe_instances") == ("ExpiredToken", 400)
    assert fetcher.retrieve_iam_role_credentials()["access_key"] != role.id


def test_many_at_once(session: Any, cloud: FakeEc2) -> None:
    """Two hundred questions of eight clients, while instances come and go."""
    cloud.order(do="set", settings={"on_demand_capacity": 1000})
    failures: list[BaseException] = []

    def ask(client: Any) -> None:
        try:
            for _ in range(25):
                client.describe_instances()
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=ask, args=[client_of(session, cloud)]) for _ in range(8)]
    for one in threads:
        one.start()
    mine = client_of(session, cloud)
    ids = [one["InstanceId"] for one in launch(mine, 20, False)]
    mine.terminate_instances(InstanceIds=ids)
    for one in threads:
        one.join()
    assert failures == []


@pytest.mark.parametrize("key", [KEY, GUEST], ids=["key", "session"])
def test_requests_that_curl_signs(key: Key, cloud: FakeEc2) -> None:
    """libcurl's signer is another one again."""
    token = ["-H", f"X-Amz-Security-Token: {key.token}"] if key.token else []
    signing = ["curl", "-s", "--max-time", "10", "--aws-sigv4", "aws:amz:us-east-1:ec2",
               "-u", f"{key.id}:{key.secret}", *token]
    form = {"Action": "DescribeInstances", "Version": "2016-11-15", "Filter.1.Name": "tag:a b",
            "Filter.1.Value.1": "ü+/ =~*"}
    posted = [word for name, value in form.items()
              for word in ("--data-urlencode", f"{name}={value}")]
    for words in ([*posted, cloud.url],
                  [f"{cloud.url}/?Action=DescribeRegions&Version=2016-11-15"]):
        done = subprocess.run([*signing, *words], check=True, capture_output=True, timeout=20)
        assert b"<requestId>" in done.stdout, done.stdout


# ---- the aws command ----

def aws(cloud: FakeEc2, *words: str, good: bool = True) -> Any:
    """What ``aws ec2`` has printed as JSON, or its error."""
    done = subprocess.run(
        [sys.executable, "-m", "awscli", "ec2", *words, "--output", "json"], check=False, text=True,
        capture_output=True, timeout=60, env={
            **{"PATH": os.environ["PATH"], "HOME": "/nonexistent", "AWS_MAX_ATTEMPTS": "1"},
            **cloud.environment()})
    assert (done.returncode == 0) == good, done.stderr
    return json.loads(done.stdout) if good else done.stderr


def test_aws_command(cloud: FakeEc2, tmp_path: Path) -> None:
    script = tmp_path / "user-data"
    script.write_text("#!/bin/sh\necho here; exec sleep 1000\n")
    made = aws(cloud, "run-instances", "--image-id", IMAGE, "--instance-type", "m5.large",
               "--user-data", f"file://{script}", "--instance-market-options", "MarketType=spot",
               "--tag-specifications", "ResourceType=instance,Tags=[{Key=a,Value=b}]")
    id_ = made["Instances"][0]["InstanceId"]
    until(lambda: cloud.do(lambda: cloud.cloud.console_of(id_)), b"here\n", 10)
    found: Optional[Any] = aws(cloud, "describe-instances", "--filters",
                               "Name=instance-state-name,Values=running")
    assert found["Reservations"][0]["Instances"][0]["Tags"] == [{"Key": "a", "Value": "b"}]
    assert "(InvalidInstanceID.NotFound)" in aws(
        cloud, "terminate-instances", "--instance-ids", "i-0123456789abcdef0", good=False)
    ended = aws(cloud, "terminate-instances", "--instance-ids", id_)
    assert ended["TerminatingInstances"][0]["CurrentState"]["Name"] == "shutting-down"
