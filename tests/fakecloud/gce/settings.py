"""How the cloud behaves, in seconds of the wall clock unless it says otherwise; read strictly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.orders import Spread, StrictSettings, is_amount, spread


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


@dataclass
class Settings(StrictSettings):
    project: str = "fakecloud"
    speed: float = 1.0              # Seconds of the market per second.
    pending_s: Spread = spread(0.1)            # Of an operation, until it is RUNNING.
    operation_s: Spread = spread(0.3)          # Of one that makes no machine, until it is DONE.
    launch_s: Spread = spread({"median": 3.0, "sigma": 0.3})   # PROVISIONING to RUNNING.
    refuse_s: Spread = spread(1.0)             # Until an operation says that there is no room.
    rollback_s: Spread = spread(1.0)           # Until what was made too few of is gone.
    shutdown_s: Spread = spread(1.0)           # STOPPING to the end; then SIGKILL.
    lag_s: Spread = spread([0.0, 1.0])         # Until lists show a new instance.
    gone_lag_s: Spread = spread(0.0)           # For so long lists show one that is gone.
    lead_s: Spread = spread(30.0)              # Of a preemption: from SIGTERM to SIGKILL.
    acpi_s: Spread = spread(0.0)               # From preempted=TRUE to SIGTERM.
    lead_scaled: bool = False                   # Leads are of the market's time.
    maintenance_s: float = 60.0                 # From a maintenance event to the maintenance.
    false_alarms_per_hour: float = 0.0          # preempted=TRUE for nothing, per spot and market h.
    host_errors_per_hour: float = 0.0           # Per instance on demand and market hour.
    late_refusal_share: float = 0.0             # Accepted, then no room for it.
    details_share: float = 1.0                  # Of refusals that have details.
    on_demand_capacity: int = 1_000             # Per zone and type.
    quotas: dict[str, float] = field(default_factory=dict)     # Metric -> limit of each region.
    min_billed_s: float = 60.0                  # Of the market's time.
    token_s: float = 3600.0                     # For how long access tokens are good.
    subject_tokens: list[str] = field(default_factory=lambda: ["fakecloud-subject-token"])
    images: list[str] = field(default_factory=list)            # The project's own.
    networks: list[str] = field(default_factory=lambda: ["default"])
    kept_s: float = 3600.0                      # How long operations that are done stay listed.
    wait_s: float = 120.0                       # The longest that operations.wait waits.
    throttle: Optional[dict[str, list[float]]] = None  # Method -> refill per second, bucket.
    environment: dict[str, str] = field(default_factory=dict)   # More of it for the instances.

    def _is_good(self, key: str, value: Any) -> Optional[bool]:
        if key in ("subject_tokens", "images", "networks"):
            return _texts(value)
        if key == "project":
            return isinstance(value, str) and value != ""
        if key == "quotas":
            return isinstance(value, dict) and all(map(is_amount, value.values()))
        if key == "throttle":
            return value is None or isinstance(value, dict) and all(
                isinstance(one, list) and len(one) == 2 and all(map(is_amount, one))
                for one in value.values())
        if key == "speed":
            return is_amount(value) and value > 0
        if key.endswith("_share"):
            return is_amount(value) and value <= 1
        return None
