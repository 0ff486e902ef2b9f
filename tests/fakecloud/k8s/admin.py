"""The administrator's door: orders as JSON objects, and what is told about the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fakecloud.k8s import catalog
from fakecloud.k8s.cluster import Cluster
from fakecloud.k8s.nodes import NOTICES
from fakecloud.k8s.registry import stamp
from fakecloud.k8s.selectors import Object
from fakecloud.orders import BadOrder, Order


def _pod(cluster: Cluster, order: Order) -> Object:
    name, namespace = order.text("pod"), order.text("namespace", "default")
    found = cluster.store.get(catalog.PODS, namespace, name)
    if found is None:
        raise BadOrder(f"{order.verb}: there is no pod {name[:80]!r} in {namespace[:80]!r}")
    return found


def _notice(cluster: Cluster, order: Order) -> None:
    """The node goes after so many seconds, and its pods are told, as this platform does it."""
    node, lead_s = order.text("node"), order.number("lead_s", 30.0)
    how = order.text("how", "gke")
    order.done()
    if how not in NOTICES:
        raise BadOrder(f"notice: how is one of {', '.join(NOTICES)}, got {how[:40]!r}")
    cluster.nodes.notice(node, lead_s, how, cluster.now_s)
    cluster.ledger.note("notice", node=node, how=how, lead_s=lead_s)


def _silence(cluster: Cluster, order: Order) -> None:
    node = order.text("node")
    order.done()
    cluster.nodes.silence(node, cluster.now_s)
    cluster.ledger.note("silenced", node=node)


def _remove(cluster: Cluster, order: Order) -> None:
    node = order.text("node")
    order.done()
    if cluster.store.get(catalog.NODES, "", node) is None:
        raise BadOrder(f"remove: there is no node {node[:80]!r}")
    cluster.nodes.remove(node)
    cluster.ledger.note("removed", node=node)


def _add(cluster: Cluster, order: Order) -> None:
    pool, count = order.text("pool"), order.number("count", 1, 1)
    order.done()
    cluster.nodes.add(pool, int(count), cluster.now_s)


def _capacity(cluster: Cluster, order: Order) -> None:
    """How many nodes the market has for a pool; those above it are taken on notice."""
    name, capacity = order.text("pool"), int(order.number("capacity"))
    lead_s, how = order.number("lead_s", 30.0), order.text("how", "gke")
    order.done()
    pool = next((one for one in cluster.settings.pools if one.name == name), None)
    if pool is None or how not in NOTICES:
        raise BadOrder(f"capacity: there is no pool {name[:80]!r}, or no way {how[:40]!r}")
    pool.capacity = capacity
    own = [one for one in cluster.nodes.machines.values()
           if one.pool is pool and one.alive and one.off_s is None]
    for machine in own[capacity:]:
        cluster.nodes.notice(machine.name, lead_s, how, cluster.now_s)
        cluster.ledger.note("notice", node=machine.name, how=how, lead_s=lead_s)


def _evict(cluster: Cluster, order: Order) -> None:
    pod = _pod(cluster, order)
    order.done()
    why = cluster.try_(lambda: cluster.evict(pod, {}))
    if why:
        raise BadOrder(f"evict: {why}")


def _oom(cluster: Cluster, order: Order) -> None:
    pod, container = _pod(cluster, order), order.text("container", "")
    order.done()
    life = cluster.kubelet.lives.get(pod["metadata"]["uid"])
    found = [one for one in life.alive() if container in ("", one.name)] if life else []
    if not found:
        raise BadOrder("oom: no container of it runs")
    for one in found:
        cluster.kubelet.out_of_memory(one.id)


def _rotate(cluster: Cluster, order: Order) -> None:
    """A new token; the old ones are good for so many seconds more."""
    user, keep_s = order.text("user"), order.number("keep_s", 0.0)
    order.done()
    try:
        cluster.access.rotate(user, cluster.now_s, keep_s)
    except KeyError:
        raise BadOrder(f"rotate: there is no user {user[:80]!r}") from None


def _expire(cluster: Cluster, order: Order) -> None:
    user = order.text("user")
    order.done()
    for token in cluster.access.tokens.values():
        if token.user.name == user:
            token.expires_s = cluster.now_s


def _compact(cluster: Cluster, order: Order) -> None:
    order.done()
    cluster.store.compact()


def _set(cluster: Cluster, order: Order) -> None:
    settings = order.any("settings")
    order.done()
    if isinstance(settings, dict) and "pools" in settings:
        raise BadOrder("set: pools are set at the start")
    cluster.settings.update(settings, "settings")


VERBS: dict[str, Callable[[Cluster, Order], None]] = {
    "notice": _notice, "silence": _silence, "remove": _remove, "add": _add, "evict": _evict,
    "capacity": _capacity, "oom": _oom, "rotate": _rotate, "expire": _expire,
    "compact": _compact, "set": _set,
    "fault": lambda cluster, order: cluster.faults.order(order),
    "deny": lambda cluster, order: cluster.faults.deny(order),
    "freeze": lambda cluster, order: cluster.faults.freeze(order),
    "mend": lambda cluster, order: cluster.faults.mend(order)}


def obey(cluster: Cluster, body: Any) -> None:
    """Does what an order says. Raises :class:`BadOrder`."""
    if not isinstance(body, dict):
        raise BadOrder("expected a JSON object with \"do\"")
    order = Order(body)
    if order.verb not in VERBS:
        raise BadOrder(f"do is one of {', '.join(sorted(VERBS))}; got {order.verb[:80]!r}")
    VERBS[order.verb](cluster, order)


def credential(cluster: Cluster, query: dict[str, str]) -> dict[str, Any]:
    """What an exec plugin prints: the token of ``user``, or with ``seconds`` a new one, which is
    good for as long. ``version``: of the format, v1beta1 if it is not said."""
    user, seconds = query.get("user", ""), query.get("seconds", "")
    access, status = cluster.access, {}
    own = [one.user for one in access.tokens.values() if one.user.name == user]
    if not own:
        raise BadOrder("there is no such user")
    if seconds:
        if not seconds.isascii() or not seconds.isdigit() or len(seconds) > 9:
            raise BadOrder("seconds is a whole number")
        ends_s = cluster.now_s + int(seconds)
        status["token"] = access.add(user, own[-1].groups, expires_s=ends_s)
        status["expirationTimestamp"] = stamp(ends_s)
    else:
        status["token"] = access.token_of(user)
    return {"apiVersion": f"client.authentication.k8s.io/{query.get('version', 'v1beta1')}",
            "kind": "ExecCredential", "status": status}


def state(cluster: Cluster) -> dict[str, Any]:
    pods = [{"pod": one["metadata"]["name"], "namespace": one["metadata"]["namespace"],
             "node": one["spec"].get("nodeName", ""), "phase": one["status"].get("phase", "")}
            for one in cluster.store.all(catalog.PODS)]
    return {"now": round(cluster.now_s, 3), "version": cluster.store.version,
            "compacted": cluster.store.compacted, "nodes": cluster.nodes.as_json(), "pods": pods,
            "faults": cluster.faults.as_json(), "totals": cluster.ledger.totals(),
            "settings": cluster.settings.as_json()}
