"""A group of one, for scripts that run outside of any executor."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Optional


class SoloGroup:
    """The interface of the core's group for a single member; collectives of one are not issued."""

    def __init__(self) -> None:
        self._teams = 0
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

    def devices(self) -> bool:
        return False

    def team(self, team: int) -> list[int]:
        return [0]

    def add_team(self, ranks: list[int]) -> int:
        self._teams += 1
        return self._teams

    def over(self) -> bool:
        return False

    def wait(self, handle: int, timeout_s: float) -> int:
        return handle

    def poll(self, handle: int) -> bool:
        return True

    def start_transfer(self, sources: Sequence[int], receivers: Sequence[int],
                       buffers: Sequence[tuple[int, int]]) -> int:
        return 0

    def finish_transfer(self, handle: int, timeout_s: float) -> int:
        return 0


class SoloWorker:
    """The interface of the core's worker outside of any executor."""

    def __init__(self) -> None:
        self.id = "solo"
        self.host = socket.gethostname()
        self.group = SoloGroup()

    def should_exit(self) -> bool:
        return False

    def tell(self, kind: str, message: str) -> None:
        """There is no driver to tell; warnings are logged besides."""
