"""One container's life and one pod's, as the node that runs it keeps it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.k8s import quantities
from fakecloud.k8s.registry import stamp
from fakecloud.k8s.selectors import Object

OUT_OF_MEMORY = "OOMKilled"


@dataclass
class Container:
    """``phase`` is waiting, starting, running or ended."""

    uid: str
    spec: Object
    first: bool = False             # An init container.
    phase: str = "waiting"
    reason: str = "ContainerCreating"
    message: str = ""
    due_s: float = 0.0              # Of the next try.
    number: int = 0                 # How often it has been started again.
    pulls: int = 0
    began_s: Optional[float] = None
    ended_s: float = 0.0
    code: int = 0
    why: str = ""                   # The reason of its end.
    told: str = ""                  # The message of its end.
    last: Optional[dict[str, Any]] = None
    backoff_s: float = 0.0
    memory_out: bool = False

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def id(self) -> str:
        return f"{self.uid}.{self.name}.{self.number}"

    @property
    def alive(self) -> bool:
        return self.phase in ("starting", "running")

    def memory_limit(self) -> Optional[int]:
        """Bytes."""
        value = ((self.spec.get("resources") or {}).get("limits") or {}).get("memory")
        return None if value is None else int(quantities.amount(value))

    def wait(self, reason: str, message: str, due_s: float) -> None:
        self.phase, self.reason, self.message, self.due_s = "waiting", reason, message, due_s

    def end(self, code: int, now_s: float, message: str = "", reason: str = "") -> None:
        """``code``: negative for a signal."""
        self.phase, self.ended_s = "ended", now_s
        self.code = 128 - code if code < 0 else code
        self.told = message
        self.why = reason or (OUT_OF_MEMORY if self.memory_out else
                              "Completed" if self.code == 0 else "Error")
        if self.began_s is None:
            self.began_s = now_s
        self.memory_out = False

    def terminated(self) -> dict[str, Any]:
        found = {"exitCode": self.code, "reason": self.why, "message": self.told,
                 "startedAt": stamp(self.began_s or self.ended_s),
                 "finishedAt": stamp(self.ended_s), "containerID": self.container_id(self.number)}
        return {key: value for key, value in found.items() if value != ""}

    def container_id(self, number: int) -> str:
        return f"fakecloud://{self.uid}/{self.name}/{number}"

    def status(self) -> dict[str, Any]:
        """As containerStatuses has it."""
        if self.phase == "running":
            state: dict[str, Any] = {"running": {"startedAt": stamp(self.began_s or 0.0)}}
        elif self.phase == "ended":
            state = {"terminated": self.terminated()}
        else:
            waiting = {"reason": self.reason, "message": self.message}
            state = {"waiting": {key: value for key, value in waiting.items() if value}}
        started = self.phase == "running"
        found: dict[str, Any] = {
            "name": self.name, "state": state,
            "lastState": {"terminated": self.last} if self.last else {},
            "ready": self.phase == "running" if not self.first else (
                self.phase == "ended" and self.code == 0),
            "restartCount": self.number, "image": self.spec["image"], "imageID": "",
            "started": started}
        if self.phase in ("running", "ended"):
            found["containerID"] = self.container_id(self.number)
            found["imageID"] = f"fakecloud://{self.spec['image']}"
        return found


@dataclass
class Life:
    """Of a pod on its node. ``doom``: phase Failed with this reason and message is to come."""

    uid: str
    namespace: str
    name: str
    node: str
    began_s: float
    containers: list[Container] = field(default_factory=list)
    ending_s: Optional[float] = None        # Since when its end was asked for.
    kill_s: Optional[float] = None          # When what is left is killed.
    killed: bool = False
    doom: Optional[tuple[str, str]] = None
    condition: Optional[dict[str, Any]] = None

    @property
    def mains(self) -> list[Container]:
        return [one for one in self.containers if not one.first]

    @property
    def firsts(self) -> list[Container]:
        return [one for one in self.containers if one.first]

    def alive(self) -> list[Container]:
        return [one for one in self.containers if one.alive]

    def initialized(self) -> bool:
        return all(one.phase == "ended" and one.code == 0 for one in self.firsts)


def lives_of(pod: Object, now_s: float, due_s: float) -> Life:
    own, spec = pod["metadata"], pod["spec"]
    made = [Container(own["uid"], one, first, due_s=due_s)
            for kind, first in (("initContainers", True), ("containers", False))
            for one in spec.get(kind) or []]
    firsts = any(one.first for one in made)
    for one in made:
        if firsts:
            one.reason = "PodInitializing"
    return Life(own["uid"], own["namespace"], own["name"], spec["nodeName"], now_s, made)


def phase_of(life: Life, policy: str) -> str:
    mains = life.mains
    if any(one.first and not (one.phase == "ended" and one.code == 0) for one in life.containers):
        failed = any(one.first and one.phase == "ended" and one.code != 0
                     for one in life.containers)
        return "Failed" if failed and policy == "Never" else "Pending"
    if any(one.phase in ("waiting", "starting") and one.last is None for one in mains):
        return "Pending"
    if any(one.phase != "ended" for one in mains):
        return "Running"
    if policy == "Always":
        return "Running"
    if all(one.code == 0 for one in mains):
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def with_condition(conditions: list[Object], kind: str, status: str, now_s: float,
                   reason: str = "", message: str = "") -> list[Object]:
    """A new list; the time is of the last change of its status."""
    new: Object = {"type": kind, "status": status, "lastProbeTime": None,
                   "lastTransitionTime": stamp(now_s)}
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    kept = []
    for one in conditions:
        if one["type"] != kind:
            kept.append(one)
        elif one["status"] == status:
            new["lastTransitionTime"] = one["lastTransitionTime"]
    if any(one["type"] == kind for one in conditions):
        return [new if one["type"] == kind else one for one in conditions]
    return [*kept, new]
