"""What each instance has cost, and what has happened, for reports.

Costs are counted in the market's time: an hour of a trace costs an hour's price, whatever the
speed at which it is replayed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Optional

EVENTS_MAX = 100_000
CLOSED_MAX = 100_000    # Entries of instances that have ended; their sums stay.


@dataclass
class Entry:
    """``seconds`` and ``cost`` (dollars) up to ``counted_s``, all in the market's time."""

    instance: str
    market: str
    zone: str
    type: str
    price: float            # Dollars per hour, now.
    counted_s: float
    seconds: float = 0.0
    cost: float = 0.0
    open: bool = True

    def count(self, market_s: float) -> None:
        if self.open and market_s > self.counted_s:
            self.seconds += market_s - self.counted_s
            self.cost += (market_s - self.counted_s) * self.price / 3600.0
            self.counted_s = market_s

    def as_json(self) -> dict[str, Any]:
        return {"instance": self.instance, "market": self.market, "zone": self.zone,
                "type": self.type, "seconds": round(self.seconds, 3),
                "cost": round(self.cost, 9), "open": self.open}


@dataclass
class Sum:
    instances: int = 0
    seconds: float = 0.0
    cost: float = 0.0


@dataclass
class Ledger:
    open: dict[str, Entry] = field(default_factory=dict)
    closed: deque[Entry] = field(default_factory=lambda: deque(maxlen=CLOSED_MAX))
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    _sums: dict[tuple[str, str, str], Sum] = field(default_factory=dict)
    _number: int = 0

    def begin(self, entry: Entry) -> None:
        self.open[entry.instance] = entry

    def reprice(self, zone: str, type_: str, price: float, market_s: float) -> None:
        """A spot price changes: what was used until now costs the old one."""
        for entry in self.open.values():
            if entry.market == "spot" and (entry.zone, entry.type) == (zone, type_):
                entry.count(market_s)
                entry.price = price

    def end(self, instance: str, market_s: float, least_s: float) -> None:
        """``least_s``: so much is billed at least."""
        entry = self.open.pop(instance, None)
        if entry is None:
            return
        entry.count(market_s)
        if entry.seconds < least_s:
            entry.cost += (least_s - entry.seconds) * entry.price / 3600.0
            entry.seconds = least_s
        entry.open = False
        self.closed.append(entry)
        self._add(self._sums, entry)

    @staticmethod
    def _add(sums: dict[tuple[str, str, str], Sum], entry: Entry) -> None:
        one = sums.setdefault((entry.market, entry.zone, entry.type), Sum())
        one.instances += 1
        one.seconds += entry.seconds
        one.cost += entry.cost

    def totals(self, market_s: float) -> dict[str, Any]:
        """By market, zone and type, with what still runs."""
        sums = {key: Sum(**vars(one)) for key, one in self._sums.items()}
        for entry in self.open.values():
            entry.count(market_s)
            self._add(sums, entry)
        rows = [{"market": market, "zone": zone, "type": type_, "instances": one.instances,
                 "seconds": round(one.seconds, 3), "cost": round(one.cost, 9)}
                for (market, zone, type_), one in sorted(sums.items())]
        costs = {market: sum(one.cost for key, one in sums.items() if key[0] == market)
                 for market in ("spot", "on_demand")}
        return {"cost": round(sum(costs.values()), 9), "seconds": round(
                    sum(one.seconds for one in sums.values()), 3),
                "by_market": {key: round(value, 9) for key, value in costs.items()}, "rows": rows}

    def note(self, event: str, now_s: float, market_s: float, **more: Any) -> None:
        self._number += 1
        known = {key: value for key, value in more.items() if value is not None}
        self.events.append({"n": self._number, "t": round(now_s, 3),
                            "market_s": round(market_s, 3), "event": event, **known})

    def since(self, after: int, most: Optional[int] = None) -> list[dict[str, Any]]:
        found = [one for one in self.events if one["n"] > after]
        return found if most is None else found[:most]
