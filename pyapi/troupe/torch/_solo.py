"""A group of one, for scripts that run outside of any executor."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Optional


class SoloGroup:
    """The interface of the core's group for a single member; collectives have nothing to do."""

    def __init__(self) -> None:
        self._view: dict[str, Any] = {
            "epoch": 1, "rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "cross_rank": 0,
            "cross_size": 1, "max_size": 1, "reason": "alone", "source_rank": 0, "needs_state": [],
            "members": [{"id": "solo", "host": socket.gethostname(), "version": 0,
                         "has_state": False}],
        }

    def ready(self, version: int, has_state: bool, founder: bool = False) -> None:
        """A lone member always stands in the next view."""
        self._view["epoch"] += 1
        self._view["members"][0].update(version=version, has_state=has_state)

    def wait_active(self, timeout_s: float) -> Optional[dict[str, Any]]:
        return dict(self._view)

    def view(self) -> Optional[dict[str, Any]]:
        return dict(self._view)

    def running(self) -> bool:
        return False

    def boundary(self) -> bool:
        return False

    def set_version(self, version: int) -> None:
        self._view["members"][0]["version"] = version

    def allreduce(self, buffers: Sequence[tuple[int, int]], dtype: str, op: str, prescale: float,
                  postscale: float, name: str) -> int:
        raise AssertionError("a group of one issues no all-reduce")

    def broadcast(self, ptr: int, nbytes: int, root: int, name: str) -> int:
        return 0

    def allgather(self, in_ptr: int, out_ptr: int, nbytes_per_rank: list[int], name: str) -> int:
        raise AssertionError("a group of one issues no all-gather")

    def barrier(self, name: str) -> int:
        return 0

    def wait(self, handle: int, timeout_s: float) -> None:
        return None

    def poll(self, handle: int) -> bool:
        return True

    def transfer(self, chain: Sequence[int], buffers: Sequence[tuple[int, int]],
                 timeout_s: float) -> int:
        return 0


class SoloWorker:
    """The interface of the core's worker outside of any executor."""

    def __init__(self) -> None:
        self.id = "solo"
        self.host = socket.gethostname()
        self.group = SoloGroup()

    def should_exit(self) -> bool:
        return False
