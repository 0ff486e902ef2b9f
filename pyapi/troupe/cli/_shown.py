"""How the commands show times and notices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
