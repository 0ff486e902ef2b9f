"""The process set argument of Horovod's collectives. Only the global set exists here."""

from __future__ import annotations

from typing import Any

from troupe.torch import _context


class ProcessSet:
    """All ranks of the group, whatever its present size."""

    process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        return list(range(_context.current().size))

    def size(self) -> int:
        """Number of ranks."""
        return _context.current().size

    def rank(self) -> int:
        """This process's rank in the set."""
        return _context.current().rank

    def included(self) -> bool:
        """Whether this process is in the set."""
        return True


global_process_set = ProcessSet()


def check_process_set(process_set: Any) -> None:
    """Raises ValueError for anything but the global set."""
    if process_set is not global_process_set:
        raise ValueError(
            "only process_set=global_process_set is supported; smaller sets are not available"
        )
