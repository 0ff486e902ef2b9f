"""One instance: what it was asked for, and its states. Times are of the wall clock."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.catalogs import InstanceType
from fakecloud.gce import catalog
from fakecloud.gce.operations import BASE, Operation, stamp

ALIVE = ("PROVISIONING", "STAGING", "RUNNING")


def fingerprint(value: Any) -> str:
    text = json.dumps(value, sort_keys=True).encode()
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()[:8]).decode()


@dataclass(frozen=True)
class Spec:
    """``shape``: the offer of the market, a machine type with accelerators beside it."""

    name: str
    zone: str
    project: str
    shape: InstanceType
    image: str
    network: str
    subnetwork: str = ""
    external: bool = False
    spot: bool = False
    legacy: bool = False            # ``preemptible`` without a provisioning model.
    on_end: str = "STOP"            # instanceTerminationAction.
    restarts: bool = True
    on_maintenance: str = "MIGRATE"
    notice_s: float = 0.0           # preemptionNoticeDuration.
    labels: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    account: str = ""
    scopes: tuple[str, ...] = ()
    disk_gb: int = 10
    disk_type: str = "pd-balanced"
    description: str = ""
    template: str = ""

    @property
    def type_name(self) -> str:
        return self.shape.name.partition("+")[0]

    @property
    def region(self) -> str:
        return catalog.region_of(self.zone)

    @property
    def path(self) -> str:
        return f"projects/{self.project}/zones/{self.zone}/instances/{self.name}"


@dataclass
class Instance:
    id: str
    spec: Spec
    made_s: float
    visible_s: float                # Before that lists do not show it.
    address: str
    number: int
    status: str = "PROVISIONING"
    labels: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    preempted: bool = False         # What its metadata says.
    maintenance: str = "NONE"
    doomed: bool = False            # Its place is given away already.
    reason: str = ""
    deadline_s: Optional[float] = None
    started_s: Optional[float] = None
    stopped_s: Optional[float] = None
    group: str = ""                 # Of the operation that has made it.
    launch: int = 0                 # Which start this is.
    # Done when it has ended, and those with True when it has been deleted.
    awaited: list[tuple[Operation, bool]] = field(default_factory=list)

    @property
    def zone(self) -> str:
        return self.spec.zone

    @property
    def market(self) -> str:
        return "spot" if self.spec.spot else "on_demand"

    @property
    def alive(self) -> bool:
        return self.status in ALIVE

    @property
    def key(self) -> tuple[str, str]:
        return self.spec.zone, self.spec.name

    def holds_place(self) -> bool:
        return self.alive and not self.doomed

    def label_print(self) -> str:
        return fingerprint(self.labels)

    def metadata_print(self) -> str:
        return fingerprint(self.metadata)

    def tag_print(self) -> str:
        return fingerprint(list(self.tags))

    def _scheduling(self) -> dict[str, Any]:
        spec = self.spec
        found: dict[str, Any] = {
            "onHostMaintenance": spec.on_maintenance, "automaticRestart": spec.restarts,
            "preemptible": spec.spot,
            "provisioningModel": "SPOT" if spec.spot and not spec.legacy else "STANDARD"}
        if spec.spot and not spec.legacy:
            found["instanceTerminationAction"] = spec.on_end
        if spec.notice_s:
            found["preemptionNoticeDuration"] = {"seconds": str(int(spec.notice_s))}
        return found

    def _interface(self) -> dict[str, Any]:
        spec = self.spec
        found: dict[str, Any] = {
            "kind": "compute#networkInterface", "network": BASE + spec.network,
            "subnetwork": BASE + spec.subnetwork, "networkIP": self.address, "name": "nic0",
            "fingerprint": fingerprint(self.id), "stackType": "IPV4_ONLY"}
        if spec.external:
            found["accessConfigs"] = [{
                "kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "name": "external-nat",
                "natIP": f"203.0.113.{self.number % 250 + 1}", "networkTier": "PREMIUM"}]
        return found

    def as_json(self) -> dict[str, Any]:
        spec = self.spec
        prefix = f"{BASE}projects/{spec.project}/zones/{spec.zone}"
        body: dict[str, Any] = {
            "kind": "compute#instance", "id": self.id,
            "creationTimestamp": stamp(self.made_s), "name": spec.name,
            "description": spec.description,
            "tags": {**({"items": list(self.tags)} if self.tags else {}),
                     "fingerprint": self.tag_print()},
            "machineType": f"{prefix}/machineTypes/{spec.type_name}", "status": self.status,
            "zone": prefix, "canIpForward": False, "networkInterfaces": [self._interface()],
            "disks": [{
                "kind": "compute#attachedDisk", "type": "PERSISTENT", "mode": "READ_WRITE",
                "source": f"{prefix}/disks/{spec.name}", "deviceName": "persistent-disk-0",
                "index": 0, "boot": True, "autoDelete": True, "interface": "SCSI",
                "diskSizeGb": str(spec.disk_gb), "architecture": "X86_64"}],
            "metadata": {"kind": "compute#metadata", "fingerprint": self.metadata_print()},
            "selfLink": BASE + spec.path, "scheduling": self._scheduling(),
            "cpuPlatform": "Intel Broadwell", "labelFingerprint": self.label_print(),
            "startRestricted": False, "deletionProtection": False,
            "fingerprint": fingerprint([self.id, self.status])}
        if self.metadata:
            body["metadata"]["items"] = [{"key": key, "value": value}
                                         for key, value in self.metadata.items()]
        if self.labels:
            body["labels"] = dict(self.labels)
        if spec.account:
            body["serviceAccounts"] = [{"email": spec.account, "scopes": list(spec.scopes)}]
        accelerators = spec.shape.name.split("+")[1:]
        if accelerators:
            model, _, count = accelerators[0].rpartition("x")
            body["guestAccelerators"] = [{
                "acceleratorType": f"{prefix}/acceleratorTypes/nvidia-tesla-{model}",
                "acceleratorCount": int(count)}]
        if self.started_s is not None:
            body["lastStartTimestamp"] = stamp(self.started_s)
        if self.stopped_s is not None:
            body["lastStopTimestamp"] = stamp(self.stopped_s)
        return body
