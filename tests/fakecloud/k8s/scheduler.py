"""Where a pod fits, and if nowhere, why, in the words of the real scheduler. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Optional

from fakecloud.k8s import quantities
from fakecloud.k8s.registry import is_over
from fakecloud.k8s.selectors import Object, fits_selector


def requests_of(pod: Object) -> dict[str, Fraction]:
    """Of all its containers; those that begin first count only where they need more."""
    total: dict[str, Fraction] = {}
    for one in pod["spec"]["containers"]:
        quantities.add(total, (one.get("resources") or {}).get("requests") or {})
    for one in pod["spec"].get("initContainers") or []:
        first: dict[str, Fraction] = {}
        quantities.add(first, (one.get("resources") or {}).get("requests") or {})
        for name, value in first.items():
            total[name] = max(total.get(name, Fraction(0)), value)
    quantities.add(total, pod["spec"].get("overhead") or {})
    return total


def tolerates(tolerations: list[Object], taint: Object) -> bool:
    for one in tolerations:
        if one.get("effect") and one["effect"] != taint["effect"]:
            continue
        if one.get("operator", "Equal") == "Exists":
            if one.get("key", "") in ("", taint["key"]):
                return True
        elif one.get("key") == taint["key"] and one.get("value", "") == taint.get("value", ""):
            return True
    return False


def _fits_term(term: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    pairs = [(one, labels) for one in term.get("matchExpressions") or []]
    pairs += [(one, {"metadata.name": node["metadata"]["name"]})
              for one in term.get("matchFields") or []]
    for one, of in pairs:
        value, values = of.get(one["key"]), one.get("values") or []
        good = {"In": value in values, "NotIn": value not in values, "Exists": value is not None,
                "DoesNotExist": value is None}.get(one["operator"])
        if good is None:
            try:
                got, asked = int(value or ""), int(values[0])
                good = got > asked if one["operator"] == "Gt" else got < asked
            except (ValueError, IndexError):
                good = False
        if not good:
            return False
    return bool(pairs)


def fits_affinity(pod: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    for key, value in (pod["spec"].get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return False
    wanted = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution")
    return wanted is None or any(_fits_term(one, node) for one in wanted["nodeSelectorTerms"])


def _terms(pod: Object, kind: str) -> list[Object]:
    affinity = (pod["spec"].get("affinity") or {}).get(kind) or {}
    found: list[Object] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []
    return found


def _matches(term: Object, owner: Object, other: Object) -> bool:
    namespaces = term.get("namespaces") or [owner["metadata"]["namespace"]]
    return other["metadata"]["namespace"] in namespaces and fits_selector(
        term.get("labelSelector"), other["metadata"].get("labels") or {})


class Room:
    """A node with its pods."""

    def __init__(self, node: Object) -> None:
        self.node, self.pods = node, list[Object]()
        self.used: dict[str, Fraction] = {}
        self.all = {key: quantities.amount(value) for key, value in
                    ((node.get("status") or {}).get("allocatable") or {}).items()}

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    def add(self, pod: Object) -> None:
        self.pods.append(pod)
        for name, value in requests_of(pod).items():
            self.used[name] = self.used.get(name, Fraction(0)) + value

    def without(self, gone: list[Object]) -> Room:
        other = Room(self.node)
        names = {one["metadata"]["uid"] for one in gone}
        for pod in self.pods:
            if pod["metadata"]["uid"] not in names:
                other.add(pod)
        return other

    def lacks(self, needs: dict[str, Fraction]) -> list[str]:
        found = ["Too many pods"] if len(self.pods) + 1 > self.all.get("pods", 110) else []
        for name, value in needs.items():
            if value > 0 and self.used.get(name, Fraction(0)) + value > self.all.get(
                    name, Fraction(0)):
                found.append(f"Insufficient {name}")
        return found

    def free(self, name: str) -> Fraction:
        return self.all.get(name, Fraction(0)) - self.used.get(name, Fraction(0))


def rooms_of(nodes: Iterable[Object], pods: Iterable[Object]) -> dict[str, Room]:
    found = {one["metadata"]["name"]: Room(one) for one in nodes}
    for pod in pods:
        name = pod["spec"].get("nodeName")
        if name in found and not is_over(pod):
            found[name].add(pod)
    return found


def _topology(room: Room, term: Object) -> Optional[str]:
    value: Optional[str] = (room.node["metadata"].get("labels") or {}).get(
        term.get("topologyKey", ""))
    return value


def _apart(pod: Object, room: Room, rooms: dict[str, Room]) -> str:
    """Why the pods that are there forbid it; empty if they do not."""
    for term in _terms(pod, "podAntiAffinity"):
        place = _topology(room, term)
        if place is not None and any(
                _matches(term, pod, one) for other in rooms.values()
                if _topology(other, term) == place for one in other.pods):
            return "node(s) didn't match pod anti-affinity rules"
    for other in rooms.values():
        for one in other.pods:
            for term in _terms(one, "podAntiAffinity"):
                place = _topology(room, term)
                if place is not None and place == _topology(other, term) and _matches(
                        term, one, pod):
                    return "node(s) didn't satisfy existing pods anti-affinity rules"
    for term in _terms(pod, "podAffinity"):
        place = _topology(room, term)
        mates = [other for other in rooms.values() for one in other.pods
                 if _matches(term, pod, one)]
        if place is None or (mates and all(_topology(one, term) != place for one in mates)) or (
                not mates and not _matches(term, pod, pod)):
            return "node(s) didn't match pod affinity rules"
    return ""


def refusals(pod: Object, room: Room, rooms: dict[str, Room],
             needs: dict[str, Fraction]) -> tuple[list[str], bool]:
    """Why it does not fit, and whether the end of other pods could help."""
    spec = room.node.get("spec") or {}
    tolerations = pod["spec"].get("tolerations") or []
    if spec.get("unschedulable") and not tolerates(tolerations, {
            "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}):
        return ["node(s) were unschedulable"], False
    for taint in spec.get("taints") or []:
        if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerates(tolerations, taint):
            value = f"{taint['key']}: {taint.get('value', '')}"
            return [f"node(s) had untolerated taint {{{value}}}"], False
    if not fits_affinity(pod, room.node):
        return ["node(s) didn't match Pod's node affinity/selector"], False
    lacks = room.lacks(needs)
    apart = _apart(pod, room, rooms)
    reasons = lacks + ([apart] if apart else [])
    hopeless = any(value > room.all.get(name, Fraction(0)) for name, value in needs.items())
    return reasons, bool(reasons) and not hopeless and "pod affinity" not in apart


def _priority(pod: Object) -> int:
    return int(pod["spec"].get("priority", 0))


def _victims(pod: Object, room: Room, rooms: dict[str, Room],
             needs: dict[str, Fraction]) -> Optional[list[Object]]:
    """The fewest of the least important pods whose end makes room; None: none do."""
    lower = [one for one in room.pods if _priority(one) < _priority(pod)]
    without = room.without(lower)
    if not lower or refusals(pod, without, {**rooms, room.name: without}, needs)[0]:
        return None
    kept: list[Object] = []
    for one in sorted(lower, key=_priority, reverse=True):
        gone = [other for other in lower if other not in kept and other is not one]
        tried = room.without(gone)
        if not refusals(pod, tried, {**rooms, room.name: tried}, needs)[0]:
            kept.append(one)
    return [one for one in lower if one not in kept]


class Verdict:
    """``node`` if it fits, or ``victims`` who are to go from the node ``nominated`` before."""

    def __init__(self, node: str = "", message: str = "", nominated: str = "",
                 victims: Optional[list[Object]] = None) -> None:
        self.node, self.message, self.nominated = node, message, nominated
        self.victims = victims or []


def place(pod: Object, rooms: dict[str, Room]) -> Verdict:
    needs = requests_of(pod)
    good: list[Room] = []
    reasons: Counter[str] = Counter()
    helped: list[Room] = []
    for room in rooms.values():
        why, could_help = refusals(pod, room, rooms, needs)
        if not why:
            good.append(room)
        reasons.update(why)
        if could_help:
            helped.append(room)
    if good:
        best = max(good, key=lambda one: (one.free("cpu"), one.free("memory"), one.name))
        return Verdict(best.name)
    total = len(rooms)
    if total == 0:
        return Verdict(message="no nodes available to schedule pods")
    told = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    message = f"0/{total} nodes are available: {told}."
    if pod["spec"].get("preemptionPolicy") != "Never":
        found = [(room, victims) for room in helped
                 if (victims := _victims(pod, room, rooms, needs)) is not None]
        if found:
            room, victims = min(found, key=lambda pair: (
                max(map(_priority, pair[1])), len(pair[1]), pair[0].name))
            return Verdict(message=message, nominated=room.name, victims=victims)
    return Verdict(message=_with_preemption(message, total, len(helped)))


def _with_preemption(message: str, total: int, helped: int) -> str:
    parts = []
    if helped:
        parts.append(f"{helped} No preemption victims found for incoming pod")
    if total - helped:
        parts.append(f"{total - helped} Preemption is not helpful for scheduling")
    return f"{message} preemption: 0/{total} nodes are available: {', '.join(parts)}."
