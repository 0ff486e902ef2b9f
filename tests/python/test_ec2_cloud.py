"""The fake EC2's instances and market under a virtual clock, and what they cost."""

from __future__ import annotations

import contextlib
import random

import pytest

from ec2_world import IMAGE, START_S, World
from fakecloud.ec2 import admin
from fakecloud.ec2.catalog import TYPES
from fakecloud.ec2.errors import BadMarket, Ec2Error
from fakecloud.ec2.traces import Point

# ---- lives ----

def test_life_of_an_instance() -> None:
    world = World(listed_s=100)
    [one] = world.run()
    assert world.states() == {one: "pending"}
    world.after(9.9)
    assert world.states() == {one: "pending"} and world.effects() == ["create"]
    world.after(0.2)
    assert world.states() == {one: "running"} and world.effects() == ["boot"]
    change = world.call("TerminateInstances", InstanceId__1=one)["instancesSet"][0]
    assert (change["previousState"]["name"], change["currentState"]) == (
        "running", {"code": 32, "name": "shutting-down"})
    world.after(4.9)
    assert world.effects() == ["soft"]
    world.after(0.2)
    shown = world.call("DescribeInstances")["reservationSet"][0]["instancesSet"][0]
    assert shown["instanceState"] == {"code": 48, "name": "terminated"}
    assert shown["stateReason"]["code"] == "Client.UserInitiatedShutdown"
    assert shown["reason"].startswith("User initiated (1970-01-12 13:46:")
    assert world.effects() == ["kill"]
    world.after(100)
    assert world.states() == {} and world.effects() == ["forget"]
    assert world.code("DescribeInstances", InstanceId__1=one) == "InvalidInstanceID.NotFound"


def test_new_instance_is_seen_later() -> None:
    world = World(lag_s=3)
    [one] = world.run()
    assert world.call("DescribeInstances")["reservationSet"] == []
    for action in ("DescribeInstances", "TerminateInstances", "GetConsoleOutput"):
        key = "InstanceId" if action == "GetConsoleOutput" else "InstanceId__1"
        assert world.code(action, **{key: one}) == "InvalidInstanceID.NotFound"
    world.after(3)
    assert len(world.call("DescribeInstances", InstanceId__1=one)["reservationSet"]) == 1
    assert world.code("TerminateInstances", InstanceId__1="i-1") == "InvalidInstanceID.Malformed"


def test_terminates_all_or_none() -> None:
    world = World()
    [one] = world.run()
    assert world.code("TerminateInstances", InstanceId__1=one,
                      InstanceId__2="i-00000000000000000") == "InvalidInstanceID.NotFound"
    assert world.states() == {one: "pending"}


def test_shuts_itself_down() -> None:
    world = World()
    [spot] = world.run()
    [stays] = world.run(spot=False)
    [ends] = world.run(spot=False, InstanceInitiatedShutdownBehavior="terminate")
    world.after(10)
    for one in (spot, stays, ends):
        world.cloud.powered_off(one)
    world.after(5)
    assert world.states() == {spot: "terminated", stays: "stopped", ends: "terminated"}
    world.call("TerminateInstances", InstanceId__1=stays)
    assert world.states()[stays] == "terminated"


def test_late_refusal() -> None:
    world = World(late_refusal_share=1)
    [one] = world.run()
    world.after(30)
    found = world.cloud.instances[one].as_xml()
    assert found["stateReason"]["code"] == "Server.InsufficientInstanceCapacity"
    assert world.effects() == ["create", "kill"]
    assert admin.ledger(world.cloud)["totals"]["cost"] == 0


# ---- the market ----

def test_no_room() -> None:
    world = World()
    zone = {"Placement__AvailabilityZone": "us-east-1b"}
    assert world.code("RunInstances", ImageId=IMAGE, MinCount=3, MaxCount=3,
                      InstanceMarketOptions__MarketType="spot",
                      **zone) == "InsufficientInstanceCapacity"
    reply = world.call("RunInstances", ImageId=IMAGE, MinCount=1, MaxCount=3,
                       InstanceMarketOptions__MarketType="spot", **zone)
    assert len(reply["instancesSet"]) == 2
    assert len(world.run(3, spot=False, **zone)) == 3      # Another capacity.
    assert len(world.run(4)) == 4                           # In the other zone.
    assert world.code("RunInstances", ImageId=IMAGE, MinCount=1, MaxCount=1,
                      InstanceMarketOptions__MarketType="spot") == "InsufficientInstanceCapacity"


def test_price_and_quotas() -> None:
    world = World(spot_instances=3, on_demand_vcpus=4)
    bid = {"InstanceMarketOptions__SpotOptions__MaxPrice": "0.025"}
    one = world.run(**bid)
    assert world.cloud.instances[one[0]].zone == "us-east-1b"
    assert world.code(
        "RunInstances", ImageId=IMAGE, MinCount=1, MaxCount=1,
        InstanceMarketOptions__MarketType="spot", Placement__AvailabilityZone="us-east-1a",
        **bid) == "SpotMaxPriceTooLow"
    world.run(2)
    spot = {"ImageId": IMAGE, "MinCount": 1, "MaxCount": 1}
    assert world.code("RunInstances", InstanceMarketOptions__MarketType="spot",
                      **spot) == "MaxSpotInstanceCountExceeded"
    world.run(2, spot=False)
    assert world.code("RunInstances", **spot) == "VcpuLimitExceeded"


