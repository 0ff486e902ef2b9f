"""Compute Engine's API, v1: which method a request means, who may ask for it, and what it does."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional, Union
from urllib.parse import parse_qsl, unquote

from fakecloud.gce import catalog, launching, lists, resources, schema, specs
from fakecloud.gce.cloud import Cloud
from fakecloud.gce.errors import GceError, bad_request, invalid, not_found, throttled
from fakecloud.gce.guards import Rates
from fakecloud.gce.instances import Instance
from fakecloud.gce.operations import Operation
from fakecloud.gce.tokens import Token, Tokens
from fakecloud.service import Reply, Request

ROOT = "/compute/v1/"
REQUESTS_MAX = 20_000   # Request ids that are remembered.
CONSOLE_MAX = 1 << 20
# Names in a query: of all methods, of lists, and of some methods beside these.
COMMON = {"alt", "$alt", "fields", "key", "prettyPrint", "quotaUser", "userIp"}
LISTS = {"filter", "maxResults", "orderBy", "pageToken", "returnPartialSuccess",
         "includeAllScopes", "serviceProjectNumber"}
QUERY = {"instances.insert": {"sourceInstanceTemplate", "sourceMachineImage"},
         "instances.stop": {"discardLocalSsd", "noGracefulShutdown"},
         "instances.delete": {"noGracefulShutdown"},
         "instances.simulateMaintenanceEvent": {"withExtendedNotifications"},
         "instances.getSerialPortOutput": {"port", "start"}}


@dataclass
class Waiting:
    """The operation is answered when it is done, or after so long."""

    operation: Operation
    limit_s: float


@dataclass
class Call:
    method: str                     # As in instances.insert.
    parts: dict[str, str]           # Of the path.
    query: dict[str, str]
    body: Any
    token: Token
    path: str = ""                  # Without the root.

    def part(self, name: str) -> str:
        return self.parts[name]


@dataclass(frozen=True)
class Route:
    verb: str
    pattern: re.Pattern[str]
    method: str
    permission: str
    changes: bool = False


def _route(verb: str, path: str, method: str, permission: str = "") -> Route:
    """``{name}`` is one part of the path; what changes something says so by its verb."""
    regex = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
    changes = verb != "GET" and not method.endswith(".wait")
    return Route(verb, re.compile(f"projects/(?P<project>[^/]+){regex}"), method,
                 "compute." + (permission or method), changes)


_I, _Z = "/zones/{zone}/instances", "/zones/{zone}"
_SCOPES = (("zoneOperations", "/zones/{zone}"), ("regionOperations", "/regions/{region}"),
           ("globalOperations", "/global"))
ROUTES = [
    _route("GET", "", "projects.get"),
    _route("GET", "/zones", "zones.list"), _route("GET", _Z, "zones.get"),
    _route("GET", "/regions", "regions.list"), _route("GET", "/regions/{region}", "regions.get"),
    _route("GET", _Z + "/machineTypes", "machineTypes.list"),
    _route("GET", _Z + "/machineTypes/{name}", "machineTypes.get"),
    _route("GET", "/aggregated/machineTypes", "machineTypes.aggregatedList", "machineTypes.list"),
    _route("GET", "/global/images", "images.list"),
    _route("GET", "/global/images/family/{name}", "images.getFromFamily"),
    _route("GET", "/global/images/{name}", "images.get"),
    _route("GET", "/global/networks", "networks.list"),
    _route("GET", "/global/networks/{name}", "networks.get"),
    _route("GET", "/global/instanceTemplates", "instanceTemplates.list"),
    _route("POST", "/global/instanceTemplates", "instanceTemplates.insert",
           "instanceTemplates.create"),
    _route("GET", "/global/instanceTemplates/{name}", "instanceTemplates.get"),
    _route("DELETE", "/global/instanceTemplates/{name}", "instanceTemplates.delete"),
    _route("GET", "/aggregated/instances", "instances.aggregatedList", "instances.list"),
    _route("GET", _I, "instances.list"),
    _route("POST", _I, "instances.insert", "instances.create"),
    _route("POST", _I + "/bulkInsert", "instances.bulkInsert", "instances.create"),
    _route("POST", "/regions/{region}/instances/bulkInsert", "regionInstances.bulkInsert",
           "instances.create"),
    _route("GET", _I + "/{name}", "instances.get"),
    _route("DELETE", _I + "/{name}", "instances.delete"),
    _route("GET", _I + "/{name}/serialPort", "instances.getSerialPortOutput"),
    *[_route("POST", f"{_I}/{{name}}/{verb}", f"instances.{verb}") for verb in (
        "start", "stop", "setLabels", "setMetadata", "setTags", "simulateMaintenanceEvent")],
    _route("GET", "/aggregated/operations", "globalOperations.aggregatedList",
           "globalOperations.list"),
    *[one for kind, scope in _SCOPES for one in (
        _route("GET", f"{scope}/operations", f"{kind}.list"),
        _route("GET", f"{scope}/operations/{{name}}", f"{kind}.get"),
        _route("DELETE", f"{scope}/operations/{{name}}", f"{kind}.delete"),
        _route("POST", f"{scope}/operations/{{name}}/wait", f"{kind}.wait", f"{kind}.get"))],
]
Answer = Union[dict[str, Any], Operation, Waiting, None]


def find(verb: str, path: str) -> tuple[Optional[Route], dict[str, str]]:
    """``path``: without the root."""
    for one in ROUTES:
        match = one.pattern.fullmatch(path)
        if match is not None and one.verb == verb:
            return one, {key: unquote(value) for key, value in match.groupdict().items()}
    return None, {}


def check_query(route: Route, query: dict[str, str]) -> None:
    """Raises GceError for what the method does not know."""
    known = {*COMMON, *QUERY.get(route.method, ())}
    if route.method.lower().endswith("list"):
        known |= LISTS
    elif route.changes and not route.method.endswith("Operations.delete"):
        known.add("requestId")
    for name in query:
        if name not in known:
            raise bad_request(f'Invalid JSON payload received. Unknown name "{name[:80]}": Cannot '
                              "bind query parameter. Field could not be found in request message.")


@dataclass
class Once:
    """Request ids: what comes again has the operation that the first one has begun."""

    known: OrderedDict[tuple[str, str], tuple[str, Operation]] = field(
        default_factory=OrderedDict)

    def run(self, call: Call, make: Callable[[], Answer]) -> Answer:
        id_ = call.query.get("requestId", "")
        if not id_:
            return make()
        try:
            good = str(uuid.UUID(id_)) == id_.lower() and int(uuid.UUID(id_)) != 0
        except ValueError:
            good = False
        if not good:
            raise invalid("requestId", id_, "The request id must be a UUID that is not zero.")
        text = json.dumps([call.method, call.parts, call.body], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        key = (call.part("project"), id_.lower())
        if key in self.known:
            before, operation = self.known[key]
            if before != digest:
                raise invalid("requestId", id_, "Another request has had this id.")
            return operation
        made = make()
        if isinstance(made, Operation):
            made.request_id = id_
            self.known[key] = digest, made
            while len(self.known) > REQUESTS_MAX:
                self.known.popitem(last=False)
        return made


class Api:
    def __init__(self, cloud: Cloud, tokens: Tokens) -> None:
        self.cloud, self.tokens, self.once, self.rates = cloud, tokens, Once(), Rates()

    def answer(self, request: Request) -> Union[Reply, Waiting]:
        """Raises GceError."""
        cloud = self.cloud
        path = request.path.removeprefix(ROOT)
        route, parts = find(request.method, path)
        token = self.tokens.whose(request.headers.get("Authorization"), cloud.now_s)
        if route is None:
            raise GceError(404, "notFound", "The requested URL was not found on this server.")
        if not self.rates.take(route.method, cloud.settings.throttle, cloud.now_s):
            raise throttled(403, route.method)
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        check_query(route, query)
        call = Call(route.method, parts, query, self._body(request), token, path)
        self._check_place(call)
        self.tokens.check(token, route.permission, path)
        handler = getattr(self, "_" + route.method.replace(".", "_"), None) or (
            lambda call: resources.read(cloud, call.method, call.parts, call.path, call.query))
        made = self.once.run(call, lambda: handler(call)) if route.changes else handler(call)
        if isinstance(made, Waiting):
            return made
        return self.render(made)

    def render(self, made: Union[dict[str, Any], Operation, None]) -> Reply:
        if made is None:
            return Reply(204)
        body = made.as_json() if isinstance(made, Operation) else made
        return Reply(200, json.dumps(body, indent=2) + "\n", {
            "Content-Type": "application/json; charset=UTF-8", "Server": "ESF",
            "Cache-Control": "private"})

    def _body(self, request: Request) -> Any:
        if not request.body.strip():
            return {}
        try:
            return json.loads(request.body)
        except (ValueError, RecursionError):
            raise bad_request("Invalid JSON payload received. Parse Error") from None

    def _check_place(self, call: Call) -> None:
        project, cloud = call.part("project"), self.cloud
        public = call.method.startswith("images.") and project in catalog.IMAGES
        if project not in (cloud.project, catalog.PROJECT_NUMBER) and not public:
            raise not_found(f"projects/{project}")
        call.parts["project"] = project if public else cloud.project
        zone, region = call.parts.get("zone"), call.parts.get("region")
        if zone is not None and zone not in cloud.zones():
            raise invalid("zone", zone, "Unknown zone.")
        if region is not None and region not in cloud.market.regions():
            raise invalid("region", region, "Unknown region.")
        if zone in cloud.unreachable and not call.method.startswith("zones."):
            raise GceError(503, "backendError", f"The zone '{zone}' is unreachable.", status=True)

    def _instance(self, call: Call) -> Instance:
        zone, name = call.part("zone"), call.part("name")
        one = self.cloud.instances.get((zone, name))
        if one is None:
            raise not_found(f"projects/{self.cloud.project}/zones/{zone}/instances/{name}")
        return one

    def _begin(self, call: Call, one: Instance, kind: str) -> Operation:
        return self.cloud.operation(kind, f"zones/{one.zone}", one.spec.path, call.token.user,
                                    one.id)

    # ---- instances ----

    def _instances_insert(self, call: Call) -> Operation:
        return launching.insert(self.cloud, call.part("zone"), call.body, call.query,
                                call.token.user)

    def _instances_bulkInsert(self, call: Call) -> Operation:
        return launching.bulk_insert(self.cloud, f"zones/{call.part('zone')}", call.body,
                                     call.token.user)

    def _regionInstances_bulkInsert(self, call: Call) -> Operation:
        return launching.bulk_insert(self.cloud, f"regions/{call.part('region')}", call.body,
                                     call.token.user)

    def _instances_get(self, call: Call) -> dict[str, Any]:
        return self._instance(call).as_json()

    def _instances_list(self, call: Call) -> dict[str, Any]:
        zone = call.part("zone")
        rows = [one.as_json() for one in self.cloud.shown() if one.zone == zone]
        return lists.of_scope("instance", call.path, lists.asked(call.query), f"zones/{zone}", rows)

    def _instances_aggregatedList(self, call: Call) -> dict[str, Any]:
        rows = [(f"zones/{one.zone}", one.as_json())
                for one in self.cloud.shown()]
        return lists.of_all("instance", "instances", call.path, lists.asked(call.query),
                            [f"zones/{zone}" for zone in self.cloud.zones()], rows,
                            {f"zones/{zone}" for zone in self.cloud.unreachable})

    def _instances_delete(self, call: Call) -> Operation:
        one = self._instance(call)
        operation = self._begin(call, one, "delete")
        if not operation.stuck and operation.forced is None:
            self.cloud.end(one, "deleted", True, operation)
        elif operation.forced is not None:
            self.cloud.finish_soon(operation)
        return operation

    def _instances_stop(self, call: Call) -> Operation:
        one = self._instance(call)
        operation = self._begin(call, one, "stop")
        self.cloud.end(one, "stopped", False, operation)
        return operation

    def _instances_start(self, call: Call) -> Operation:
        one = self._instance(call)
        if one.status == "STOPPING":
            raise GceError(400, "resourceNotReady",
                           f"The resource '{one.spec.path}' is not ready")
        operation = self._begin(call, one, "start")
        if one.alive:
            self.cloud.finish_soon(operation)
        else:
            self.cloud.start(one, operation)
        return operation

    @staticmethod
    def _match(given: Optional[str], now: str, where: str) -> None:
        if given is None:
            raise invalid(where, "", "Missing fingerprint.")
        if given != now:
            raise GceError(412, "conditionNotMet", "Supplied fingerprint does not match current "
                           f"{where} fingerprint.", location="If-Match", locationType="header")

    def _instances_setLabels(self, call: Call) -> Operation:
        one, body = self._instance(call), schema.check("InstancesSetLabelsRequest", call.body)
        labels = specs.check_labels(body.get("labels") or {}, "labels")
        self._match(body.get("labelFingerprint"), one.label_print(), "labels")
        one.labels = labels
        return self._soon(call, one, "setLabels")

    def _instances_setMetadata(self, call: Call) -> Operation:
        one, body = self._instance(call), schema.check("Metadata", call.body)
        metadata = specs.check_metadata(body, "metadata")
        self._match(body.get("fingerprint"), one.metadata_print(), "metadata")
        one.metadata = metadata
        return self._soon(call, one, "setMetadata")

    def _instances_setTags(self, call: Call) -> Operation:
        one, body = self._instance(call), schema.check("Tags", call.body)
        tags = tuple(specs.check_name(tag, "items") for tag in body.get("items") or [])
        self._match(body.get("fingerprint"), one.tag_print(), "tags")
        one.tags = tags
        return self._soon(call, one, "setTags")

    def _soon(self, call: Call, one: Instance, kind: str) -> Operation:
        operation = self._begin(call, one, kind)
        self.cloud.finish_soon(operation)
        return operation

    def _instances_simulateMaintenanceEvent(self, call: Call) -> Operation:
        """A Spot VM is preempted by it."""
        one = self._instance(call)
        if not one.alive:
            raise GceError(400, "resourceNotReady",
                           f"The resource '{one.spec.path}' is not ready")
        if one.spec.spot:
            self.cloud.preempt(one, why="simulated")
        else:
            self.cloud.maintain(one, self.cloud.settings.maintenance_s,
                                one.spec.on_maintenance == "TERMINATE")
        return self._soon(call, one, "simulateMaintenanceEvent")

    def _instances_getSerialPortOutput(self, call: Call) -> dict[str, Any]:
        one = self._instance(call)
        start = call.query.get("start", "0")
        if not start.isascii() or not start.isdigit():
            raise invalid("start", start, "Expected a number.")
        text = self.cloud.console_of(one.id)[-CONSOLE_MAX:]
        at = min(int(start), len(text))
        return {"kind": "compute#serialPortOutput", "start": str(at), "next": str(len(text)),
                "contents": text[at:].decode("utf-8", "replace"),
                "selfLink": f"{lists.BASE}{call.path}"}

    # ---- templates ----

    def _instanceTemplates_insert(self, call: Call) -> Operation:
        return launching.insert_template(self.cloud, call.body, call.token.user)

    def _instanceTemplates_delete(self, call: Call) -> Operation:
        name, cloud = call.part("name"), self.cloud
        path = f"projects/{cloud.project}/global/instanceTemplates/{name}"
        if name not in cloud.templates:
            raise not_found(path)
        found = cloud.templates.pop(name)
        operation = cloud.operation("delete", "global", path, call.token.user, found["id"])
        cloud.finish_soon(operation)
        return operation

    # ---- operations ----

    @staticmethod
    def _scope(call: Call) -> str:
        for word in ("zone", "region"):
            if word in call.parts:
                return f"{word}s/{call.parts[word]}"
        return "global"

    def _operation(self, call: Call) -> Operation:
        scope, name = self._scope(call), call.part("name")
        found = self.cloud.operations.get((scope, name))
        if found is None:
            found = next((one for one in self.cloud.operations.values()
                          if one.id == name and one.scope == scope), None)
        if found is None:
            raise not_found(f"projects/{self.cloud.project}/{scope}/operations/{name}")
        return found

    def _get_operation(self, call: Call) -> Operation:
        return self._operation(call)

    def _list_operations(self, call: Call) -> dict[str, Any]:
        scope = self._scope(call)
        rows = [one.as_json() for one in self.cloud.operations.values()
                if one.scope == scope]
        return lists.of_scope("operation", call.path, lists.asked(call.query), scope, rows)

    def _delete_operation(self, call: Call) -> None:
        one = self._operation(call)
        if not one.done:
            raise GceError(400, "resourceNotReady", f"The resource '{one.path}' is not ready")
        del self.cloud.operations[one.scope, one.name]

    def _wait_operation(self, call: Call) -> Waiting:
        return Waiting(self._operation(call), self.cloud.settings.wait_s)

    _zoneOperations_get = _regionOperations_get = _globalOperations_get = _get_operation
    _zoneOperations_list = _regionOperations_list = _globalOperations_list = _list_operations
    _zoneOperations_wait = _regionOperations_wait = _globalOperations_wait = _wait_operation
    _zoneOperations_delete = _regionOperations_delete = _delete_operation
    _globalOperations_delete = _delete_operation

    def _globalOperations_aggregatedList(self, call: Call) -> dict[str, Any]:
        cloud = self.cloud
        rows = [(one.scope, one.as_json()) for one in cloud.operations.values()]
        scopes = ["global", *(f"regions/{one}" for one in cloud.market.regions()),
                  *(f"zones/{one}" for one in cloud.zones())]
        return lists.of_all("operation", "operations", call.path, lists.asked(call.query), scopes,
                            rows, {f"zones/{zone}" for zone in cloud.unreachable})
