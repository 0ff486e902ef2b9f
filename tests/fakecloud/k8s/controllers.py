"""What goes on by itself: the scheduler, the garbage collector, the end of namespaces, taints that
end pods, pods without a node, and disruption budgets. Pure."""

from __future__ import annotations

import math
from typing import Any, Optional

from fakecloud.k8s import catalog
from fakecloud.k8s.admission import Admission
from fakecloud.k8s.catalog import Resource
from fakecloud.k8s.errors import ApiError, cannot_evict
from fakecloud.k8s.lives import with_condition
from fakecloud.k8s.nodes import Nodes
from fakecloud.k8s.registry import FOREGROUND, ORPHAN, Registry, is_over, seconds_of, with_meta
from fakecloud.k8s.scheduler import Room, place, rooms_of, tolerates
from fakecloud.k8s.selectors import Object, fits_selector
from fakecloud.k8s.settings import Settings
from fakecloud.k8s.store import Change, key_of

PASS_S = 0.5            # Between two looks at pods that have no room, if nothing has changed.


class Controllers:
    def __init__(self, registry: Registry, settings: Settings, nodes: Nodes, admission: Admission,
                 rng: Any) -> None:
        self.registry, self.settings, self.nodes = registry, settings, nodes
        self.admission, self._rng = admission, rng
        self.store = registry.store
        self._schedule = self._collect = self._tell = True
        self._collect_s = 0.0
        self._pass_s = 0.0
        self._seen: dict[str, float] = {}           # Pods without a node -> when to look at them.
        self._due: Optional[float] = None
        self.store.listeners.append(self._changed)

    def _changed(self, change: Change) -> None:
        if change.resource in (catalog.PODS, catalog.NODES):
            self._schedule = self._tell = True
        if change.resource in (catalog.QUOTAS, catalog.BUDGETS, catalog.NAMESPACES,
                               catalog.SERVICE_ACCOUNTS):
            self._tell = True
        own = change.new["metadata"]
        if change.kind == "DELETED" or own.get("ownerReferences") or own.get("deletionTimestamp"):
            if not self._collect:
                self._collect_s = self.registry.now() + self.settings.gc_s
            self._collect = True

    def next_due(self) -> Optional[float]:
        times = [self._collect_s] if self._collect else []
        if self._schedule or self._tell:
            times.append(0.0)
        if self._seen:
            times.append(self._pass_s)
        if self._due is not None:
            times.append(self._due)
        return min(times, default=None)

    def step(self, now_s: float) -> None:
        self._due = None
        if self._tell:
            self._tell = False
            self._accounts()
            self.admission.tell_used()
            self._tell_budgets()
        self._taints(now_s)
        self._evict_from_leaving(now_s)
        if self._collect and now_s >= self._collect_s:
            self._collect = False
            self._garbage()
            self._namespaces()
        if self._schedule or (self._seen and now_s >= self._pass_s):
            self._schedule, self._pass_s = False, now_s + PASS_S
            self._schedule_all(now_s)

    def _wake(self, at_s: float) -> None:
        self._due = at_s if self._due is None else min(self._due, at_s)

    # ---- the scheduler ----

    def bind(self, pod: Object, node: str) -> Object:
        status = dict(pod.get("status") or {})
        status.pop("nominatedNodeName", None)
        status["conditions"] = with_condition(status.get("conditions") or [], "PodScheduled",
                                              "True", self.registry.now())
        return self.registry.write(catalog.PODS, {
            **pod, "spec": {**pod["spec"], "nodeName": node}, "status": status})

    def _schedule_all(self, now_s: float) -> None:
        waiting, seen = [], {}
        pods = self.store.all(catalog.PODS)
        for pod in pods:
            if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp") or (
                    pod["spec"].get("schedulingGates")) or is_over(pod):
                continue
            uid = pod["metadata"]["uid"]
            at_s = self._seen.get(uid)
            if at_s is None:
                at_s = now_s + self.settings.schedule_s.draw(self._rng)
            seen[uid] = at_s
            if at_s > now_s:
                self._pass_s = min(self._pass_s, at_s)
            elif pod["spec"].get("schedulerName") == "default-scheduler":
                waiting.append(pod)
        self._seen = seen
        if not waiting:
            return
        waiting.sort(key=lambda one: -one["spec"].get("priority", 0))
        rooms = rooms_of(self.store.all(catalog.NODES), pods)
        homeless = []
        for pod in waiting:
            if not self._schedule_one(pod, rooms, now_s):
                homeless.append(pod)
        if homeless:
            self.nodes.scale_up(homeless, now_s)

    def _schedule_one(self, pod: Object, rooms: dict[str, Room], now_s: float) -> bool:
        nominated = (pod.get("status") or {}).get("nominatedNodeName")
        verdict = place(pod, rooms)
        if verdict.node:
            bound = self.bind(pod, verdict.node)
            rooms[verdict.node].add(bound)
            self._seen.pop(pod["metadata"]["uid"], None)
            own = pod["metadata"]
            self.registry.event(catalog.PODS, bound, "Scheduled", "Successfully assigned "
                                f"{own['namespace']}/{own['name']} to {verdict.node}",
                                "default-scheduler")
            return True
        leaving = nominated in rooms and any(
            one["metadata"].get("deletionTimestamp") for one in rooms[nominated].pods)
        if not verdict.nominated or not leaving:
            self._unschedulable(pod, verdict.message, verdict.nominated, now_s)
            for one in verdict.victims:
                self._preempt(one, pod, verdict.nominated)
        return bool(verdict.nominated)

    def _unschedulable(self, pod: Object, message: str, nominated: str, now_s: float) -> None:
        status = dict(pod["status"])
        known = [one for one in status.get("conditions") or [] if one["type"] == "PodScheduled"]
        if known and known[0].get("message") == message and (
                status.get("nominatedNodeName", "") == nominated):
            return
        status["conditions"] = with_condition(status.get("conditions") or [], "PodScheduled",
                                              "False", now_s, "Unschedulable", message)
        if nominated:
            status["nominatedNodeName"] = nominated
        written = self.registry.write(catalog.PODS, {**pod, "status": status})
        self.registry.event(catalog.PODS, written, "FailedScheduling", message,
                            "default-scheduler", True)

    def disrupt(self, pod: Object, reason: str, message: str) -> Object:
        """Notes on a pod why it will end."""
        status = dict(pod.get("status") or {})
        status["conditions"] = with_condition(status.get("conditions") or [], "DisruptionTarget",
                                              "True", self.registry.now(), reason, message)
        return self.registry.write(catalog.PODS, {**pod, "status": status})

    def _preempt(self, victim: Object, pod: Object, node: str) -> None:
        now = self.store.get(catalog.PODS, *key_of(victim))
        if now is None or now["metadata"].get("deletionTimestamp"):
            return
        now = self.disrupt(now, "PreemptionByScheduler", "default-scheduler: preempting to "
                           "accommodate a higher priority pod")
        self.registry.event(catalog.PODS, now, "Preempted", f"Preempted by pod "
                            f"{pod['metadata']['uid']} on node {node}", "default-scheduler")
        self.registry.delete(catalog.PODS, now)

    # ---- taints, and nodes that leave ----

    def _taints(self, now_s: float) -> None:
        hard: dict[str, list[Object]] = {}
        names = set()
        for node in self.store.all(catalog.NODES):
            names.add(node["metadata"]["name"])
            taints = [one for one in (node.get("spec") or {}).get("taints") or []
                      if one["effect"] == "NoExecute"]
            if taints:
                hard[node["metadata"]["name"]] = taints
        for pod in self.store.all(catalog.PODS):
            node_name = pod["spec"].get("nodeName")
            if node_name and node_name not in names:
                self._without_node(pod)
            elif node_name in hard and not pod["metadata"].get("deletionTimestamp") and (
                    not is_over(pod)):
                self._executed(pod, hard[node_name], now_s)

    def _executed(self, pod: Object, taints: list[Object], now_s: float) -> None:
        for taint in taints:
            since_s = seconds_of(taint["timeAdded"]) if taint.get("timeAdded") else 0.0
            own = [one for one in pod["spec"].get("tolerations") or [] if tolerates([one], taint)]
            if any("tolerationSeconds" not in one for one in own):
                continue
            end_s = since_s + min((one["tolerationSeconds"] for one in own), default=0)
            if now_s >= end_s:
                now = self.disrupt(pod, "DeletionByTaintManager", "Taint manager: deleting due to "
                                   "NoExecute taint")
                self.registry.event(catalog.PODS, now, "TaintManagerEviction",
                                    f"Marking for deletion Pod {now['metadata']['namespace']}/"
                                    f"{now['metadata']['name']}", "taint-eviction-controller")
                self.registry.delete(catalog.PODS, now)
                return
            self._wake(end_s)

    def _without_node(self, pod: Object) -> None:
        """As the pod garbage collector does it: by force."""
        if not is_over(pod):
            pod = self.disrupt(pod, "DeletionByPodGC", "PodGC: node no longer exists")
            status = {**pod["status"], "phase": "Failed"}
            pod = self.registry.write(catalog.PODS, {**pod, "status": status})
        self.registry.delete(catalog.PODS, pod, {"gracePeriodSeconds": 0})

    def _evict_from_leaving(self, now_s: float) -> None:
        leaving = {one.name for one in self.nodes.machines.values()
                   if one.evicting and one.alive and one.off_s is not None}
        if not leaving:
            return
        for pod in self.store.all(catalog.PODS):
            if pod["spec"].get("nodeName") in leaving and not is_over(pod) and (
                    not pod["metadata"].get("deletionTimestamp")):
                try:
                    self.check_budgets(pod, False)
                except ApiError:
                    self._wake(now_s + PASS_S)
                    continue
                now = self.disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")
                self.registry.delete(catalog.PODS, now)

    # ---- disruption budgets ----

    @staticmethod
    def _healthy(pod: Object) -> bool:
        return not pod["metadata"].get("deletionTimestamp") and any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in (pod.get("status") or {}).get("conditions") or [])

    def _budget(self, budget: Object) -> tuple[int, int, int]:
        """How many are wanted, healthy, and expected."""
        spec = budget.get("spec") or {}
        pods = [one for one in self.store.all(catalog.PODS, budget["metadata"]["namespace"])
                if not is_over(one) and fits_selector(spec.get("selector"),
                                                      one["metadata"].get("labels") or {})]
        total, healthy = len(pods), sum(map(self._healthy, pods))

        def number(value: Any) -> int:
            if isinstance(value, str) and value.endswith("%"):
                return math.ceil(total * float(value[:-1]) / 100)
            return int(value)
        if "minAvailable" in spec:
            wanted = number(spec["minAvailable"])
        else:
            wanted = max(0, total - number(spec.get("maxUnavailable", 1)))
        return wanted, healthy, total

    def _tell_budgets(self) -> None:
        for budget in self.store.all(catalog.BUDGETS):
            wanted, healthy, total = self._budget(budget)
            status = {"currentHealthy": healthy, "desiredHealthy": wanted, "expectedPods": total,
                      "disruptionsAllowed": max(0, healthy - wanted),
                      "observedGeneration": budget["metadata"].get("generation", 1)}
            if budget.get("status") != status:
                self.registry.write(catalog.BUDGETS, {**budget, "status": status})

    def check_budgets(self, pod: Object, dry: bool) -> None:
        """Raises 429 if one forbids an eviction."""
        if is_over(pod) or not pod["spec"].get("nodeName") or pod["metadata"].get(
                "deletionTimestamp"):
            return
        labels = pod["metadata"].get("labels") or {}
        found = [one for one in self.store.all(catalog.BUDGETS, pod["metadata"]["namespace"])
                 if fits_selector((one.get("spec") or {}).get("selector"), labels)]
        if len(found) > 1:
            raise ApiError(500, "InternalError", "This pod has more than one PodDisruptionBudget, "
                           "which the eviction subresource does not support.")
        for budget in found:
            wanted, healthy, _ = self._budget(budget)
            if healthy - 1 < wanted and self._healthy(pod):
                raise cannot_evict(budget["metadata"]["name"], wanted, healthy)

    # ---- owners ----

    def _garbage(self) -> None:
        everything = [(resource, one) for resource in catalog.RESOURCES if resource.stored
                      for one in self.store.all(resource)]
        alive = {one["metadata"]["uid"]: one for _, one in everything}
        owned: dict[str, list[tuple[Resource, Object]]] = {}
        for resource, one in everything:
            refs = one["metadata"].get("ownerReferences") or []
            for ref in refs:
                owned.setdefault(ref["uid"], []).append((resource, one))
            if refs and not any(ref["uid"] in alive for ref in refs):
                self._delete(resource, one)
        for resource, one in everything:
            self._finalize(resource, one, owned.get(one["metadata"]["uid"], []))

    def _delete(self, resource: Resource, one: Object) -> None:
        now = self.store.get(resource, *key_of(one))
        if now is not None and now["metadata"]["uid"] == one["metadata"]["uid"] and (
                not now["metadata"].get("deletionTimestamp")):
            self.registry.delete(resource, now)

    def _finalize(self, resource: Resource, one: Object,
                  dependents: list[tuple[Resource, Object]]) -> None:
        """What waits for its dependents, or is to leave them."""
        now = self.store.get(resource, *key_of(one))
        if now is None or not now["metadata"].get("deletionTimestamp"):
            return
        finalizers = now["metadata"].get("finalizers") or []
        left = [pair for pair in dependents if self.store.get(pair[0], *key_of(pair[1]))]
        if FOREGROUND in finalizers:
            for other, dependent in left:
                self._delete(other, dependent)
            left = [pair for pair in left if self.store.get(pair[0], *key_of(pair[1]))]
            if not left:
                self._drop_finalizer(resource, now, FOREGROUND)
        elif ORPHAN in finalizers:
            uid = now["metadata"]["uid"]
            for other, dependent in left:
                refs = [ref for ref in dependent["metadata"]["ownerReferences"]
                        if ref["uid"] != uid]
                self.registry.write(other, with_meta(dependent, ownerReferences=refs or None))
            self._drop_finalizer(resource, now, ORPHAN)

    def _drop_finalizer(self, resource: Resource, one: Object, name: str) -> None:
        kept = [other for other in one["metadata"]["finalizers"] if other != name]
        new = self.registry.write(resource, with_meta(one, finalizers=kept or None))
        self.registry.settle(resource, new)

    # ---- namespaces ----

    def _accounts(self) -> None:
        for one in self.store.all(catalog.NAMESPACES):
            name = one["metadata"]["name"]
            if not one["metadata"].get("deletionTimestamp") and self.store.get(
                    catalog.SERVICE_ACCOUNTS, name, "default") is None:
                self.registry.create(catalog.SERVICE_ACCOUNTS, name,
                                     {"metadata": {"name": "default"}})

    def _namespaces(self) -> None:
        for namespace in self.store.all(catalog.NAMESPACES):
            if not namespace["metadata"].get("deletionTimestamp"):
                continue
            name, left = namespace["metadata"]["name"], False
            for resource in catalog.RESOURCES:
                if not resource.stored or not resource.namespaced:
                    continue
                for one in self.store.all(resource, name):
                    self._delete(resource, one)
                    left |= self.store.get(resource, *key_of(one)) is not None
            now = self.store.get(catalog.NAMESPACES, "", name)
            if not left and now is not None:
                new = self.registry.write(catalog.NAMESPACES, {**now, "spec": {}})
                self.registry.settle(catalog.NAMESPACES, new)
