"""How many requests there may be: a bucket per method; which one it has, the most exact pattern
says."""

from __future__ import annotations

import fnmatch
from typing import Optional

from fakecloud.buckets import Bucket


class Rates:
    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}
        self._rules: Optional[dict[str, list[float]]] = None

    def take(self, method: str, rules: Optional[dict[str, list[float]]], now_s: float) -> bool:
        """Whether there is room for one more."""
        if rules != self._rules:
            self._rules = None if rules is None else dict(rules)
            self._buckets.clear()
        found = [name for name in rules or {} if fnmatch.fnmatchcase(method, name)]
        if not found or rules is None:
            return True
        rate, size = rules[max(found, key=len)]
        bucket = self._buckets.setdefault(method, Bucket(rate, size, size, now_s))
        return bucket.take(now_s)
