"""What was asked for and goes on: of a zone, a region or the whole project."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.gce.errors import HTTP_MESSAGES, OpError

BASE = "https://www.googleapis.com/compute/v1/"


def stamp(now_s: float) -> str:
    """As Compute Engine writes it, in the time of its headquarters."""
    zone = datetime.timezone(datetime.timedelta(hours=-8))
    return datetime.datetime.fromtimestamp(now_s, zone).isoformat(timespec="milliseconds")


@dataclass
class Place:
    """What a bulk insertion has come to in one zone."""

    target: int = 0
    made: int = 0
    deleted: int = 0
    failed: int = 0
    status: str = "CREATING"

    def as_json(self) -> dict[str, Any]:
        counts = {"targetVmCount": self.target, "createdVmCount": self.made,
                  "deletedVmCount": self.deleted, "failedToCreateVmCount": self.failed}
        return {**{key: value for key, value in counts.items() if value}, "status": self.status}


@dataclass
class Operation:
    """``scope``: as in ``zones/us-central1-a``, or ``global``. ``target``: a path."""

    id: str
    name: str
    kind: str
    project: str
    scope: str
    target: str
    user: str
    insert_s: float
    target_id: str = ""
    request_id: str = ""
    group: str = ""
    status: str = "PENDING"
    start_s: Optional[float] = None
    end_s: Optional[float] = None
    progress: int = 0
    message: str = ""
    errors: list[OpError] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    stuck: bool = False             # It never ends.
    forced: Optional[OpError] = None    # It ends so, whatever has come of it.
    undone: bool = False            # What was made is gone again then.
    awaiting: set[str] = field(default_factory=set)     # Instances that still start.
    children: dict[str, Operation] = field(default_factory=dict)    # By their instance.
    least: int = 0
    refusals: list[OpError] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.status == "DONE"

    @property
    def path(self) -> str:
        return f"projects/{self.project}/{self.scope}/operations/{self.name}"

    def as_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "compute#operation", "id": self.id, "name": self.name,
            "operationType": self.kind, "status": self.status, "user": self.user,
            "progress": self.progress, "insertTime": stamp(self.insert_s),
            "selfLink": BASE + self.path}
        where, _, name = self.scope.partition("/")
        if name:
            body[where.removesuffix("s")] = f"{BASE}projects/{self.project}/{self.scope}"
        if self.target:
            body["targetLink"] = BASE + self.target
        for key, value in (("targetId", self.target_id), ("clientOperationId", self.request_id),
                           ("operationGroupId", self.group), ("statusMessage", self.message)):
            if value:
                body[key] = value
        if self.start_s is not None:
            body["startTime"] = stamp(self.start_s)
        if self.end_s is not None:
            body["endTime"] = stamp(self.end_s)
        if self.places:
            body["instancesBulkInsertOperationMetadata"] = {"perLocationStatus": {
                f"zones/{zone}": one.as_json() for zone, one in self.places.items()}}
        if self.done and self.errors:
            body["error"] = {"errors": [one.as_json() for one in self.errors]}
            body["httpErrorStatusCode"] = self.errors[0].http
            body["httpErrorMessage"] = HTTP_MESSAGES.get(self.errors[0].http, "BAD REQUEST")
        return body
