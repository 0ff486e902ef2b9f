"""Built on actors: pools, queues, placement groups, strategies; names as of ``ray.util``.

Importing it starts nothing.
"""

from __future__ import annotations

from troupe.actors._nodes import list_named_actors
from troupe.util import metrics, scheduling_strategies
from troupe.util.actor_pool import ActorPool
from troupe.util.completion import as_completed, map_unordered
from troupe.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from troupe.util.queue import Queue

__all__ = [
    "ActorPool",
    "PlacementGroup",
    "Queue",
    "as_completed",
    "get_current_placement_group",
    "get_placement_group",
    "list_named_actors",
    "map_unordered",
    "metrics",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
    "scheduling_strategies",
]
