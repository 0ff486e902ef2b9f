"""Logs of containers: which one is asked for, and how much of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fakecloud.k8s.errors import ApiError, bad_request
from fakecloud.k8s.lists import flag_in, number_in

TAIL_MAX = 16 << 20     # So much of a log's end is looked at.


@dataclass
class LogAsked:
    uid: str
    container: str
    number: int                 # Of its starts, from 0.
    tail_lines: Optional[int]
    limit_bytes: Optional[int]
    follow: bool


def _status_of(pod: dict[str, Any], container: str) -> Optional[dict[str, Any]]:
    status = pod.get("status") or {}
    for one in [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]:
        if one["name"] == container:
            found: dict[str, Any] = one
            return found
    return None


def log_asked(pod: dict[str, Any], query: dict[str, str]) -> LogAsked:
    """Raises what the server refuses."""
    name = pod["metadata"]["name"]
    containers = [one["name"] for one in pod["spec"]["containers"]]
    all_names = [one["name"] for one in pod["spec"].get("initContainers", [])] + containers
    container = query.get("container", "")
    if not container:
        if len(containers) > 1:
            raise bad_request(f"a container name must be specified for pod {name}, choose one of: "
                              f"[{' '.join(containers)}]")
        container = containers[0]
    if container not in all_names:
        raise bad_request(f"container {container} is not valid for pod {name}")
    tail, limit = number_in(query, "tailLines"), number_in(query, "limitBytes")
    if limit == 0:
        raise ApiError(422, "Invalid", 'PodLogOptions "" is invalid: limitBytes: Invalid value: 0: '
                       "must be greater than 0", {"kind": "PodLogOptions"})
    previous = flag_in(query, "previous")
    status = _status_of(pod, container)
    number = (status or {}).get("restartCount", 0)
    if previous:
        if number == 0:
            raise bad_request(f'previous terminated container "{container}" in pod "{name}" not '
                              "found")
        number -= 1
    elif pod["spec"].get("nodeName"):
        state = (status or {}).get("state", {"waiting": {"reason": "ContainerCreating"}})
        waiting = state.get("waiting")
        if waiting is not None and number > 0:
            number -= 1     # The last one that ran.
        elif waiting is not None:
            raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: '
                              f"{waiting.get('reason', '')}")
    return LogAsked(pod["metadata"]["uid"], container, number, tail, limit,
                    flag_in(query, "follow"))


def read(path: Path, tail_lines: Optional[int], limit_bytes: Optional[int]) -> bytes:
    """Empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_MAX))
            text = file.read(TAIL_MAX)
    except OSError:
        return b""
    if tail_lines is not None:
        lines = text.splitlines(keepends=True)
        text = b"".join(lines[-tail_lines:]) if tail_lines else b""
    return text if limit_bytes is None else text[:limit_bytes]
