"""Scheduled events of Azure, and the part of the instance metadata that tells a machine's name.

Source: Azure documentation, "Azure Metadata Service: Scheduled Events for Linux VMs".
"""

from __future__ import annotations

import email.utils
import json
import uuid
from typing import Any, Optional
from urllib.parse import parse_qs

from fakecloud.service import MetadataService, Reply, Request

EVENTS_PATH, COMPUTE_PATH = "/metadata/scheduledevents", "/metadata/instance/compute"
EVENTS_VERSIONS = ("2019-08-01", "2020-07-01")


class AzureMetadata(MetadataService):
    """See :class:`fakecloud.service.MetadataService`. The machine is called ``vm0``."""

    name = "azure"

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(host, port)
        self._incarnation = 1
        self._events: list[dict[str, Any]] = []
        self.started: list[str] = []  # The ids that were acknowledged.

    def _put(self, events: list[dict[str, Any]]) -> None:
        with self._changed:
            self._events = events
            self._incarnation += 1

    def schedule(self, type_: str, lead_s: float, resources: Optional[list[str]] = None) -> str:
        """Announces an event; its id."""
        event_id = str(uuid.uuid4()).upper()
        self._put([*self._events, {
            "EventId": event_id, "EventType": type_, "ResourceType": "VirtualMachine",
            "Resources": resources or ["vm0"], "EventStatus": "Scheduled",
            "NotBefore": email.utils.formatdate(self.now() + lead_s, usegmt=True),
            "Description": "", "EventSource": "Platform", "DurationInSeconds": -1}])
        return event_id

    def interrupt(self, lead_s: float = 30.0, resources: Optional[list[str]] = None) -> None:
        self.schedule("Preempt", lead_s, resources)

    def maintain(self, lead_s: float = 900.0) -> None:
        """It is restarted after so many seconds."""
        self.schedule("Reboot", lead_s)

    def calm(self) -> None:
        self._put([])

    def answer(self, request: Request) -> Reply:
        version = parse_qs(request.query).get("api-version", [""])[-1]
        if request.headers.get("Metadata", "").lower() != "true" or (
                "X-Forwarded-For" in request.headers):
            return _refuse("Bad request. Required metadata header not specified")
        if request.path == COMPUTE_PATH and request.method == "GET" and version:
            return _json({"name": "vm0", "vmId": str(uuid.UUID(int=1)), "location": "westeurope"})
        if request.path != EVENTS_PATH:
            return Reply(404)
        if version not in EVENTS_VERSIONS:
            return _refuse("Bad request. api-version is invalid")
        if request.method == "POST":
            return self._start(request.body)
        if request.method != "GET":
            return Reply(405)
        with self._changed:
            return _json({"DocumentIncarnation": self._incarnation, "Events": self._events})

    def _start(self, body: bytes) -> Reply:
        try:
            wanted = [str(one["EventId"]) for one in json.loads(body)["StartRequests"]]
        except (ValueError, KeyError, TypeError):
            return _refuse("Bad request. The body is malformed")
        known = {event["EventId"] for event in self._events}
        if not set(wanted) <= known:
            return _refuse("Bad request. There is no such event")
        self.started += wanted
        self._put([{**event, "EventStatus": "Started", "NotBefore": ""}
                   if event["EventId"] in wanted else event for event in self._events])
        return Reply(200)


def _json(value: Any) -> Reply:
    return Reply(200, json.dumps(value), {"Content-Type": "application/json; charset=utf-8"})


def _refuse(why: str) -> Reply:
    return Reply(400, json.dumps({"error": why}), {"Content-Type": "application/json"})
