"""The administrator's door: orders as JSON objects, and what is told about the cloud."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fakecloud.gce.catalog import family_of
from fakecloud.gce.cloud import Cloud, Trap
from fakecloud.gce.errors import OpError
from fakecloud.gce.faults import Faults
from fakecloud.gce.instances import Instance
from fakecloud.gce.tokens import Tokens
from fakecloud.markets import Pool
from fakecloud.orders import BadOrder, Order


class Admin:
    def __init__(self, cloud: Cloud, tokens: Tokens, faults: Faults) -> None:
        self._cloud, self._tokens, self._faults = cloud, tokens, faults
        self.verbs: dict[str, Callable[[Order], None]] = {
            "set_capacity": self._set_capacity, "set_price": self._set_price,
            "follow": self._follow, "preempt": self._preempt, "interrupt": self._preempt,
            "false_alarm": self._false_alarm, "calm": self._calm, "maintain": self._maintain,
            "host_error": self._host_error, "outage": self._outage, "quota": self._quota,
            "unreachable": self._unreachable, "fault": faults.order, "mend": self._mend,
            "trap": self._trap, "release": self._release, "deny": self._deny,
            "allow": self._allow, "expire": self._expire, "refuse_tokens": self._refuse_tokens,
            "set": self._set}

    def obey(self, body: Any) -> None:
        """Raises BadOrder."""
        if not isinstance(body, dict):
            raise BadOrder("expected a JSON object with \"do\"")
        order = Order(body)
        if order.verb not in self.verbs:
            raise BadOrder(f"do is one of {', '.join(sorted(self.verbs))}; "
                           f"got {order.verb[:80]!r}")
        self.verbs[order.verb](order)

    # ---- the market ----

    def _pools(self, order: Order) -> list[Pool]:
        """Of "zone", "type" and "family"; what is missing stands for all."""
        zone, type_, family = (order.text(key, "") for key in ("zone", "type", "family"))
        found = [pool for pool in self._cloud.market.pools.values()
                 if zone in ("", pool.zone) and type_ in ("", pool.type.name)
                 and family in ("", family_of(pool.type.name))]
        if not found:
            raise BadOrder(f"{order.verb}: there is no pool of {type_ or family or 'any type'} in "
                           f"{zone or 'any zone'}")
        return found

    def _set_capacity(self, order: Order) -> None:
        pools, capacity = self._pools(order), order.number("capacity")
        order.done()
        for pool in pools:
            pool.hand_capacity = int(capacity)
            self._cloud.changed(pool)

    def _set_price(self, order: Order) -> None:
        pools, price = self._pools(order), order.number("price")
        order.done()
        for pool in pools:
            pool.hand_price = price
            self._cloud.changed(pool)

    def _follow(self, order: Order) -> None:
        pools = self._pools(order)
        order.done()
        for pool in pools:
            pool.follow()
            self._cloud.changed(pool)

    def _outage(self, order: Order) -> None:
        zone, on, lead_s = order.text("zone"), order.flag("on", True), order.number("lead_s", 0.0)
        order.done()
        self._cloud.outage(zone, on, lead_s)

    def _quota(self, order: Order) -> None:
        metric, limit = order.text("metric"), order.number("limit")
        region = order.text("region", "")
        order.done()
        regions = self._cloud.market.regions()
        if region not in ("", *regions):
            raise BadOrder(f"quota: there is no region {region[:80]!r}")
        for one in [region] if region else regions:
            self._cloud.limits[one, metric] = limit

    def _unreachable(self, order: Order) -> None:
        zone, on = order.text("zone"), order.flag("on", True)
        order.done()
        if zone not in self._cloud.zones():
            raise BadOrder(f"unreachable: there is no zone {zone[:80]!r}")
        (self._cloud.unreachable.add if on else self._cloud.unreachable.discard)(zone)

    # ---- instances ----

    def _instance(self, order: Order) -> Instance:
        """By name or id."""
        wanted = order.text("instance")
        for one in self._cloud.instances.values():
            if wanted in (one.id, one.spec.name) and one.alive:
                return one
        raise BadOrder(f"{order.verb}: there is no instance {wanted[:80]!r} that is alive")

    def _preempt(self, order: Order) -> None:
        one, lead_s = self._instance(order), order.optional("lead_s")
        order.done()
        self._cloud.preempt(one, lead_s)

    def _false_alarm(self, order: Order) -> None:
        one, seconds = self._instance(order), order.number("seconds", 10.0)
        order.done()
        self._cloud.alarm(one, seconds)

    def _calm(self, order: Order) -> None:
        one = self._instance(order)
        order.done()
        self._cloud.calm(one)

    def _maintain(self, order: Order) -> None:
        one = self._instance(order)
        lead_s = order.number("lead_s", self._cloud.settings.maintenance_s)
        terminate = order.flag("terminate", one.spec.on_maintenance == "TERMINATE")
        order.done()
        self._cloud.maintain(one, lead_s, terminate)

    def _host_error(self, order: Order) -> None:
        one = self._instance(order)
        order.done()
        self._cloud.host_error(one)

    # ---- requests and operations ----

    def _mend(self, order: Order) -> None:
        """All faults, traps and refusals end."""
        order.done()
        self._faults.faults, self._cloud.traps = [], []
        self._cloud.unreachable.clear()
        self._tokens.refuses.clear()
        self._tokens.denied.clear()

    def _trap(self, order: Order) -> None:
        """The next operations of a type never end, or fail with a code; ``undo``: after that what
        they have made is gone again."""
        kind, count = order.text("type", "*"), order.number("count", 1, 1)
        how = order.text("how")
        code, message = order.text("code", "INTERNAL_ERROR"), order.text(
            "message", "Internal error. Please try again or contact Google Support.")
        http, undo = int(order.number("http", 500)), order.flag("undo", True)
        order.done()
        if how not in ("stuck", "fail"):
            raise BadOrder(f"trap: how is stuck or fail, got {how[:40]!r}")
        error = OpError(code, message, http) if how == "fail" else None
        self._cloud.traps.append(Trap(kind, int(count), how == "stuck", error,
                                      undo and error is not None))

    def _release(self, order: Order) -> None:
        """Operations that would never end do so."""
        order.done()
        for one in self._cloud.operations.values():
            if one.stuck:
                one.stuck = False
                self._cloud.finish(one)

    # ---- who may what ----

    def _deny(self, order: Order) -> None:
        permission, user = order.text("permission", "*"), order.text("user", "*")
        order.done()
        self._tokens.denied.append((user, permission))

    def _allow(self, order: Order) -> None:
        permission, user = order.text("permission", "*"), order.text("user", "*")
        order.done()
        self._tokens.denied = [one for one in self._tokens.denied
                               if permission not in ("*", one[1]) or user not in ("*", one[0])]

    def _expire(self, order: Order) -> None:
        """Access tokens that are out there."""
        user = order.text("user", "")
        order.done()
        self._tokens.expire(user, self._cloud.now_s)

    def _refuse_tokens(self, order: Order) -> None:
        grant, count = order.text("grant", "*"), order.number("count", 1, 1)
        order.done()
        self._tokens.refuses[grant] = int(count)

    def _set(self, order: Order) -> None:
        settings = order.any("settings")
        order.done()
        self._cloud.settings.update(settings, "settings")
        if self._cloud.settings.speed != self._cloud.clock.speed:
            self._cloud.set_speed(self._cloud.settings.speed)


# ---- what is told ----

def state(cloud: Cloud, tokens: Tokens, faults: Faults) -> dict[str, Any]:
    market_s = cloud.market_s()
    pools = [{"zone": pool.zone, "type": pool.type.name, "capacity": pool.capacity,
              "price": pool.price, "free": cloud.free(pool, True), "outage": pool.outage,
              "on_demand": pool.type.on_demand} for pool in cloud.market.pools.values()]
    instances = [{"instance": one.id, "name": one.spec.name, "status": one.status,
                  "market": one.market, "zone": one.zone, "type": one.spec.shape.name,
                  "reason": one.reason, "labels": one.labels, "preempted": one.preempted,
                  "left_s": None if one.deadline_s is None else round(
                      one.deadline_s - cloud.now_s, 3)}
                 for one in cloud.instances.values()]
    waiting = [one.as_json() for one in cloud.operations.values() if not one.done]
    return {"now": round(cloud.now_s, 3), "market_s": round(market_s, 3),
            "speed": cloud.clock.speed, "pools": pools, "instances": instances,
            "operations": waiting, "unreachable": sorted(cloud.unreachable),
            "faults": faults.as_json(), "tokens": tokens.as_json(),
            "totals": cloud.ledger.totals(market_s), "settings": cloud.settings.as_json()}


def ledger(cloud: Cloud) -> dict[str, Any]:
    totals = cloud.ledger.totals(cloud.market_s())
    entries = [*cloud.ledger.closed, *cloud.ledger.open.values()]
    return {"totals": totals, "instances": [one.as_json() for one in entries]}
