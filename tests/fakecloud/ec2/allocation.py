"""From which pools a fleet takes its instances: the strategies of CreateFleet, without effects."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

from fakecloud.ec2.cloud import Budget
from fakecloud.ec2.errors import Ec2Error
from fakecloud.ec2.market import Pool, PoolKey

SPOT_STRATEGIES = ("lowest-price", "diversified", "capacity-optimized",
                   "capacity-optimized-prioritized", "price-capacity-optimized")
ON_DEMAND_STRATEGIES = ("lowest-price", "prioritized")


@dataclass(eq=False)
class Offer:
    """One override in one pool. ``price``: dollars per hour of an instance."""

    pool: Pool
    order: int
    price: float
    weight: float = 1.0
    priority: float = math.inf
    max_price: Optional[float] = None
    refusal: Optional[Ec2Error] = None     # It is none, whatever there is.

    @property
    def unit_price(self) -> float:
        return self.price / self.weight


@dataclass
class Plan:
    """``failed``: offers that had less than was wanted of them, and whether a quota was why."""

    chosen: dict[Offer, int] = field(default_factory=dict)
    failed: dict[Offer, bool] = field(default_factory=dict)

    @property
    def units(self) -> float:
        return sum(offer.weight * count for offer, count in self.chosen.items())

    @property
    def cost(self) -> float:
        return sum(offer.price * count for offer, count in self.chosen.items())


@dataclass
class Request:
    units: float
    strategy: str = "lowest-price"
    pools: int = 1                  # For lowest-price: over how many it is spread.
    single_type: bool = False
    single_zone: bool = False
    max_total_price: Optional[float] = None


class _Filling:
    """Takes from offers while there is something to take."""

    def __init__(self, request: Request, free: dict[PoolKey, int], budget: Budget) -> None:
        self.request, self.plan = request, Plan()
        self._free, self._budget = dict(free), Budget(budget.vcpus, budget.instances)

    @property
    def missing(self) -> float:
        return self.request.units - self.plan.units

    def take(self, offer: Offer, units: float) -> int:
        """So much of it, or what there is."""
        wanted = math.ceil(min(units, self.missing) / offer.weight - 1e-9)
        if wanted <= 0:
            return 0
        quota, free = self._budget.fits(offer.pool), self._free[offer.pool.key]
        count = min(wanted, quota, free)
        most = self.request.max_total_price
        if most is not None and offer.price > 0:
            count = min(count, max(0, int((most - self.plan.cost) / offer.price + 1e-9)))
        if count < wanted:
            self.plan.failed[offer] = quota < free
        if count > 0:
            self.plan.chosen[offer] = self.plan.chosen.get(offer, 0) + count
            self._free[offer.pool.key] -= count
            self._budget.take(offer.pool, count)
        return count

    def in_turn(self, offers: list[Offer]) -> None:
        """One of each, again and again."""
        left = list(offers)
        while left and self.missing > 1e-9:
            left = [offer for offer in left if self.take(offer, offer.weight) > 0]


def _fill(request: Request, offers: list[Offer], free: dict[PoolKey, int],
          budget: Budget) -> Plan:
    def room(offer: Offer) -> float:
        return free[offer.pool.key] * offer.weight

    keys: dict[str, Callable[[Offer], tuple[float, ...]]] = {
        "lowest-price": lambda one: (one.unit_price,),
        "diversified": lambda one: (one.unit_price,),
        "capacity-optimized": lambda one: (-room(one),),
        "capacity-optimized-prioritized": lambda one: (room(one) < request.units, one.priority,
                                                       -room(one)),
        # The cheapest of those that have what is wanted; else where there is most.
        "price-capacity-optimized": lambda one: (
            (0.0, one.unit_price) if room(one) >= request.units else (1.0, -room(one))),
        "prioritized": lambda one: (one.priority,)}
    ordered = sorted(offers, key=lambda one: (*keys[request.strategy](one), one.order))
    filling = _Filling(request, free, budget)
    if request.strategy == "diversified":
        filling.in_turn(ordered)
    elif request.strategy == "lowest-price" and request.pools > 1:
        filling.in_turn([one for one in ordered if free[one.pool.key] > 0][:request.pools])
    for offer in ordered:
        filling.take(offer, filling.missing)
    return filling.plan


def allocate(request: Request, offers: list[Offer], free: dict[PoolKey, int],
             budget: Budget) -> Plan:
    """``free``: instances that each pool still has. With a single zone or type it is that where
    most is to be had, and then where that costs least."""
    offers = [one for one in offers if one.refusal is None]
    groups: dict[tuple[str, str], list[Offer]] = {}
    for one in offers:
        key = (one.pool.zone if request.single_zone else "",
               one.pool.type.name if request.single_type else "")
        groups.setdefault(key, []).append(one)
    plans = [_fill(request, group, free, budget) for _, group in sorted(groups.items())]
    return min(plans, key=lambda plan: (-min(plan.units, request.units), plan.cost),
               default=Plan())
