"""How a command ends that cannot do what it was asked."""

from __future__ import annotations

FAILED, UNREACHABLE, NOT_FOUND, INTERRUPTED = 1, 3, 4, 130


class CommandError(Exception):
    """A command that ends with a status of its own."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status
