"""What is done with objects: created, changed and deleted, by users and by the cluster itself."""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Callable
from typing import Any, Optional

from fakecloud.k8s import catalog, defaults, validation
from fakecloud.k8s.catalog import Resource
from fakecloud.k8s.errors import (
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
)
from fakecloud.k8s.selectors import Object
from fakecloud.k8s.store import Store, key_of

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
BASE_MAX = 58
EVENTS_MAX = 2_000
GRACE_DEFAULT = 30
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_KEPT = ("uid", "creationTimestamp", "generation", "deletionTimestamp",
         "deletionGracePeriodSeconds", "selfLink", "namespace", "name")
Admit = Callable[[Resource, Object], Object]


def stamp(now_s: float, micro: bool = False) -> str:
    when = datetime.datetime.fromtimestamp(now_s, datetime.timezone.utc)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def with_meta(one: Object, **more: Any) -> Object:
    """A copy whose metadata has these; None takes one out."""
    own = {**one["metadata"], **more}
    return {**one, "metadata": {key: value for key, value in own.items() if value is not None}}


def is_over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


class Registry:
    """``now``: the time of day. ``admit`` and ``admit_update``: what may change or refuse an
    object that is new, or that a user has changed."""

    def __init__(self, store: Store, now: Callable[[], float], rng: random.Random) -> None:
        self.store, self.now, self._rng = store, now, rng
        self.admit: Admit = lambda resource, one: one
        self.admit_update: Admit = lambda resource, one: one
        self._event_number = 0
        self._events: dict[tuple[str, str, str], Object] = {}

    def new_uid(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def need(self, resource: Resource, namespace: str, name: str) -> Object:
        found = self.store.get(resource, namespace, name)
        if found is None:
            raise not_found(resource.group, resource.plural, name)
        return found

    # ---- create ----

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        found = self.store.get(catalog.NAMESPACES, "", namespace)
        if found is None:
            raise not_found("", "namespaces", namespace)
        if found["metadata"].get("deletionTimestamp"):
            raise forbidden(resource.group, resource.plural, name, "unable to create new content "
                            f"in namespace {namespace} because it is being terminated", causes=[{
                                "reason": "NamespaceTerminating", "field": "metadata.namespace",
                                "message": f"namespace {namespace} is being terminated"}])

    def _prepare(self, resource: Resource, namespace: str, one: Object) -> Object:
        given = one.get("metadata") or {}
        if given.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        kept = {key: given[key] for key in ("name", "generateName", "labels", "annotations",
                                            "ownerReferences", "finalizers") if given.get(key)}
        if not kept.get("name") and kept.get("generateName"):
            tail = "".join(self._rng.choice(LETTERS) for _ in range(5))
            kept["name"] = kept["generateName"][:BASE_MAX] + tail
        kept["uid"] = self.new_uid()
        kept["creationTimestamp"] = stamp(self.now())
        if resource.namespaced:
            kept["namespace"] = namespace
        if resource.plural in ("deployments", "poddisruptionbudgets", "priorityclasses"):
            kept["generation"] = 1
        rest = {key: value for key, value in one.items()
                if key not in ("metadata", "status", "kind", "apiVersion")}
        new = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": kept, **rest}
        if resource is catalog.NODES and one.get("status"):
            new["status"] = one["status"]
        return defaults.fill(resource.plural, new)

    def create(self, resource: Resource, namespace: str, one: Object, dry: bool = False) -> Object:
        new = self._prepare(resource, namespace, one)
        name = new["metadata"].get("name", "")
        self._check_namespace(resource, namespace, name)
        new = self.admit(resource, new)
        causes = validation.metadata(new, "rbac" in resource.group)
        causes += validation.CREATE.get(resource.plural, lambda _: [])(new)
        if causes:
            raise invalid(resource.group, resource.kind, name, causes)
        if self.store.get(resource, namespace, name) is not None:
            raise already_exists(resource.group, resource.plural, name)
        if resource is catalog.PODS:
            new["status"] = {"phase": "Pending", "qosClass": defaults.quality(new["spec"])}
        return new if dry else self.store.add(resource, new)

    # ---- update ----

    def update(self, resource: Resource, old: Object, one: Object, sub: str = "",
               dry: bool = False) -> Object:
        """``one``: as a user has sent it. Of a subresource only that part counts."""
        name = key_of(old)[1]
        given = one.get("metadata") or {}
        version = given.get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            raise conflict(resource.group, resource.plural, name)
        if not version and resource is catalog.LEASES:
            raise invalid(resource.group, resource.kind, name, [validation.wrong(
                "metadata.resourceVersion", 0, "must be specified for an update")])
        if given.get("uid") and given["uid"] != old["metadata"]["uid"]:
            raise conflict(resource.group, resource.plural, name,
                           f"Precondition failed: UID in precondition: {given['uid']}, UID in "
                           f"object meta: {old['metadata']['uid']}")
        new = self._changed(resource, old, one, sub)
        if sub == "":
            new = self.admit_update(resource, new)
        causes = validation.metadata(new, "rbac" in resource.group)
        if sub == "":
            causes += validation.UPDATE.get(resource.plural, lambda new, old: [])(new, old)
            if resource is not catalog.PODS:
                causes += validation.CREATE.get(resource.plural, lambda _: [])(new)
        if causes:
            raise invalid(resource.group, resource.kind, name, causes)
        if dry:
            return new
        return self.settle(resource, self.store.replace(resource, new))

    def _changed(self, resource: Resource, old: Object, one: Object, sub: str) -> Object:
        own = {key: value for key, value in (one.get("metadata") or {}).items()
               if key in ("labels", "annotations", "ownerReferences", "finalizers", "generateName")
               and value}
        own.update({key: old["metadata"][key] for key in _KEPT if key in old["metadata"]})
        own["resourceVersion"] = old["metadata"]["resourceVersion"]
        if sub == "status":
            return {**old, "metadata": own, "status": one.get("status") or {}}
        if sub == "finalize":
            return {**old, "spec": one.get("spec") or {}}
        rest = {key: value for key, value in one.items()
                if key not in ("metadata", "status", "kind", "apiVersion")}
        new = defaults.fill(resource.plural, {
            "kind": resource.kind, "apiVersion": resource.api_version, "metadata": own, **rest})
        if "status" in old:
            new["status"] = old["status"]
        if resource is catalog.PODS:
            for key in ("nodeName", "priority", "tolerations", "serviceAccountName",
                        "serviceAccount"):
                if key in old["spec"]:
                    new["spec"].setdefault(key, old["spec"][key])
        if own.get("deletionTimestamp"):
            known = set(old["metadata"].get("finalizers") or [])
            if set(own.get("finalizers") or []) - known:
                raise invalid(resource.group, resource.kind, own["name"], [validation.denied(
                    "metadata.finalizers", "no new finalizers can be added if the object is being "
                    "deleted, found new finalizers "
                    f"{sorted(set(own['finalizers']) - known)}")])
        if "generation" in own and new.get("spec") != old.get("spec"):
            own["generation"] += 1
        return new

    def write(self, resource: Resource, one: Object) -> Object:
        """By the cluster itself."""
        return self.store.replace(resource, one)

    # ---- delete ----

    def _preconditions(self, resource: Resource, one: Object, options: Object) -> None:
        own, name = one["metadata"], key_of(one)[1]
        wanted = options.get("preconditions") or {}
        for key, told in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if wanted.get(key) and wanted[key] != own[key]:
                raise conflict(resource.group, resource.plural, name,
                               f"Precondition failed: {told} in precondition: {wanted[key]}, "
                               f"{told} in object meta: {own[key]}")

    @staticmethod
    def _grace(resource: Resource, one: Object, options: Object) -> int:
        if resource is not catalog.PODS or is_over(one) or not one["spec"].get("nodeName"):
            return 0
        asked = options.get("gracePeriodSeconds")
        own = one["spec"].get("terminationGracePeriodSeconds", GRACE_DEFAULT)
        return max(0, int(own if asked is None else asked))

    def delete(self, resource: Resource, one: Object, options: Optional[Object] = None,
               dry: bool = False) -> tuple[Object, bool]:
        """The object as it is then, and whether it has gone."""
        options = options or {}
        self._preconditions(resource, one, options)
        if dry:
            return one, False
        finalizers = list(one["metadata"].get("finalizers") or [])
        policy = options.get("propagationPolicy")
        for wanted, name in (("Foreground", FOREGROUND), ("Orphan", ORPHAN)):
            if policy == wanted and name not in finalizers:
                finalizers.append(name)
        if options.get("orphanDependents") and ORPHAN not in finalizers:
            finalizers.append(ORPHAN)
        if resource is catalog.NAMESPACES and (one.get("spec") or {}).get("finalizers"):
            return self._end_namespace(one), False
        grace, now_s = self._grace(resource, one, options), self.now()
        if resource is not catalog.PODS and not finalizers:
            return self.store.remove(resource, one), True
        began = one["metadata"].get("deletionTimestamp")
        if began is not None:
            left = one["metadata"].get("deletionGracePeriodSeconds", 0)
            if grace >= left and not (grace == 0 and not finalizers):
                return one, False
            now_s = seconds_of(began) - left
        new = with_meta(one, deletionTimestamp=stamp(now_s + grace),
                        deletionGracePeriodSeconds=grace, finalizers=finalizers or None)
        if grace == 0 and not finalizers:
            self.store.replace(resource, new)
            return self.store.remove(resource, new), True
        return self.store.replace(resource, new), False

    def _end_namespace(self, one: Object) -> Object:
        if one["metadata"]["name"] in ("default", "kube-system", "kube-public"):
            raise forbidden("", "namespaces", one["metadata"]["name"],
                            "this namespace may not be deleted")
        new = with_meta(one, deletionTimestamp=stamp(self.now()))
        return self.store.replace(catalog.NAMESPACES, {**new, "status": {"phase": "Terminating"}})

    def settle(self, resource: Resource, one: Object) -> Object:
        """Removes what is to be deleted when nothing holds it any more."""
        own = one["metadata"]
        if own.get("deletionTimestamp") and not own.get("finalizers") and not own.get(
                "deletionGracePeriodSeconds") and not (
                resource is catalog.NAMESPACES and (one.get("spec") or {}).get("finalizers")):
            return self.store.remove(resource, one)
        return one

    def finish(self, resource: Resource, one: Object) -> None:
        """Its grace is over."""
        new = self.store.replace(resource, with_meta(one, deletionGracePeriodSeconds=0))
        self.settle(resource, new)

    # ---- events ----

    def event(self, resource: Resource, about: Object, reason: str, message: str,
              source: str, warning: bool = False) -> None:
        """One that comes again is counted."""
        own = about["metadata"]
        key = (own["uid"], reason, message)
        namespace = own.get("namespace", "default")
        now = stamp(self.now())
        known = self._events.get(key)
        stored = known and self.store.get(catalog.EVENTS, namespace, known["metadata"]["name"])
        if stored:
            self._events[key] = self.store.replace(catalog.EVENTS, {
                **stored, "count": stored["count"] + 1, "lastTimestamp": now})
            return
        if self.store.get(catalog.NAMESPACES, "", namespace) is None:
            return
        self._event_number += 1
        ref = {"kind": resource.kind, "namespace": own.get("namespace"), "name": own["name"],
               "uid": own["uid"], "apiVersion": resource.api_version,
               "resourceVersion": own.get("resourceVersion")}
        name = f"{own['name']}.{self._event_number:016x}"
        self._events[key] = self.store.add(catalog.EVENTS, {
            "kind": "Event", "apiVersion": "v1", "metadata": {
                "name": name, "namespace": namespace, "uid": self.new_uid(),
                "creationTimestamp": now},
            "involvedObject": {key: value for key, value in ref.items() if value},
            "reason": reason, "message": message, "source": {"component": source},
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
            "type": "Warning" if warning else "Normal", "eventTime": None,
            "reportingComponent": source, "reportingInstance": ""})
        while len(self._events) > EVENTS_MAX:
            old = self._events.pop(next(iter(self._events)))
            stale = self.store.get(catalog.EVENTS, *key_of(old))
            if stale:
                self.store.remove(catalog.EVENTS, stale)
