"""Requests: what is asked for, by whom, and the answer. No socket is touched here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Optional, Union
from urllib.parse import parse_qsl, unquote

from fakecloud.k8s import catalog, errors, lists, openapi, patches, schema, selectors, tables
from fakecloud.k8s.access import Asked, User
from fakecloud.k8s.catalog import Resource
from fakecloud.k8s.cluster import Cluster
from fakecloud.k8s.errors import ApiError, bad_request
from fakecloud.k8s.logs import LogAsked, log_asked
from fakecloud.k8s.selectors import Object
from fakecloud.k8s.store import key_of
from fakecloud.k8s.watches import Watch
from fakecloud.service import Reply, Request

PATCHES_MAX = 10_000
_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch",
          "DELETE": "delete"}


@dataclass
class Call:
    """One request, read. ``resource`` is None for paths that are none."""

    request: Request
    asked: Asked
    query: dict[str, str]
    resource: Optional[Resource] = None
    user: User = field(default_factory=lambda: User(""))
    warnings: list[str] = field(default_factory=list)

    @property
    def dry(self) -> bool:
        return self.query.get("dryRun") == "All"

    def body(self) -> Any:
        kind = self.request.headers.get("Content-Type", "application/json").partition(";")[0]
        if kind.strip() not in ("application/json", ""):
            raise errors.unsupported_media(["application/json"])
        return self.json()

    def json(self) -> Any:
        try:
            return json.loads(self.request.body)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"the object provided is unrecognized (must be of type "
                              f"{self.resource.kind if self.resource else 'object'}): couldn't get "
                              f"version/kind; json parse error: {error}") from None


@dataclass
class Streaming:
    """A watch that is to be answered. ``timeout_s``: None for the server's own."""

    watch: Watch
    call: Call
    timeout_s: Optional[float]
    bookmarks: bool
    as_table: bool


Answer = Union[Reply, Streaming, LogAsked]


