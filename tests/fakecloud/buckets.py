"""Rates that a cloud allows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Bucket:
    """Has ``left`` requests at ``at_s``, and gets some back every second."""

    rate: float
    size: float
    left: float
    at_s: float

    def take(self, now_s: float) -> bool:
        self.left = min(self.size, self.left + max(0.0, now_s - self.at_s) * self.rate)
        self.at_s = now_s
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True
