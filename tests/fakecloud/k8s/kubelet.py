"""What runs pods on their nodes: a state machine. Its effects are orders to who runs containers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from fakecloud.k8s import catalog, launch
from fakecloud.k8s.errors import ApiError
from fakecloud.k8s.launch import Launch, NotReady
from fakecloud.k8s.lives import Container, Life, lives_of, phase_of, with_condition
from fakecloud.k8s.registry import Registry, is_over, stamp
from fakecloud.k8s.selectors import Object
from fakecloud.k8s.settings import Settings
from fakecloud.k8s.store import Change, key_of

ADDRESS = "127.0.0.1"
RETRY_S = 0.5           # For what is missing: a secret, a volume.
MESSAGE_MAX = 2_048     # Of a log, as the message of an end.


@dataclass
class Effect:
    """``do`` is start, soft, kill or forget; of a pod for the last."""

    do: str
    id: str
    launch: Optional[Launch] = None


class Kubelet:
    """Of all nodes. ``alive``: whether a node is; ``tail``: the end of a container's log;
    ``account``: the files of a pod's service account."""

    def __init__(self, registry: Registry, settings: Settings, rng: Any,
                 alive: Callable[[str], bool]) -> None:
        self.registry, self.settings, self._rng, self._alive = registry, settings, rng, alive
        self.store = registry.store
        self.lives: dict[str, Life] = {}
        self.effects: list[Effect] = []
        self.tail: Callable[[str, str, int], str] = lambda uid, container, number: ""
        self.account: Callable[[Object], dict[str, bytes]] = lambda pod: {}
        self.environment: dict[str, str] = {}
        self._dirty: dict[str, None] = {}
        self._new: dict[str, tuple[str, str]] = {}      # Pods that have no life yet -> their keys.
        self._due: dict[str, float] = {}
        self.store.listeners.append(self._changed)

    # ---- what has happened ----

    def _changed(self, change: Change) -> None:
        if change.resource is not catalog.PODS or not change.new["spec"].get("nodeName"):
            return
        uid = change.new["metadata"]["uid"]
        if change.kind == "DELETED":
            self._new.pop(uid, None)
        elif uid not in self.lives:
            if is_over(change.new):
                return
            self._new[uid] = key_of(change.new)
        self._dirty[uid] = None

    def _container(self, id_: str) -> Optional[tuple[Life, Container]]:
        uid, name, number = id_.split(".")
        life = self.lives.get(uid)
        for one in life.containers if life else []:
            if life and one.name == name and one.number == int(number):
                return life, one
        return None

    def started(self, id_: str) -> None:
        found = self._container(id_)
        if found and found[1].phase == "starting":
            found[1].phase, found[1].began_s = "running", self.registry.now()
            self._tell(found[0], "Started", f"Started container {found[1].name}")
            self._dirty[found[0].uid] = None

    def unstarted(self, id_: str, why: str) -> None:
        """What runs containers could not run this one."""
        found = self._container(id_)
        if found and found[1].alive:
            one = found[1]
            told = "executable file not found in $PATH" if "No such file" in why else why.lower()
            command = (one.spec.get("command") or one.spec.get("args") or ["?"])[0]
            one.end(128, self.registry.now(), "failed to create containerd task: failed to create "
                    "shim task: OCI runtime create failed: runc create failed: unable to start "
                    f'container process: exec: "{command}": {told}: unknown', "StartError")
            self._tell(found[0], "Failed", f"Error: {one.told}", True)
            self._dirty[found[0].uid] = None

    def exited(self, id_: str, code: int) -> None:
        found = self._container(id_)
        if found and found[1].alive:
            life, one = found
            failed = code != 0
            message = ""
            if failed and one.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
                message = self.tail(life.uid, one.name, one.number)[-MESSAGE_MAX:]
            one.end(code, self.registry.now(), message)
            self._dirty[life.uid] = None

    def lost(self, id_: str) -> None:
        """Somebody has killed what keeps it."""
        self.exited(id_, -9)

    def out_of_memory(self, id_: str) -> None:
        found = self._container(id_)
        if found and found[1].alive and not found[1].memory_out:
            found[1].memory_out = True
            self.effects.append(Effect("kill", id_))

    def doom(self, uid: str, reason: str, message: str, grace_s: float,
             condition: Optional[Object] = None) -> None:
        """Ends a pod by the node's own will: it fails."""
        life = self.lives.get(uid)
        if life is not None and life.doom is None and life.ending_s is None:
            life.doom, life.condition = (reason, message), condition
            self._end(life, grace_s)
            self._dirty[uid] = None

    def abandon(self, node: str) -> None:
        """The node is no more: its processes end, and nobody tells the API."""
        for life in self.lives.values():
            if life.node == node:
                self.effects += [Effect("kill", one.id) for one in life.alive()]
                for one in life.alive():
                    one.end(-9, self.registry.now())
                life.killed = True

    # ---- steps ----

    def next_due(self) -> Optional[float]:
        if self._dirty:
            return 0.0
        return min(self._due.values(), default=None)

    def step(self, now_s: float) -> None:
        for _ in range(20):
            due = [uid for uid, at_s in self._due.items() if at_s <= now_s]
            todo = list({**self._dirty, **dict.fromkeys(due)})
            if not todo:
                return
            self._dirty.clear()
            for uid in todo:
                self._due.pop(uid, None)
                self._step_one(uid, now_s)

    def _pod(self, life: Life) -> Optional[Object]:
        pod = self.store.get(catalog.PODS, life.namespace, life.name)
        return pod if pod is not None and pod["metadata"]["uid"] == life.uid else None

    def _find(self, uid: str, now_s: float) -> Optional[Life]:
        life = self.lives.get(uid)
        if life is None:
            pod = self.store.get(catalog.PODS, *self._new.pop(uid, ("", "")))
            if pod is None or pod["metadata"]["uid"] != uid or is_over(pod) or (
                    not self._alive(pod["spec"]["nodeName"])):
                return None
            due_s = now_s + self.settings.create_s.draw(self._rng)
            life = self.lives[uid] = lives_of(pod, now_s, due_s)
        return life

    def _step_one(self, uid: str, now_s: float) -> None:
        life = self._find(uid, now_s)
        if life is None:
            return
        pod = self._pod(life)
        if pod is None:
            return self._clear(life)
        if not self._alive(life.node):
            return
        if pod["metadata"].get("deletionTimestamp"):
            self._ending(life, pod, now_s)
        if life.ending_s is None and not is_over(pod):
            self._progress(life, pod, now_s)
        if life.kill_s is not None and not life.killed and now_s >= life.kill_s:
            life.killed = True
            self.effects += [Effect("kill", one.id) for one in life.alive()]
        self._wake(life, now_s)
        self._write(life, pod, now_s)
        if life.ending_s is not None and not life.alive():
            now_pod = self._pod(life)
            if now_pod is not None and now_pod["metadata"].get("deletionTimestamp"):
                self.registry.finish(catalog.PODS, now_pod)

    def _wake(self, life: Life, now_s: float) -> None:
        times = [one.due_s for one in life.containers if one.phase == "waiting"
                 and life.ending_s is None]
        if life.kill_s is not None and not life.killed and life.alive():
            times.append(life.kill_s)
        pod = self._pod(life)
        limit_s = pod["spec"].get("activeDeadlineSeconds") if pod else None
        if limit_s is not None and life.ending_s is None:
            times.append(life.began_s + limit_s)
        later = [at_s for at_s in times if at_s > now_s]
        if later:
            self._due[life.uid] = min(later)

    def _clear(self, life: Life) -> None:
        """It is gone from the API: so are its processes, at once."""
        if not life.killed:
            life.killed = True
            self.effects += [Effect("kill", one.id) for one in life.alive()]
        if not life.alive():
            del self.lives[life.uid]
            self.effects.append(Effect("forget", life.uid))

    def _end(self, life: Life, grace_s: float) -> None:
        now_s = self.registry.now()
        if life.ending_s is None:
            life.ending_s = now_s
            for one in life.alive():
                self._tell(life, "Killing", f"Stopping container {one.name}")
                self.effects.append(Effect("soft", one.id))
        kill_s = life.ending_s + grace_s
        if life.kill_s is None or kill_s < life.kill_s:
            life.kill_s = kill_s

    def _ending(self, life: Life, pod: Object, now_s: float) -> None:
        self._end(life, pod["metadata"].get("deletionGracePeriodSeconds", 0))

    def _progress(self, life: Life, pod: Object, now_s: float) -> None:
        limit_s = pod["spec"].get("activeDeadlineSeconds")
        if limit_s is not None and now_s >= life.began_s + limit_s:
            self.doom(life.uid, "DeadlineExceeded", "Pod was active on the node longer than the "
                      "specified deadline", pod["spec"].get("terminationGracePeriodSeconds", 30))
            return
        policy = pod["spec"].get("restartPolicy", "Always")
        for one in life.containers:
            if one.phase == "ended":
                self._again(life, one, policy, now_s)
            if one.phase == "waiting" and one.due_s <= now_s and (
                    one.first or life.initialized()):
                self._start(life, pod, one, now_s)
            if one.first and not (one.phase == "ended" and one.code == 0):
                return      # The others wait for it.

    def _again(self, life: Life, one: Container, policy: str, now_s: float) -> None:
        """Whether it is started again, and when."""
        if policy == "Never" or (one.code == 0 and (policy == "OnFailure" or one.first)):
            return
        settings = self.settings
        ran_s = one.ended_s - (one.began_s or one.ended_s)
        one.last = one.terminated()
        if one.number == 0 or ran_s >= settings.restart_reset_s:
            again_s, one.backoff_s = 0.0, settings.backoff_s
        else:
            again_s = one.backoff_s
            one.backoff_s = min(settings.backoff_max_s, again_s * 2)
        one.number += 1
        one.began_s = None
        told = (f"back-off {again_s:g}s restarting failed container={one.name} "
                f"pod={life.name}_{life.namespace}({life.uid})")
        one.wait("CrashLoopBackOff", told, now_s + again_s)
        if again_s:
            self._tell(life, "BackOff", f"Back-off restarting failed container {one.name} in pod "
                       f"{life.name}_{life.namespace}({life.uid})", True)

    def _start(self, life: Life, pod: Object, one: Container, now_s: float) -> None:
        image = one.spec["image"]
        if "missing" in image:
            one.pulls += 1
            if one.pulls % 2:
                one.wait("ErrImagePull", f'failed to pull and unpack image "{image}": failed to '
                         f'resolve reference "{image}": {image}: not found', now_s + RETRY_S)
                self._tell(life, "Failed", f'Failed to pull image "{image}": not found', True)
            else:
                one.wait("ImagePullBackOff", f'Back-off pulling image "{image}"',
                         now_s + self.settings.backoff_s)
            return
        # Where it runs is known before it starts: its variables may tell it.
        shown = {**pod, "status": {**pod["status"], "podIP": ADDRESS, "hostIP": ADDRESS}}
        more = {**self.environment, **self.settings.environment}
        try:
            ready = launch.launch(self.store, shown, one.spec, more, self.account(pod))
        except NotReady as why:
            if why.reason:
                one.wait(why.reason, why.message, now_s + RETRY_S)
                self._tell(life, "Failed", f"Error: {why.message}", True)
            else:
                one.wait(one.reason, one.message, now_s + RETRY_S)
                self._tell(life, "FailedMount", f"MountVolume.SetUp failed : {why.message}", True)
            return
        one.phase = "starting"
        self._tell(life, "Pulled", f'Container image "{image}" already present on machine')
        self._tell(life, "Created", f"Created container: {one.name}")
        self.effects.append(Effect("start", one.id, ready))

    # ---- what is told ----

    def _tell(self, life: Life, reason: str, message: str, warning: bool = False) -> None:
        pod = self._pod(life)
        if pod is not None:
            self.registry.event(catalog.PODS, pod, reason, message, "kubelet", warning)

    def _status(self, life: Life, pod: Object, now_s: float) -> Object:
        old = pod.get("status") or {}
        policy = pod["spec"].get("restartPolicy", "Always")
        phase = phase_of(life, policy)
        if life.ending_s is not None and not life.alive():
            bad = life.doom is not None or any(
                one.code != 0 or one.phase != "ended" for one in life.mains)
            phase = "Failed" if bad else "Succeeded"
        elif life.ending_s is not None and phase in ("Succeeded", "Failed"):
            phase = "Running"
        ready = phase == "Running" and all(one.phase == "running" for one in life.mains)
        conditions = list(old.get("conditions") or [])
        why = "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
        told = "" if phase == "Succeeded" else "containers with unready status: [" + " ".join(
            one.name for one in life.mains if one.phase != "running") + "]"
        initialized = life.initialized()
        conditions = with_condition(conditions, "Initialized", str(initialized), now_s,
                                    "" if initialized else "ContainersNotInitialized")
        for kind in ("Ready", "ContainersReady"):
            conditions = with_condition(conditions, kind, str(ready), now_s,
                                        "" if ready else why, "" if ready else told)
        if life.condition is not None:
            conditions = with_condition(conditions, **life.condition, now_s=now_s)
        new = {**old, "phase": phase, "conditions": conditions, "hostIP": ADDRESS,
               "hostIPs": [{"ip": ADDRESS}], "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}],
               "startTime": old.get("startTime") or stamp(life.began_s)}
        for key, some in (("containerStatuses", life.mains), ("initContainerStatuses",
                                                              life.firsts)):
            if some:
                new[key] = [one.status() for one in some]
        if life.doom is not None:
            new["reason"], new["message"] = life.doom
        return new

    def _write(self, life: Life, pod: Object, now_s: float) -> None:
        if is_over(pod):
            return
        now_pod = self._pod(life)
        if now_pod is None:
            return
        status = self._status(life, now_pod, now_s)
        if status == now_pod.get("status"):
            return
        try:
            self.registry.write(catalog.PODS, {**now_pod, "status": status})
        except ApiError:    # It has changed meanwhile: it is dirty again.
            self._dirty[life.uid] = None

    def running(self) -> list[tuple[str, Container]]:
        return [(one.id, one) for life in self.lives.values() for one in life.alive()]
