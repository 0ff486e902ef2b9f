"""Where an actor or a task is to run: values of the option ``scheduling_strategy``.

Beside these classes the option takes ``"DEFAULT"`` (where there is room, on few nodes) and
``"SPREAD"`` (on many).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Union

from troupe.actors._placement import PlacementGroup


class NodeAffinitySchedulingStrategy:
    """On one node.

    Args:
        node_id: its id, as :func:`troupe.nodes` and the runtime context give it.
        soft: elsewhere if the node has gone, or has no room.
    """

    def __init__(self, node_id: str, soft: bool = False) -> None:
        if not isinstance(node_id, str) or not node_id:
            raise ValueError(f"node_id must be the id of a node, not {node_id!r}")
        self.node_id = node_id
        self.soft = bool(soft)

    def as_options(self) -> dict[str, Any]:
        """The options that say the same."""
        return {"node": self.node_id, "node_soft": self.soft}


class PlacementGroupSchedulingStrategy:
    """In a placement group.

    Args:
        placement_group: the group.
        placement_group_bundle_index: the number of the bundle; -1: any.
        placement_group_capture_child_tasks: only False is possible. What a task or actor starts
            itself names its group itself.

    Raises:
        TypeError, ValueError: an argument is unusable.
    """

    def __init__(
        self, placement_group: PlacementGroup, placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: Optional[bool] = None,
    ) -> None:
        if not isinstance(placement_group, PlacementGroup):
            raise TypeError(f"placement_group must be a PlacementGroup, not {placement_group!r}")
        if placement_group_capture_child_tasks:
            raise ValueError(
                "placement_group_capture_child_tasks=True is not available: name the group where "
                "the children are started (troupe.util.get_current_placement_group())")
        self.placement_group = placement_group
        self.placement_group_bundle_index = placement_group_bundle_index
        self.placement_group_capture_child_tasks = False

    def as_options(self) -> dict[str, Any]:
        """The options that say the same."""
        return {"placement_group": self.placement_group,
                "placement_group_bundle_index": self.placement_group_bundle_index}


class In:
    """The label has one of these values."""

    def __init__(self, *values: str) -> None:
        self.term = f"{{label}} in ({', '.join(_strings(values))})"


class NotIn:
    """The label has none of these values, or is not there."""

    def __init__(self, *values: str) -> None:
        self.term = f"{{label}} not in ({', '.join(_strings(values))})"


class Exists:
    """The node has the label."""

    term = "{label}"


class DoesNotExist:
    """The node does not have the label."""

    term = "!{label}"


Condition = Union[In, NotIn, Exists, DoesNotExist]


class NodeLabelSchedulingStrategy:
    """On nodes whose labels fulfil conditions: ``{"zone": In("a", "b"), "gpu": Exists()}``.

    Args:
        hard: what must hold.
        soft: what is preferred among those.
    """

    def __init__(
        self, hard: Optional[Mapping[str, Condition]] = None, *,
        soft: Optional[Mapping[str, Condition]] = None,
    ) -> None:
        if not hard and not soft:
            raise ValueError("NodeLabelSchedulingStrategy needs conditions, hard or soft")
        self.hard = dict(hard or {})
        self.soft = dict(soft or {})
        self._hard, self._soft = _terms(self.hard, "hard"), _terms(self.soft, "soft")

    def as_options(self) -> dict[str, Any]:
        """The options that say the same."""
        return {"label_selector": self._hard, "prefer_labels": self._soft}


def _strings(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values or not all(isinstance(value, str) for value in values):
        raise TypeError(f"a condition needs values that are strings, not {values!r}")
    return values


def _terms(conditions: Mapping[str, Condition], what: str) -> list[str]:
    terms = []
    for label, condition in conditions.items():
        if not isinstance(label, str) or not hasattr(condition, "term"):
            raise TypeError(f"{what}: {label!r} needs In, NotIn, Exists or DoesNotExist, "
                            f"not {condition!r}")
        terms.append(condition.term.format(label=label))
    return terms


SchedulingStrategy = Union[
    None, str, NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy,
    NodeLabelSchedulingStrategy,
]
