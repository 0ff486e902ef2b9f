"""A fake Compute Engine for tests: under a virtual clock without a process, or over the wire."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlencode, urlsplit

import pytest

from fakecloud.gce import api
from fakecloud.gce.admin import Admin
from fakecloud.gce.api import Api, Waiting
from fakecloud.gce.catalog import GCE
from fakecloud.gce.cloud import Cloud
from fakecloud.gce.errors import GceError
from fakecloud.gce.faults import Faults
from fakecloud.gce.service import FakeGce
from fakecloud.gce.settings import Settings
from fakecloud.gce.tokens import Tokens
from fakecloud.markets import Market, MarketFile, Pool
from fakecloud.service import Request
from fakecloud.traces import Point
from processes import MARK, until

START_S = 1_700_000_000.0
CALM: dict[str, Any] = {"launch_s": 10, "lag_s": 0, "shutdown_s": 5, "pending_s": 1,
                        "operation_s": 2, "refuse_s": 4, "rollback_s": 3}
QUICK: dict[str, Any] = {"launch_s": 0, "lag_s": 0, "shutdown_s": 0.2, "pending_s": 0,
                         "operation_s": 0, "refuse_s": 0, "rollback_s": 0}
IMAGE = "projects/debian-cloud/global/images/family/debian-12"
A, B, C = "us-central1-a", "us-central1-b", "us-central1-c"
REGION = "regions/us-central1/instances/bulkInsert"
ID = "8f2b1c3e-7a51-4f0e-9a56-2f7c1d0e4b{:02x}"
Object = dict[str, Any]


def pools(offers: Optional[dict[str, list[Point]]] = None) -> MarketFile:
    offers = offers or {f"{A}/e2-standard-2": [Point(0, 4, 0.03)],
                        f"{B}/e2-standard-2": [Point(0, 2, 0.02)],
                        f"{B}/n2-standard-4": [Point(0, 3, 0.05)],
                        "europe-west4-a/e2-standard-2": [Point(0, 9, 0.01)]}
    made = [Pool(name.partition("/")[0], GCE.types[name.partition("/")[2]], points)
            for name, points in offers.items()]
    return MarketFile(Market(made, GCE), {})


def properties(script: str = "", type_: str = "e2-standard-2", spot: bool = True,
               **more: Any) -> Object:
    body: Object = {
        "machineType": type_, "disks": [{"boot": True, "autoDelete": True, "initializeParams": {
            "sourceImage": IMAGE}}], "networkInterfaces": [{"network": "global/networks/default"}]}
    if spot:
        body["scheduling"] = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
    if script:
        body["metadata"] = {"items": [{"key": "startup-script", "value": script}]}
    return {**body, **more}


def instance(name: str = "vm", zone: str = A, type_: str = "e2-standard-2", **more: Any) -> Object:
    return {"name": name, **properties(type_=f"zones/{zone}/machineTypes/{type_}", **more)}


def bulk(count: int = 1, pattern: str = "vm-##", least: Optional[int] = None, shape: str = "",
         locations: Optional[Object] = None, flexible: Optional[Object] = None,
         **more: Any) -> Object:
    body: Object = {"count": str(count), "namePattern": pattern,
                    "instanceProperties": properties(**more)}
    if least is not None:
        body["minCount"] = str(least)
    if shape or locations:
        body["locationPolicy"] = {**({"targetShape": shape} if shape else {}),
                                  **({"locations": locations} if locations else {})}
    if flexible:
        body["instanceFlexibilityPolicy"] = {"instanceSelections": flexible}
    return body


class World:
    """A cloud, and its API without a socket."""

    def __init__(self, offers: Optional[dict[str, list[Point]]] = None, seed: int = 7,
                 **settings: Any) -> None:
        read = Settings()
        read.update({**CALM, **settings}, "settings")
        self.cloud = Cloud(pools(offers).market, read, seed, START_S)
        self.tokens = Tokens(read.project, seed)
        self.faults = Faults(self.cloud.rng.random)
        self.admin = Admin(self.cloud, self.tokens, self.faults)
        self.api = Api(self.cloud, self.tokens)
        self.token = self.tokens.issue(self.tokens.account, START_S, 1e9).text

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> Request:
        headers = Message()
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = body if isinstance(body, bytes) else b"" if body is None else (
            json.dumps(body).encode())
        path = f"{api.ROOT}projects/fakecloud/{path}".rstrip("/")
        return Request(method, path, urlencode(query), headers, data)

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Object:
        made = self.api.answer(self.request(method, path, body, **query))
        if isinstance(made, Waiting):
            return made.operation.as_json()
        found: Object = json.loads(made.body) if made.body else {}
        return found

    def get(self, path: str, **query: Any) -> Object:
        return self.ask("GET", path, **query)

    def refused(self, code: int, reason: str, method: str, path: str, body: Any = None,
                **query: Any) -> str:
        """The message."""
        with pytest.raises(GceError) as caught:
            self.ask(method, path, body, **query)
        error = caught.value.as_json()["error"]
        assert (error["code"], error["errors"][0]["reason"]) == (code, reason), error
        return str(error["message"])

    def after(self, seconds: float) -> None:
        self.cloud.advance(self.cloud.now_s + seconds)

    def order(self, **body: Any) -> None:
        self.admin.obey(body)

    def insert(self, name: str = "vm", zone: str = A, **more: Any) -> Object:
        return self.ask("POST", f"zones/{zone}/instances", instance(name, zone, **more))

    def bulk(self, path: str = REGION, **more: Any) -> Object:
        return self.ask("POST", path, bulk(**more))

    def again(self, operation: Object) -> Object:
        """As it is now."""
        return self.get(operation["selfLink"].partition("/projects/fakecloud/")[2])

    def status(self) -> dict[str, str]:
        return {one.spec.name: one.status for one in self.cloud.instances.values()}

    def zones(self) -> list[str]:
        """One letter for each instance."""
        return sorted(one.zone[-1] for one in self.cloud.instances.values())

    def effects(self) -> list[str]:
        return [one.do for one in self.cloud.take_effects()]

    def events(self, kind: str = "") -> list[Object]:
        """Operations of the system."""
        return [one.as_json() for one in self.cloud.operations.values()
                if one.user == "system" and kind in one.kind]


class Client:
    """One connection, kept alive."""

    def __init__(self, cloud: FakeGce) -> None:
        self.cloud, self.token = cloud, cloud.token()
        self._connection = http.client.HTTPConnection(urlsplit(cloud.url).netloc, timeout=20)

    def raw(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        self._connection.request(method, f"{api.ROOT}projects/fakecloud/{path}",
                                 None if body is None else json.dumps(body).encode(),
                                 {"Authorization": f"Bearer {self.token}"})
        reply = self._connection.getresponse()
        return reply.status, reply.read()

    def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Object:
        got, text = self.raw(method, path, body)
        assert got == status, text
        found: Object = json.loads(text)
        return found

    def run(self, script: str, name: str = "vm", **more: Any) -> Object:
        """The instance, when it is RUNNING."""
        operation = self.ask("POST", f"zones/{A}/instances", instance(name, script=script, **more))
        assert "error" not in self.wait(operation)
        return self.ask("GET", f"zones/{A}/instances/{name}")

    def wait(self, operation: Object) -> Object:
        path = operation["selfLink"].partition("/projects/fakecloud/")[2]
        done = self.ask("POST", f"{path}/wait")
        assert done["status"] == "DONE"
        return done

    def statuses(self) -> dict[str, str]:
        found = self.ask("GET", "aggregated/instances")["items"]
        return {one["name"]: one["status"] for scope in found.values()
                for one in scope.get("instances", [])}

    def console(self, name: str = "vm") -> str:
        return str(self.ask("GET", f"zones/{A}/instances/{name}/serialPort")["contents"])

    def says(self, text: str, name: str = "vm") -> None:
        """Waits until the console has the text."""
        until(lambda: text in self.console(name), True, 10)


@contextlib.contextmanager
def serving(folder: Path, mark: str = "", signed: bool = False,
            **settings: Any) -> Iterator[FakeGce]:
    """Ends with nothing left in the folder."""
    more = {**QUICK, **settings}
    if mark:
        more["environment"] = {MARK: mark, **more.get("environment", {})}
    with FakeGce(pools(), more, folder=folder, signed=signed) as cloud:
        yield cloud
    assert list(folder.iterdir()) == []
