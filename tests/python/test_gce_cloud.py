"""The fake Compute Engine under a virtual clock: lives, the market, quotas, bulk insertions."""

from __future__ import annotations

from typing import Any

import pytest

from fakecloud.orders import BadOrder
from fakecloud.traces import Point
from gce_world import A, B, World, bulk

ZONAL = f"zones/{A}/instances/bulkInsert"
SPREAD = {f"us-central1-{letter}/e2-standard-2": [Point(0, count, 0.03)]
          for letter, count in (("a", 4), ("b", 1), ("c", 2))}


def test_life_of_an_instance() -> None:
    world = World()
    operation = world.insert()
    assert (operation["operationType"], operation["status"], operation["progress"]) == (
        "insert", "PENDING", 0)
    assert operation["targetLink"].endswith(f"projects/fakecloud/zones/{A}/instances/vm")
    assert world.status() == {"vm": "PROVISIONING"} and world.effects() == ["create"]
    world.after(2)
    assert world.again(operation)["status"] == "RUNNING"
    world.after(4)
    assert world.status() == {"vm": "STAGING"} and world.effects() == []
    world.after(4)
    assert world.status() == {"vm": "RUNNING"} and world.effects() == ["boot"]
    done = world.again(operation)
    assert done["status"] == "DONE" and done["progress"] == 100 and "error" not in done
    ended = world.ask("DELETE", f"zones/{A}/instances/vm")
    assert world.status() == {"vm": "STOPPING"} and world.effects() == ["soft"]
    world.after(4.9)
    assert world.again(ended)["status"] == "RUNNING"
    world.after(0.2)
    assert world.status() == {} and world.effects() == ["kill", "forget"]
    assert world.again(ended)["status"] == "DONE" and ended["targetId"] == done["targetId"]


def test_what_is_stopped_starts_again() -> None:
    world = World()
    world.insert(spot=False)
    world.after(10)
    stop = world.ask("POST", f"zones/{A}/instances/vm/stop")
    world.refused(400, "resourceNotReady", "POST", f"zones/{A}/instances/vm/start")
    world.after(5)
    assert world.status() == {"vm": "TERMINATED"} and world.again(stop)["status"] == "DONE"
    shown = world.get(f"zones/{A}/instances/vm")
    assert shown["lastStopTimestamp"] > shown["lastStartTimestamp"]
    assert world.effects() == ["create", "boot", "soft", "kill"]
    start = world.ask("POST", f"zones/{A}/instances/vm/start")
    world.after(10)
    assert world.status() == {"vm": "RUNNING"} and world.again(start)["status"] == "DONE"
    assert world.effects() == ["create", "boot"]
    assert world.get(f"zones/{A}/instances/vm")["id"] == shown["id"]


def test_who_deletes_twice_waits_for_the_same_end() -> None:
    world = World()
    world.insert(spot=False)
    world.after(10)
    stop = world.ask("POST", f"zones/{A}/instances/vm/stop")
    first, second = (world.ask("DELETE", f"zones/{A}/instances/vm") for _ in range(2))
    world.after(5)
    assert [world.again(one)["status"] for one in (stop, first, second)] == ["DONE"] * 3
    assert world.status() == {}
    world.refused(404, "notFound", "DELETE", f"zones/{A}/instances/vm")


def test_deleted_while_it_starts() -> None:
    world = World()
    operation = world.insert()
    world.after(1)
    world.ask("DELETE", f"zones/{A}/instances/vm")
    world.after(20)
    assert world.status() == {} and "boot" not in world.effects()
    assert world.again(operation)["status"] == "DONE"
    assert world.cloud.ledger.totals(world.cloud.market_s())["seconds"] == 0


