"""Spot capacity and price per zone and type over time: from traces, from a file, or by hand.

Times are seconds of the market, which pass ``speed`` times as fast as those of the wall clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fakecloud import traces
from fakecloud.catalogs import Catalog, InstanceType
from fakecloud.orders import BadOrder
from fakecloud.traces import Point

SPOT_PART = 0.3         # Of the on-demand price, where nothing says what spot costs.
HISTORY_MAX = 100_000   # Changes of price that are kept per pool.
PoolKey = tuple[str, str]   # Zone, type.


class Clock:
    """The market's time; ``speed`` may change on the way."""

    def __init__(self, now_s: float, speed: float) -> None:
        self._wall_s, self._market_s, self.speed = now_s, 0.0, speed

    def market(self, now_s: float) -> float:
        return self._market_s + (now_s - self._wall_s) * self.speed

    def wall(self, market_s: float) -> float:
        return self._wall_s + (market_s - self._market_s) / self.speed

    def set_speed(self, now_s: float, speed: float) -> None:
        self._market_s, self._wall_s, self.speed = self.market(now_s), now_s, speed


class Priced(NamedTuple):
    wall_s: float
    price: float


class Pool:
    """One offer. By hand its capacity and price are held until :meth:`follow`."""

    def __init__(self, zone: str, type_: InstanceType, points: list[Point]) -> None:
        self.zone, self.type, self.points = zone, type_, points
        self.index = 0
        self.hand_capacity: Optional[int] = None
        self.hand_price: Optional[float] = None
        self.outage = False
        self.history: deque[Priced] = deque(maxlen=HISTORY_MAX)

    @property
    def key(self) -> PoolKey:
        return self.zone, self.type.name

    @property
    def capacity(self) -> int:
        if self.outage:
            return 0
        return self.points[self.index].capacity if self.hand_capacity is None else (
            self.hand_capacity)

    @property
    def price(self) -> float:
        if self.hand_price is not None:
            return self.hand_price
        price = self.points[self.index].price
        return self.type.on_demand * SPOT_PART if price is None else price

    def note_price(self, wall_s: float) -> None:
        if not self.history or self.history[-1].price != self.price:
            self.history.append(Priced(wall_s, self.price))

    def follow(self) -> None:
        """As the trace has it again."""
        self.hand_capacity = self.hand_price = None


class Market:
    def __init__(self, pools: list[Pool], catalog: Catalog,
                 types: Optional[dict[str, InstanceType]] = None) -> None:
        self.catalog = catalog
        self.types = dict(catalog.types if types is None else types)
        self.pools: dict[PoolKey, Pool] = {}
        for pool in pools:
            if pool.key in self.pools:
                raise BadOrder(f"{pool.type.name} in {pool.zone} is described twice")
            self.pools[pool.key] = pool
        self._changes = [(pool.points[1].at_s, key) for key, pool in self.pools.items()
                         if len(pool.points) > 1]
        heapq.heapify(self._changes)

    def zones(self, region: str) -> list[str]:
        zones = {pool.zone for pool in self.pools.values()}
        return sorted(zone for zone in zones if self.catalog.region_of(zone) == region)

    def regions(self) -> list[str]:
        return sorted({self.catalog.region_of(pool.zone) for pool in self.pools.values()})

    def next_change(self) -> Optional[float]:
        return self._changes[0][0] if self._changes else None

    def step(self) -> Pool:
        """Applies the next change."""
        _, key = heapq.heappop(self._changes)
        pool = self.pools[key]
        pool.index += 1
        if pool.index + 1 < len(pool.points):
            heapq.heappush(self._changes, (pool.points[pool.index + 1].at_s, key))
        return pool


# ---- reading ----

@dataclass
class MarketFile:
    market: Market
    settings: dict[str, Any]


def place_of(name: str, catalog: Catalog, where: str) -> PoolKey:
    """Zone and type in a trace's name: ``us-east-1a_v100_1``, ``aws/us-east-1a/p3.2xlarge``."""
    words = [word for part in name.split("/") for word in part.split("_")]
    zones = [word for word in words if catalog.is_zone(word)]
    named = [word for word in words if word in catalog.types]
    for model, count in zip(words, words[1:]):
        if count.isdigit() and catalog.gpu_type(model, int(count)):
            named.append(catalog.gpu_type(model, int(count)))
    if len(zones) != 1 or len(named) > 1:
        raise BadOrder(f"{where}: \"{name}\" does not name one zone and at most one type; "
                        "say ZONE/TYPE=PATH, as in "
                        f"{catalog.example_zone}/{catalog.example_type}=PATH")
    return zones[0], named[0] if named else catalog.default


