"""Tables, as ``kubectl get`` asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from fakecloud.k8s.catalog import Resource
from fakecloud.k8s.registry import seconds_of
from fakecloud.k8s.selectors import Object

Row = list[Any]


def wanted(accept: str) -> bool:
    first = accept.split(",")[0]
    return "as=Table" in first and "g=meta.k8s.io" in first and "v=v1" in first


def age(seconds: float) -> str:
    left = int(max(0, seconds))
    if left < 120:
        return f"{left}s"
    if left < 3600:
        return f"{left // 60}m"
    if left < 48 * 3600:
        return f"{left // 3600}h"
    return f"{left // 86400}d"


def _age_of(one: Object, now_s: float) -> str:
    return age(now_s - seconds_of(one["metadata"]["creationTimestamp"]))


def _pod_reason(one: Object) -> str:
    status = one.get("status") or {}
    reason = status.get("reason") or status.get("phase", "")
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        told = (state.get("waiting") or {}).get("reason") or (
            state.get("terminated") or {}).get("reason")
        if told and not status.get("reason"):
            reason = told
    if one["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(reason)


def _pod(one: Object, now_s: float) -> Row:
    status = one.get("status") or {}
    containers = status.get("containerStatuses") or []
    ready = sum(bool(each.get("ready")) for each in containers)
    return [one["metadata"]["name"], f"{ready}/{len(one['spec']['containers'])}",
            _pod_reason(one), str(sum(each.get("restartCount", 0) for each in containers)),
            _age_of(one, now_s), status.get("podIP", "<none>"),
            one["spec"].get("nodeName", "<none>"),
            status.get("nominatedNodeName", "<none>"), "<none>"]


def _node(one: Object, now_s: float) -> Row:
    ready = next((each["status"] for each in (one.get("status") or {}).get("conditions") or []
                  if each["type"] == "Ready"), "Unknown")
    told = "Ready" if ready == "True" else "NotReady"
    if (one.get("spec") or {}).get("unschedulable"):
        told += ",SchedulingDisabled"
    info = (one.get("status") or {}).get("nodeInfo") or {}
    return [one["metadata"]["name"], told, "<none>", _age_of(one, now_s),
            info.get("kubeletVersion", "")]


def _secret(one: Object, now_s: float) -> Row:
    return [one["metadata"]["name"], one.get("type", ""), len(one.get("data") or {}),
            _age_of(one, now_s)]


def _namespace(one: Object, now_s: float) -> Row:
    return [one["metadata"]["name"], (one.get("status") or {}).get("phase", ""),
            _age_of(one, now_s)]


def _event(one: Object, now_s: float) -> Row:
    about = one.get("involvedObject") or {}
    last = one.get("lastTimestamp") or one["metadata"]["creationTimestamp"]
    return [age(now_s - seconds_of(last)), one.get("type", ""), one.get("reason", ""),
            f"{about.get('kind', '').lower()}/{about.get('name', '')}", one.get("message", "")]


def _plain(one: Object, now_s: float) -> Row:
    return [one["metadata"]["name"], _age_of(one, now_s)]


_COLUMNS: dict[str, tuple[list[str], Callable[[Object, float], Row]]] = {
    "pods": (["Name", "Ready", "Status", "Restarts", "Age", "*IP", "*Node", "*Nominated Node",
              "*Readiness Gates"], _pod),
    "nodes": (["Name", "Status", "Roles", "Age", "Version"], _node),
    "secrets": (["Name", "Type", "Data", "Age"], _secret),
    "configmaps": (["Name", "Age"], _plain),
    "namespaces": (["Name", "Status", "Age"], _namespace),
    "events": (["Last Seen", "Type", "Reason", "Object", "Message"], _event)}


def table(resource: Resource, body: Object, now_s: float) -> Optional[Object]:
    """Of a list or of one object. Columns with a star are shown by ``-o wide``."""
    names, row = _COLUMNS.get(resource.plural, (["Name", "Age"], _plain))
    is_list = body.get("kind") == resource.kind + "List"
    items = body["items"] if is_list else [body]
    own = body["metadata"] if is_list else {
        "resourceVersion": body["metadata"].get("resourceVersion", "")}
    columns = [{"name": name.lstrip("*"), "type": "string",
                "format": "name" if name == "Name" else "", "description": name.lstrip("*"),
                "priority": int(name.startswith("*"))} for name in names]
    rows = [{"cells": row(one, now_s), "object": {
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": one["metadata"]}} for one in items]
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": own,
            "columnDefinitions": columns, "rows": rows}
