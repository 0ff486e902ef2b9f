"""How the cloud behaves, in seconds of the wall clock unless it says otherwise; read strictly."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.ec2.errors import BadMarket
from fakecloud.orders import Spread, is_amount, spread


@dataclass
class Settings:
    speed: float = 1.0              # Seconds of the market per second.
    launch_s: Spread = spread({"median": 2.0, "sigma": 0.3})   # Pending to running.
    shutdown_s: Spread = spread(1.0)           # Shutting-down to terminated; then SIGKILL.
    listed_s: float = 3600.0                    # How long a terminated instance stays listed.
    lag_s: Spread = spread([0.0, 1.0])         # Until a new instance is seen.
    lead_s: Spread = spread(120.0)             # From the notice to the end.
    lead_scaled: bool = False                   # Leads are of the market's time.
    rebalance_share: float = 0.0                # Interruptions with a recommendation before them.
    rebalance_ahead_s: Spread = spread([60.0, 600.0])  # From there to the notice; as leads are.
    false_alarms_per_hour: float = 0.0          # Rebalances for nothing, per instance and market h.
    late_refusal_share: float = 0.0             # Accepted, then ended while pending.
    spot_vcpus: int = 100_000                   # Quotas, per region.
    on_demand_vcpus: int = 100_000
    spot_instances: int = 10_000
    on_demand_capacity: int = 1_000             # Per zone and type.
    min_billed_s: float = 60.0                  # Of the market's time.
    role_s: float = 3600.0                      # For how long credentials of a role are good.
    images: Optional[list[str]] = None          # Those that are there; None: all.
    throttle: Optional[dict[str, list[float]]] = field(default_factory=lambda: {
        "Describe*": [20.0, 100.0], "*": [5.0, 50.0]})  # Action -> refill per second, bucket.
    environment: dict[str, str] = field(default_factory=dict)   # More of it for the instances.

    def update(self, raw: Any, where: str) -> None:
        """All or nothing."""
        if not isinstance(raw, dict):
            raise BadMarket(f"{where}: expected an object")
        new = {key: self._read(key, value, f"{where}.{key}") for key, value in raw.items()}
        for key, value in new.items():
            setattr(self, key, value)

    def _read(self, key: str, value: Any, where: str) -> Any:
        if key not in self.__dataclass_fields__:
            names = ", ".join(sorted(self.__dataclass_fields__))
            raise BadMarket(f"{where}: there is no such setting; there are {names}")
        now = getattr(self, key)
        if isinstance(now, Spread):
            return Spread(value, where)
        if key == "images":
            good = value is None or isinstance(value, list) and all(
                isinstance(one, str) for one in value)
        elif key == "environment":
            good = isinstance(value, dict) and all(
                isinstance(one, str) and "\0" not in name + one and "=" not in name and name
                for name, one in value.items())
        elif key == "throttle":
            good = value is None or isinstance(value, dict) and all(
                isinstance(one, list) and len(one) == 2 and all(map(is_amount, one))
                for one in value.values())
        elif isinstance(now, bool):
            good = isinstance(value, bool)
        else:
            good = is_amount(value) and (isinstance(now, float) or value == int(value))
            good = good and (key != "speed" or value > 0)
            good = good and (not key.endswith("_share") or value <= 1)
        if not good:
            raise BadMarket(f"{where}: {str(value)[:80]!r} is no value for it")
        return type(now)(value) if isinstance(now, (int, float)) else value

    def as_json(self) -> dict[str, Any]:
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return {key: value.raw if isinstance(value, Spread) else value
                for key, value in values.items()}
