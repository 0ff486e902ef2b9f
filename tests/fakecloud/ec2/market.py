"""The market of EC2; see :mod:`fakecloud.markets`."""

from __future__ import annotations

from typing import Any, Optional

from fakecloud import markets
from fakecloud.catalogs import InstanceType
from fakecloud.ec2 import catalog
from fakecloud.markets import Clock, MarketFile, Pool, PoolKey, Priced
from fakecloud.traces import Point

__all__ = ["Clock", "Market", "MarketFile", "Pool", "PoolKey", "Priced"]


class Market(markets.Market):
    def __init__(self, pools: list[Pool], types: Optional[dict[str, InstanceType]] = None) -> None:
        super().__init__(pools, catalog.EC2, types)


def default_market() -> Market:
    types = [catalog.TYPES[name] for name in ("m5.large", "c5.xlarge", "g4dn.xlarge", "p3.2xlarge")]
    return Market([Pool(f"us-east-1{letter}", one, [Point(0.0, 16)])
                   for letter in "abc" for one in types])


def read_market(body: dict[str, Any], path: str) -> MarketFile:
    return markets.read_market(body, path, catalog.EC2)


def load(specs: list[str]) -> MarketFile:
    """None at all: a small market."""
    if not specs:
        return MarketFile(default_market(), {})
    return markets.load(specs, catalog.EC2)
