"""What ``troupe.torch`` has, under the name by which scripts for Horovod know its collectives."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    package = importlib.import_module("troupe.torch")
    if name in package.__all__:
        return getattr(package, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(importlib.import_module("troupe.torch").__all__)
