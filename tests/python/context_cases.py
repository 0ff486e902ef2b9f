"""Actors and tasks that tell what they can ask about themselves; in a module, for workers."""

from __future__ import annotations

from typing import Any, Optional

import troupe


def facts() -> dict[str, Any]:
    here = troupe.get_runtime_context()
    return {
        "job": here.get_job_id(), "node": here.get_node_id(), "worker": here.get_worker_id(),
        "actor": here.get_actor_id(), "name": here.get_actor_name(), "task": here.get_task_id(),
        "task_name": here.get_task_name(), "function": here.get_task_function_name(),
        "namespace": here.namespace, "resources": here.get_assigned_resources(),
        "again": here.was_current_actor_reconstructed, "gpus": troupe.get_gpu_ids(),
    }


@troupe.remote(num_cpus=0.5)
class Teller:
    def __init__(self) -> None:
        self.early = facts()
        self.calls = 0

    def facts(self) -> dict[str, Any]:
        return facts()

    def facts_before(self) -> dict[str, Any]:
        return self.early

    def itself(self) -> Any:
        return troupe.get_runtime_context().current_actor

    def spawn(self) -> dict[str, Any]:
        child = Teller.options(name="child").remote()
        return troupe.get(child.facts.remote(), timeout=60)

    def die_first(self) -> int:
        import os

        if not troupe.get_runtime_context().was_restarted:
            os._exit(1)
        return 7

    def nodes(self) -> Any:
        return troupe.nodes()


@troupe.remote(num_cpus=0.25)
def task_facts() -> dict[str, Any]:
    return facts()


@troupe.remote(num_cpus=0.01)
def list_names() -> list[Any]:
    return troupe.util.list_named_actors()


@troupe.remote(num_cpus=0.25)
def find(name: str, namespace: Optional[str] = None) -> Any:
    return troupe.get(troupe.get_actor(name, namespace).facts.remote(), timeout=60)["name"]