def read(request: Request) -> Call:
    query = dict(parse_qsl(request.query, keep_blank_values=True))
    verb = _VERBS.get(request.method, request.method.lower())
    parts = [unquote(part) for part in request.path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return Call(request, Asked(verb, path=request.path), query)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not (
            len(rest) == 3 and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    resource = catalog.BY_PATH.get((group, version, rest[0]))
    if resource is None or len(rest) > 3:
        return Call(request, Asked(verb, path=request.path), query)
    name, sub = (rest + ["", ""])[1:3]
    if sub and sub not in resource.subresources:
        return Call(request, Asked(verb, path=request.path), query)
    if not name and verb in ("get", "delete"):
        verb = {"get": "list", "delete": "deletecollection"}[verb]
        if verb == "list" and lists.flag_in(query, "watch"):
            verb = "watch"
    if resource is catalog.NAMESPACES and name:
        namespace = name
    asked = Asked(verb, group, resource.plural, sub, namespace, name)
    return Call(request, asked, query, resource)


class Api:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.store, self.registry = cluster.store, cluster.registry

    def authorize(self, call: Call, peer: Optional[dict[str, Any]]) -> None:
        access = self.cluster.access
        call.user = access.authenticate(call.request.headers.get("Authorization", ""), peer,
                                        self.cluster.now_s)
        access.check(call.user, call.asked)

    def answer(self, call: Call) -> Answer:
        if call.resource is None:
            return self._path(call)
        resource, asked = call.resource, call.asked
        if resource.namespaced and not asked.namespace and asked.verb not in ("list", "watch"):
            raise errors.method_not_allowed(resource.group, resource.plural, asked.verb)
        if asked.sub and asked.sub != "status":
            return self._subresource(call)
        if asked.verb not in resource.verbs or bool(asked.name) != (
                asked.verb in ("get", "update", "patch", "delete")):
            raise errors.method_not_allowed(resource.group, resource.plural, asked.verb)
        done: Answer = getattr(self, "_" + asked.verb)(call, resource)
        return done

    def reply(self, call: Call, body: Any, status: int = 200) -> Reply:
        headers = {"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        told = []
        for one in call.warnings:
            text = one.replace("\\", "\\\\").replace('"', '\\"')
            told.append(f'299 - "{text}"')
        if told:
            headers["Warning"] = ", ".join(told)
        if call.resource is not None and isinstance(body, dict) and body.get("kind") != "Status" \
                and tables.wanted(call.request.headers.get("Accept", "")):
            table = tables.table(call.resource, body, self.cluster.now_s)
            if table is not None:
                body = table
        return Reply(status, json.dumps(body, separators=(",", ":")) + "\n", headers)

    # ---- paths that are no resources ----

    def _path(self, call: Call) -> Reply:
        path = call.request.path.rstrip("/") or "/"
        parts = path.strip("/").split("/")
        body: Any = None
        if call.request.method not in ("GET", "HEAD"):
            raise errors.no_such_path()
        if path in ("/healthz", "/livez", "/readyz"):
            return Reply(200, "ok", {"Content-Type": "text/plain; charset=utf-8"})
        if path == "/version":
            body = catalog.version_info()
        elif path == "/api":
            body = catalog.api_versions(self.cluster.address)
        elif path == "/apis":
            body = catalog.group_list()
        elif parts[0] == "api" and len(parts) == 2:
            body = catalog.resource_list("", parts[1])
        elif parts[0] == "apis" and len(parts) == 2:
            body = catalog.one_group(parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            body = catalog.resource_list(parts[1], parts[2])
        elif path == "/openapi/v2":
            return openapi.answer(call.request.headers.get("Accept", ""))
        elif path == "/":
            body = {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/openapi/v2", "/version"]}
        if body is None:
            raise errors.no_such_path()
        return self.reply(call, body)

    # ---- reading ----

    def _get(self, call: Call, resource: Resource) -> Reply:
        asked = call.asked
        namespace = asked.namespace if resource.namespaced else ""
        return self.reply(call, self.registry.need(resource, namespace, asked.name))

    def _list(self, call: Call, resource: Resource) -> Reply:
        return self.reply(call, lists.listed(
            self.store, resource, call.asked.namespace, call.query, self.cluster.faults.stale()))

    def _watch(self, call: Call, resource: Resource) -> Streaming:
        query = call.query
        match = selectors.matcher(query.get("labelSelector", ""), query.get("fieldSelector", ""),
                                  resource.plural)
        if lists.flag_in(query, "sendInitialEvents"):
            raise errors.invalid("", "ListOptions", "", [(
                "FieldValueForbidden", "Forbidden: sendInitialEvents is forbidden for watch unless "
                "the WatchList feature gate is enabled", "sendInitialEvents")])
        watch = Watch(self.store, resource, call.asked.namespace, match, lists.version_in(query))
        limit_s = lists.number_in(query, "timeoutSeconds")
        as_table = tables.wanted(call.request.headers.get("Accept", ""))
        return Streaming(watch, call, limit_s or None,
                         lists.flag_in(query, "allowWatchBookmarks"), as_table)

    # ---- writing ----

    def _decoded(self, call: Call, resource: Resource, body: Any) -> Object:
        if not isinstance(body, dict):
            raise bad_request(f"the object provided is unrecognized (must be of type "
                              f"{resource.kind})")
        # What is missing of these two is taken for what is expected.
        body = {**body, "kind": body.get("kind") or resource.kind,
                "apiVersion": body.get("apiVersion") or resource.api_version}
        kind, version = body["kind"], body["apiVersion"]
        if not isinstance(kind, str) or not isinstance(version, str):
            raise bad_request("couldn't get version/kind; json parse error: kind and apiVersion "
                              "are texts")
        if kind != resource.kind:
            raise bad_request(f"{kind} in version \"{version.rpartition('/')[2]}\" cannot be "
                              f"handled as a {resource.kind}: converting ({kind}) to "
                              f"({resource.kind}): unknown conversion")
        if version != resource.api_version:
            raise bad_request(f"the API version in the data ({version}) does not match the "
                              f"expected API version ({resource.api_version})")
        how = call.query.get("fieldValidation", "Warn")
        if how not in ("Strict", "Warn", "Ignore"):
            raise errors.invalid("", "CreateOptions", "", [(
                "FieldValueNotSupported", f"Unsupported value: {json.dumps(how)}: supported "
                'values: "", "Ignore", "Strict", "Warn"', "fieldValidation")])
        found, warnings = schema.decode(body, resource, how)
        call.warnings += warnings
        return found

    def _create(self, call: Call, resource: Resource) -> Reply:
        one = self._decoded(call, resource, call.body())
        if not resource.stored:
            return self.reply(call, self._review(call, resource, one), 201)
        own = one.setdefault("metadata", {})
        namespace = call.asked.namespace if resource.namespaced else ""
        if resource.namespaced and own.get("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace "
                              "sent on the request")
        self.cluster.faults.admit(resource, own.get("name", own.get("generateName", "")))
        return self.reply(call, self.registry.create(resource, namespace, one, call.dry), 201)

    def _review(self, call: Call, resource: Resource, one: Object) -> Object:
        """What the user may do."""
        access = self.cluster.access
        if resource is catalog.RULES_REVIEWS:
            namespace = (one.get("spec") or {}).get("namespace", "")
            rules = [rule for where, rule in access.rules_of(call.user)
                     if where in ("", namespace)]
            if "system:masters" in call.user.groups:
                rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
            return {**one, "metadata": {}, "status": {"resourceRules": rules, "incomplete": False,
                                                      "nonResourceRules": []}}
        spec = one.get("spec") or {}
        asked = spec.get("resourceAttributes")
        if asked is not None:
            what = Asked(asked.get("verb", ""), asked.get("group", ""), asked.get("resource", ""),
                         asked.get("subresource", ""), asked.get("namespace", ""),
                         asked.get("name", ""))
        else:
            path = spec.get("nonResourceAttributes") or {}
            what = Asked(path.get("verb", ""), path=path.get("path", "/"))
        return {**one, "metadata": {}, "status": {"allowed": access.allows(call.user, what)}}

    def _old(self, call: Call, resource: Resource) -> Object:
        namespace = call.asked.namespace if resource.namespaced else ""
        return self.registry.need(resource, namespace, call.asked.name)

    def _update(self, call: Call, resource: Resource) -> Reply:
        one = self._decoded(call, resource, call.body())
        name = (one.get("metadata") or {}).get("name", "")
        if name != call.asked.name:
            raise bad_request(f"the name of the object ({name}) does not match the name on the URL "
                              f"({call.asked.name})")
        old = self._old(call, resource)
        return self.reply(call, self.registry.update(resource, old, one, call.asked.sub, call.dry))

    def _patch(self, call: Call, resource: Resource) -> Reply:
        kind = call.request.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind not in patches.KINDS:
            raise errors.unsupported_media(patches.KINDS)
        patch = call.json()
        if isinstance(patch, list) and len(patch) > PATCHES_MAX:
            raise ApiError(413, "RequestEntityTooLarge", "The allowed maximum operations in a JSON "
                           f"patch is {PATCHES_MAX}, got {len(patch)}")
        old = self._old(call, resource)
        patched = patches.apply(kind, old, patch, resource.kind)
        if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
            raise bad_request("the patch leaves no object")
        one = self._decoded(call, resource, patched)
        return self.reply(call, self.registry.update(resource, old, one, call.asked.sub, call.dry))

    def _options(self, call: Call) -> Object:
        options: Object = {}
        if call.request.body.strip():
            body = call.body()
            if not isinstance(body, dict):
                raise bad_request("the object provided is unrecognized (must be of type "
                                  "DeleteOptions)")
            decoder = schema.Decoder("DeleteOptions", "v1")
            options = decoder.decode({key: value for key, value in body.items()
                                      if key not in ("kind", "apiVersion")}, "DeleteOptions", "")
        grace = lists.number_in(call.query, "gracePeriodSeconds")
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if call.query.get("propagationPolicy"):
            options["propagationPolicy"] = call.query["propagationPolicy"]
        policy = options.get("propagationPolicy")
        if policy not in (None, "Orphan", "Background", "Foreground"):
            raise errors.invalid("", "DeleteOptions", "", [(
                "FieldValueNotSupported", f"Unsupported value: {json.dumps(policy)}: supported "
                'values: "Background", "Foreground", "Orphan", "nil"', "propagationPolicy")])
        if options.get("dryRun"):
            call.query["dryRun"] = "All"
        return options

    def _delete(self, call: Call, resource: Resource) -> Reply:
        options = self._options(call)
        one, gone = self.registry.delete(resource, self._old(call, resource), options, call.dry)
        if resource is catalog.PODS or (not gone and not call.dry):
            return self.reply(call, one)
        own = one["metadata"]
        return self.reply(call, {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": errors.details_of(resource.group, resource.plural, own["name"],
                                         uid=own["uid"])})

    def _deletecollection(self, call: Call, resource: Resource) -> Reply:
        options = self._options(call)
        query = {key: value for key, value in call.query.items()
                 if key in ("labelSelector", "fieldSelector", "limit", "continue")}
        found = lists.listed(self.store, resource, call.asked.namespace, query)
        kept = []
        for one in found["items"]:
            now = self.store.get(resource, *key_of(one))
            if now is not None:
                kept.append(self.registry.delete(resource, now, options, call.dry)[0])
        return self.reply(call, {**found, "items": kept})

    # ---- subresources ----

    def _subresource(self, call: Call) -> Answer:
        resource, asked = call.resource, call.asked
        assert resource is not None
        if asked.sub == "log" and asked.verb == "get":
            return log_asked(self.registry.need(resource, asked.namespace, asked.name), call.query)
        if asked.sub == "eviction" and asked.verb == "create":
            return self._evict(call)
        if asked.sub == "binding" and asked.verb == "create":
            body = call.body()
            target = (body.get("target") or {}).get("name", "") if isinstance(body, dict) else ""
            pod = self.registry.need(resource, asked.namespace, asked.name)
            self.cluster.bind(pod, target)
            return self.reply(call, {"kind": "Status", "apiVersion": "v1", "metadata": {},
                                     "status": "Success", "code": 201}, 201)
        if asked.sub == "finalize" and asked.verb == "update":
            one = self._decoded(call, resource, call.body())
            old = self.registry.need(resource, "", asked.name)
            return self.reply(call, self.registry.update(resource, old, one, "finalize"))
        if asked.sub == "token" and asked.verb == "create":
            self.registry.need(resource, asked.namespace, asked.name)
            return self.reply(call, self.cluster.account_token(asked.namespace, asked.name,
                                                               call.body()), 201)
        raise errors.method_not_allowed(resource.group, resource.plural, asked.verb)

    def _evict(self, call: Call) -> Reply:
        body = call.body()
        if not isinstance(body, dict) or body.get("kind", "Eviction") != "Eviction" or body.get(
                "apiVersion", "policy/v1") not in ("policy/v1", "policy/v1beta1"):
            raise bad_request("the object provided is unrecognized (must be of type Eviction)")
        name = (body.get("metadata") or {}).get("name", call.asked.name)
        if name != call.asked.name:
            raise bad_request(f"name in URL does not match name in Eviction object: {name}")
        pod = self.registry.need(catalog.PODS, call.asked.namespace, call.asked.name)
        self.cluster.evict(pod, body.get("deleteOptions") or {}, call.dry)
        return self.reply(call, {"kind": "Status", "apiVersion": "v1", "metadata": {},
                                 "status": "Success", "code": 201}, 201)

    def table_line(self, call: Call, line: bytes) -> bytes:
        """An event of a watch, with its object as a table."""
        event = json.loads(line)
        assert call.resource is not None
        if event["type"] in ("ERROR", "BOOKMARK"):
            return line
        event["object"] = tables.table(call.resource, event["object"], self.cluster.now_s)
        return json.dumps(event, separators=(",", ":")).encode() + b"\n"

