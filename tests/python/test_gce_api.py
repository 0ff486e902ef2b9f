"""The API of the fake Compute Engine: what it answers, and what it refuses."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from fakecloud.gce.errors import GceError
from fakecloud.gce.tokens import READ_ONLY
from fakecloud.traces import Point
from gce_world import ID, IMAGE, REGION, A, B, World, bulk, instance, properties

VM = f"zones/{A}/instances/vm"
INSTANCES = f"zones/{A}/instances"


def filled(count: int = 3, **settings: Any) -> World:
    world = World(**settings)
    for number in range(count):
        world.insert(f"vm-{number}", (A, B)[number % 2], labels={"n": str(number), "all": ""})
    world.after(10)
    return world


def test_an_instance_in_full() -> None:
    world = World()
    world.insert(labels={"troupe-cluster": "a"}, tags={"items": ["web"]}, metadata={
        "items": [{"key": "k", "value": "v"}]}, serviceAccounts=[
            {"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}],
        networkInterfaces=[{"accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}])
    world.after(10)
    shown = world.get(VM)
    base = f"https://www.googleapis.com/compute/v1/projects/fakecloud/zones/{A}"
    assert shown["kind"] == "compute#instance" and shown["id"].isdigit()
    assert shown["selfLink"] == f"{base}/instances/vm" and shown["zone"] == base
    assert shown["machineType"] == f"{base}/machineTypes/e2-standard-2"
    assert shown["creationTimestamp"].endswith("-08:00") and shown["status"] == "RUNNING"
    assert shown["scheduling"] == {
        "onHostMaintenance": "TERMINATE", "automaticRestart": False, "preemptible": True,
        "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
    assert shown["labels"] == {"troupe-cluster": "a"} and shown["tags"]["items"] == ["web"]
    assert shown["metadata"]["items"] == [{"key": "k", "value": "v"}]
    [interface] = shown["networkInterfaces"]
    assert interface["networkIP"].startswith("127.") and interface["accessConfigs"][0]["natIP"]
    assert shown["serviceAccounts"][0]["email"] == "default"


@pytest.mark.parametrize("change, where", [
    ({"name": "Vm"}, "resource.name"), ({"name": "x" * 64}, "resource.name"),
    ({"labels": {"A": "b"}}, "resource.labels"), ({"labels": {"a": "B"}}, "resource.labels"),
    ({"labels": {"1a": "b"}}, "resource.labels"), ({"labels": {"a": "x" * 64}}, "resource.labels"),
    ({"labels": {"a": "b.c"}}, "resource.labels"),
    ({"labels": {f"k{n}": "" for n in range(65)}}, "resource.labels"),
    ({"machineType": f"zones/{A}/machineTypes/none"}, "does not exist in zone"),
    ({"machineType": f"zones/{A}/machineTypes/n2-standard-4"}, "does not exist in zone"),
    ({"machineType": f"zones/{B}/machineTypes/e2-standard-2"}, "zone of the machine type"),
    ({"machineType": "e2-standard-2"}, "malformed"), ({"disks": []}, "No disks"),
    ({"networkInterfaces": []}, "network interface"), ({"tags": {"items": ["A"]}}, "tags.items"),
    ({"metadata": {"items": [{"key": "a b", "value": ""}]}}, "metadata.items[0].key"),
    ({"metadata": {"items": [{"key": "a"}, {"key": "a"}]}}, "duplicate"),
    ({"metadata": {"items": [{"key": "a", "value": "x" * 262145}]}}, "too large"),
    ({"scheduling": {"provisioningModel": "CHEAP"}}, "provisioningModel"),
    ({"scheduling": {"provisioningModel": "SPOT", "automaticRestart": True}}, "automaticRestart"),
    ({"scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "MIGRATE"}}, "MIGRATE"),
    ({"scheduling": {"instanceTerminationAction": "DELETE"}}, "instanceTerminationAction")])
def test_wrong_instances(change: dict[str, Any], where: str) -> None:
    world = World()
    told = world.refused(400, "invalid", "POST", INSTANCES, {**instance(), **change})
    assert where in told and world.status() == {}


@pytest.mark.parametrize("change, path", [
    ({"disks": [{"boot": True, "initializeParams": {
        "sourceImage": "projects/debian-cloud/global/images/family/none"}}]}, "images/family/none"),
    ({"networkInterfaces": [{"network": "global/networks/none"}]}, "global/networks/none"),
    ({"networkInterfaces": [{"subnetwork": "regions/us-central1/subnetworks/none"}]},
     "subnetworks/none")])
def test_what_is_not_there(change: dict[str, Any], path: str) -> None:
    world = World()
    for body in ({**instance(), **change}, bulk(**change)):
        where = INSTANCES if "name" in body else REGION
        assert f"{path}' was not found" in world.refused(404, "notFound", "POST", where, body)


@pytest.mark.parametrize("change", [{"nmae": "x"}, {"scheduling": {"spot": True}}, {"name": 7},
                                    {"labels": {"a": 7}}, {"disks": {}},
                                    {"labels": {"a": None}}, {"disks": [None]},
                                    {"canIpForward": "x"}])
def test_fields_that_the_api_does_not_know(change: dict[str, Any]) -> None:
    world = World()
    world.refused(400, "badRequest", "POST", INSTANCES, {**instance(), **change})
    world.refused(400, "badRequest", "POST", INSTANCES, b"{")
    world.refused(400, "badRequest", "POST", INSTANCES, [])


@pytest.mark.parametrize("change, reason", [
    ({"count": "0"}, "invalid"), ({"count": "5001"}, "invalid"), ({"minCount": "3"}, "invalid"),
    ({"namePattern": "vm"}, "invalid"), ({"namePattern": "VM-#"}, "invalid"),
    ({"namePattern": None}, "required"), ({"count": "10", "namePattern": "vm-#"}, "invalid"),
    ({"perInstanceProperties": {"a": {}}}, "badRequest"),
    ({"locationPolicy": {"targetShape": "ROUND"}}, "invalid"),
    ({"locationPolicy": {"locations": {"zones/us-east1-b": {}}}}, "invalid"),
    ({"locationPolicy": {"locations": {A: {}}}}, "invalid"),
    ({"instanceProperties": properties(type_="none")}, "invalid"),
    ({"instanceProperties": properties(type_=f"zones/{A}/machineTypes/e2-standard-2")}, "invalid"),
    ({"instanceProperties": {}}, "required"),
    ({"sourceInstanceTemplate": "global/instanceTemplates/none"}, "notFound")])
def test_wrong_bulk_insertions(change: dict[str, Any], reason: str) -> None:
    world = World()
    code = 404 if reason == "notFound" else 400
    world.refused(code, reason, "POST", REGION, {**bulk(count=2), **change})
    assert world.status() == {} and world.cloud.operations == {}


def test_names_of_their_own() -> None:
    world = World()
    body = {**bulk(count=2), "perInstanceProperties": {"left": {}, "right": {"hostname": "r.x.y"}}}
    del body["namePattern"]
    world.ask("POST", REGION, body)
    assert set(world.status()) == {"left", "right"}
    world.refused(409, "alreadyExists", "POST", REGION, body)
    assert len(world.status()) == 2
    world.refused(409, "alreadyExists", "POST", INSTANCES, instance("left"))
    world.bulk(count=1, pattern="l-#"), world.bulk(count=1, pattern="l-#")
    assert {"l-1", "l-2"} <= set(world.status())


def test_request_ids() -> None:
    world = World()
    first = world.ask("POST", REGION, bulk(count=2), requestId=ID.format(1))
    world.after(1)
    again = world.ask("POST", REGION, bulk(count=2), requestId=ID.format(1))
    assert again["name"] == first["name"] and len(world.status()) == 2
    assert again["clientOperationId"] == ID.format(1)
    world.refused(400, "invalid", "POST", REGION, bulk(count=1), requestId=ID.format(1))
    for wrong in ("x", "0" * 32, "00000000-0000-0000-0000-000000000000"):
        world.refused(400, "invalid", "POST", REGION, bulk(), requestId=wrong)
    world.after(10)
    ended = [world.ask("DELETE", f"{INSTANCES}/vm-01", requestId=ID.format(2)) for _ in range(2)]
    assert ended[0]["name"] == ended[1]["name"]


def test_lists_by_scope_and_page() -> None:
    world = filled()
    found = world.get("aggregated/instances", maxResults=2)
    assert found["kind"] == "compute#instanceAggregatedList"
    assert len(found["items"][f"zones/{A}"]["instances"]) == 2
    warning = found["items"][f"zones/{B}"]["warning"]
    assert warning["code"] == "NO_RESULTS_ON_PAGE" and warning["data"] == [
        {"key": "scope", "value": f"zones/{B}"}]
    rest = world.get("aggregated/instances", maxResults=2, pageToken=found["nextPageToken"])
    assert [one["name"] for one in rest["items"][f"zones/{B}"]["instances"]] == ["vm-1"]
    assert "nextPageToken" not in rest and set(found["items"]) == {
        f"zones/{A}", f"zones/{B}", "zones/europe-west4-a"}
    for key, value in (("maxResults", "501"), ("maxResults", "x"), ("pageToken", "x"),
                       ("orderBy", "id"), ("filter", "(("), ("returnPartialSuccess", "maybe")):
        world.refused(400, "invalid", "GET", "aggregated/instances", **{key: value})
    world.after(1)
    world.insert("a-new-one")
    names = [one["name"] for one in world.get(
        INSTANCES, orderBy="creationTimestamp desc", maxResults=1)["items"]]
    assert names == ["a-new-one"]


def test_lists_by_filter() -> None:
    world = filled()

    def names(wanted: str) -> list[str]:
        found = world.get("aggregated/instances", filter=wanted)["items"].values()
        return [one["name"] for scope in found for one in scope.get("instances", [])]
    assert names("labels.n=1") == ["vm-1"]
    assert names('labels.all:* AND (labels.n="0" OR labels.n=2)') == ["vm-0", "vm-2"]
    assert names("(status=RUNNING) (name!=vm-0)") == ["vm-2", "vm-1"]
    assert names("name eq 'vm-[01]'") == ["vm-0", "vm-1"]
    assert names("NOT labels.n=1 zone=us-central1-a") == ["vm-0", "vm-2"]
    assert names("scheduling.preemptible=true status=TERMINATED") == []


def test_a_zone_that_does_not_answer() -> None:
    world = filled()
    world.order(do="unreachable", zone=A)
    world.refused(503, "backendError", "GET", "aggregated/instances")
    found = world.get("aggregated/instances", returnPartialSuccess="true")
    assert found["items"][f"zones/{A}"]["warning"]["code"] == "UNREACHABLE"
    assert found["unreachables"] == [f"projects/fakecloud/zones/{A}"]
    assert len(found["items"][f"zones/{B}"]["instances"]) == 1
    world.refused(503, "backendError", "GET", INSTANCES)
    world.refused(503, "backendError", "DELETE", f"{INSTANCES}/vm-0")
    world.order(do="mend")
    assert len(world.get(INSTANCES)["items"]) == 2


def test_fingerprints() -> None:
    world = filled(1)
    shown = world.get(f"{INSTANCES}/vm-0")
    for verb, mark, body in (
            ("setLabels", shown["labelFingerprint"], {"labels": {"b": "c"}, "labelFingerprint": 0}),
            ("setMetadata", shown["metadata"]["fingerprint"], {
                "items": [{"key": "k", "value": "v"}], "fingerprint": 0}),
            ("setTags", shown["tags"]["fingerprint"], {"items": ["t"], "fingerprint": 0})):
        key = "labelFingerprint" if verb == "setLabels" else "fingerprint"
        path = f"{INSTANCES}/vm-0/{verb}"
        world.refused(412, "conditionNotMet", "POST", path, {**body, key: "b2xk"})
        operation = world.ask("POST", path, {**body, key: mark})
        assert operation["operationType"] == verb
        world.refused(412, "conditionNotMet", "POST", path, {**body, key: mark})
    now = world.get(f"{INSTANCES}/vm-0")
    assert now["labels"] == {"b": "c"} and now["tags"]["items"] == ["t"]


def test_operations() -> None:
    world = filled(2)
    found = world.get(f"zones/{A}/operations", filter='operationType="insert"')["items"]
    assert [one["targetLink"].rpartition("/")[2] for one in found] == ["vm-0"]
    world.order(do="preempt", instance="vm-0", lead_s=0)
    [event] = world.get(f"zones/{A}/operations",
                        filter="operationType=compute.instances.preempted")["items"]
    assert event["user"] == "system" and event["status"] == "DONE"
    everywhere = world.get("aggregated/operations", filter="operationType:compute.instances.*")
    assert len(everywhere["items"][f"zones/{A}"]["operations"]) == 1
    path = f"zones/{A}/operations/{event['name']}"
    assert world.get(f"zones/{A}/operations/{event['id']}") == world.get(path)
    assert world.ask("POST", f"{path}/wait")["status"] == "DONE"
    assert world.ask("DELETE", path) == {}
    world.refused(404, "notFound", "GET", path)
    world.insert("late")
    name = next(one.name for one in world.cloud.operations.values() if not one.done)
    world.refused(400, "resourceNotReady", "DELETE", f"zones/{A}/operations/{name}")


def test_each_machine_of_many_has_an_operation() -> None:
    world = World()
    group = world.bulk(count=2)["operationGroupId"]
    for status in ("PENDING", "DONE"):
        found = world.get(f"zones/{A}/operations", filter=f"operationGroupId={group}")["items"]
        assert [one["status"] for one in found] == [status] * 2
        assert {one["targetLink"].rpartition("/")[2] for one in found} == {"vm-01", "vm-02"}
        world.after(10)


@pytest.mark.parametrize("method, path, query", [
    ("GET", INSTANCES, {"filters": "a=b"}), ("GET", "zones", {"requestId": ID.format(1)}),
    ("POST", INSTANCES, {"sourceTemplate": "a"}), ("DELETE", VM, {"force": "true"})])
def test_queries_that_the_api_does_not_know(method: str, path: str, query: dict[str, str]) -> None:
    told = World().refused(400, "badRequest", method, path, {}, **query)
    assert "Cannot bind query parameter" in told


def test_templates() -> None:
    world = World()
    body = {"name": "node", "properties": properties("echo", labels={"a": "1", "b": "2"})}
    operation = world.ask("POST", "global/instanceTemplates", body)
    assert operation["targetLink"].endswith("global/instanceTemplates/node")
    world.after(2)
    assert world.again(operation)["status"] == "DONE"
    world.refused(409, "alreadyExists", "POST", "global/instanceTemplates", body)
    assert world.get("global/instanceTemplates/node")["properties"] == body["properties"]
    assert len(world.get("global/instanceTemplates")["items"]) == 1
    link = "projects/fakecloud/global/instanceTemplates/node"
    asked = {"count": "1", "namePattern": "vm-#", "sourceInstanceTemplate": link,
             "instanceProperties": {"labels": {"b": "3"}}}
    world.ask("POST", REGION, asked)
    assert world.get(f"zones/{A}/instances/vm-1")["labels"] == {"a": "1", "b": "3"}
    world.ask("POST", INSTANCES, {"name": "one"}, sourceInstanceTemplate=link)
    assert world.get(f"{INSTANCES}/one")["scheduling"]["preemptible"]
    world.ask("DELETE", "global/instanceTemplates/node")
    world.refused(404, "notFound", "POST", REGION, asked)


def test_accelerators() -> None:
    world = World({f"{A}/n1-standard-8+v100x1": [Point(0, 2)]})
    model = f"zones/{A}/acceleratorTypes/nvidia-tesla-v100"
    gpu = {"guestAccelerators": [{"acceleratorType": model, "acceleratorCount": 1}]}
    world.insert(type_="n1-standard-8", **gpu)
    shown = world.get(VM)["guestAccelerators"][0]
    assert shown["acceleratorType"].endswith("nvidia-tesla-v100") and (
        shown["acceleratorCount"] == 1)
    assert "features are not compatible" in world.refused(
        400, "invalid", "POST", INSTANCES, instance("b", type_="n1-standard-4", **gpu))
    quotas = {one["metric"]: one["usage"] for one in world.get("regions/us-central1")["quotas"]}
    assert quotas["PREEMPTIBLE_NVIDIA_V100_GPUS"] == 1
    assert "live migration" in world.refused(400, "invalid", "POST", INSTANCES, instance(
        "c", type_="n1-standard-8", spot=False, **gpu))


def test_what_is_only_read() -> None:
    world = World(images=["mine"])
    assert world.get("")["kind"] == "compute#project"
    assert [one["name"] for one in world.get("zones")["items"]] == [
        "europe-west4-a", A, B]
    assert world.get(f"zones/{A}")["status"] == "UP" and len(world.get("regions")["items"]) == 2
    type_ = world.get(f"zones/{A}/machineTypes/e2-standard-2")
    assert (type_["guestCpus"], type_["memoryMb"]) == (2, 8192)
    world.refused(404, "notFound", "GET", f"zones/{A}/machineTypes/n2-standard-4")
    assert world.get("global/images/family/mine")["name"] == "mine"
    assert world.get("global/networks/default")["autoCreateSubnetworks"]
    world.refused(400, "invalid", "GET", "zones/nowhere1-a/instances")
    world.refused(400, "invalid", "POST", "regions/nowhere1/instances/bulkInsert", bulk())
    world.refused(404, "notFound", "GET", "global/teapots")
    assert "items" in world.get("aggregated/machineTypes")


def test_projects() -> None:
    world = World()
    request = world.request("GET", "zones")
    request.path = request.path.replace("fakecloud", "another")
    with pytest.raises(GceError, match="projects/another' was not found"):
        world.api.answer(request)
    request = world.request("GET", "global/images/family/debian-12")
    request.path = request.path.replace("fakecloud", "debian-cloud")
    assert b"debian-12-bookworm" in bytes(world.api.answer(request).body, "utf-8")


def test_who_may_what() -> None:
    world = filled(1)
    world.order(do="deny", permission="compute.instances.create")
    told = world.refused(403, "forbidden", "POST", REGION, bulk())
    assert told.startswith("Required 'compute.instances.create' permission for 'projects/")
    world.get("aggregated/instances")
    world.order(do="allow")
    world.bulk(count=1)
    world.token = world.tokens.issue("reader@x", world.cloud.now_s, 100, READ_ONLY).text
    world.get("aggregated/instances")
    world.refused(403, "insufficientPermissions", "POST", REGION, bulk())
    world.after(101)
    world.refused(401, "authError", "GET", "zones")
    world.token = ""
    world.refused(401, "required", "GET", "zones")


def test_rates() -> None:
    world = filled(1, throttle={"*": [100, 100], "*.aggregatedList": [1, 2]})
    for _ in range(2):
        world.get("aggregated/instances")
    told = world.refused(403, "rateLimitExceeded", "GET", "aggregated/instances")
    assert "Quota exceeded" in told
    world.get("zones")
    world.after(1)
    world.get("aggregated/instances")


def test_bodies_are_not_changed() -> None:
    world = World()
    body = bulk(count=1, labels={"a": "b"})
    before = copy.deepcopy(body)
    world.ask("POST", REGION, body)
    assert body == before and IMAGE in str(before)


def spots(body: Any) -> list[tuple[Any, Any]]:
    """All places in a body where a value is."""
    keys: list[Any] = list(body) if isinstance(body, dict) else (
        list(range(len(body))) if isinstance(body, list) else [])
    return [(body, key) for key in keys] + [one for key in keys for one in spots(body[key])]


def test_no_body_breaks_it() -> None:
    """Whatever stands in its place: it is taken, or refused with a word."""
    rng, answers = random.Random(3), [0, 0]
    values = [None, "", 0, -1, "x", [], {}, [None], {"a": None}, True, "9" * 19, 1e300, [{}], A]
    asked = [(REGION, bulk(count=2, least=1, shape="ANY", script="x", labels={"a": "b"}, flexible={
                 "a": {"machineTypes": ["e2-standard-2"], "rank": "1"}})),
             (INSTANCES, instance(script="x", serviceAccounts=[{"email": "a", "scopes": ["b"]}]))]
    for number in range(400):
        path, body = asked[number % 2]
        body = copy.deepcopy(body)
        where, key = rng.choice(spots(body))
        where[key] = copy.deepcopy(rng.choice(values))
        world = World()
        try:
            world.ask("POST", path, body)
            world.after(30)
            world.get("aggregated/instances"), world.get("aggregated/operations")
            answers[0] += 1
        except GceError as error:
            assert error.code in (400, 404) and error.message
            answers[1] += 1
    assert min(answers) > 10


def test_simulated_maintenance() -> None:
    world = filled(1)
    world.insert("demand", spot=False)
    world.after(10)
    world.ask("POST", f"{INSTANCES}/vm-0/simulateMaintenanceEvent")
    world.ask("POST", f"{INSTANCES}/demand/simulateMaintenanceEvent")
    one, two = (world.cloud.instances[A, name] for name in ("vm-0", "demand"))
    assert one.preempted and two.maintenance == "MIGRATE_ON_HOST_MAINTENANCE"
