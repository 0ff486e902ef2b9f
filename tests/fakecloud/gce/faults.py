"""What goes wrong with requests on purpose: which ones, how, and how often. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from fakecloud.gce.errors import GceError, throttled
from fakecloud.orders import BadOrder, Order

HOWS = ("throttle", "error", "slow", "hang", "lost", "cut", "garbage", "huge", "types")
_MESSAGES = {500: ("internalError", "Internal error. Please try again or contact Google Support."),
             502: ("backendError", "Bad Gateway"),
             503: ("backendError", "The service is currently unavailable.")}


@dataclass
class Fault:
    """``method``: a pattern, as in instances.bulkInsert, instances.*, oauth.*, metadata.*."""

    how: str
    left: int = 1
    method: str = "*"
    seconds: float = 0.0
    code: int = 0
    reason: str = ""
    message: str = ""
    share: float = 1.0          # Of those requests.

    def error(self, method: str) -> GceError:
        if self.how == "throttle":
            return throttled(self.code or 403, method)
        code = self.code or 503
        reason, message = _MESSAGES.get(code, ("badRequest", "Bad Request"))
        return GceError(code, self.reason or reason, self.message or message,
                        status=code >= 500)


class Faults:
    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self.faults: list[Fault] = []

    def take(self, method: str) -> Optional[Fault]:
        """The first one that fits, which counts as used then."""
        for one in self.faults:
            # What tokens and metadata have to do is broken by its name only.
            outside = method.startswith(("oauth.", "metadata.")) and one.method == "*"
            if not outside and fnmatch.fnmatchcase(method, one.method) and (
                    self._draw() < one.share):
                one.left -= 1
                self.faults = [other for other in self.faults if other.left > 0]
                return one
        return None

    def order(self, order: Order) -> None:
        """``{"do": "fault", "how": "error", "code": 503, "count": 3, "method": "*.list"}``"""
        how = order.text("how")
        if how not in HOWS:
            raise BadOrder(f"fault: how is one of {', '.join(HOWS)}, got {how[:40]!r}")
        made = Fault(how, int(order.number("count", 1, 1)), order.text("method", "*"),
                     order.number("seconds", 0.0), int(order.number("code", 0)),
                     order.text("reason", ""), order.text("message", ""),
                     order.number("share", 1.0))
        order.done()
        self.faults.append(made)

    def as_json(self) -> list[dict[str, Any]]:
        return [vars(one) for one in self.faults]
