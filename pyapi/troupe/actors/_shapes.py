"""Which arguments a function takes, so that a wrong call fails where it is made.

A shape is a plain tuple, since it travels with every handle: names of the positional parameters,
how many of them are needed, whether it takes ``*args``, names of those that are given by keyword
only, those of them that are needed, whether it takes ``**kwargs``, and how many are positional
only. ``None``: unknown, and nothing is checked.
"""

from __future__ import annotations

import inspect
from typing import Any, Optional

Shape = tuple[tuple[str, ...], int, bool, tuple[str, ...], tuple[str, ...], bool, int]

_P = inspect.Parameter


def of(fn: Any, skip: int = 0) -> Optional[Shape]:
    """The shape of a function, without its first ``skip`` parameters; None if it has no text."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())[skip:]
    except (TypeError, ValueError):
        return None
    positional = [p for p in parameters if p.kind in (_P.POSITIONAL_ONLY, _P.POSITIONAL_OR_KEYWORD)]
    keyword = [p for p in parameters if p.kind is _P.KEYWORD_ONLY]
    return (
        tuple(p.name for p in positional),
        sum(p.default is _P.empty for p in positional),
        any(p.kind is _P.VAR_POSITIONAL for p in parameters),
        tuple(p.name for p in keyword),
        tuple(p.name for p in keyword if p.default is _P.empty),
        any(p.kind is _P.VAR_KEYWORD for p in parameters),
        sum(p.kind is _P.POSITIONAL_ONLY for p in positional),
    )


def check(
    shape: Optional[Shape], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raises the TypeError that Python raises if ``name`` is called with these arguments."""
    if shape is None:
        return
    positional, needed, more, _, needed_keywords, _, _ = shape
    count = len(args)
    if not kwargs and not needed_keywords and needed <= count and (
            more or count <= len(positional)):
        return
    problem = _problem(shape, count, kwargs)
    if problem:
        raise TypeError(f"{name}() {problem}")


def _problem(shape: Shape, count: int, kwargs: dict[str, Any]) -> str:
    positional, needed, more, keyword, needed_keywords, any_keyword, only = shape
    if count > len(positional) and not more:
        most = len(positional)
        takes = f"{most}" if needed == most else f"from {needed} to {most}"
        s = "" if most == 1 and needed == most else "s"
        by_keyword = sum(name in keyword for name in kwargs)
        given = f"{count}"
        if by_keyword:
            given = (f"{count} positional argument{'s' if count != 1 else ''} (and {by_keyword} "
                     f"keyword-only argument{'s' if by_keyword != 1 else ''})")
        verb = "was" if count == 1 and not by_keyword else "were"
        return f"takes {takes} positional argument{s} but {given} {verb} given"
    by_name = positional[only:]
    for name in kwargs:
        if name in positional[:count] and name in by_name:
            return f"got multiple values for argument {name!r}"
        if name not in by_name and name not in keyword and not any_keyword:
            return f"got an unexpected keyword argument {name!r}"
    missing = [name for i, name in enumerate(positional[:needed])
               if i >= count and (name not in kwargs or i < only)]
    if missing:
        return _missing(missing, "positional")
    missing = [name for name in needed_keywords if name not in kwargs]
    return _missing(missing, "keyword-only") if missing else ""


def _missing(names: list[str], kind: str) -> str:
    quoted = [repr(name) for name in names]
    if len(quoted) > 2:
        listed = ", ".join(quoted[:-1]) + f", and {quoted[-1]}"
    else:
        listed = " and ".join(quoted)
    s = "" if len(names) == 1 else "s"
    return f"missing {len(names)} required {kind} argument{s}: {listed}"