def _from_start(points: list[Point]) -> list[Point]:
    """Before its first point a trace has nothing."""
    if points[0].at_s > 0:
        return [Point(0.0, 0, points[0].price), *points]
    return points


def _points_of(body: dict[str, Any], where: str, folder: Path) -> list[Point]:
    forms = [key for key in ("capacity", "trace", "points") if key in body]
    if len(forms) != 1:
        raise BadOrder(f"{where}: expected one of capacity, trace, points")
    price = traces.number(body, "price", 1e6, where) if "price" in body else None
    if forms == ["capacity"]:
        capacity = traces.number(body, "capacity", traces.NODES_MAX, where)
        return [Point(0.0, int(capacity), price)]
    if forms == ["points"]:
        raw = body["points"]
        if not isinstance(raw, list) or not raw:
            raise BadOrder(f"{where}: points: expected a list [[t, capacity, price], ...]")
        trace = traces.Trace("points")
        for i, one in enumerate(raw):
            if not isinstance(one, list) or len(one) not in (2, 3):
                raise BadOrder(f"{where}: points[{i}]: expected [t, capacity, price]")
            names = dict(zip(("t", "capacity", "price"), one))
            spot = f"{where}: points[{i}]"
            at_s = traces.number(names, "t", traces.TIME_MAX_S, spot)
            if trace.points and at_s < trace.points[-1].at_s:
                raise BadOrder(f"{spot}: goes back in time")
            capacity = traces.number(names, "capacity", traces.NODES_MAX, spot)
            paid = traces.number(names, "price", 1e6, spot) if len(one) == 3 else price
            trace.put(Point(at_s, int(capacity), paid), spot)
        return trace.points
    if not isinstance(body["trace"], str):
        raise BadOrder(f"{where}: trace: expected a file's name")
    path = folder / body["trace"]
    read = traces.parse(traces.read_text(path), str(path))
    if len(read) != 1:
        raise BadOrder(f"{where}: {path} has {len(read)} offerings, expected 1")
    return [point if point.price is not None else point._replace(price=price)
            for point in read[0].points]


def read_market(body: dict[str, Any], path: str, catalog: Catalog) -> MarketFile:
    """A market file: ``{"types": {}, "pools": [], "settings": {}}``."""
    unknown = set(body) - {"types", "pools", "settings"}
    if unknown:
        raise BadOrder(f"{path}: unknown key {sorted(unknown)[0]}; there are types, pools, "
                        "settings")
    types = {**catalog.types, **catalog.read_types(body.get("types", {}), path)}
    if not isinstance(body["pools"], list) or not body["pools"]:
        raise BadOrder(f"{path}: pools: expected a list of objects")
    pools = []
    for i, one in enumerate(body["pools"]):
        where = f"{path}: pools[{i}]"
        if not isinstance(one, dict):
            raise BadOrder(f"{where}: expected an object")
        unknown = set(one) - {"zone", "type", "capacity", "price", "trace", "points"}
        if unknown:
            raise BadOrder(f"{where}: unknown key {sorted(unknown)[0]}")
        zone, type_ = one.get("zone"), one.get("type")
        if not isinstance(zone, str) or not catalog.is_zone(zone):
            raise BadOrder(f"{where}: zone: expected one such as "
                            f"{catalog.example_zone}, got {zone!r}")
        if not isinstance(type_, str) or type_ not in types:
            raise BadOrder(f"{where}: type: {type_!r} is not known; describe it under types")
        points = _from_start(_points_of(one, where, Path(path).parent))
        pools.append(Pool(zone, types[type_], points))
    settings = body.get("settings", {})
    return MarketFile(Market(pools, catalog, types), settings)


def load(specs: list[str], catalog: Catalog) -> MarketFile:
    """``[ZONE[/TYPE]=]PATH`` of traces, or one market file; there is one at least."""
    pools: list[Pool] = []
    for spec in specs:
        name, equals, rest = spec.partition("=")
        named = bool(equals) and not Path(spec).exists()
        for path in traces.files_of(Path(rest if named else spec)):
            text = traces.read_text(path)
            if path.suffix == ".json":
                body = traces.load(text, str(path))
                if isinstance(body, dict) and "pools" in body:
                    if len(specs) > 1 or named:
                        raise BadOrder(f"{path}: a market file stands alone")
                    return read_market(body, str(path), catalog)
            for trace in traces.parse(text, str(path)):
                where = str(path)
                zone, type_ = place_of(name if named else trace.name, catalog, where)
                pools.append(Pool(zone, catalog.types[type_], _from_start(trace.points)))
    return MarketFile(Market(pools, catalog), {})
