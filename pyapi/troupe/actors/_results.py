"""What calls of users' code give: taken whole, in parts; and the answer of those given up."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterator
from typing import Any, Optional

from troupe.actors import _codec, _lineage, _refs, _session
from troupe.errors import TroupeError

_RESULT_BYTES_MAX = 250 << 20  # What a message can carry, with room for the rest of it.
_FAR_BYTES_MAX = 16 << 20  # Of a result that travels inside its message to another host.


def call_whole(method: Any, args: Any, kwargs: dict[str, Any], returns: int) -> Any:
    """What a call gives; of a generator whose values it returns, those, and one more than due."""
    value = method(*args, **kwargs)
    if returns not in (0, 1) and inspect.isgenerator(value):
        return list(itertools.islice(value, returns + 1))
    return value


async def first(values: AsyncIterator[Any], most: int) -> list[Any]:
    """Its first values, so many at most."""
    taken: list[Any] = []
    async for value in values:
        taken.append(value)
        if len(taken) >= most:
            break
    return taken


def fail_cancelled(request: Any) -> None:
    """Answers a call that nobody waits for any more."""
    left = request.remaining
    if left is not None and left <= 0:
        request.fail("deadline_exceeded", "its deadline has passed while it ran")
    else:
        request.fail("cancelled", "it was cancelled while it ran")


def encoded_result(
    session: _session.Session, request: Any, value: Any, owner: Optional[str]
) -> bytes:
    """The payload of a result; its large buffers become those of ``owner``, if it is on this host.

    A large result for another host stays here, until its caller pulls it or drops its ref.
    """
    store = session.store
    own = store.here(owner) if store is not None and owner is not None else None
    try:
        try:
            encoded = _codec.encode(
                value, store=store if own is not None else None, owner=own, refs=session.refs,
                to=request.caller,
                most_bytes=_FAR_BYTES_MAX if own is None and store is not None else None)
        except _codec.TooLargeError:
            encoded = _codec.encode(
                _refs.put(value), kind=_codec.ELSEWHERE, refs=session.refs, to=request.caller)
    except Exception as error:
        if isinstance(error, (MemoryError, TroupeError)):
            raise
        raise _codec.explain(error, "the result", {"the result": value}) from error
    session.refs.over(encoded.token)  # Its caller takes it in time, or never.
    if len(encoded.payload) > _RESULT_BYTES_MAX:
        raise ValueError(
            f"the result has {len(encoded.payload)} bytes, over the limit of {_RESULT_BYTES_MAX} "
            "for a message, and there is no shared memory beside which it could travel; see the "
            "warning of when its process started")
    return encoded.payload


def split(ref: _refs.ObjectRef, returns: Any) -> Any:
    """What ``.remote`` returns of a call with so many returns: a ref, a list of refs, or None."""
    if returns == 1:
        return ref
    if returns == 0:
        return None
    parts = [_refs.later(ref._session, f"{ref._what}[{i}]", ref._language) for i in range(returns)]
    for part in parts:
        part._real = ref._native()  # To cancel one is to cancel the call.
    if ref._lineage is not None:
        ref._lineage.of_parts(parts)

    def hand_out() -> None:
        calls = _lineage.calls_of(ref._native(), parts)
        for part, call in zip(parts, calls, strict=True):
            part._call.complete_from(call)

    ref.on_done(hand_out)
    return parts
