"""Source lines for remote tracebacks: those of functions that travel by value.

What was typed into a notebook, or lies in a script that is only on the driver's machine, has no
file where the worker runs; the driver sends its lines along.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

BYTES_MAX = 1 << 20  # Of all files; the function's own comes first.


def collect(fn: Any, bytes_max: int = BYTES_MAX) -> dict[str, str]:
    """Text by file name, of the function's file and of those that ``__main__`` was read from."""
    found: dict[str, str] = {}
    left = bytes_max
    for name in _files(fn):
        if name in found:
            continue
        text = "".join(linecache.getlines(name))
        if text and len(text) <= left:
            found[name] = text
            left -= len(text)
    return found


def register(sources: Mapping[str, str]) -> None:
    """Lets tracebacks of this process show these lines where there is no such file here."""
    for name, text in sources.items():
        if not os.path.exists(name):
            # Without a time of change it stays, whatever linecache checks.
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _files(fn: Any) -> Iterator[str]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    yield from _of(fn)
    for value in list(vars(sys.modules["__main__"]).values()):
        if getattr(value, "__module__", None) == "__main__":
            yield from _of(value)


def _of(value: Any, module: Any = None) -> Iterator[str]:
    """The files of a function, or of what a class of ``module`` (default: its own) defines."""
    if isinstance(value, type):
        own = value.__module__ if module is None else module
        for member in list(vars(value).values()):
            function = getattr(member, "__func__", getattr(member, "fget", member))
            # Classes in a class may be anything: an autograd.Function names one that names others.
            inner = isinstance(function, type)
            if not inner or _is_inner(function, value, own):
                yield from _of(function, own)
        return
    # A decorator's wrapper is of the decorator's file.
    for function in (value, getattr(value, "__wrapped__", None)):
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if isinstance(code, types.CodeType):
            yield code.co_filename


def _is_inner(inner: type, outer: type, module: str) -> bool:
    """Whether the class was written in the body of the other one."""
    return (inner.__module__ == module
            and inner.__qualname__ == f"{outer.__qualname__}.{inner.__name__}")
