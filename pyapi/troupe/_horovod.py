"""Variables named HOROVOD_...: what scripts and launch lines set for Horovod, taken where it means
something here.

Who starts a run reads times of the run from its environment, and hands on what is for workers.
What was said in Troupe's own words, by an argument or a variable TROUPE_..., wins. Variables that
tune what there is not, such as cycles, MPI or streams of NCCL, are ignored in silence, as are those
of which nobody has heard. docs/horovod.md has the table.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from typing import Any, Optional, Union

_NO_REPORT_S = 1e6  # Longer than any run waits.
_LEVELS = {"trace": "debug", "debug": "debug", "info": "info", "warning": "warning",
           "error": "error", "fatal": "error"}
# What is handed to workers. Some of these variables have a value of no number.
_FOR_WORKERS = (
    "HOROVOD_FUSION_THRESHOLD", "HOROVOD_AUTOTUNE", "HOROVOD_TIMELINE",
    "HOROVOD_TIMELINE_MARK_CYCLES", "HOROVOD_LOG_LEVEL", "HOROVOD_LOG_HIDE_TIME",
)


def executor_defaults(environ: Mapping[str, str] = os.environ) -> dict[str, float]:
    """Arguments of an Executor by what is set for Horovod, in seconds.

    Raises:
        ValueError: a value is no number of seconds.
    """
    found = {}
    for name, variable in (("elastic_timeout", "HOROVOD_ELASTIC_TIMEOUT"),
                           ("start_timeout", "HOROVOD_START_TIMEOUT"),
                           ("stall_report_s", "HOROVOD_STALL_CHECK_TIME_SECONDS"),
                           ("stall_remove_s", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")):
        seconds = _number(environ, variable)
        if seconds is not None and (seconds > 0 or name == "stall_remove_s"):
            found[name] = seconds
    if _is_on(environ, "HOROVOD_STALL_CHECK_DISABLE"):
        found["stall_report_s"] = _NO_REPORT_S
        found["stall_remove_s"] = 0.0
    return found


def worker_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that the workers of a run get from whoever starts it."""
    found = {name: environ[name] for name in _FOR_WORKERS if environ.get(name)}
    level = _level(environ)
    if level is not None and "TROUPE_LOG_LEVEL" not in environ:
        found["TROUPE_LOG_LEVEL"] = level
    return found


def bucket_bytes(
    may_tune: bool, environ: Mapping[str, str] = os.environ
) -> Union[None, str, int]:
    """How gradients are fused: "auto", a number of bytes, or None if nothing is set.

    Raises:
        ValueError: HOROVOD_FUSION_THRESHOLD is no number of bytes.
    """
    if may_tune and _is_on(environ, "HOROVOD_AUTOTUNE"):
        return "auto"
    threshold = _number(environ, "HOROVOD_FUSION_THRESHOLD", "bytes")
    return None if threshold is None else int(threshold)


def apply_logging(environ: Mapping[str, str] = os.environ) -> None:
    """Has this worker's log be as HOROVOD_LOG_LEVEL says, on stderr if nobody else sees to it."""
    level = _level(environ)
    if level is None:
        return
    logger = logging.getLogger("troupe")
    logger.setLevel(level.upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        time = "" if _is_on(environ, "HOROVOD_LOG_HIDE_TIME") else "%(asctime)s "
        handler.setFormatter(logging.Formatter(f"{time}%(levelname).1s [%(name)s] %(message)s"))
        logger.addHandler(handler)


def _level(environ: Mapping[str, str]) -> Optional[str]:
    return _LEVELS.get((environ.get("HOROVOD_LOG_LEVEL") or "").lower())


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return (environ.get(name) or "0").strip().lower() not in ("0", "", "false")


def _number(environ: Mapping[str, str], name: str, unit: str = "seconds") -> Any:
    text = environ.get(name)
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} must be a number of {unit} of at least 0, not {text!r}")
    return number
