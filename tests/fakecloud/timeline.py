"""A cloud's time and what happens in it: the market's changes and what was planned, in order.

It has no clock, thread, socket or process of its own: a test runs it under any time it likes.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from fakecloud.ledger import Ledger
from fakecloud.markets import Clock, Market, Pool


@dataclass
class Effect:
    """An order to the one that runs processes.

    ``do``: create (its metadata), boot, soft (SIGTERM), kill, notice, rebalance, calm, forget (its
    files).
    """

    do: str
    instance: str
    at_s: float = 0.0   # The deadline of a notice.


def loopback_address(number: int) -> str:
    """Any host has it as one of its own."""
    return f"127.{16 + (number // 62500) % 200}.{number // 250 % 250}.{number % 250 + 2}"


class Timeline:
    """A subclass has ``changed``."""

    def __init__(self, market: Market, speed: float, seed: int, now_s: float) -> None:
        self.market = market
        self.now_s, self.shift_s = now_s, 0.0
        self.clock = Clock(now_s, speed)
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.effects: list[Effect] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for pool in market.pools.values():
            pool.note_price(now_s)

    def changed(self, pool: Pool) -> None:
        """Its capacity or price is another one now."""
        raise NotImplementedError

    def market_s(self) -> float:
        return self.clock.market(self.now_s)

    def at(self, when_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when_s, next(self._order), do))

    def next_due(self) -> Optional[float]:
        """When :meth:`advance` has something to do."""
        change = self.market.next_change()
        due = [] if change is None else [self.clock.wall(change)]
        return min([*due, *(one[0] for one in self._agenda[:1])], default=None)

    def advance(self, now_s: float) -> None:
        """All that happens until then, in its order."""
        while True:
            due = self.next_due()
            if due is None or due > now_s:
                break
            self.now_s = max(self.now_s, due)
            change = self.market.next_change()
            if change is not None and self.clock.wall(change) <= due:
                self.changed(self.market.step())
            else:
                heapq.heappop(self._agenda)[2]()
        self.now_s = max(self.now_s, now_s)

    def set_speed(self, speed: float) -> None:
        self.clock.set_speed(self.now_s, speed)

    def note(self, event: str, **more: Any) -> None:
        self.ledger.note(event, self.now_s, self.market_s(), **more)

    def scaled(self, seconds: float) -> float:
        """Seconds of the market as those of the wall clock."""
        return seconds / self.clock.speed

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects
