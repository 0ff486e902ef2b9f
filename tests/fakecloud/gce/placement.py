"""Which zone and type each machine of a bulk request gets. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from fakecloud.catalogs import InstanceType


@dataclass
class Offer:
    """One type in one zone; ``rank``: the lower, the more it is wanted."""

    zone: str
    type: InstanceType
    free: int
    rank: int = 0


@dataclass
class Wish:
    """``most``: of a zone's machines, where that is bounded."""

    count: int
    shape: str = "ANY"
    most: dict[str, int] = field(default_factory=dict)


def _by_zone(offers: list[Offer], wish: Wish) -> dict[str, list[Offer]]:
    found: dict[str, list[Offer]] = {}
    for one in sorted(offers, key=lambda offer: (offer.rank, offer.type.name)):
        found.setdefault(one.zone, []).append(one)
    return found


def _room(offers: list[Offer], wish: Wish, zone: str) -> int:
    return min(sum(one.free for one in offers), wish.most.get(zone, 1 << 30))


def _take(offers: list[Offer], count: int) -> list[Offer]:
    """So many, the most wanted first; each stands there as often as it is taken."""
    taken: list[Offer] = []
    for one in offers:
        taken += [one] * min(one.free, count - len(taken))
    return taken


def _any(zones: dict[str, list[Offer]], wish: Wish) -> list[Offer]:
    """By rank over all zones; where there is most room first."""
    taken: list[Offer] = []
    counts: dict[str, int] = {}
    flat = sorted((one for offers in zones.values() for one in offers),
                  key=lambda one: (one.rank, -one.free, one.zone))
    for one in flat:
        left = wish.most.get(one.zone, 1 << 30) - counts.get(one.zone, 0)
        got = max(0, min(one.free, wish.count - len(taken), left))
        counts[one.zone] = counts.get(one.zone, 0) + got
        taken += [one] * got
    return taken


def _balanced(zones: dict[str, list[Offer]], wish: Wish) -> list[Offer]:
    """As even as can be where there is room."""
    counts = dict.fromkeys(sorted(zones), 0)
    while sum(counts.values()) < wish.count:
        open_ = [zone for zone, count in counts.items() if count < _room(zones[zone], wish, zone)]
        if not open_:
            break
        counts[min(open_, key=lambda zone: counts[zone])] += 1
    return [one for zone, count in counts.items() for one in _take(zones[zone], count)]


def place(offers: list[Offer], wish: Wish) -> list[Offer]:
    """One offer per machine; fewer than are wanted where there is no room."""
    zones = _by_zone(offers, wish)
    if wish.shape == "ANY_SINGLE_ZONE":
        best = max(zones, default="", key=lambda zone: min(
            wish.count, _room(zones[zone], wish, zone)))
        return _take(zones[best], min(wish.count, wish.most.get(best, 1 << 30))) if best else []
    return _balanced(zones, wish) if wish.shape == "BALANCED" else _any(zones, wish)
