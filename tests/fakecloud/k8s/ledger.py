"""Every pod's time, from its place on a node to its end, and what has happened, for reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.k8s import catalog
from fakecloud.k8s.store import Change, Store

EVENTS_MAX = 100_000
CLOSED_MAX = 100_000    # Entries of pods that have gone; their sums stay.


@dataclass
class Entry:
    """Times are of the wall clock; None for what has not been."""

    uid: str
    namespace: str
    name: str
    node: str = ""
    pool: str = ""
    spot: bool = False
    created_s: float = 0.0
    scheduled_s: Optional[float] = None
    running_s: Optional[float] = None
    over_s: Optional[float] = None      # Succeeded or Failed.
    gone_s: Optional[float] = None
    reason: str = ""                    # Of a disruption, if one has ended it.
    phases: list[str] = field(default_factory=list)

    def seconds(self, now_s: float) -> float:
        """On a node, until its end."""
        ends = [one for one in (self.over_s, self.gone_s) if one is not None]
        if self.scheduled_s is None:
            return 0.0
        return max(0.0, min(ends, default=now_s) - self.scheduled_s)

    def as_json(self, now_s: float) -> dict[str, Any]:
        return {**vars(self), "seconds": round(self.seconds(now_s), 3)}


class Ledger:
    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store, self._now = store, now
        self.open: dict[str, Entry] = {}
        self.closed: deque[Entry] = deque(maxlen=CLOSED_MAX)
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._number = 0
        store.listeners.append(self._changed)

    def note(self, event: str, **more: Any) -> None:
        self._number += 1
        known = {key: value for key, value in more.items() if value not in (None, "")}
        self.events.append({"n": self._number, "t": round(self._now(), 3), "event": event, **known})

    def since(self, after: int) -> list[dict[str, Any]]:
        return [one for one in self.events if one["n"] > after]

    def _changed(self, change: Change) -> None:
        if change.resource is not catalog.PODS:
            return
        pod, now_s = change.new, self._now()
        own = pod["metadata"]
        entry = self.open.get(own["uid"])
        if entry is None:
            entry = self.open[own["uid"]] = Entry(own["uid"], own["namespace"], own["name"],
                                                  created_s=now_s)
            self.note("created", pod=own["name"], namespace=own["namespace"])
        node = pod["spec"].get("nodeName")
        if node and entry.scheduled_s is None:
            entry.node, entry.scheduled_s = node, now_s
            found = self._store.get(catalog.NODES, "", node)
            labels = (found or {}).get("metadata", {}).get("labels") or {}
            entry.pool = labels.get("fakecloud/pool", "")
            entry.spot = labels.get("fakecloud/spot") == "true"
            self.note("scheduled", pod=own["name"], node=node)
        for one in (pod.get("status") or {}).get("conditions") or []:
            if one["type"] == "DisruptionTarget" and one["status"] == "True":
                entry.reason = one.get("reason", "")
        phase = (pod.get("status") or {}).get("phase", "")
        if phase and (not entry.phases or entry.phases[-1] != phase):
            entry.phases.append(phase)
            self.note("phase", pod=own["name"], phase=phase, node=node)
            if phase == "Running":
                entry.running_s = now_s
            elif phase in ("Succeeded", "Failed"):
                entry.over_s = now_s
        if change.kind == "DELETED":
            entry.gone_s = now_s
            self.note("gone", pod=own["name"], node=node, reason=entry.reason)
            self.closed.append(self.open.pop(own["uid"]))

    def end(self) -> None:
        """With the cluster: all processes have ended by now."""
        for entry in self.open.values():
            entry.gone_s = self._now()
            self.note("gone", pod=entry.name, node=entry.node, reason="the cluster has ended")
            self.closed.append(entry)
        self.open.clear()

    def totals(self) -> dict[str, Any]:
        now_s = self._now()
        sums: dict[tuple[str, bool], list[float]] = {}
        for one in [*self.closed, *self.open.values()]:
            if one.scheduled_s is not None:
                row = sums.setdefault((one.pool, one.spot), [0, 0.0])
                row[0] += 1
                row[1] += one.seconds(now_s)
        return {"pods": sum(int(row[0]) for row in sums.values()), "open": len(self.open),
                "seconds": round(sum(row[1] for row in sums.values()), 3),
                "rows": [{"pool": pool, "spot": spot, "pods": int(row[0]),
                          "seconds": round(row[1], 3)}
                         for (pool, spot), row in sorted(sums.items())]}

    def as_json(self) -> dict[str, Any]:
        now_s = self._now()
        return {"totals": self.totals(), "pods": [one.as_json(now_s) for one in
                                                  [*self.closed, *self.open.values()]]}
