"""Results as they come: of calls that are made, and of calls that are made as there is room."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

import troupe
from troupe._config import check_count
from troupe.actors._refs import ObjectRef

_BATCH = 10
_OPEN = 100


def as_completed(
    refs: Sequence[ObjectRef], *, chunk_size: int = _BATCH, yield_obj_refs: bool = False
) -> Iterator[Any]:
    """The values of ``refs`` as they become ready.

    Args:
        chunk_size: so many are waited for at a time; 1: each comes as soon as it is ready.
        yield_obj_refs: give the refs, which are ready, in place of their values.

    Raises:
        What :func:`troupe.get` raises, at its place. TypeError, ValueError: an argument is wrong.
    """
    check_count("chunk_size", chunk_size)
    return _as_ready(list(refs), chunk_size, yield_obj_refs)


def _as_ready(left: list[ObjectRef], batch: int, as_refs: bool) -> Iterator[Any]:
    while left:
        ready, left = troupe.wait(left, num_returns=min(batch, len(left)))
        for ref in ready:
            yield ref if as_refs else troupe.get(ref)


def map_unordered(
    fn: Any, items: Iterable[Any], *, backpressure_size: Optional[int] = _OPEN,
    chunk_size: int = _BATCH, yield_obj_refs: bool = False,
) -> Iterator[Any]:
    """What ``fn.remote(item)`` gives for each item, as it becomes ready.

    Args:
        fn: a task, or a method of an actor.
        items: may never end; an item is taken when there is room for its call.
        backpressure_size: so many calls are open at most; ``None``: one for each item at once.
        chunk_size, yield_obj_refs: as of :func:`as_completed`.

    Raises:
        As :func:`as_completed`. ValueError: ``backpressure_size`` is below ``chunk_size``.
    """
    check_count("chunk_size", chunk_size)
    if backpressure_size is None:
        return as_completed([fn.remote(item) for item in items], chunk_size=chunk_size,
                            yield_obj_refs=yield_obj_refs)
    if check_count("backpressure_size", backpressure_size) < chunk_size:
        raise ValueError(f"backpressure_size ({backpressure_size}) must not be below chunk_size "
                         f"({chunk_size}), of which all are waited for")
    return _with_room(fn, iter(items), backpressure_size, chunk_size, yield_obj_refs)


def _with_room(
    fn: Any, items: Iterator[Any], most: int, batch: int, as_refs: bool
) -> Iterator[Any]:
    left: list[ObjectRef] = []
    while True:
        left += [fn.remote(item) for item in itertools.islice(items, most - len(left))]
        if not left:
            return
        ready, left = troupe.wait(left, num_returns=min(batch, len(left)))
        for ref in ready:
            yield ref if as_refs else troupe.get(ref)
