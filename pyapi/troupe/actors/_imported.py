"""Classes and functions that programs in other languages name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from troupe.actors._remote import ActorClass
from troupe.actors._tasks import RemoteFunction


def imported(name: str) -> Callable[..., Any]:
    """The class or function that ``"module:name"`` names; what ``troupe.remote`` wraps, if it does.

    Raises:
        ImportError: there is no such module, or it has no such name.
        TypeError: it cannot be called, or this is no such name.
    """
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise TypeError(f"{name!r} names no class or function of Python: write \"module:name\"")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        if not hasattr(found, part):
            raise ImportError(f"module {module} has no {path}")
        found = getattr(found, part)
    if isinstance(found, (ActorClass, RemoteFunction)):
        found = found.wrapped
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}, which cannot be called")
    called: Callable[..., Any] = found
    return called
