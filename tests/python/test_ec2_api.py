"""What the fake EC2's API answers: fleets, templates, filters, and what it refuses."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from ec2_world import IMAGE, A, B, World, fleet, with_template
from fakecloud.ec2.traces import Point

# ---- fleets ----

def test_fleet_is_part_of_what_was_wanted() -> None:
    world = with_template(World())
    reply = world.call("CreateFleet", **fleet(A, B, target=8))
    got = {one["launchTemplateAndOverrides"]["overrides"]["availabilityZone"]:
           len(one["instanceIds"]) for one in reply["fleetInstanceSet"]}
    assert got == {"us-east-1a": 4, "us-east-1b": 2}
    assert {(one["errorCode"], one["lifecycle"]) for one in reply["errorSet"]} == {
        ("InsufficientInstanceCapacity", "spot")}
    assert len(reply["errorSet"]) == 2
    tags = world.cloud.instances[reply["fleetInstanceSet"][0]["instanceIds"][0]].tags
    assert tags["pool"] == "spot" and tags["aws:ec2:fleet-id"] == reply["fleetId"]
    shown = world.call("DescribeFleets", FleetId__1=reply["fleetId"])["fleetSet"][0]
    assert shown["fulfilledCapacity"] == 6
    world.after(1)
    active = world.call("DescribeFleetInstances", FleetId=reply["fleetId"])
    assert len(active["activeInstanceSet"]) == 6


@pytest.mark.parametrize(("strategy", "wanted"), [
    ("lowest-price", {"us-east-1b": 2, "us-east-1a": 1}),       # B is cheaper, and has two.
    ("diversified", {"us-east-1b": 2, "us-east-1a": 1}),
    ("capacity-optimized", {"us-east-1a": 3}),                  # A has more.
    ("capacity-optimized-prioritized", {"us-east-1a": 3}),
    ("price-capacity-optimized", {"us-east-1a": 3}),            # B is cheaper, and has too few.
])
def test_strategies(strategy: str, wanted: dict[str, int]) -> None:
    world = with_template(World())
    reply = world.call("CreateFleet", **fleet(A, B, SpotOptions__AllocationStrategy=strategy))
    got = {one["launchTemplateAndOverrides"]["overrides"]["availabilityZone"]:
           len(one["instanceIds"]) for one in reply["fleetInstanceSet"]}
    assert got == wanted


def test_gang_in_one_zone_or_none() -> None:
    world = with_template(World())
    gang = {"SpotOptions__SingleAvailabilityZone": "true", "SpotOptions__MinTargetCapacity": 5}
    reply = world.call("CreateFleet", **fleet(A, B, target=6, **gang))
    assert reply["fleetInstanceSet"] == [] and world.states() == {}
    assert "UnfulfillableCapacity" in {one["errorCode"] for one in reply["errorSet"]}
    gang["SpotOptions__MinTargetCapacity"] = 4
    reply = world.call("CreateFleet", **fleet(A, B, target=6, **gang))
    assert [len(one["instanceIds"]) for one in reply["fleetInstanceSet"]] == [4]
    assert world.code("CreateFleet", **fleet(
        A, SpotOptions__MinTargetCapacity=2)) == "InvalidFleetConfig"


def test_fleet_tells_each_kind_of_error() -> None:
    world = with_template(World(spot_instances=1, on_demand_vcpus=2))
    dear = {**A, "MaxPrice": "0.001"}
    none = {**B, "InstanceType": "p3.2xlarge"}
    reply = world.call("CreateFleet", **fleet(dear, none, B, target=2))
    assert {one["errorCode"] for one in reply["errorSet"]} == {
        "SpotMaxPriceTooLow", "InvalidFleetConfiguration", "MaxSpotInstanceCountExceeded"}
    reply = world.call("CreateFleet", **fleet(A, target=2, kind="on-demand"))
    assert [one["errorCode"] for one in reply["errorSet"]] == ["VcpuLimitExceeded"]
    assert [one["lifecycle"] for one in reply["fleetInstanceSet"]] == ["on-demand"]
    world = with_template(World())
    world.order(do="set_capacity", capacity=0)
    reply = world.call("CreateFleet", **fleet(
        A, B, SpotOptions__AllocationStrategy="price-capacity-optimized"))
    assert {one["errorCode"] for one in reply["errorSet"]} == {"UnfulfillableCapacity"}
    refused = [one for one in world.cloud.ledger.events if one["event"] == "refused"]
    assert {one["zone"] for one in refused} == {"us-east-1a", "us-east-1b"}


def test_overrides_of_one_pool_share_what_it_has() -> None:
    world = with_template(World())
    reply = world.call("CreateFleet", **fleet(B, {**B, "Priority": 1}, B, target=5))
    assert sum(len(one["instanceIds"]) for one in reply["fleetInstanceSet"]) == 2


def test_weights_and_both_markets() -> None:
    world = with_template(World())
    split = {"TargetCapacitySpecification__OnDemandTargetCapacity": 2}
    reply = world.call("CreateFleet", **fleet({**A, "WeightedCapacity": 2}, target=6, **split))
    got = {one["lifecycle"]: len(one["instanceIds"]) for one in reply["fleetInstanceSet"]}
    assert got == {"on-demand": 1, "spot": 2} and reply["errorSet"] == []


# ---- what comes twice, too often, or is not allowed ----

def test_client_token() -> None:
    world = with_template(World())
    first, again = world.run(ClientToken="t1"), world.run(ClientToken="t1")
    assert first == again and len(world.states()) == 1
    assert world.code("RunInstances", ImageId=IMAGE, MinCount=1, MaxCount=1,
                      ClientToken="t1") == "IdempotentParameterMismatch"
    made = world.call("CreateFleet", **fleet(B, target=2, ClientToken="t2"))
    same = world.call("CreateFleet", **fleet(B, target=2, ClientToken="t2"))
    assert made["fleetInstanceSet"] == same["fleetInstanceSet"] and len(world.states()) == 3
    # A refusal uses up no token.
    full = {"ImageId": IMAGE, "MinCount": 1, "MaxCount": 1, "ClientToken": "t3",
            "Placement__AvailabilityZone": "us-east-1b", "InstanceMarketOptions__MarketType":
            "spot"}
    world.order(do="set_capacity", zone="us-east-1b", capacity=2)
    assert world.code("RunInstances", **full) == "InsufficientInstanceCapacity"
    world.order(do="set_capacity", zone="us-east-1b", capacity=3)
    assert len(world.call("RunInstances", **full)["instancesSet"]) == 1


def test_throttling_by_action() -> None:
    world = World(throttle={"Describe*": [2, 3], "RunInstances": [1, 1]})
    for _ in range(3):
        world.call("DescribeInstances")
    assert world.code("DescribeInstances") == "RequestLimitExceeded"
    world.call("DescribeRegions")
    world.after(0.5)
    world.call("DescribeInstances")
    world.order(do="throttle", count=2, action="DescribeRegions")
    assert [world.code("DescribeRegions") for _ in range(2)] == ["RequestLimitExceeded"] * 2
    world.call("DescribeRegions")


def test_denied_dry_and_unknown() -> None:
    world = World()
    once = {"ImageId": IMAGE, "MinCount": 1, "MaxCount": 1}
    assert world.code("RunInstances", DryRun="true", **once) == "DryRunOperation"
    assert world.states() == {}
    world.order(do="deny", action="RunInstances")
    assert world.code("RunInstances", DryRun="true", **once) == "UnauthorizedOperation"
    world.order(do="allow", action="RunInstances")
    world.order(do="refuse", action="RunInstances", code="InternalError", count=1)
    assert world.code("RunInstances", **once) == "InternalError"
    assert len(world.call("RunInstances", **once)["instancesSet"]) == 1
    assert world.code("RunInstance", **once) == "InvalidAction"
    assert world.code("RunInstances", Imageid=IMAGE, **once) == "UnknownParameter"
    assert world.code("RunInstances", ImageId__1=IMAGE) == "InvalidParameterValue"


@pytest.mark.parametrize(("more", "code"), [
    ({"ImageId": "ami-x"}, "InvalidAMIID.Malformed"),
    ({"ImageId": "ami-00000000000000000"}, "InvalidAMIID.NotFound"),
    ({"InstanceType": "zzz.9"}, "InvalidParameterValue"),
    ({"InstanceType": "p3.2xlarge"}, "Unsupported"),
    ({"Placement__AvailabilityZone": "us-east-1f"}, "InvalidParameterValue"),
    ({"SubnetId": "subnet-1"}, "InvalidSubnetID.NotFound"),
    ({"MinCount": 0}, "InvalidParameterValue"), ({"MinCount": 2}, "InvalidParameterValue"),
    ({"MaxCount": "many"}, "InvalidParameterValue"),
    ({"InstanceMarketOptions__MarketType": "free"}, "InvalidParameterValue"),
    ({"InstanceMarketOptions__SpotOptions__MaxPrice": "1"}, "MissingParameter"),
    ({"UserData": "???"}, "InvalidUserData.Malformed"),
    ({"UserData": base64.b64encode(b"x" * 16385).decode()}, "InvalidUserData.Malformed"),
    ({"LaunchTemplate__LaunchTemplateName": "no"}, "InvalidLaunchTemplateName.NotFoundException"),
    ({"TagSpecification__1__ResourceType": "instance", "TagSpecification__1__Tag__1__Key":
      "aws:x"}, "InvalidParameterValue"),
    ({"ClientToken": "x" * 65}, "InvalidParameterValue"),
    ({"IamInstanceProfile__Arn": "me"}, "InvalidParameterValue"),
])
def test_wrong_launches(more: dict[str, Any], code: str) -> None:
    world = World(images=[IMAGE])
    assert world.code("RunInstances", **{
        "ImageId": IMAGE, "InstanceType": "m5.large", "MinCount": 1, "MaxCount": 1,
        **more}) == code
    assert world.states() == {}


# ---- templates, filters, pages, prices ----

def test_versions_of_a_template() -> None:
    world = with_template(World())
    assert world.code("CreateLaunchTemplate", LaunchTemplateName="node",
                      LaunchTemplateData__ImageId=IMAGE) == (
        "InvalidLaunchTemplateName.AlreadyExistsException")
    made = world.call("CreateLaunchTemplateVersion", LaunchTemplateName="node", SourceVersion="1",
                      LaunchTemplateData__UserData=base64.b64encode(b"#!/bin/sh\n").decode())
    assert made["launchTemplateVersion"]["versionNumber"] == 2
    data = made["launchTemplateVersion"]["launchTemplateData"]
    assert data["imageId"] == IMAGE and data["tagSpecificationSet"] == [
        {"resourceType": "instance", "tagSet": [{"key": "pool", "value": "spot"}]}]
    for word, user_data in (("", ""), ("$Latest", "IyEvYmluL3NoCg=="), ("1", "")):
        reply = world.call("RunInstances", MinCount=1, MaxCount=1,
                           LaunchTemplate__LaunchTemplateName="node",
                           **({"LaunchTemplate__Version": word} if word else {}))
        one = world.cloud.instances[reply["instancesSet"][0]["instanceId"]]
        assert one.spec.user_data == user_data and one.tags["pool"] == "spot"
    assert world.code("RunInstances", MinCount=1, MaxCount=1, LaunchTemplate__Version="3",
                      LaunchTemplate__LaunchTemplateName="node") == (
        "InvalidLaunchTemplateId.VersionNotFound")
    assert len(world.call("DescribeLaunchTemplateVersions",
                          LaunchTemplateName="node")["launchTemplateVersionSet"]) == 2
    world.call("ModifyLaunchTemplate", LaunchTemplateName="node", SetDefaultVersion=2)
    shown = world.call("DescribeLaunchTemplates", LaunchTemplateName__1="node")
    assert shown["launchTemplates"][0]["defaultVersionNumber"] == 2
    world.call("DeleteLaunchTemplate", LaunchTemplateName="node")
    assert world.code("DescribeLaunchTemplates", LaunchTemplateName__1="node") == (
        "InvalidLaunchTemplateName.NotFoundException")


def test_filters_and_pages() -> None:
    world = World(on_demand_capacity=20)
    tag = {"TagSpecification__1__ResourceType": "instance",
           "TagSpecification__1__Tag__1__Key": "cluster",
           "TagSpecification__1__Tag__1__Value": "c[1]"}
    mine, others = world.run(2, **tag), world.run(9, spot=False)
    world.after(11)
    world.call("CreateTags", ResourceId__1=others[0], Tag__1__Key="rack", Tag__1__Value="9")

    def found(**form: Any) -> list[str]:
        sets = world.call("DescribeInstances", **form)["reservationSet"]
        return [one["instanceId"] for each in sets for one in each["instancesSet"]]

    def filtered(name: str, *values: str) -> list[str]:
        return found(Filter__1__Name=name, **{
            f"Filter__1__Value__{i}": value for i, value in enumerate(values, 1)})
    assert filtered("tag:cluster", "c[1]") == mine == filtered("tag:cluster", "c[?]")
    assert filtered("tag-key", "r*") == others[:1]
    assert filtered("instance-lifecycle", "spot") == mine
    assert filtered("instance-state-name", "pending", "shutting-down") == []
    assert len(filtered("availability-zone", "us-east-1a")) == 11
    assert filtered("instance-id", others[3]) == [others[3]] and filtered("image-id", "ami") == []
    assert world.code("DescribeInstances", Filter__1__Name="colour",
                      Filter__1__Value__1="x") == "InvalidParameterValue"
    seen: list[str] = []
    token = ""
    while True:
        reply = world.call("DescribeInstances", MaxResults=5,
                           **({"NextToken": token} if token else {}))
        seen += [one["instanceId"] for each in reply["reservationSet"]
                 for one in each["instancesSet"]]
        token = reply["nextToken"]
        if not token:
            break
    assert seen == [*mine, *others]
    first = world.call("DescribeInstances", MaxResults=5)
    world.call("TerminateInstances", InstanceId__1=mine[0])
    world.after(4000)       # It is not listed any more, and nobody is passed over.
    second = world.call("DescribeInstances", MaxResults=5, NextToken=first["nextToken"])
    assert [one["instanceId"] for each in second["reservationSet"]
            for one in each["instancesSet"]] == others[3:8]
    assert world.code("DescribeInstances", MaxResults=5, NextToken="x") == "InvalidParameterValue"
    assert world.code("DescribeInstances", MaxResults=4) == "InvalidParameterValue"
    assert world.code("DescribeInstances", MaxResults=5, InstanceId__1=mine[0]) == (
        "InvalidParameterCombination")


def test_price_history() -> None:
    world = World({"us-east-1a/m5.large": [
        Point(0, 1, 0.03), Point(60, 1, 0.04), Point(120, 0, 0.04), Point(180, 1, 0.05)]})
    world.after(200)

    def prices(**form: Any) -> list[str]:
        return [one["spotPrice"] for one in world.call(
            "DescribeSpotPriceHistory", **form)["spotPriceHistorySet"]]
    assert prices() == ["0.050000"]
    assert prices(StartTime="1970-01-12T13:46:40Z") == ["0.050000", "0.040000", "0.030000"]
    assert prices(StartTime="1970-01-12T13:48:00.000Z") == ["0.050000", "0.040000"]
    assert prices(ProductDescription__1="Windows") == []
    assert prices(InstanceType__1="m5.large", AvailabilityZone="us-east-1a") == ["0.050000"]
    assert world.code("DescribeSpotPriceHistory", StartTime="now") == "InvalidParameterValue"


def test_types_and_zones() -> None:
    world = World()
    reply = world.call("DescribeInstanceTypes", InstanceType__1="m5.large")
    shown = reply["instanceTypeSet"][0]
    assert shown["vCpuInfo"]["defaultVCpus"] == 2
    assert shown["memoryInfo"] == {"sizeInMiB": 8192}
    assert world.code("DescribeInstanceTypes", InstanceType__1="no.one") == "InvalidInstanceType"
    zones = world.call("DescribeAvailabilityZones")["availabilityZoneInfo"]
    assert [one["zoneId"] for one in zones] == ["use1-az1", "use1-az2"]
    regions = world.call("DescribeRegions")["regionInfo"]
    assert [one["regionName"] for one in regions] == ["us-east-1", "us-west-2"]
