"""What goes wrong on purpose: which requests, how, and how often. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from fakecloud.k8s.access import Asked
from fakecloud.k8s.catalog import Resource
from fakecloud.k8s.errors import ApiError, forbidden
from fakecloud.orders import BadOrder, Order

# How: what is answered, or what happens to the answer.
HOWS = ("throttle", "error", "slow", "hang", "lost", "cut", "garbage")
WATCH_HOWS = ("drop", "silent", "gone")
FLOW, LEVEL = "5d4ee2c3-3d48-4c9b-9d18-1a1f6a3b0c11", "0c9f1a60-6a3e-4ba5-a1d8-6b1d7f6f2c05"
FOREVER = 1 << 30
_MESSAGES = {500: ("InternalError", "Internal error occurred: etcdserver: request timed out"),
             502: ("", "Bad Gateway"),
             503: ("ServiceUnavailable",
                   "the server is currently unable to handle the request"),
             504: ("Timeout", "Timeout: request did not complete within the allotted timeout")}


@dataclass
class Fault:
    """``verb``, ``resource`` (a plural) and ``name`` (how it begins) say which; "" is any."""

    how: str
    left: int = 1
    verb: str = ""
    resource: str = ""
    name: str = ""
    seconds: float = 0.0
    code: int = 500
    share: float = 1.0          # Of those requests.

    def fits(self, asked: Asked) -> bool:
        return (self.left > 0 and self.verb in ("", asked.verb)
                and self.resource in ("", asked.plural, f"{asked.plural}/{asked.sub}")
                and asked.name.startswith(self.name))

    def error(self) -> ApiError:
        if self.how == "throttle":
            return ApiError(429, "TooManyRequests",
                            "Too many requests, please try again later.", plain=True, headers={
                                "Retry-After": str(max(1, int(self.seconds))),
                                "X-Kubernetes-PF-FlowSchema-UID": FLOW,
                                "X-Kubernetes-PF-PriorityLevel-UID": LEVEL})
        reason, message = _MESSAGES.get(self.code, ("InternalError", "Internal error occurred"))
        details: dict[str, Any] = {}
        headers: dict[str, str] = {}
        if self.seconds:
            headers["Retry-After"] = str(max(1, int(self.seconds)))
            details["retryAfterSeconds"] = max(1, int(self.seconds))
        return ApiError(self.code, reason, message, details, headers)


@dataclass
class Denial:
    """As a webhook of admission refuses."""

    resource: str
    prefix: str
    webhook: str
    message: str
    code: int
    left: int


class Faults:
    def __init__(self, draw: Callable[[], float], version: Callable[[], int]) -> None:
        self._draw, self._version = draw, version
        self.faults: list[Fault] = []
        self.denials: list[Denial] = []
        self._stale: Optional[int] = None

    def stale(self) -> Optional[int]:
        """The version that a list from the server's cache shows, if that is behind."""
        return self._stale

    def take(self, asked: Asked, hows: tuple[str, ...] = HOWS) -> Optional[Fault]:
        """The first one that fits, which counts as used then."""
        for one in self.faults:
            if one.how in hows and one.fits(asked) and self._draw() < one.share:
                one.left -= 1
                self.faults = [other for other in self.faults if other.left > 0]
                return one
        return None

    def silent(self, asked: Asked) -> bool:
        """Whether a watch tells nothing now."""
        return any(one.how == "silent" and one.fits(asked) for one in self.faults)

    def admit(self, resource: Resource, name: str) -> None:
        for one in self.denials:
            if one.resource in ("", resource.plural) and name.startswith(one.prefix):
                one.left -= 1
                self.denials = [other for other in self.denials if other.left > 0]
                told = f'admission webhook "{one.webhook}" denied the request: {one.message}'
                if one.code == 403:
                    raise ApiError(403, "Forbidden", told, {})
                raise ApiError(one.code, "BadRequest", told, {})

    # ---- orders ----

    def order(self, order: Order) -> None:
        """``{"do": "fault", "how": "error", "code": 503, "count": 3, "verb": "list"}``"""
        how = order.text("how")
        if how not in HOWS + WATCH_HOWS:
            raise BadOrder(f"fault: how is one of {', '.join(HOWS + WATCH_HOWS)}, got {how[:40]!r}")
        count = order.number("count", FOREVER if how == "silent" else 1, 1)
        verb = order.text("verb", "watch" if how in WATCH_HOWS else "")
        made = Fault(how, int(count), verb, order.text("resource", ""), order.text("name", ""),
                     order.number("seconds", 0.0), int(order.number("code", 500, 400)),
                     order.number("share", 1.0))
        order.done()
        self.faults.append(made)

    def deny(self, order: Order) -> None:
        made = Denial(order.text("resource", ""), order.text("name", ""),
                      order.text("webhook", "validate.fakecloud.example"),
                      order.text("message", "not today"), int(order.number("code", 403, 400)),
                      int(order.number("count", 1, 1)))
        order.done()
        self.denials.append(made)

    def freeze(self, order: Order) -> None:
        """Lists with resourceVersion=0 stay as they are now, or come up again."""
        on = order.flag("on", True)
        order.done()
        self._stale = self._version() if on else None

    def mend(self, order: Order) -> None:
        order.done()
        self.faults, self.denials, self._stale = [], [], None

    def as_json(self) -> list[dict[str, Any]]:
        return [vars(one) for one in self.faults]


def quota_exceeded(name: str, pod: str, requested: str, used: str, limited: str) -> ApiError:
    return forbidden("", "pods", pod, f"exceeded quota: {name}, requested: {requested}, used: "
                     f"{used}, limited: {limited}")
