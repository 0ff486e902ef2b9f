"""What a fault did to a run: read from the head again and again, while it lasts and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Optional

POLL_S = 0.05
UNSEEN_S = 20.0  # Then a death that nobody has noticed was none.
_COUNTED = ("steps_replayed", "steps_recomputed", "samples_returned")


@dataclass(frozen=True)
class Look:
    """A run at one instant of the head."""

    at: float
    state: str
    epoch: int
    step: int
    members: int
    reason: str
    counts: dict[str, int]


@dataclass(frozen=True)
class Effect:
    """Of one fault. Times are in seconds, as seen from here in looks ``POLL_S`` apart.

    ``stood_s`` is the longest time without a new step from the fault on, ``calm_s`` the same before
    it: workers tell their steps a few times a second. ``whole_s`` is the time until the run had as
    many members as before, ``None`` if it did not come back to that.
    """

    fault: str
    target: str
    stood_s: float
    calm_s: float
    whole_s: Optional[float]
    epochs: int
    steps_replayed: int
    steps_recomputed: int
    samples_returned: int
    went_on: bool  # With new steps.
    reason: str  # Of the last epoch that came with it.

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def look_at(run: Mapping[str, Any], at: float) -> Look:
    """Of a run in the state of a head."""
    alive = [w for w in run["workers"] if w["rank"] >= 0]
    return Look(at, run["state"], run["epoch"], max((w["version"] for w in alive), default=0),
                len(alive), run["epoch_reason"], {name: run[name] for name in _COUNTED})


class Watch:
    """Looks, in the order in which they were taken, around one fault."""

    def __init__(self) -> None:
        self.before: list[Look] = []
        self.after: list[Look] = []

    def settled(self, members: int, least_s: float, takes_members: bool) -> bool:
        """Whether the run is whole again, makes steps, and the fault is over.

        A fault that takes members is not over before a new epoch, unless none comes at all.
        """
        if not self.after or not self.before:
            return False
        base, first, last = self.before[-1], self.after[0], self.after[-1]
        unseen = takes_members and last.epoch == base.epoch
        if last.at - first.at < (max(least_s, UNSEEN_S) if unseen else least_s):
            return False
        return last.members >= members and last.step > base.step and not _stands(self.after)

    def effect(self, fault: str, target: str, fault_at: float) -> Effect:
        base, last = self.before[-1], self.after[-1]
        whole = None
        broken = [n for n, look in enumerate(self.after) if look.members < base.members]
        if not broken:
            whole = 0.0
        elif broken[-1] + 1 < len(self.after):
            whole = self.after[broken[-1] + 1].at - fault_at
        counts = {name: last.counts[name] - base.counts[name] for name in _COUNTED}
        return Effect(fault, target, round(longest_pause([base, *self.after]), 3),
                      round(longest_pause(self.before), 3),
                      None if whole is None else round(whole, 3), last.epoch - base.epoch,
                      went_on=last.step > base.step,
                      reason=last.reason if last.epoch != base.epoch else "", **counts)


def longest_pause(looks: list[Look]) -> float:
    """Without a new step; of looks that end in one, it counts as far as they go."""
    longest, since, step = 0.0, looks[0].at if looks else 0.0, None
    for look in looks:
        longest = max(longest, look.at - since)
        if step is None or look.step > step:
            since, step = look.at, look.step
    return longest


def _stands(looks: list[Look]) -> bool:
    tail = [look for look in looks if look.at >= looks[-1].at - 2.0]
    return tail[-1].step <= tail[0].step


def wait(watch: list[Look], take: Callable[[], Optional[Look]], sleep: Callable[[float], None],
         done: Callable[[], bool], clock: Callable[[], float], deadline: float) -> bool:
    """Looks until ``done``; False at the deadline, or when the run has ended."""
    while clock() < deadline:
        look = take()
        if look is None:
            return False
        watch.append(look)
        if done():
            return True
        sleep(POLL_S)
    return False
