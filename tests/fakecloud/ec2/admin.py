"""The administrator's door: orders as JSON objects, and what is told about the cloud."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fakecloud.ec2.cloud import Cloud
from fakecloud.ec2.dispatch import ACTIONS
from fakecloud.ec2.errors import BadMarket
from fakecloud.ec2.instances import Instance
from fakecloud.ec2.market import Pool
from fakecloud.orders import Order


def _pools(cloud: Cloud, order: Order) -> list[Pool]:
    """Of "zone" and "type"; each may be missing, and stands for all then."""
    zone, type_ = order.text("zone", ""), order.text("type", "")
    found = [pool for pool in cloud.market.pools.values()
             if zone in ("", pool.zone) and type_ in ("", pool.type.name)]
    if not found:
        raise BadMarket(f"{order.verb}: there is no pool of {type_ or 'any type'} in "
                        f"{zone or 'any zone'}")
    return found


def _instance(cloud: Cloud, order: Order) -> Instance:
    id_ = order.text("instance")
    one = cloud.instances.get(id_)
    if one is None or not one.alive:
        raise BadMarket(f"{order.verb}: there is no instance {id_!r} that is alive")
    return one


def _set_capacity(cloud: Cloud, order: Order) -> None:
    pools, capacity = _pools(cloud, order), order.number("capacity")
    order.done()
    for pool in pools:
        pool.hand_capacity = int(capacity)
        cloud.changed(pool)


def _set_price(cloud: Cloud, order: Order) -> None:
    pools, price = _pools(cloud, order), order.number("price")
    order.done()
    for pool in pools:
        pool.hand_price = price
        cloud.changed(pool)


def _follow(cloud: Cloud, order: Order) -> None:
    pools = _pools(cloud, order)
    order.done()
    for pool in pools:
        pool.follow()
        cloud.changed(pool)


def _interrupt(cloud: Cloud, order: Order) -> None:
    one, lead_s = _instance(cloud, order), order.optional("lead_s")
    order.done()
    cloud.interrupt(one, lead_s)


def _rebalance(cloud: Cloud, order: Order) -> None:
    one = _instance(cloud, order)
    order.done()
    cloud.recommend(one)


def _calm(cloud: Cloud, order: Order) -> None:
    one = _instance(cloud, order)
    order.done()
    cloud.calm(one)


def _outage(cloud: Cloud, order: Order) -> None:
    zone, on, lead_s = order.text("zone"), order.flag("on", True), order.number("lead_s", 0.0)
    order.done()
    cloud.outage(zone, on, lead_s)


def _throttle(cloud: Cloud, order: Order) -> None:
    """So many of the next requests, or by a rate from now on."""
    action = order.text("action", "*")
    if "rate" in order:
        rate, size = order.number("rate"), order.number("burst", 1.0, 1.0)
        order.done()
        cloud.settings.throttle = {**(cloud.settings.throttle or {}), action: [rate, size]}
        cloud.throttle.forget()
    else:
        count = order.number("count", 10)
        order.done()
        cloud.throttle.refuse_next(action, int(count))


def _action(order: Order) -> str:
    action = order.text("action", "*")
    if action != "*" and action not in ACTIONS:
        raise BadMarket(f"{order.verb}: there is no action {action[:80]!r}")
    return action


def _denied(cloud: Cloud, order: Order) -> set[str]:
    """Whose denials are meant: of one key, or of all."""
    if "key" not in order:
        return cloud.denied
    key = order.text("key")
    if key not in cloud.keys:
        raise BadMarket(f"{order.verb}: there is no key {key[:80]!r}")
    return cloud.keys[key].denied


def _deny(cloud: Cloud, order: Order) -> None:
    action, denied = _action(order), _denied(cloud, order)
    order.done()
    denied.add(action)


def _allow(cloud: Cloud, order: Order) -> None:
    action, denied = _action(order), _denied(cloud, order)
    order.done()
    if action == "*":
        denied.clear()
    denied.discard(action)


def _refuse(cloud: Cloud, order: Order) -> None:
    action, code = _action(order), order.text("code")
    message = order.text("message", "An order of the administrator")
    count = order.number("count", 1, 1)
    order.done()
    cloud.refusals.append((action, code, message, int(count)))


def _expire(cloud: Cloud, order: Order) -> None:
    """Keys with a token: the one that is named, or all."""
    name = order.text("key", "")
    order.done()
    keys = [key for key in cloud.keys.values() if name in ("", key.id) and key.token]
    if not keys:
        raise BadMarket(f"expire: there is no key {name[:80]!r} with a session token")
    for key in keys:
        key.expires_s = cloud.now_s + cloud.shift_s


def _enable(cloud: Cloud, order: Order) -> None:
    name = order.text("key")
    on = order.flag("on", True)
    order.done()
    if name not in cloud.keys:
        raise BadMarket(f"enable: there is no key {name[:80]!r}")
    cloud.keys[name].enabled = on


def _shift_clock(cloud: Cloud, order: Order) -> None:
    by_s = order.number("by_s", 0.0, -1e9)
    order.done()
    cloud.shift_s = by_s


def _set(cloud: Cloud, order: Order) -> None:
    settings = order.any("settings")
    order.done()
    cloud.settings.update(settings, "settings")
    cloud.throttle.forget()
    if cloud.settings.speed != cloud.clock.speed:
        cloud.set_speed(cloud.settings.speed)


VERBS: dict[str, Callable[[Cloud, Order], None]] = {
    "set_capacity": _set_capacity, "set_price": _set_price, "follow": _follow,
    "interrupt": _interrupt, "rebalance": _rebalance, "calm": _calm, "outage": _outage,
    "throttle": _throttle, "deny": _deny, "allow": _allow, "refuse": _refuse, "expire": _expire,
    "enable": _enable, "shift_clock": _shift_clock, "set": _set}


def obey(cloud: Cloud, body: Any, more: dict[str, Callable[[Order], None]]) -> None:
    """Does what an order says; ``more``: the verbs of who serves. Raises :class:`BadMarket`."""
    if not isinstance(body, dict):
        raise BadMarket("expected a JSON object with \"do\"")
    order = Order(body)
    if order.verb in more:
        return more[order.verb](order)
    if order.verb not in VERBS:
        raise BadMarket(f"do is one of {', '.join(sorted([*VERBS, *more]))}; "
                        f"got {order.verb[:80]!r}")
    VERBS[order.verb](cloud, order)


# ---- what is told ----

def state(cloud: Cloud) -> dict[str, Any]:
    market_s = cloud.market_s()
    pools = [{"zone": pool.zone, "type": pool.type.name, "capacity": pool.capacity,
              "price": pool.price, "free": cloud.free(pool, True), "outage": pool.outage,
              "on_demand": pool.type.on_demand} for pool in cloud.market.pools.values()]
    instances = [{"instance": one.id, "state": one.state, "market": one.market, "zone": one.zone,
                  "type": one.spec.type.name, "reason": one.reason, "tags": one.tags,
                  "rebalance": one.rebalance,
                  "left_s": None if one.notice is None else round(
                      one.notice.deadline_s - cloud.now_s, 3)}
                 for one in cloud.instances.values()]
    return {"now": round(cloud.now_s, 3), "market_s": round(market_s, 3),
            "speed": cloud.clock.speed, "pools": pools, "instances": instances,
            "totals": cloud.ledger.totals(market_s), "settings": cloud.settings.as_json()}


def ledger(cloud: Cloud) -> dict[str, Any]:
    totals = cloud.ledger.totals(cloud.market_s())
    entries = [*cloud.ledger.closed, *cloud.ledger.open.values()]
    return {"totals": totals, "instances": [one.as_json() for one in entries]}
