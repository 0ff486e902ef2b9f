"""One instance: what it was launched with, and its states. Times are of the wall clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.ec2 import catalog
from fakecloud.ec2.catalog import InstanceType
from fakecloud.ec2.markup import stamp

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64,
         "stopped": 80}
ACCOUNT = "123456789012"

# Code of a reason -> what the message says after it.
REASONS = {
    "Client.UserInitiatedShutdown": "User initiated shutdown",
    "Client.InstanceInitiatedShutdown": "Instance initiated shutdown",
    "Server.SpotInstanceTermination": "Spot instance termination",
    "Server.InsufficientInstanceCapacity": "Insufficient capacity to satisfy instance request",
    "Server.InternalError": "Internal error",
}


@dataclass(frozen=True)
class LaunchSpec:
    """``user_data`` is base64 as it was sent. ``tags``: by the type of resource."""

    image: str
    type: InstanceType
    zone: str
    spot: bool = False
    max_price: Optional[float] = None
    user_data: str = ""
    tags: dict[str, dict[str, str]] = field(default_factory=dict)
    profile: str = ""           # The role's name.
    terminate_on_shutdown: bool = False
    key_name: str = ""
    groups: tuple[str, ...] = ()
    client_token: str = ""
    template: str = ""
    template_version: int = 0
    fleet: str = ""
    tokens_required: bool = True


@dataclass
class Notice:
    """The end is at ``deadline_s``, unless the instance has another notice, or none, by then."""

    deadline_s: float


@dataclass
class Instance:
    id: str
    reservation: str
    index: int
    spec: LaunchSpec
    launched_s: float
    visible_s: float
    address: str
    number: int                 # In the order of launches.
    spot_request: str = ""
    state: str = "pending"
    reason: str = ""            # Its code.
    transition: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    notice: Optional[Notice] = None
    doomed: bool = False        # Its place is given away already.
    rebalance: bool = False
    began_s: Optional[float] = None  # Of running.

    @property
    def zone(self) -> str:
        return self.spec.zone

    @property
    def region(self) -> str:
        return catalog.region_of(self.spec.zone)

    @property
    def lifecycle(self) -> str:
        return "spot" if self.spec.spot else "on-demand"

    @property
    def market(self) -> str:
        return "spot" if self.spec.spot else "on_demand"

    @property
    def alive(self) -> bool:
        return self.state in ("pending", "running")

    def holds_place(self) -> bool:
        return self.alive and not self.doomed

    def leave(self, state: str, reason: str, now_s: float) -> None:
        """To a state that it does not return from."""
        self.state, self.reason = state, reason
        self.transition = reason
        if reason == "Client.UserInitiatedShutdown":
            when = time.strftime("%Y-%m-%d %H:%M:%S GMT", time.gmtime(now_s))
            self.transition = f"User initiated ({when})"
        elif reason in REASONS:
            self.transition = f"{reason}: {REASONS[reason]}"

    def state_json(self) -> dict[str, Any]:
        return {"code": CODES[self.state], "name": self.state}

    def _reason_json(self) -> Optional[dict[str, Any]]:
        if self.state == "pending":
            return {"code": "pending", "message": "pending"}
        if not self.reason:
            return None
        return {"code": self.reason, "message": f"{self.reason}: {REASONS[self.reason]}"}

    def _identity_json(self) -> dict[str, Any]:
        """What is shown while it has not ended."""
        if self.state == "terminated":
            return {"privateDnsName": "", "dnsName": ""}
        dashed = self.address.replace(".", "-")
        return {"privateDnsName": f"ip-{dashed}.ec2.internal", "dnsName": "",
                "privateIpAddress": self.address, "subnetId": catalog.subnet_of(self.zone),
                "vpcId": "vpc-0123456789abcdef0"}

    def as_xml(self, shift_s: float = 0.0) -> dict[str, Any]:
        """In the order that EC2 has it, more or less; None is left out."""
        spec = self.spec
        profile = {"arn": f"arn:aws:iam::{ACCOUNT}:instance-profile/{spec.profile}",
                   "id": "AIPAFAKECLOUD00000000"} if spec.profile else None
        return {
            "instanceId": self.id, "imageId": spec.image, "instanceState": self.state_json(),
            **self._identity_json(), "reason": self.transition, "keyName": spec.key_name or None,
            "amiLaunchIndex": self.index, "productCodes": [], "instanceType": spec.type.name,
            "launchTime": stamp(self.launched_s + shift_s),
            "placement": {"availabilityZone": self.zone, "groupName": "", "tenancy": "default"},
            "monitoring": {"state": "disabled"}, "stateReason": self._reason_json(),
            "groupSet": [{"groupId": one, "groupName": one} for one in spec.groups],
            "architecture": "x86_64", "rootDeviceType": "ebs", "rootDeviceName": "/dev/xvda",
            "blockDeviceMapping": [], "virtualizationType": "hvm",
            "instanceLifecycle": "spot" if spec.spot else None,
            "spotInstanceRequestId": self.spot_request or None,
            "clientToken": spec.client_token,
            "tagSet": [{"key": key, "value": value} for key, value in sorted(self.tags.items())]
            or None,
            "hypervisor": "xen", "iamInstanceProfile": profile, "ebsOptimized": False,
            "metadataOptions": {"state": "applied", "httpPutResponseHopLimit": 2,
                                "httpTokens": "required", "httpEndpoint": "enabled"}}
