"""Google's own libraries take the fake Compute Engine for the real one, retries off."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakecloud.gce import schema
from fakecloud.gce.service import FakeGce
from gce_world import ID, IMAGE, A, B, serving
from processes import until

pytestmark = [pytest.mark.venv_only, pytest.mark.timeout(60)]
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
P = {"project": "fakecloud"}


@pytest.fixture(scope="module")
def compute() -> Any:
    return importlib.import_module("google.cloud.compute_v1")


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[FakeGce]:
    with serving(tmp_path, signed=True) as new:
        yield new


def transport_of() -> Any:
    return importlib.import_module("google.auth.transport.requests").Request()


def account_of(cloud: FakeGce) -> Any:
    found = importlib.import_module("google.oauth2.service_account").Credentials
    return found.from_service_account_file(str(cloud.credentials["service_account"]),
                                           scopes=[SCOPE])


class Clients:
    """Of one service each, over plain HTTP."""

    def __init__(self, compute: Any, cloud: FakeGce, credentials: Any = None) -> None:
        self._compute, self._host = compute, cloud.url.removeprefix("http://")
        self._credentials = credentials or account_of(cloud)

    def _transport(self, kind: Any) -> Any:
        return kind.get_transport_class("rest")(
            credentials=self._credentials, host=self._host, url_scheme="http")

    def __getattr__(self, name: str) -> Any:
        kind = getattr(self._compute, name + "Client")
        transport = self._transport(kind)
        services = getattr(transport, "_extended_operations_services", {})
        for scope in ("zone", "region", "global"):     # Else these are asked for by HTTPS.
            one = getattr(self._compute, f"{scope.title()}OperationsClient")
            services[f"{scope}_operations"] = one(transport=self._transport(one))
        return kind(transport=transport)


@pytest.fixture
def clients(compute: Any, cloud: FakeGce) -> Clients:
    return Clients(compute, cloud)


def template(compute: Any, script: str = "exec sleep 1000", **more: Any) -> Any:
    disk = compute.AttachedDisk(boot=True, auto_delete=True, initialize_params={
        "source_image": IMAGE, "disk_size_gb": 20})
    return compute.InstanceProperties(**{
        "machine_type": "e2-standard-2", "disks": [disk],
        "network_interfaces": [{"network": "global/networks/default"}],
        "labels": {"troupe-cluster": "a"},
        "metadata": {"items": [{"key": "startup-script", "value": script}]},
        "scheduling": {"provisioning_model": "SPOT", "instance_termination_action": "DELETE"},
        **more})


def bulk(compute: Any, count: int = 3, **more: Any) -> dict[str, Any]:
    return {**P, "region": "us-central1", "bulk_insert_instance_resource_resource": {
        "count": count, "name_pattern": "vm-##", "instance_properties": template(compute),
        "location_policy": {"target_shape": "ANY"}, **more}}


def names(clients: Clients, wanted: str = "") -> dict[str, str]:
    found = clients.Instances.aggregated_list(request={
        **P, "filter": wanted, "max_results": 2})
    return {one.name: one.status for _, scope in found for one in scope.instances}


def errors() -> Any:
    return importlib.import_module("google.api_core.exceptions")


def test_bulk_insertion_to_deletion(compute: Any, cloud: FakeGce, clients: Clients) -> None:
    going = clients.RegionInstances.bulk_insert(request=bulk(
        compute, min_count=1, location_policy={"target_shape": "BALANCED", "locations": {
            f"zones/{zone}": {"preference": "ALLOW"} for zone in (A, B)}}))
    going.result(timeout=20, retry=None)
    places = going._extended_operation.instances_bulk_insert_operation_metadata
    assert {zone: one.created_vm_count for zone, one in places.per_location_status.items()} == {
        f"zones/{A}": 2, f"zones/{B}": 1}
    assert names(clients, "labels.troupe-cluster=a") == {
        f"vm-{number:02d}": "RUNNING" for number in (1, 2, 3)}
    assert names(clients, "labels.troupe-cluster=b") == {}
    one = clients.Instances.get(request={**P, "zone": A, "instance": "vm-01"})
    assert one.machine_type.endswith(f"zones/{A}/machineTypes/e2-standard-2")
    assert one.scheduling.provisioning_model == "SPOT" and one.disks[0].disk_size_gb == 20
    assert one.network_interfaces[0].network_i_p.startswith("127.")
    ended = clients.Instances.delete(request={**P, "zone": A, "instance": "vm-01"})
    ended.result(timeout=20)
    assert sorted(names(clients)) == ["vm-02", "vm-03"]
    with pytest.raises(errors().NotFound):
        clients.Instances.get(request={**P, "zone": A, "instance": "vm-01"})
    kinds = [each.operation_type for each in clients.ZoneOperations.list(request={
        **P, "zone": A, "filter": "operationType=delete"})]
    assert kinds == ["delete"]


def test_templates_and_single_instances(compute: Any, clients: Clients) -> None:
    made = clients.InstanceTemplates.insert(request={**P, "instance_template_resource": {
        "name": "node", "properties": template(compute)}})
    made.result(timeout=20)
    link = clients.InstanceTemplates.get(request={**P, "instance_template": "node"}).self_link
    going = clients.Instances.insert(request={
        **P, "zone": A, "instance_resource": {"name": "one"}, "source_instance_template": link})
    going.result(timeout=20)
    assert names(clients) == {"one": "RUNNING"}
    shown = clients.Instances.get(request={**P, "zone": A, "instance": "one"})
    clients.Instances.set_labels(request={
        **P, "zone": A, "instance": "one", "instances_set_labels_request_resource": {
            "labels": {"a": "b"}, "label_fingerprint": shown.label_fingerprint}}).result(20)
    assert names(clients, "labels.a=b") == {"one": "RUNNING"}
    with pytest.raises(errors().PreconditionFailed):
        clients.Instances.set_labels(request={
            **P, "zone": A, "instance": "one", "instances_set_labels_request_resource": {
                "labels": {}, "label_fingerprint": shown.label_fingerprint}})
    clients.Instances.stop(request={**P, "zone": A, "instance": "one"}).result(20)
    assert names(clients, "status=TERMINATED") == {"one": "TERMINATED"}
    clients.InstanceTemplates.delete(request={**P, "instance_template": "node"}).result(20)
    assert list(clients.InstanceTemplates.list(request=P)) == []


def test_a_console(compute: Any, clients: Clients) -> None:
    clients.RegionInstances.bulk_insert(request=bulk(
        compute, 1, instance_properties=template(compute, "echo hello"))).result(20)

    def console() -> bool:
        return "hello" in clients.Instances.get_serial_port_output(request={
            **P, "zone": A, "instance": "vm-01"}).contents
    until(console, True, 10)


def test_errors_of_operations(compute: Any, cloud: FakeGce, clients: Clients) -> None:
    going = clients.RegionInstances.bulk_insert(request=bulk(compute, 30))
    with pytest.raises(errors().ServiceUnavailable) as caught:
        going.result(timeout=20)
    assert "VM_MIN_COUNT_NOT_REACHED" in str(caught.value)
    codes = [one.code for one in going._extended_operation.error.errors]
    assert codes[1] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" and names(clients) == {}
    cloud.order(do="quota", metric="INSTANCES", limit=0)
    going = clients.Instances.insert(request={**P, "zone": A, "instance_resource": {
        "name": "one", "machine_type": f"zones/{A}/machineTypes/e2-standard-2",
        "disks": template(compute).disks,
        "network_interfaces": template(compute).network_interfaces}})
    with pytest.raises(errors().Forbidden, match="QUOTA_EXCEEDED"):
        going.result(timeout=20)
    detail = going._extended_operation.error.errors[0].error_details[0].quota_info
    assert detail.metric_name == "compute.googleapis.com/instances" and detail.limit == 0


def test_errors_of_requests(compute: Any, cloud: FakeGce, clients: Clients) -> None:
    with pytest.raises(errors().BadRequest, match="does not exist in zone"):
        clients.RegionInstances.bulk_insert(request=bulk(
            compute, instance_properties=template(compute, machine_type="none")))
    with pytest.raises(errors().BadRequest, match="Unknown zone"):
        clients.Instances.get(request={**P, "zone": "x", "instance": "y"})
    cloud.order(do="fault", how="throttle", code=429)
    with pytest.raises(errors().TooManyRequests):
        clients.Zones.list(request=P, retry=None)
    cloud.order(do="fault", how="throttle")
    with pytest.raises(errors().Forbidden, match="Quota exceeded"):
        clients.Zones.list(request=P, retry=None)
    cloud.order(do="fault", how="error")
    with pytest.raises(errors().ServiceUnavailable):
        clients.Zones.list(request=P, retry=None)
    cloud.order(do="deny", permission="compute.zones.*")
    with pytest.raises(errors().Forbidden, match="compute.zones.list"):
        clients.Zones.list(request=P)


def test_the_same_request_twice(compute: Any, clients: Clients) -> None:
    asked = {**bulk(compute, 2), "request_id": ID.format(9)}
    first, again = (clients.RegionInstances.bulk_insert(request=asked) for _ in range(2))
    assert first.name == again.name
    again.result(timeout=20)
    assert len(names(clients)) == 2


def test_a_zone_that_does_not_answer(cloud: FakeGce, clients: Clients) -> None:
    cloud.order(do="unreachable", zone=B)
    with pytest.raises(errors().ServiceUnavailable):
        list(clients.Instances.aggregated_list(request=P, retry=None))


def test_what_is_read(clients: Clients) -> None:
    assert clients.Projects.get(request=P).name == "fakecloud"
    type_ = clients.MachineTypes.get(request={**P, "zone": A, "machine_type": "e2-standard-2"})
    assert (type_.guest_cpus, type_.memory_mb) == (2, 8192)
    image = clients.Images.get_from_family(request={
        "project": "debian-cloud", "family": "debian-12"})
    assert image.name.startswith("debian-12-bookworm")
    quotas = clients.Regions.get(request={**P, "region": "us-central1"}).quotas
    assert {one.metric for one in quotas} >= {"CPUS", "PREEMPTIBLE_CPUS", "INSTANCES"}


def use(compute: Any, cloud: FakeGce, credentials: Any) -> str:
    """Who the cloud says has asked."""
    credentials.refresh(transport_of())
    list(Clients(compute, cloud, credentials).Zones.list(request=P))
    return str(cloud.do(lambda: cloud.journal[-1]["user"]))


def test_a_service_account(compute: Any, cloud: FakeGce, clients: Clients) -> None:
    credentials = account_of(cloud)
    assert use(compute, cloud, credentials) == cloud.tokens.account
    before = credentials.token
    cloud.order(do="expire")
    list(Clients(compute, cloud, credentials).Zones.list(request=P))    # Asks for another one.
    assert credentials.token != before
    cloud.order(do="refuse_tokens", grant="service_account")
    with pytest.raises(importlib.import_module("google.auth.exceptions").RefreshError):
        credentials.refresh(transport_of())
    keys = importlib.import_module("fakecloud.gce.keys").AccountKey()
    body = {**json.loads(cloud.credentials["service_account"].read_text()),
            "private_key": keys.pem}
    forged = importlib.import_module("google.oauth2.service_account").Credentials
    with pytest.raises(importlib.import_module("google.auth.exceptions").RefreshError,
                       match="Invalid JWT Signature"):
        forged.from_service_account_info(body, scopes=[SCOPE]).refresh(transport_of())


def test_a_user(compute: Any, cloud: FakeGce) -> None:
    body = json.loads(cloud.credentials["authorized_user"].read_text())
    found = importlib.import_module("google.oauth2.credentials").Credentials(
        None, body["refresh_token"], token_uri=body["token_uri"], client_id=body["client_id"],
        client_secret=body["client_secret"])
    assert use(compute, cloud, found) == "someone@example.com"


@pytest.mark.parametrize("kind", ["external_account", "external_account_impersonated"])
def test_a_federated_identity(compute: Any, cloud: FakeGce, kind: str) -> None:
    body = json.loads(cloud.credentials[kind].read_text())
    found = importlib.import_module("google.auth.identity_pool").Credentials.from_info(
        body, scopes=[SCOPE])
    assert use(compute, cloud, found) == (
        cloud.tokens.federated if kind == "external_account" else cloud.tokens.account)


def test_the_metadata_server(cloud: FakeGce) -> None:
    """In a process of its own: the library reads the address when it is imported."""
    program = ("import google.auth, google.auth.transport.requests as r\n"
               "found, project = google.auth.default()\n"
               "found.refresh(r.Request())\n"
               "print(type(found).__name__, project, found.service_account_email, found.token)\n")
    env = {key: value for key, value in {**os.environ, **cloud.environment()}.items()
           if key not in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "HOME")}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True,
                          text=True, timeout=40, env={**env, "CLOUDSDK_CONFIG": "/nowhere"})
    assert done.returncode == 0, done.stderr
    kind, project, email, token = done.stdout.split()
    assert (kind, project) == ("Credentials", "fakecloud") and email.startswith("123456789012-")
    assert cloud.do(lambda: cloud.tokens.user_of(token)) == email


def test_the_schema_is_that_of_the_library(compute: Any) -> None:
    """All fields that it can send are known, by its names."""
    for name in ("Instance", "BulkInsertInstanceResource", "InstanceProperties", "Scheduling",
                 "InstanceTemplate", "LocationPolicy", "AttachedDiskInitializeParams"):
        kind = getattr(compute, name)
        fields = {one.json_name for one in kind.pb(kind()).DESCRIPTOR.fields}
        assert fields == set(schema.messages()[name])
