"""What stands before an action: rates per action, and requests that come twice."""

from __future__ import annotations

import fnmatch
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Optional

from fakecloud.buckets import Bucket
from fakecloud.ec2.errors import Ec2Error, bad_value

TOKENS_MAX = 20_000     # Client tokens that are remembered.
BUCKETS_MAX = 1_000


class Throttle:
    """A bucket per region and action; which one an action has, the most exact pattern says."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._refuse: dict[str, int] = {}

    def refuse_next(self, action: str, count: int) -> None:
        """``action``: may be ``*``."""
        self._refuse[action] = count

    def forget(self) -> None:
        """The rates have changed."""
        self._buckets.clear()

    @staticmethod
    def _rule(action: str, rules: dict[str, list[float]]) -> Optional[list[float]]:
        found = [name for name in rules if fnmatch.fnmatchcase(action, name)]
        return rules[max(found, key=len)] if found else None

    def check(self, region: str, action: str, rules: Optional[dict[str, list[float]]],
              now_s: float) -> None:
        for name in (action, "*"):
            if self._refuse.get(name, 0) > 0:
                self._refuse[name] -= 1
                raise Ec2Error("RequestLimitExceeded", "Request limit exceeded.")
        rule = self._rule(action, rules or {})
        if rule is None:
            return
        bucket = self._buckets.get((region, action))
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets.clear()
            bucket = self._buckets[region, action] = Bucket(rule[0], rule[1], rule[1], now_s)
        if not bucket.take(now_s):
            raise Ec2Error("RequestLimitExceeded", "Request limit exceeded.")


def digest_of(form: dict[str, str]) -> str:
    """Of what a request asks for, whatever the order of its parameters."""
    text = "\0".join(f"{key}\0{form[key]}" for key in sorted(form)
                     if key not in ("ClientToken", "Version"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Once:
    """Client tokens: a request that comes again has the result of the first one."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, ...], tuple[str, Any]] = OrderedDict()

    def run(self, key: tuple[str, ...], form: dict[str, str], make: Callable[[], Any]) -> Any:
        """``key`` ends in the token. A request that fails is not remembered."""
        token = key[-1]
        if not token:
            return make()
        if len(token) > 64 or not token.isascii():
            raise bad_value("ClientToken", token[:80], "Expected at most 64 ASCII characters.")
        digest = digest_of(form)
        if key in self._known:
            known, result = self._known[key]
            if known != digest:
                raise Ec2Error("IdempotentParameterMismatch",
                               "The client token has been used before with other parameters: "
                               + token)
            return result
        result = make()
        self._known[key] = (digest, result)
        while len(self._known) > TOKENS_MAX:
            self._known.popitem(last=False)
        return result
