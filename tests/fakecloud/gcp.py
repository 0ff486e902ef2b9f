"""The metadata server of Google Compute Engine.

Source: Compute Engine documentation, "About VM metadata", "Query metadata" (wait for change),
"Spot VMs: detect preemption", "Monitor maintenance events".
"""

from __future__ import annotations

import hashlib
from urllib.parse import parse_qs

from fakecloud.service import MetadataService, Reply, Request

ROOT = "/computeMetadata/v1/instance/"
FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}


class GcpMetadata(MetadataService):
    """See :class:`fakecloud.service.MetadataService`."""

    name = "gcp"

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(host, port)
        self._values = {"preempted": "FALSE", "maintenance-event": "NONE", "id": "4711",
                        "name": "vm0", "zone": "projects/1/zones/us-central1-a",
                        "machine-type": "projects/1/machineTypes/n1-standard-4",
                        "scheduling/preemptible": "TRUE"}

    def _set(self, name: str, value: str) -> None:
        with self._changed:
            self._values[name] = value
            self._changed.notify_all()

    def interrupt(self, lead_s: float = 30.0) -> None:
        """Its lead is 30 s, whatever ``lead_s`` says: the value tells no time."""
        self._set("preempted", "TRUE")

    def maintain(self, terminate: bool = True) -> None:
        """Its host is maintained in a minute; it ends then, or is moved."""
        what = "TERMINATE" if terminate else "MIGRATE"
        self._set("maintenance-event", f"{what}_ON_HOST_MAINTENANCE")

    def calm(self) -> None:
        self._set("preempted", "FALSE")
        self._set("maintenance-event", "NONE")

    def answer(self, request: Request) -> Reply:
        if request.headers.get("Metadata-Flavor") != "Google":
            return Reply(403, "Missing Metadata-Flavor:Google header.\n", dict(FLAVOR))
        if "X-Forwarded-For" in request.headers:
            return Reply(403, "", dict(FLAVOR))
        name = request.path.removeprefix(ROOT)
        if request.method != "GET" or name == request.path or name not in self._values:
            return Reply(404, "", dict(FLAVOR))
        query = {key: values[-1] for key, values in parse_qs(request.query).items()}
        if query.get("wait_for_change") == "true":
            self._wait(name, query)
        value = self._values[name]
        return Reply(200, value, {**FLAVOR, "ETag": self._etag(name),
                                  "Content-Type": "application/text"})

    def _etag(self, name: str) -> str:
        return hashlib.sha256(f"{name}={self._values[name]}".encode()).hexdigest()[:16]

    def _wait(self, name: str, query: dict[str, str]) -> None:
        """Until the value is another one than the caller knows."""
        known = query.get("last_etag") or self._etag(name)
        limit_s = min(3600.0, float(query.get("timeout_sec", "3600")))
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or bool(self._broken) or self._etag(name) != known, limit_s)
