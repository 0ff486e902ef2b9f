"""The epochs of a run, as its events tell of them."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

# What is known of a death when its group goes on; the signal or exit code comes milliseconds later.
_CAUSE_UNKNOWN = "its process ended"
# A death and the epoch that follows on it are told within moments of each other, in either order.
_NEWEST = 64


class Epochs:
    """One dict per epoch, oldest first, completed by what is told after it has begun.

    ``state_bytes`` grows by the state that members of the epoch received, and a reason that does
    not say why a worker died gets the cause when its node has it.
    """

    def __init__(self) -> None:
        self._all: list[dict[str, Any]] = []
        self._causes: collections.deque[tuple[str, str]] = collections.deque(maxlen=_NEWEST)

    def take(self, event: Mapping[str, Any]) -> None:
        """Takes an event of any kind in."""
        kind = event["kind"]
        if kind == "epoch":
            self._all.append({**event, "state_bytes": 0})
            for worker, cause in self._causes:
                _tell_cause(self._all[-1], worker, cause)
        elif kind == "state":
            for epoch in self._all:
                if epoch["epoch"] == event["epoch"]:
                    epoch["state_bytes"] += event["bytes"]
        elif kind == "worker" and event.get("state") == "died" and event.get("detail"):
            self._causes.append((event["worker"], event["detail"]))
            for epoch in self._all[-_NEWEST:]:
                _tell_cause(epoch, event["worker"], event["detail"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._all[index]


def _tell_cause(epoch: dict[str, Any], worker: str, cause: str) -> None:
    epoch["reason"] = epoch["reason"].replace(
        f"{worker} died: {_CAUSE_UNKNOWN}", f"{worker} died: {cause}")
