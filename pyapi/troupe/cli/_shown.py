"""How the commands show times and notices, and how a time is given to them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any


def seconds_of(text: str) -> float:
    """``30``, ``30s``, ``2m``, ``1h`` or ``7d`` in seconds."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[-1:], 0.0)
    try:
        return float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a time like 30s or 2m, got {text!r}") from None


def duration(seconds: float) -> str:
    """``42s``, ``3m10s``, ``5h02m``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole // 60 % 60:02}m"


def notice(node: Mapping[str, Any]) -> str:
    """``preempt (aws) in 1m55s``; of what may only come, ``rebalance (aws)?``."""
    told = node.get("notice") or node.get("warning")
    if not told:
        return "-"
    left = f" in {duration(told['left_s'])}" if "left_s" in told else ""
    return f"{told['kind']} ({told['source']}){left}" + ("" if node.get("notice") else "?")
