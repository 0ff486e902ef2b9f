"""Actors and tasks of the tests of ``troupe.util``; in a module, for workers to import."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import troupe
from troupe.util import Queue, get_current_placement_group


@troupe.remote(num_cpus=0.01)
class Squarer:
    def square(self, value: int) -> int:
        if value < 0:
            raise ValueError("negative")
        return value * value

    def wait_for(self, path: str) -> str:
        from processes import until

        until(lambda: Path(path).exists(), True)
        return Path(path).name


@troupe.remote(num_cpus=0.01)
def fill(queue: Queue, values: list[Any]) -> int:
    for value in values:
        queue.put(value)
    return queue.size()


@troupe.remote(num_cpus=0.01)
def group_and_node() -> tuple[Optional[str], str]:
    group = get_current_placement_group()
    return group.id if group else None, troupe.get_runtime_context().get_node_id()


@troupe.remote(num_cpus=0.01)
class Placed:
    def group_and_node(self) -> tuple[Optional[str], str]:
        group = get_current_placement_group()
        return group.id if group else None, troupe.get_runtime_context().get_node_id()
