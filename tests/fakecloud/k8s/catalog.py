"""The resources that are served, and what discovery tells about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from fakecloud.k8s.errors import qualified

MINOR = 31
ALL = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        return qualified(self.group, self.plural)

    @property
    def stored(self) -> bool:
        return "get" in self.verbs


def _core(plural: str, kind: str, namespaced: bool = True, short: tuple[str, ...] = (),
          subresources: tuple[str, ...] = ()) -> Resource:
    return Resource("", "v1", plural, kind, namespaced, short, subresources)


RBAC, AUTHZ = "rbac.authorization.k8s.io", "authorization.k8s.io"
PODS = _core("pods", "Pod", True, ("po",), ("status", "log", "eviction", "binding"))
NODES = _core("nodes", "Node", False, ("no",), ("status",))
SECRETS = _core("secrets", "Secret")
CONFIG_MAPS = _core("configmaps", "ConfigMap", True, ("cm",))
EVENTS = _core("events", "Event", True, ("ev",))
NAMESPACES = _core("namespaces", "Namespace", False, ("ns",), ("status", "finalize"))
SERVICE_ACCOUNTS = _core("serviceaccounts", "ServiceAccount", True, ("sa",), ("token",))
QUOTAS = _core("resourcequotas", "ResourceQuota", True, ("quota",), ("status",))
LIMIT_RANGES = _core("limitranges", "LimitRange", True, ("limits",))
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, ("deploy",), ("status",))
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",),
                   ("status",))
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False,
                            ("pc",))
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
ROLES = Resource(RBAC, "v1", "roles", "Role")
ROLE_BINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", False)
CLUSTER_ROLE_BINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False)
ACCESS_REVIEWS = Resource(AUTHZ, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview",
                          False, verbs=("create",))
RULES_REVIEWS = Resource(AUTHZ, "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview",
                         False, verbs=("create",))

RESOURCES = (PODS, NODES, SECRETS, CONFIG_MAPS, EVENTS, NAMESPACES, SERVICE_ACCOUNTS, QUOTAS,
             LIMIT_RANGES, DEPLOYMENTS, BUDGETS, PRIORITY_CLASSES, LEASES, ROLES, ROLE_BINDINGS,
             CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, ACCESS_REVIEWS, RULES_REVIEWS)
BY_PATH = {(one.group, one.version, one.plural): one for one in RESOURCES}
_OF_SUBRESOURCE = {
    "status": (None, ("get", "patch", "update")), "log": (None, ("get",)),
    "eviction": (("policy", "v1", "Eviction"), ("create",)),
    "binding": (("", "v1", "Binding"), ("create",)),
    "finalize": (None, ("update",)),
    "token": (("authentication.k8s.io", "v1", "TokenRequest"), ("create",))}


def version_info() -> dict[str, str]:
    return {"major": "1", "minor": str(MINOR), "gitVersion": f"v1.{MINOR}.0",
            "gitCommit": "0" * 40, "gitTreeState": "clean", "buildDate": "2024-08-13T07:28:49Z",
            "goVersion": "go1.22.5", "compiler": "gc", "platform": "linux/amd64"}


def groups() -> list[str]:
    return sorted({one.group for one in RESOURCES} - {""})


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def api_versions(address: str) -> dict[str, Any]:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [
        {"clientCIDR": "0.0.0.0/0", "serverAddress": address}]}


def group_list() -> dict[str, Any]:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(n) for n in groups()]}


def one_group(name: str) -> Optional[dict[str, Any]]:
    if name not in groups():
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name)}


def resource_list(group: str, version: str) -> Optional[dict[str, Any]]:
    found = [one for one in RESOURCES if (one.group, one.version) == (group, version)]
    if not found:
        return None
    told: list[dict[str, Any]] = []
    for one in sorted(found, key=lambda one: one.plural):
        entry: dict[str, Any] = {"name": one.plural, "singularName": one.singular,
                                 "namespaced": one.namespaced, "kind": one.kind,
                                 "verbs": list(one.verbs)}
        if one.short:
            entry["shortNames"] = list(one.short)
        if one.plural in ("pods", "deployments"):
            entry["categories"] = ["all"]
        told.append(entry)
        for name in one.subresources:
            other, verbs = _OF_SUBRESOURCE[name]
            entry = {"name": f"{one.plural}/{name}", "singularName": "",
                     "namespaced": one.namespaced, "kind": other[2] if other else one.kind,
                     "verbs": list(verbs)}
            if other:
                entry.update({"group": other[0], "version": other[1]} if other[0] else {})
            told.append(entry)
    return {"kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version, "resources": told}
