"""What the server fills in, where an object says nothing."""

from __future__ import annotations

import base64
from typing import Any

Object = dict[str, Any]
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


def _container(one: Object) -> Object:
    image = one.get("image", "")
    tag = image.rpartition("/")[2].partition(":")[2]
    latest = "@" not in image and tag in ("", "latest")
    new = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
           "imagePullPolicy": "Always" if latest else "IfNotPresent", "resources": {}, **one}
    limits = new["resources"].get("limits") or {}
    if limits:
        new["resources"] = {**new["resources"], "requests": {
            **limits, **(new["resources"].get("requests") or {})}}
    new["ports"] = [{"protocol": "TCP", **port} for port in new.get("ports") or []]
    if not new["ports"]:
        del new["ports"]
    new["env"] = [{**part, "valueFrom": {**part["valueFrom"], "fieldRef": {
        "apiVersion": "v1", **part["valueFrom"]["fieldRef"]}}}
        if "fieldRef" in (part.get("valueFrom") or {}) else part for part in new.get("env") or []]
    if not new["env"]:
        del new["env"]
    return new


def _volume(one: Object) -> Object:
    new = dict(one)
    for kind in ("secret", "configMap", "downwardAPI", "projected"):
        if kind in new:
            new[kind] = {"defaultMode": 0o644, **new[kind]}
    if set(new) <= {"name"}:
        new["emptyDir"] = {}
    return new


def quality(spec: Object) -> str:
    """The class of service by which pods are evicted."""
    found = [one.get("resources") or {} for one in spec["containers"]]
    if all(not one.get("limits") and not one.get("requests") for one in found):
        return "BestEffort"
    if all(set(one.get("limits") or {}) >= {"cpu", "memory"}
           and one.get("requests", one["limits"]) == one["limits"] for one in found):
        return "Guaranteed"
    return "Burstable"


def pod_spec(spec: Object) -> Object:
    new = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
           "dnsPolicy": "ClusterFirst", "securityContext": {}, "schedulerName": "default-scheduler",
           "enableServiceLinks": True, **spec}
    for kind in ("containers", "initContainers"):
        if kind in new:
            new[kind] = [_container(one) for one in new[kind]]
    if "volumes" in new:
        new["volumes"] = [_volume(one) for one in new["volumes"]]
    return new


def tolerations(spec: Object, seconds: int) -> Object:
    """As the admission of DefaultTolerationSeconds does it."""
    own = list(spec.get("tolerations") or [])
    for key in (NOT_READY, UNREACHABLE):
        if not any(one.get("key") in (key, None, "") and one.get("effect") in (
                "NoExecute", None, "") for one in own):
            own.append({"key": key, "operator": "Exists", "effect": "NoExecute",
                        "tolerationSeconds": seconds})
    return {**spec, "tolerations": own}


def fill(plural: str, one: Object) -> Object:
    if plural == "pods":
        spec = pod_spec(one.get("spec") or {})
        return {**one, "spec": spec}
    if plural == "secrets":
        data = {**(one.get("data") or {}), **{
            key: base64.b64encode(value.encode()).decode()
            for key, value in (one.get("stringData") or {}).items()}}
        rest = {key: value for key, value in one.items() if key not in ("stringData", "data")}
        return {**rest, **({"data": data} if data else {}), "type": one.get("type", "Opaque")}
    if plural == "namespaces":
        return {**one, "spec": {"finalizers": ["kubernetes"], **(one.get("spec") or {})},
                "status": {"phase": "Active"}}
    if plural == "nodes":
        return {"spec": {}, "status": {}, **one}
    if plural in ("rolebindings", "clusterrolebindings") and "roleRef" in one:
        return {**one, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", **one["roleRef"]}}
    return one
