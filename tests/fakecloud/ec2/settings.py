"""How the cloud behaves, in seconds of the wall clock unless it says otherwise; read strictly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.orders import Spread, StrictSettings, is_amount, spread


@dataclass
class Settings(StrictSettings):
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

    def _is_good(self, key: str, value: Any) -> Optional[bool]:
        if key == "images":
            return value is None or isinstance(value, list) and all(
                isinstance(one, str) for one in value)
        if key == "throttle":
            return value is None or isinstance(value, dict) and all(
                isinstance(one, list) and len(one) == 2 and all(map(is_amount, one))
                for one in value.values())
        if key == "speed":
            return is_amount(value) and value > 0
        if key.endswith("_share"):
            return is_amount(value) and value <= 1
        return None