def test_capacity_that_falls_interrupts_with_a_lead() -> None:
    world = World({"us-east-1a/m5.large": [Point(0, 4, 0.03), Point(100, 1, 0.03)]}, lead_s=120)
    ids = world.run(4)
    base = world.run(1, spot=False)
    world.after(101)
    noticed = [one for one in ids if world.cloud.instances[one].notice is not None]
    assert len(noticed) == 3 and world.cloud.free(next(iter(world.cloud.market.pools.values())),
                                                  True) == 0
    deadline = world.cloud.instances[noticed[0]].notice
    assert deadline is not None and deadline.deadline_s == START_S + 220
    world.after(118)
    assert set(world.states().values()) == {"running"}
    world.after(2)
    gone = [one for one, state in world.states().items() if state == "terminated"]
    assert sorted(gone) == sorted(noticed) and base[0] not in gone
    shown = world.cloud.instances[gone[0]].as_xml()
    assert shown["stateReason"]["code"] == "Server.SpotInstanceTermination"
    assert world.effects().count("notice") == 3


def test_who_has_a_notice_holds_no_place() -> None:
    world = World()
    world.run(4)
    world.order(do="set_capacity", zone="us-east-1a", capacity=1)
    world.order(do="set_capacity", zone="us-east-1a", capacity=3)
    assert len(world.run(2, Placement__AvailabilityZone="us-east-1a")) == 2
    assert world.code("RunInstances", ImageId=IMAGE, MinCount=1, MaxCount=1,
                      Placement__AvailabilityZone="us-east-1a",
                      InstanceMarketOptions__MarketType="spot") == "InsufficientInstanceCapacity"


def test_same_seed_same_victims() -> None:
    def victims(seed: int) -> list[int]:
        world = World(seed=seed, lead_s={"choices": [[120, 1], [30, 1], [0, 1]]})
        ids = world.run(4)
        world.order(do="set_capacity", zone="us-east-1a", capacity=2)
        world.after(200)
        return [ids.index(one) for one, state in world.states().items() if state == "terminated"]
    assert victims(3) == victims(3) and len(victims(3)) == 2
    assert len({tuple(victims(seed)) for seed in range(20)}) > 1


def test_no_lead_is_no_notice_and_speed_divides_leads() -> None:
    world = World(lead_s=0)
    world.run(4)
    world.order(do="set_capacity", capacity=0)
    assert set(world.states().values()) == {"terminated"} and "notice" not in world.effects()
    world = World(lead_s=120, lead_scaled=True, speed=60)
    [one] = world.run()
    world.order(do="set_capacity", capacity=0)
    notice = world.cloud.instances[one].notice
    assert notice is not None and notice.deadline_s == START_S + 2


def test_outbid() -> None:
    world = World(lead_s=10)
    [low] = world.run(InstanceMarketOptions__SpotOptions__MaxPrice="0.05",
                      Placement__AvailabilityZone="us-east-1a")
    [high] = world.run(Placement__AvailabilityZone="us-east-1a")
    world.order(do="set_price", zone="us-east-1a", price=0.06)
    world.after(10)
    assert world.states() == {low: "terminated", high: "running"}
    assert [one["why"] for one in world.cloud.ledger.events
            if one["event"] == "interrupted"] == ["price"]


def test_rebalance_ahead_and_false_alarms() -> None:
    world = World(rebalance_share=1, rebalance_ahead_s=60, lead_s=30)
    [one] = world.run()
    world.after(10)
    world.order(do="set_capacity", capacity=0)
    assert world.effects()[-1] == "rebalance"
    world.after(59)
    assert world.effects() == []
    world.after(1)
    assert world.effects() == ["notice"]
    world.order(do="calm", instance=one)
    world.after(1000)
    assert world.effects() == ["calm"] and world.states() == {one: "running"}
    world = World(false_alarms_per_hour=10)
    world.run()
    world.after(3600)
    alarms = [event for event in world.effects() if event in ("rebalance", "calm")]
    assert "rebalance" in alarms and "calm" in alarms and "notice" not in alarms


def test_outage_of_a_zone() -> None:
    world = World()
    spot, base = world.run(2), world.run(1, spot=False, Placement__AvailabilityZone="us-east-1a")
    world.order(do="outage", zone="us-east-1a")
    assert {world.states()[one] for one in [*spot, *base]} == {"terminated"}
    assert world.code("RunInstances", ImageId=IMAGE, MinCount=1, MaxCount=1,
                      Placement__AvailabilityZone="us-east-1a") == "InsufficientInstanceCapacity"
    zones = world.call("DescribeAvailabilityZones")["availabilityZoneInfo"]
    assert [one["zoneState"] for one in zones] == ["unavailable", "available"]
    world.order(do="outage", zone="us-east-1a", on=False)
    assert len(world.run(4)) == 4


