"""Placement groups under the names that programs written for Ray use."""

from __future__ import annotations

from typing import Any, Optional

from troupe.actors import _context
from troupe.actors._placement import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    remove_placement_group,
)
from troupe.errors import ActorNotFoundError

_STATES = {"pending": "PENDING", "placed": "CREATED", "resizing": "RESCHEDULING",
           "rescheduling": "RESCHEDULING"}


def placement_group_table(group: PlacementGroup) -> dict[str, Any]:
    """How a placement group stands.

    Returns:
        ``placement_group_id``, ``name``, ``state`` (PENDING, CREATED, RESCHEDULING, REMOVED),
        ``reason`` (why bundles wait), ``bundles`` (resources by number) and
        ``bundles_to_node_id`` (by number; "" while a bundle waits).

    Raises:
        TypeError: this is no placement group. ``troupe groups`` lists those of a cluster.
    """
    if not isinstance(group, PlacementGroup):
        raise TypeError(f"placement_group_table() takes a PlacementGroup, not {group!r}")
    try:
        status = group.status()
    except ActorNotFoundError:
        status = {"name": "", "state": "", "reason": "it was removed", "bundles": []}
    return {
        "placement_group_id": group.id,
        "name": status["name"],
        "state": _STATES.get(status["state"], "REMOVED"),
        "reason": status["reason"],
        "bundles": {b["number"]: b["resources"] for b in status["bundles"]},
        "bundles_to_node_id": {b["number"]: b["node"] for b in status["bundles"]},
    }


def get_current_placement_group() -> Optional[PlacementGroup]:
    """The group that this actor or task runs in; None in a driver, and if it was given none."""
    id = _context.current().placement_group_id
    return PlacementGroup(id) if id else None


__all__ = [
    "PlacementGroup",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]
