"""How runs look: live on a terminal, plain lines when piped, HTML in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troupe.executor import Executor
    from troupe.handle import RunHandle


def attach(handle: "RunHandle", mode: str) -> None:
    """Shows a run's progress in the given mode."""


def run_html(handle: "RunHandle") -> str:
    """A run as HTML."""
    return repr(handle)


def executor_html(executor: "Executor") -> str:
    """An executor as HTML."""
    return repr(executor)
