"""Where a training function goes on when it has to begin again.

    start = troupe.checkpoint.load({"step": 0})
    ...
    troupe.checkpoint.save({"step": step, "model": model.state_dict()})

For scripts of ``torch.distributed`` (see :mod:`troupe.torch.distributed`): when a member of the
group dies, the function begins again on the others, and :func:`load` gives it what was saved last.
The newest state that a living member holds counts, and travels from the oldest member that holds it
to those that lack it, such as new ones. Workers that wait to join do so at a :func:`save`.
"""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from troupe.errors import HostsUpdatedInterrupt

_state: Any = None


class MembersChanged(HostsUpdatedInterrupt):
    """Members come or go at this checkpoint, which is saved; the function is to begin again."""


def save(state: Any) -> None:
    """Keeps a copy of ``state`` in memory as the newest one; every rank calls it, equally often.

    Args:
        state: alike on all ranks: a tree of dicts, lists and tuples of tensors and of values that
            can be pickled.

    Raises:
        MembersChanged: it is saved, and the function is to begin again because workers join or
            leave. Let it pass.
        HorovodInternalError: a member has died.
    """
    try:
        _kept().keep(state)
    except HostsUpdatedInterrupt:
        raise MembersChanged() from None


def load(
    default: Any = None, *, directory: Optional[Union[str, os.PathLike[str]]] = None
) -> Any:
    """What was saved last, as a copy; ``default`` if nothing was.

    Args:
        directory: a folder that outlives the workers, to keep states in too, so that a group whose
            members have all died goes on from there. All ranks give it.

    Raises:
        ValueError: another directory than before.
        HorovodInternalError: a member has died.
    """
    kept = _kept(directory)
    if directory is not None and kept.version == 0:
        kept.resume()
    if kept.version == 0:
        return default
    kept.forget()
    return kept.value()


def version() -> int:
    """How many states have been saved, equal on all ranks after a :func:`save`."""
    return 0 if _state is None else int(_state.version)


def used() -> bool:
    """Whether anything was saved or asked for here."""
    return _state is not None


def state() -> Any:
    """The elastic state that keeps them; for :mod:`troupe.torch.distributed`."""
    return _kept()


def _kept(directory: Any = None) -> Any:
    global _state
    import troupe.torch
    from troupe.torch.elastic._kept import KeptState

    troupe.torch.init()
    if _state is None:
        _state = KeptState(directory)
    elif directory is not None:
        _state.keep_in(directory)
    return _state
