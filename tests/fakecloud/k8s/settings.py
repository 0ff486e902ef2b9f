"""How the cluster behaves, in seconds unless it says otherwise; read strictly."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.k8s import quantities
from fakecloud.orders import BadOrder, Spread, StrictSettings, is_amount, spread

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
TYPE, HOSTNAME = "node.kubernetes.io/instance-type", "kubernetes.io/hostname"
MOUNTS = ("auto", "namespace", "folder")


@dataclass
class Pool:
    """Nodes of one kind. With ``max`` it is scaled: a node comes when a pod has no room and goes
    when it has been empty for ``idle_s``; ``capacity`` is how many the market has just now."""

    name: str
    count: int = 1
    cpu: str = "8"
    memory: str = "32Gi"
    gpus: int = 0
    pods: int = 110
    zone: str = ""
    region: str = ""
    type: str = ""
    spot: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[dict[str, str]] = field(default_factory=list)
    min: int = 0
    max: Optional[int] = None
    boot_s: float = 1.0
    idle_s: float = 600.0
    capacity: Optional[int] = None


def _pool(raw: Any, where: str) -> Pool:
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str) or not raw["name"]:
        raise BadOrder(f'{where}: expected an object with "name"')
    known = {one.name: one for one in dataclasses.fields(Pool)}
    for key, value in raw.items():
        if key not in known:
            raise BadOrder(f"{where}.{key}: there is no such field; there are "
                           f"{', '.join(sorted(known))}")
        kind = str(known[key].type)
        if kind == "str":
            value = str(value) if key in ("cpu", "memory") else value
            good = isinstance(value, str) and (key not in ("cpu", "memory")
                                               or quantities.parse(value) is not None)
        elif kind == "bool":
            good = isinstance(value, bool)
        elif kind in ("int", "Optional[int]"):
            good = (value is None and kind != "int") or (is_amount(value) and value == int(value))
        elif kind == "float":
            good = is_amount(value)
        else:
            good = isinstance(value, list if kind.startswith("list") else dict)
        if not good:
            raise BadOrder(f"{where}.{key}: {str(value)[:80]!r} is no value for it")
    return Pool(**{**raw, **{key: str(raw[key]) for key in ("cpu", "memory") if key in raw}})


@dataclass
class Settings(StrictSettings):
    pools: list[Pool] = field(default_factory=lambda: [
        Pool("default", count=2, cpu="64", memory="256Gi")])
    namespaces: list[str] = field(default_factory=list)     # Beside those that every cluster has.
    schedule_s: Spread = spread(0.0)        # Until a new pod is looked at.
    create_s: Spread = spread(0.05)         # From bound to started: images are pulled.
    backoff_s: float = 10.0                 # Before a container starts again; doubles each time.
    backoff_max_s: float = 300.0
    restart_reset_s: float = 600.0          # Having run for so long, it begins at backoff_s again.
    bookmark_s: float = 60.0                # Between two bookmarks of a watch.
    watch_s: Spread = spread([1800.0, 3600.0])  # Of a watch that names no timeoutSeconds.
    history: int = 10_000                   # Changes that are kept for watches.
    gc_s: float = 0.2                       # Until what has lost its owner goes.
    unreachable_s: float = 40.0             # Until a node that is silent is not ready.
    toleration_s: int = 300                 # Of pods, for nodes that are not ready.
    gone_s: Optional[float] = None          # From there to its removal; None: never.
    environment: dict[str, str] = field(default_factory=dict)   # More of it for all containers.
    mounts: str = "auto"                    # Volumes by a "namespace", or in a "folder".
    automount: bool = True                  # Tokens of service accounts in pods.
    memory_limits: bool = True              # Who takes more than its limit is killed.

    def _is_good(self, key: str, value: Any) -> Optional[bool]:
        if key == "namespaces":
            return isinstance(value, list) and all(isinstance(one, str) for one in value)
        if key == "mounts":
            return value in MOUNTS
        if key == "gone_s":
            return value is None or is_amount(value)
        return None

    def _read(self, key: str, value: Any, where: str) -> Any:
        if key != "pools":
            return super()._read(key, value, where)
        if not isinstance(value, list):
            raise BadOrder(f"{where}: expected a list")
        pools = [_pool(one, f"{where}[{number}]") for number, one in enumerate(value)]
        if len({one.name for one in pools}) < len(pools):
            raise BadOrder(f"{where}: two pools have one name")
        return pools

    def as_json(self) -> dict[str, Any]:
        return {**super().as_json(), "pools": [dataclasses.asdict(one) for one in self.pools]}