def test_regions_do_not_see_each_other() -> None:
    world = World()
    world.run(2)
    assert world.call("DescribeInstances", region="us-west-2")["reservationSet"] == []
    zones = world.call("DescribeAvailabilityZones", region="us-west-2")["availabilityZoneInfo"]
    assert [one["zoneName"] for one in zones] == ["us-west-2a"]
    assert world.code("DescribeInstances", region="eu-west-1") == "AuthFailure"


# ---- whatever happens ----

def _check(world: World, lives: dict[str, list[str]]) -> None:
    """What holds after every event, on every market."""
    cloud = world.cloud
    for effect in cloud.take_effects():
        lives.setdefault(effect.instance, []).append(effect.do)
    for pool in cloud.market.pools.values():
        held = [one for one in cloud.instances.values() if one.holds_place() and one.spec.spot
                and (one.zone, one.spec.type.name) == pool.key]
        assert len(held) <= pool.capacity
    told = admin.ledger(cloud)
    assert told["totals"]["cost"] == pytest.approx(sum(
        one["cost"] for one in told["instances"]), abs=1e-6)
    running = {one.id for one in cloud.instances.values() if one.state == "running"}
    assert running == set(cloud.ledger.open)
    for id_, steps in lives.items():
        assert steps[0] == "create" and steps.count("boot") <= 1 >= steps.count("kill")
        if "kill" in steps:
            assert set(steps[steps.index("kill"):]) <= {"kill", "forget"}, steps
            assert not cloud.instances[id_].alive if id_ in cloud.instances else True


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    points = {f"us-east-1{letter}/m5.large": [
        Point(i * 60.0, rng.randrange(5), rng.uniform(0.01, 0.05)) for i in range(200)]
        for letter in "abc"}
    world = World(points, seed, listed_s=200, lead_s={"choices": [[120, 1], [30, 1], [0, 1]]},
                  launch_s=[0, 90], lag_s=[0, 5], rebalance_share=0.3, late_refusal_share=0.1,
                  false_alarms_per_hour=5, speed=3)
    lives: dict[str, list[str]] = {}
    for _ in range(250):
        ids = list(world.cloud.instances) or ["i-00000000000000000"]
        with contextlib.suppress(Ec2Error, BadMarket):
            what = rng.randrange(8)
            if what < 3:
                world.run(rng.randrange(1, 4), spot=rng.random() < 0.8)
            elif what == 3:
                world.call("TerminateInstances", InstanceId__1=rng.choice(ids))
            elif what == 4:
                world.order(do=rng.choice(["interrupt", "rebalance"]), instance=rng.choice(ids))
            elif what == 5:
                world.cloud.powered_off(rng.choice(ids))
            elif what == 6 and rng.random() < 0.2:
                world.order(do="outage", zone="us-east-1a", on=rng.random() < 0.5)
            else:
                world.cloud.lost(rng.choice(ids))
        _check(world, lives)
        for _ in range(rng.randrange(3)):
            due = world.cloud.next_due()
            if due is not None:
                world.cloud.advance(due)
                _check(world, lives)
    world.after(100_000)
    for one in list(world.cloud.instances):
        world.call("TerminateInstances", InstanceId__1=one)
    world.after(1_000)
    _check(world, lives)
    assert world.states() == {} and world.cloud.ledger.open == {}
    assert all(steps[-1] == "forget" for steps in lives.values()) and len(lives) > 50


# ---- costs ----

def test_costs_are_those_of_the_price_of_the_time() -> None:
    world = World({"us-east-1a/m5.large": [Point(0, 4, 0.36), Point(3600, 4, 0.72)]},
                  speed=100, launch_s=0, shutdown_s=0)
    [one] = world.run()
    [base] = world.run(spot=False)
    world.after(72)     # Two hours of the market: one at each price.
    for id_ in (one, base):
        world.call("TerminateInstances", InstanceId__1=id_)
    world.after(1000)
    told = admin.ledger(world.cloud)
    costs = {row["instance"]: (row["seconds"], row["cost"]) for row in told["instances"]}
    assert costs[one] == pytest.approx((7200, 0.36 + 0.72))
    assert costs[base] == pytest.approx((7200, 2 * TYPES["m5.large"].on_demand))
    assert told["totals"]["by_market"]["spot"] == pytest.approx(1.08)
    assert told["totals"]["cost"] == pytest.approx(1.08 + 0.192)
    assert [(row["market"], row["zone"], row["instances"]) for row in told["totals"]["rows"]] == [
        ("on_demand", "us-east-1a", 1), ("spot", "us-east-1a", 1)]


def test_a_minute_is_billed_at_least() -> None:
    world = World(launch_s=0)
    [one] = world.run(Placement__AvailabilityZone="us-east-1b")
    world.after(1)
    world.call("TerminateInstances", InstanceId__1=one)
    assert admin.ledger(world.cloud)["totals"]["cost"] == pytest.approx(0.02 / 60)
