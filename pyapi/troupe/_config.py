"""Arguments of an executor: their defaults, their checks, and where they may come from."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any, Optional, Union

from troupe import _horovod
from troupe._host_records import home

STRATEGIES = ("spread", "pack")
PROGRESS = ("auto", "rich", "plain", "notebook", "off")
RESOURCE_NAMES_MAX = 64  # Of a node, and of a request: kResourceNamesMax of scheduler/resources.h.

ConfigSource = Union[None, str, "os.PathLike[str]", Mapping[str, Any]]


@dataclass
class Settings:
    """Everything an executor can be told. See :class:`troupe.Executor` for the meaning."""

    min_workers: int = 1
    max_workers: Optional[int] = None
    workers: Optional[int] = None
    resources_per_worker: Optional[dict[str, float]] = None
    cpus_per_worker: Optional[float] = None
    gpus_per_worker: Optional[float] = None
    strategy: str = "spread"
    address: Optional[str] = None
    key_file: Optional[str] = None
    elastic_timeout: float = 600.0
    start_timeout: float = 60.0
    stall_report_s: float = 30.0
    stall_remove_s: float = 600.0
    driver_silence_s: float = 3600.0
    reset_limit: Optional[int] = None
    env: dict[str, str] = field(default_factory=dict)
    preload: Optional[list[str]] = None
    log_to_driver: bool = True
    progress: str = "auto"
    name: str = ""
    num_cpus: Optional[float] = None
    num_gpus: Optional[float] = None
    memory_bytes: Optional[int] = None
    cluster_resources: dict[str, float] = field(default_factory=dict)
    python: Optional[str] = None
    bin_dir: Optional[str] = None
    redis_server: Optional[str] = None
    log_dir: Optional[str] = None
    metrics_port: Optional[int] = None
    lease_ms: Optional[int] = None

    def resources(self) -> dict[str, float]:
        """Resources of one worker, CPU and GPU shorthands included."""
        resources = {"CPU": 1.0}
        if self.resources_per_worker is not None:
            resources = {name: float(n) for name, n in self.resources_per_worker.items()}
        if self.cpus_per_worker is not None:
            resources["CPU"] = float(self.cpus_per_worker)
        if self.gpus_per_worker is not None:
            resources["GPU"] = float(self.gpus_per_worker)
        return {name: amount for name, amount in resources.items() if amount > 0}

    def sizes(self) -> tuple[int, int, int]:
        """(min, start, max) number of workers."""
        start = self.workers
        if start is None:
            start = self.max_workers if self.max_workers is not None else self.min_workers
        most = self.max_workers if self.max_workers is not None else max(start, self.min_workers)
        return self.min_workers, start, most


_NAMES = tuple(f.name for f in fields(Settings))


def build_settings(config: ConfigSource, given: Mapping[str, Any]) -> Settings:
    """Merges a config file or dict with arguments (arguments win) and checks the result.

    Raises:
        TypeError, ValueError: naming the argument, what is wrong with it and what is allowed.
        FileNotFoundError: the config file does not exist.
    """
    source, values = _read_config(config)
    for name in values:
        if name not in _NAMES:
            close = difflib.get_close_matches(str(name), _NAMES, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(_NAMES)}"
            raise ValueError(f"{source}: unknown key {name!r}{hint}")
    merged = {**_horovod.executor_defaults(), **values, **given}
    settings = Settings(**{k: v for k, v in merged.items() if v is not None or k not in _DEFAULTED})
    if settings.address is None:  # set for the training command of a cluster file
        settings.address = os.environ.get("TROUPE_ADDRESS") or None
    if settings.key_file is None and settings.address:
        settings.key_file = default_key_file(settings.address)
    if merged.get("driver_silence_s") is None and "TROUPE_DRIVER_SILENCE_S" in os.environ:
        settings.driver_silence_s = float(os.environ["TROUPE_DRIVER_SILENCE_S"])
    _check(settings)
    return settings


def default_key_file(address: str) -> Optional[str]:
    """TROUPE_KEY_FILE, else the key that ``troupe start`` made or was given here; None without."""
    if address.startswith("ipc://"):
        return None
    known = os.environ.get("TROUPE_KEY_FILE") or home() / "cluster.key"
    return str(known) if os.path.exists(known) or "TROUPE_KEY_FILE" in os.environ else None


# Arguments for which None means "the default".
_DEFAULTED = frozenset(
    {"min_workers", "strategy", "elastic_timeout", "start_timeout", "stall_report_s",
     "stall_remove_s", "driver_silence_s", "env",
     "log_to_driver", "progress", "name", "cluster_resources"}
)


def _read_config(config: ConfigSource) -> tuple[str, dict[str, Any]]:
    if config is None:
        return "config", {}
    if isinstance(config, Mapping):
        return "config", dict(config)
    if not isinstance(config, (str, os.PathLike)):
        raise TypeError(f"config must be a path to a YAML file or a dict, not {_kind(config)}")
    import yaml

    path = Path(config)
    if not path.is_file():
        raise FileNotFoundError(f"config file {str(path)!r} does not exist")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from error
    if values is None:
        return str(path), {}
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected `name: value` lines at the top, found {_kind(values)}")
    return str(path), values


def _check(s: Settings) -> None:
    for name in ("min_workers", "max_workers", "workers"):
        value = getattr(s, name)
        if value is not None:
            check_count(name, value)
    least, start, most = s.sizes()
    if most < least:
        raise ValueError(f"max_workers ({most}) is less than min_workers ({least})")
    if not least <= start <= most:
        raise ValueError(
            f"workers ({start}) must lie between min_workers ({least}) and max_workers ({most})"
        )
    if s.strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, not {s.strategy!r}")
    if s.progress not in PROGRESS:
        raise ValueError(f"progress must be one of {', '.join(PROGRESS)}, not {s.progress!r}")
    _check_amounts("resources_per_worker", s.resources_per_worker)
    _check_amounts("cluster_resources", s.cluster_resources)
    for name in ("cpus_per_worker", "gpus_per_worker", "num_cpus", "num_gpus", "memory_bytes"):
        value = getattr(s, name)
        if value is not None:
            check_amount(name, value)
    check_amount("stall_remove_s", s.stall_remove_s)
    for name in ("elastic_timeout", "start_timeout", "stall_report_s", "driver_silence_s"):
        value = check_amount(name, getattr(s, name))
        if value <= 0:
            raise ValueError(f"{name} must be positive (seconds), not {value:g}")
    if s.metrics_port is not None:
        check_count("metrics_port", s.metrics_port)
        if s.metrics_port > 65535:
            raise ValueError(f"metrics_port must be at most 65535, not {s.metrics_port}")
        if s.address:
            raise ValueError("metrics_port is for a private cluster; the metrics of a started one "
                             "are there with `troupe start --head --metrics-port`")
    for name in ("reset_limit", "lease_ms"):
        value = getattr(s, name)
        if value is not None:
            check_count(name, value, least=0)
    _check_strings(s)


def _check_strings(s: Settings) -> None:
    if not isinstance(s.env, Mapping):
        raise TypeError(f"env must be a dict of strings, not {_kind(s.env)}")
    for key, value in s.env.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"env[{key!r}] must map a string to a string, not {_kind(value)}")
    if s.preload is not None and (
        isinstance(s.preload, str) or not all(isinstance(m, str) for m in s.preload)
    ):
        raise TypeError("preload must be a list of module names")
    for name in ("address", "key_file", "name", "python", "bin_dir", "redis_server", "log_dir"):
        value = getattr(s, name)
        if value is not None and not isinstance(value, (str, os.PathLike)):
            raise TypeError(f"{name} must be a string, not {_kind(value)}")
    if s.address is not None and s.address != "" and ":" not in s.address:
        raise ValueError(f"address must be HOST:PORT or ipc://PATH, not {s.address!r}")
    if not isinstance(s.log_to_driver, bool):
        raise TypeError(f"log_to_driver must be True or False, not {_kind(s.log_to_driver)}")


def _check_amounts(name: str, amounts: Optional[Mapping[str, Any]]) -> None:
    if amounts is None:
        return
    if not isinstance(amounts, Mapping):
        raise TypeError(f'{name} must be a dict such as {{"CPU": 1}}, not {_kind(amounts)}')
    check_resource_count(name, len(amounts))
    for key, value in amounts.items():
        if not isinstance(key, str) or not key:
            raise TypeError(f"{name}: resource names are strings, not {_kind(key)}")
        check_amount(f"{name}[{key!r}]", value)


def check_resource_count(name: str, count: int) -> None:
    """Raises ValueError if more resources are named than a node or a request may have."""
    if count > RESOURCE_NAMES_MAX:
        raise ValueError(f"{name} may name at most {RESOURCE_NAMES_MAX} resources, not {count}")


def check_count(name: str, value: Any, least: int = 1) -> int:
    """An int of at least ``least``, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {_kind(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


def check_amount(name: str, value: Any) -> float:
    """A finite number of at least 0, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {_kind(value)}")
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} must be a finite number of at least 0, not {number:g}")
    return number


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"