def test_no_room_is_the_end_of_an_operation() -> None:
    world = World()
    for number in range(4):
        world.insert(f"vm-{number}")
    operation = world.insert("more")
    assert len(world.status()) == 4
    world.after(4)
    ended = world.again(operation)
    [error] = ended["error"]["errors"]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert f"projects/fakecloud/zones/{A}' does not have enough resources" in error["message"]
    info = error["errorDetails"][0]["errorInfo"]
    assert info["reason"] == "resource_availability" and info["metadatas"]["zone"] == A
    assert (ended["httpErrorStatusCode"], ended["httpErrorMessage"]) == (503, "SERVICE UNAVAILABLE")
    world.order(do="set", settings={"details_share": 0})
    operation = world.insert("plain")
    world.after(4)
    assert world.again(operation)["error"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert "error" not in world.again(world.insert("demand", spot=False))   # Has its own room.


def test_quotas_are_of_a_region() -> None:
    world = World(quotas={"PREEMPTIBLE_CPUS": 4})
    world.insert("a"), world.insert("b", B)
    operation = world.insert("c")
    world.after(4)
    ended = world.again(operation)
    [error] = ended["error"]["errors"]
    assert error["code"] == "QUOTA_EXCEEDED" and ended["httpErrorStatusCode"] == 403
    assert error["message"] == (
        "Quota 'PREEMPTIBLE_CPUS' exceeded.  Limit: 4.0 in region us-central1.")
    assert error["errorDetails"][0]["quotaInfo"]["dimensions"] == {"region": "us-central1"}
    world.insert("d", "europe-west4-a")
    quotas = {one["metric"]: one for one in world.get("regions/us-central1")["quotas"]}
    assert quotas["PREEMPTIBLE_CPUS"] == {"metric": "PREEMPTIBLE_CPUS", "limit": 4, "usage": 4}
    assert quotas["INSTANCES"]["usage"] == 2 and quotas["CPUS"]["usage"] == 0
    world.order(do="quota", metric="INSTANCES", limit=2, region="us-central1")
    world.order(do="quota", metric="PREEMPTIBLE_CPUS", limit=99)
    operation = world.insert("e")
    world.after(4)
    assert "'INSTANCES'" in world.again(operation)["error"]["errors"][0]["message"]


@pytest.mark.parametrize("shape, count, zones", [
    ("ANY", 7, "aaaabcc"), ("ANY", 3, "aaa"), ("ANY_SINGLE_ZONE", 4, "aaaa"), ("", 2, "aa"),
    ("BALANCED", 3, "abc"), ("BALANCED", 5, "aabcc"), ("BALANCED", 7, "aaaabcc")])
def test_shapes_of_a_bulk_insertion(shape: str, count: int, zones: str) -> None:
    world = World(SPREAD)
    operation = world.bulk(count=count, shape=shape)
    assert world.zones() == list(zones)
    world.after(10)
    done = world.again(operation)
    assert done["operationType"] == "bulkInsert" and done["operationGroupId"].isdigit()
    places = done["instancesBulkInsertOperationMetadata"]["perLocationStatus"]
    assert {name[-1]: one for name, one in places.items()} == {
        letter: {"targetVmCount": zones.count(letter), "createdVmCount": zones.count(letter),
                 "status": "DONE"} for letter in set(zones)}
    assert set(world.status()) == {f"vm-{number:02d}" for number in range(1, count + 1)}


def test_fewer_than_wanted_is_enough() -> None:
    world = World(SPREAD)
    operation = world.bulk(count=9, least=2, shape="ANY")
    world.after(10)
    done = world.again(operation)
    assert "error" not in done and len(world.status()) == 7
    places = done["instancesBulkInsertOperationMetadata"]["perLocationStatus"].values()
    assert sum(one.get("targetVmCount", 0) for one in places) == 9
    assert sum(one.get("createdVmCount", 0) for one in places) == 7
    assert sum(one.get("failedToCreateVmCount", 0) for one in places) == 2


def test_too_few_are_rolled_back() -> None:
    world = World(SPREAD)
    operation = world.bulk(count=9, shape="ANY")
    world.after(10)
    going = world.again(operation)
    assert going["status"] == "RUNNING" and len(world.status()) == 7
    states = going["instancesBulkInsertOperationMetadata"]["perLocationStatus"].values()
    assert {one["status"] for one in states} == {"ROLLING_BACK"}
    world.after(3)
    done = world.again(operation)
    assert world.status() == {} and done["status"] == "DONE"
    assert [one["code"] for one in done["error"]["errors"]] == [
        "VM_MIN_COUNT_NOT_REACHED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    places = done["instancesBulkInsertOperationMetadata"]["perLocationStatus"].values()
    assert sum(one.get("deletedVmCount", 0) for one in places) == 7


def test_nothing_at_all() -> None:
    world = World(SPREAD)
    world.order(do="set_capacity", capacity=0)
    operation = world.bulk(count=2, least=1)
    world.after(4)
    codes = [one["code"] for one in world.again(operation)["error"]["errors"]]
    assert codes == ["VM_MIN_COUNT_NOT_REACHED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    assert world.status() == {} and world.effects() == []


def test_a_quota_bounds_a_bulk_insertion() -> None:
    world = World(SPREAD, quotas={"PREEMPTIBLE_CPUS": 6})
    operation = world.bulk(count=5, least=1, shape="ANY")
    world.after(10)
    assert len(world.status()) == 3 and "error" not in world.again(operation)
    operation = world.bulk(count=1, shape="ANY", pattern="b-#")
    world.after(4)
    assert world.again(operation)["error"]["errors"][1]["code"] == "QUOTA_EXCEEDED"


def test_locations_and_their_bounds() -> None:
    world = World(SPREAD)
    world.bulk(count=2, shape="ANY", pattern="x-#",
               locations={"zones/us-central1-a": {"preference": "DENY"}})
    assert world.zones() == ["c", "c"]
    world = World(SPREAD)
    bounded = {"zones/us-central1-a": {"preference": "ALLOW", "constraints": {"maxCount": 1}},
               "zones/us-central1-b": {}}
    world.bulk(count=4, least=1, shape="ANY", locations=bounded)
    assert world.zones() == ["a", "b"]


def test_types_by_their_rank() -> None:
    world = World()
    flexible = {"best": {"machineTypes": ["n2-standard-4"], "rank": 1},
                "rest": {"machineTypes": ["e2-standard-2"], "rank": 2}}
    world.bulk(count=5, shape="ANY", flexible=flexible)
    types = sorted(one.spec.type_name for one in world.cloud.instances.values())
    assert types == ["e2-standard-2"] * 2 + ["n2-standard-4"] * 3


def test_some_are_refused_late() -> None:
    world = World(SPREAD, late_refusal_share=1)
    operation = world.bulk(count=3, least=1)
    world.after(9)
    assert world.status() == {}
    world.after(20)
    assert world.again(operation)["error"]["errors"][0]["code"] == "VM_MIN_COUNT_NOT_REACHED"


def test_a_preemption_is_told_then_carried_out() -> None:
    world = World(acpi_s=7)
    world.insert()
    world.after(10)
    world.effects()
    world.order(do="set_capacity", zone=A, type="e2-standard-2", capacity=0)
    [one] = world.cloud.instances.values()
    assert one.preempted and one.status == "RUNNING"
    [event] = world.events()
    assert event["operationType"] == "compute.instances.preempted" and event["user"] == "system"
    assert event["statusMessage"] == "Instance was preempted." and event["status"] == "DONE"
    assert event["targetId"] == one.id
    world.after(7)
    assert one.status == "STOPPING" and world.effects() == ["soft"]
    world.after(29.9)
    assert world.effects() == []
    world.after(0.2)
    assert world.status() == {} and world.effects() == ["kill", "forget"]


def test_a_preempted_instance_may_stay_stopped() -> None:
    world = World()
    world.insert(scheduling={"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"})
    world.after(10)
    world.order(do="preempt", instance="vm", lead_s=0)
    assert world.status() == {"vm": "TERMINATED"}
    assert "forget" not in world.effects()


def test_a_notice_of_its_own_length() -> None:
    world = World(lead_s=5)
    world.insert(scheduling={"provisioningModel": "SPOT", "preemptionNoticeDuration": {
        "seconds": "120"}})
    world.after(10)
    world.order(do="preempt", instance="vm")
    world.after(119)
    assert world.status() == {"vm": "RUNNING"}
    world.after(1)
    assert world.status() == {"vm": "STOPPING"}
    world.after(5)
    assert world.status() == {"vm": "TERMINATED"}


def test_false_alarms_pass() -> None:
    world = World()
    world.insert()
    world.after(10)
    [one] = world.cloud.instances.values()
    world.order(do="false_alarm", instance="vm", seconds=5)
    assert one.preempted
    world.after(5)
    assert not one.preempted and one.status == "RUNNING" and world.events() == []
    world.order(do="set", settings={"acpi_s": 10})
    world.order(do="preempt", instance=one.id)
    world.order(do="calm", instance="vm")
    world.after(100)
    assert world.status() == {"vm": "RUNNING"}


def test_only_as_many_as_are_too_many_are_preempted() -> None:
    world = World(speed=10, lead_s=0, offers={f"{A}/e2-standard-2": [
        Point(0, 4, 0.1), Point(1000, 1, 0.2)]})
    for number in range(4):
        world.insert(f"vm-{number}")
    world.insert("demand", spot=False)
    world.after(99)
    assert len(world.status()) == 5
    world.after(1.5)
    assert len(world.status()) == 2 and world.status()["demand"] == "RUNNING"
    assert len(world.events("preempted")) == 3


@pytest.mark.parametrize("restarts", [True, False])
def test_host_errors(restarts: bool) -> None:
    world = World()
    world.insert(spot=False, scheduling={"automaticRestart": restarts})
    world.after(10)
    world.order(do="host_error", instance="vm")
    world.after(20)
    assert world.status() == {"vm": "RUNNING" if restarts else "TERMINATED"}
    kinds = [one["operationType"].rpartition(".")[2] for one in world.events()]
    assert kinds == ["hostError", "automaticRestart"][:2 if restarts else 1]


@pytest.mark.parametrize("policy", ["MIGRATE", "TERMINATE"])
def test_maintenance(policy: str) -> None:
    world = World()
    world.insert(spot=False, scheduling={"onHostMaintenance": policy})
    world.after(10)
    world.order(do="maintain", instance="vm", lead_s=60)
    [one] = world.cloud.instances.values()
    assert one.maintenance == f"{policy}_ON_HOST_MAINTENANCE"
    world.after(60)
    assert one.maintenance == "NONE"
    assert one.status == ("RUNNING" if policy == "MIGRATE" else "STOPPING")


def test_an_outage_takes_all_of_a_zone() -> None:
    world = World()
    world.insert("spot"), world.insert("demand", spot=False), world.insert("other", B)
    world.after(10)
    world.order(do="outage", zone=A)
    assert world.status() == {"demand": "TERMINATED", "other": "RUNNING"}
    operation = world.insert("new", spot=False)
    world.after(4)
    assert "error" in world.again(operation)
    world.order(do="outage", zone=A, on=False)
    assert "PROVISIONING" in (world.insert("newer"), world.status())[1].values()


def test_who_switches_itself_off_stays_and_costs_no_more() -> None:
    world = World()
    world.insert()
    world.after(10)
    [one] = world.cloud.instances.values()
    world.cloud.powered_off(one.id)
    world.after(5)
    assert world.status() == {"vm": "TERMINATED"} and world.events("guestTerminate")


def test_lists_lag_behind() -> None:
    world = World(lag_s=30, gone_lag_s=20)
    world.insert()
    world.after(10)
    assert "items" not in world.get(f"zones/{A}/instances")
    assert world.get(f"zones/{A}/instances/vm")["status"] == "RUNNING"
    world.after(21)
    assert [one["name"] for one in world.get(f"zones/{A}/instances")["items"]] == ["vm"]
    world.ask("DELETE", f"zones/{A}/instances/vm")
    world.after(6)
    world.refused(404, "notFound", "GET", f"zones/{A}/instances/vm")
    assert [one["name"] for one in world.get(f"zones/{A}/instances")["items"]] == ["vm"]
    world.after(20)
    assert "items" not in world.get(f"zones/{A}/instances")


def test_what_is_paid() -> None:
    world = World()
    world.insert("spot"), world.insert("demand", spot=False)
    world.after(10 + 3600)
    world.order(do="set_price", zone=A, price=0.06)
    world.after(3600)
    for name in ("spot", "demand"):
        world.ask("DELETE", f"zones/{A}/instances/{name}")
    world.after(100)
    totals = world.cloud.ledger.totals(world.cloud.market_s())
    assert totals["by_market"] == {"spot": pytest.approx(0.09), "on_demand": pytest.approx(0.134)}
    world.insert("short")
    world.after(11)
    world.ask("DELETE", f"zones/{A}/instances/short")
    totals = world.cloud.ledger.totals(world.cloud.market_s())
    assert totals["seconds"] == pytest.approx(2 * 7200 + 60)    # A minute at the least.


def test_operations_that_never_end() -> None:
    world = World()
    world.order(do="trap", how="stuck", type="bulkInsert")
    operation = world.bulk(count=1)
    world.after(1000)
    assert world.again(operation)["status"] == "RUNNING" and world.status() == {"vm-01": "RUNNING"}
    world.order(do="release")
    assert world.again(operation)["status"] == "DONE"
    assert world.again(world.bulk(count=1, pattern="b-#"))["status"] == "PENDING"


@pytest.mark.parametrize("undo", [True, False])
def test_operations_that_fail_when_machines_are_made(undo: bool) -> None:
    world = World()
    world.order(do="trap", how="fail", type="bulkInsert", code="INTERNAL_ERROR", undo=undo)
    operation = world.bulk(count=2)
    world.after(9)
    assert len(world.status()) == 2
    world.after(10)
    done = world.again(operation)
    assert [one["code"] for one in done["error"]["errors"]] == ["INTERNAL_ERROR"]
    assert len(world.status()) == (0 if undo else 2)


def test_done_operations_are_forgotten_later() -> None:
    world = World(kept_s=100)
    operation = world.insert()
    world.after(109)
    assert world.again(operation)["status"] == "DONE"
    world.after(2)
    assert world.get(f"zones/{A}/operations").get("items") is None


@pytest.mark.parametrize("order, told", [
    ({"do": "no"}, "do is one of"), ({"do": "preempt", "instance": "x"}, "no instance 'x'"),
    ({"do": "set_capacity", "zone": "x", "capacity": 1}, "no pool of any type in x"),
    ({"do": "quota", "metric": "CPUS", "limit": 1, "region": "x"}, "no region 'x'"),
    ({"do": "fault", "how": "loud"}, "how is one of"), ({"do": "outage", "zone": "x"}, "no zone"),
    ({"do": "trap", "how": "x"}, "stuck or fail"), ({"do": "mend", "x": 1}, "unknown key x"),
    ({"do": "unreachable", "zone": "x"}, "no zone"), ({"do": "set", "settings": {"x": 1}}, "x"),
    ([], "JSON object")])
def test_orders_are_read_strictly(order: Any, told: str) -> None:
    with pytest.raises(BadOrder, match=told):
        World().admin.obey(order)


def test_zonal_bulk_insertions_have_one_zone() -> None:
    world = World()
    operation = world.ask("POST", ZONAL, bulk(count=2))
    assert operation["zone"].endswith(A) and world.zones() == ["a", "a"]
    world.refused(400, "invalid", "POST", ZONAL, bulk(count=1, shape="ANY"))
