"""What the cluster consists of, as a driver sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from troupe import _native
from troupe.actors import _context, _session
from troupe.errors import NotInWorkerError

_GONE = ("dead", "left")


def nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster, by id.

    Returns:
        Of each ``NodeID``, ``Alive``, ``State``, ``NodeManagerHostname``, ``Resources`` (what it
        offers, by resource; ``memory`` in bytes), ``Used`` and ``Labels``.

    Raises:
        NotInWorkerError: this is no driver.
    """
    return [{
        "NodeID": node["id"],
        "Alive": node["state"] not in _GONE,
        "State": node["state"],
        "NodeManagerHostname": node["host"],
        "Resources": dict(node["resources"]),
        "Used": dict(node["used"]),
        "Labels": dict(node["labels"]),
    } for node in sorted(_state("nodes()")["nodes"], key=lambda node: node["id"])]


def cluster_resources() -> dict[str, float]:
    """What all living nodes offer together, by resource; errors as of :func:`nodes`."""
    return _sum([node["Resources"] for node in nodes() if node["Alive"]])


def available_resources() -> dict[str, float]:
    """What of it is free at the moment; a resource without any left is not listed."""
    up = [node for node in nodes() if node["Alive"]]
    used = _sum([node["Used"] for node in up])
    total = _sum([node["Resources"] for node in up])
    left = {name: round(amount - used.get(name, 0.0), 6) for name, amount in total.items()}
    return {name: amount for name, amount in left.items() if amount > 0}


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """The names of the actors that live, or are started, in the namespace that this runs in.

    Args:
        all_namespaces: those of all, each as ``{"name": ..., "namespace": ...}``.

    Raises:
        NotInWorkerError: this is no driver.
    """
    named = [actor["name"] for actor in _state("list_named_actors()")["actors"]
             if actor["name"] and actor["state"] != "dead"]
    parts = [name.partition("/") if "/" in name else ("", "", name) for name in sorted(named)]
    if all_namespaces:
        return [{"name": name, "namespace": namespace} for namespace, _, name in parts]
    here = _context.current().namespace
    return [name for namespace, _, name in parts if namespace == here]


def get_gpu_ids() -> list[str]:
    """Ids of the GPUs that this actor or task was given; empty in a driver."""
    return _context.current().get_accelerator_ids()["GPU"]


def _state(what: str) -> Mapping[str, Any]:
    session = _session.current()
    session.check()
    if session.cluster is None:
        raise NotInWorkerError(
            f"{what} asks in a driver only; pass what an actor or task needs of it as an argument")
    with _native.driver_errors(what):
        state: Mapping[str, Any] = session.cluster.driver.state()
    return state


def _sum(amounts: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in amounts:
        for name, amount in one.items():
            total[name] = total.get(name, 0.0) + amount
    return total
