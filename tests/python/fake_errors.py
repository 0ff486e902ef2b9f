"""The error of the stand-in for ``troupe._core``."""

from __future__ import annotations


class CoreError(RuntimeError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
