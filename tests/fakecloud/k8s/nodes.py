"""Nodes: pools of them, a scaler that adds and removes some, notices, and ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from fakecloud.k8s import catalog
from fakecloud.k8s.catalog import MINOR
from fakecloud.k8s.defaults import UNREACHABLE
from fakecloud.k8s.kubelet import ADDRESS, Kubelet
from fakecloud.k8s.lives import with_condition
from fakecloud.k8s.registry import Registry, is_over, stamp
from fakecloud.k8s.scheduler import Room, refusals, requests_of, rooms_of
from fakecloud.k8s.selectors import Object
from fakecloud.k8s.settings import HOSTNAME, REGION, TYPE, ZONE, Pool, Settings
from fakecloud.k8s.store import Change
from fakecloud.orders import BadOrder

POOL, SPOT = "fakecloud/pool", "fakecloud/spot"
# How a node is taken -> the taint of its notice, and whether its pods are evicted (else the kubelet
# ends them, as on a machine that shuts down).
NOTICES = {
    "gke": ("cloud.google.com/impending-node-termination", False),
    "karpenter": ("karpenter.sh/disrupted", True),
    "autoscaler": ("ToBeDeletedByClusterAutoscaler", True)}
_CONDITIONS = (("MemoryPressure", "False", "KubeletHasSufficientMemory"),
               ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
               ("PIDPressure", "False", "KubeletHasSufficientPID"),
               ("Ready", "True", "KubeletReady"))


@dataclass
class Machine:
    """What a node runs on. ``ready_s``: when it has booted; ``off_s``: when it is switched off."""

    name: str
    pool: Pool
    ready_s: float
    alive: bool = True
    off_s: Optional[float] = None
    evicting: bool = False
    silent_s: Optional[float] = None    # Since when nothing is heard of it.
    unreachable: bool = False
    empty_s: Optional[float] = None     # Since when it has no pods.


def template(pool: Pool, name: str) -> Object:
    """The node of a pool, as its kubelet registers it."""
    labels = {HOSTNAME: name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
              POOL: pool.name, SPOT: str(pool.spot).lower()}
    for key, value in ((ZONE, pool.zone), (REGION, pool.region), (TYPE, pool.type)):
        if value:
            labels[key] = value
    room = {"cpu": pool.cpu, "memory": pool.memory, "pods": str(pool.pods),
            "ephemeral-storage": "100Gi"}
    if pool.gpus:
        room["nvidia.com/gpu"] = str(pool.gpus)
    spec: Object = {"providerID": f"fakecloud://{pool.zone}/{name}"}
    if pool.taints:
        spec["taints"] = [dict(one) for one in pool.taints]
    return {"metadata": {"name": name, "labels": {**labels, **pool.labels}}, "spec": spec,
            "status": {
                "capacity": room, "allocatable": dict(room),
                "addresses": [{"type": "InternalIP", "address": ADDRESS},
                              {"type": "Hostname", "address": name}],
                "nodeInfo": {"kubeletVersion": f"v1.{MINOR}.0", "kubeProxyVersion":
                             f"v1.{MINOR}.0", "osImage": "fakecloud", "architecture": "amd64",
                             "operatingSystem": "linux", "containerRuntimeVersion": "fakecloud://1",
                             "kernelVersion": "6.1", "machineID": name, "systemUUID": name,
                             "bootID": name}}}


class Nodes:
    def __init__(self, registry: Registry, settings: Settings, kubelet: Kubelet,
                 rng: Any) -> None:
        self.registry, self.settings, self.kubelet, self._rng = registry, settings, kubelet, rng
        self.store = registry.store
        self.machines: dict[str, Machine] = {}
        self._numbers: dict[str, int] = {}
        self._booting: list[Machine] = []
        self.store.listeners.append(self._changed)

    def _changed(self, change: Change) -> None:
        if change.resource is catalog.NODES and change.kind == "DELETED":
            gone = self.machines.pop(change.new["metadata"]["name"], None)
            if gone is not None and gone.alive:
                gone.alive = False
                self.kubelet.abandon(gone.name)

    def alive(self, name: str) -> bool:
        machine = self.machines.get(name)
        return machine is not None and machine.alive

    def need(self, name: str) -> Machine:
        machine = self.machines.get(name)
        if machine is None or not machine.alive:
            raise BadOrder(f"there is no node {name[:80]!r} that is alive")
        return machine

    # ---- coming ----

    def begin(self, now_s: float) -> None:
        for pool in self.settings.pools:
            for _ in range(pool.count):
                self._register(self._new(pool, now_s), now_s)

    def _new(self, pool: Pool, ready_s: float) -> Machine:
        number = self._numbers[pool.name] = self._numbers.get(pool.name, -1) + 1
        return Machine(f"{pool.name}-{number}", pool, ready_s)

    def _register(self, machine: Machine, now_s: float) -> None:
        one = template(machine.pool, machine.name)
        conditions: list[Object] = []
        for kind, status, reason in _CONDITIONS:
            conditions = with_condition(conditions, kind, status, now_s, reason)
        one["status"]["conditions"] = [
            {**{key: value for key, value in condition.items() if key != "lastProbeTime"},
             "lastHeartbeatTime": stamp(now_s)} for condition in conditions]
        self.machines[machine.name] = machine
        self.registry.create(catalog.NODES, "", one)

    def add(self, pool_name: str, count: int, now_s: float) -> None:
        pool = next((one for one in self.settings.pools if one.name == pool_name), None)
        if pool is None:
            raise BadOrder(f"there is no pool {pool_name[:80]!r}")
        for _ in range(count):
            self._booting.append(self._new(pool, now_s + pool.boot_s))

    # ---- leaving ----

    def notice(self, name: str, lead_s: float, how: str, now_s: float) -> None:
        """Its machine is taken after so many seconds; its pods are told."""
        machine = self.need(name)
        key, evicts = NOTICES[how]
        machine.off_s, machine.evicting = now_s + lead_s, evicts
        self._taint(name, {"key": key, "effect": "NoSchedule"})
        if not evicts:
            self._ready(name, "False", "KubeletNotReady", "node is shutting down")
            for life in list(self.kubelet.lives.values()):
                if life.node == name:
                    self.kubelet.doom(
                        life.uid, "Terminated", "Pod was terminated in response to imminent node "
                        "shutdown.", lead_s, {"kind": "DisruptionTarget", "status": "True",
                                              "reason": "TerminationByKubelet", "message":
                                              "Pod was terminated in response to imminent node "
                                              "shutdown."})

    def silence(self, name: str, now_s: float) -> None:
        """The machine is gone, and nobody has said so: its node looks well for a while."""
        machine = self.need(name)
        machine.alive, machine.silent_s = False, now_s
        self.kubelet.abandon(name)

    def remove(self, name: str) -> None:
        """Machine and node at once."""
        machine = self.machines.get(name)
        if machine is not None and machine.alive:
            machine.alive = False
            self.kubelet.abandon(name)
        one = self.store.get(catalog.NODES, "", name)
        if one is not None:
            self.registry.delete(catalog.NODES, one)
        self.machines.pop(name, None)

    # ---- the node's object ----

    def _write(self, name: str, change: Any) -> None:
        one = self.store.get(catalog.NODES, "", name)
        if one is not None:
            self.registry.write(catalog.NODES, change(one))

    def _taint(self, name: str, taint: Object) -> None:
        def change(one: Object) -> Object:
            kept = [old for old in one["spec"].get("taints") or []
                    if (old["key"], old["effect"]) != (taint["key"], taint["effect"])]
            return {**one, "spec": {**one["spec"], "taints": [*kept, taint]}}
        self._write(name, change)

    def _ready(self, name: str, status: str, reason: str, message: str) -> None:
        def change(one: Object) -> Object:
            conditions = with_condition(one["status"].get("conditions") or [], "Ready", status,
                                        self.registry.now(), reason, message)
            return {**one, "status": {**one["status"], "conditions": conditions}}
        self._write(name, change)

    # ---- time ----

    def next_due(self) -> Optional[float]:
        times = [one.ready_s for one in self._booting]
        for one in self.machines.values():
            if one.off_s is not None:
                times.append(one.off_s)
            if one.silent_s is not None:
                wait_s = self.settings.unreachable_s if not one.unreachable else (
                    self.settings.unreachable_s + (self.settings.gone_s or 0.0)
                    if self.settings.gone_s is not None else None)
                if wait_s is not None:
                    times.append(one.silent_s + wait_s)
            if one.empty_s is not None:
                times.append(one.empty_s + one.pool.idle_s)
        return min(times, default=None)

    def step(self, now_s: float) -> None:
        for machine in [one for one in self._booting if one.ready_s <= now_s]:
            self._booting.remove(machine)
            self._register(machine, now_s)
        for machine in list(self.machines.values()):
            if machine.silent_s is not None:
                self._silent(machine, machine.silent_s, now_s)
            elif machine.off_s is not None and machine.off_s <= now_s:
                self.remove(machine.name)
        self._scale_down(now_s)

    def _silent(self, machine: Machine, since_s: float, now_s: float) -> None:
        limit_s, gone_s = since_s + self.settings.unreachable_s, self.settings.gone_s
        if not machine.unreachable and now_s >= limit_s:
            machine.unreachable = True
            self._ready(machine.name, "Unknown", "NodeStatusUnknown",
                        "Kubelet stopped posting node status.")
            for effect in ("NoSchedule", "NoExecute"):
                self._taint(machine.name, {"key": UNREACHABLE, "effect": effect,
                                           "timeAdded": stamp(now_s)})
            for pod in self.store.all(catalog.PODS):
                if pod["spec"].get("nodeName") == machine.name and not is_over(pod):
                    conditions = with_condition(pod["status"].get("conditions") or [], "Ready",
                                                "False", now_s)
                    self.registry.write(catalog.PODS, {**pod, "status": {
                        **pod["status"], "conditions": conditions}})
        if gone_s is not None and now_s >= limit_s + gone_s:
            self.remove(machine.name)

    # ---- the scaler ----

    def _size(self, pool: Pool) -> int:
        return sum(one.pool is pool for one in [*self.machines.values(), *self._booting])

    def scale_up(self, waiting: list[Object], now_s: float) -> None:
        """For pods that have no room anywhere: as many nodes as they need together."""
        pools = [one for one in self.settings.pools if one.max is not None]
        if not pools:
            return
        coming = [Room(template(one.pool, one.name)) for one in self._booting]
        for pod in waiting:
            needs = requests_of(pod)
            rooms = {room.name: room for room in coming}
            fitting = next((room for room in coming
                            if not refusals(pod, room, rooms, needs)[0]), None)
            if fitting is None:
                fitting = self._another(pod, pools, now_s)
                if fitting is None:
                    continue
                coming.append(fitting)
            fitting.add(pod)

    def _another(self, pod: Object, pools: list[Pool], now_s: float) -> Optional[Room]:
        for pool in pools:
            most = pool.max if pool.capacity is None else min(pool.max or 0, pool.capacity)
            room = Room(template(pool, "new"))
            if self._size(pool) < (most or 0) and not refusals(
                    pod, room, {"new": room}, requests_of(pod))[0]:
                machine = self._new(pool, now_s + pool.boot_s)
                self._booting.append(machine)
                self.registry.event(catalog.PODS, pod, "TriggeredScaleUp", "pod triggered "
                                    f"scale-up: [{{{pool.name} {self._size(pool) - 1}->"
                                    f"{self._size(pool)} (max: {pool.max})}}]",
                                    "cluster-autoscaler")
                return Room(template(pool, machine.name))
        return None

    def _scale_down(self, now_s: float) -> None:
        scaled = [one for one in self.machines.values()
                  if one.pool.max is not None and one.alive and one.off_s is None]
        if not scaled:
            return
        rooms = rooms_of(self.store.all(catalog.NODES), self.store.all(catalog.PODS))
        for machine in scaled:
            room = rooms.get(machine.name)
            if room is None or room.pods:
                machine.empty_s = None
            elif machine.empty_s is None:
                machine.empty_s = now_s
            elif now_s >= machine.empty_s + machine.pool.idle_s and (
                    self._size(machine.pool) > machine.pool.min):
                self.remove(machine.name)

    def as_json(self) -> list[dict[str, Any]]:
        return [{"node": one.name, "pool": one.pool.name, "spot": one.pool.spot,
                 "alive": one.alive, "off_s": one.off_s, "unreachable": one.unreachable}
                for one in self.machines.values()]
