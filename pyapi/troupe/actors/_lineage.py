"""Tasks whose results have stayed with their makers: they run again when those are lost.

A large result for another host is read from the process that has made it. Until then it is there
alone, so its caller keeps what the task was called with, for as long as it keeps the ref, or one of
the refs that a task with several results gives. Whoever else has got such a ref asks its caller.

Limits: ``_KEPT_BYTES_MAX`` of arguments in a process; of tasks beyond that nothing is kept, and
their results are lost with their makers. Large buffers of arguments lie in files, as ever.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional

from troupe import _native
from troupe.actors import _codec, _context, _pulls, _session, _travel
from troupe.errors import GetTimeoutError

if TYPE_CHECKING:
    from troupe.actors._calls import Packed
    from troupe.actors._refs import ObjectRef

_KEPT_BYTES_MAX = 64 << 20
_FOREVER_S = 365 * 86400.0  # The call's own deadline comes before.

_kept_bytes = 0
_kept_lock = threading.RLock()  # The cycle collector may drop one while another is made.


def _reserve(size: int) -> bool:
    global _kept_bytes
    with _kept_lock:
        if size > 0 and _kept_bytes + size > _KEPT_BYTES_MAX:
            return False
        _kept_bytes += size
        return True


class Lineage:
    """What a task was called with.

    Thread: any; of two that find its result lost one runs it again.
    """

    __slots__ = ("_lock", "_run", "_left", "_packed", "_size", "_pid", "_parts")

    def __init__(self, run: Callable[[bytes], Any], most: int) -> None:
        """``run(payload)`` sends the task's call; ``most`` times at most, -1: always."""
        self._lock = threading.Lock()
        self._run = run
        self._left = most
        self._packed: Optional[Packed] = None
        self._size = 0
        self._pid = os.getpid()
        self._parts: list[weakref.ref[ObjectRef]] = []  # Of a task with several results.

    def of_parts(self, parts: Sequence[ObjectRef]) -> None:
        """The task has several results, which are these."""
        self._parts = [weakref.ref(part) for part in parts]
        for part in parts:
            part._lineage = self

    def keep(self, packed: Packed) -> None:
        """The task has been called with these arguments."""
        size = len(packed.payload)
        if self._left != 0 and _reserve(size):
            self._packed, self._size = packed, size

    def stays(self, call: Any) -> bool:
        """Whether the arguments are kept on although the call is over."""
        return self._packed is not None and _stayed(call)

    def compute_again(self, ref: ObjectRef, lost: Any) -> bool:
        """Gives the ref the call of another run in place of the lost one, if there may be one.

        Raises:
            GetTimeoutError: the time of the thread's ``get`` is up.
        """
        if not _stayed(lost):
            return False
        late = f"{ref._what}: it is computed again, and not ready in time"
        if not self._lock.acquire(timeout=_pulls.left_s(threading.TIMEOUT_MAX)):
            raise GetTimeoutError(late)
        try:
            if ref._call is not lost:  # Another thread has done it.
                return True
            call = self._again()
            if call is None:
                return False
            with _context.waiting():  # The other run may need the CPU of this one.
                ready = call.wait(_pulls.left_s(_FOREVER_S))
            if not ready:
                raise GetTimeoutError(late)
            self._hand_out(ref, call)
            return True
        finally:
            self._lock.release()

    def _hand_out(self, ref: ObjectRef, call: Any) -> None:
        if not self._parts:
            ref._take(call)
            return
        # What was lost with one result was lost with all that had stayed there.
        lost = [part if (part := weak()) is not None and _stayed(part._call) else None
                for weak in self._parts]
        for part, of_part in zip(lost, calls_of(call, lost), strict=True):
            if part is not None:
                part._take(of_part)

    def _again(self) -> Any:
        if self._packed is None or not self._packed.payload or self._left == 0:
            return None
        if self._left > 0:
            self._left -= 1
        return self._run(self._packed.payload)

    def __del__(self) -> None:
        if self._packed is not None and self._pid == os.getpid():
            _reserve(-self._size)
            self._packed.let_go_soon()


def compute_again(ref: ObjectRef, lost: Any) -> bool:
    """Whether the ref has another call in place of the lost one: of its lineage, or its owner's.

    Raises:
        GetTimeoutError: the time of the thread's ``get`` is up.
    """
    if ref._home is None:
        return ref._lineage is not None and ref._lineage.compute_again(ref, lost)
    where = [data for data in _payloads(lost) if _codec.is_elsewhere(data)]
    if not where:
        return False
    # By the id of where it was the owner sees whether it has computed it again already.
    which = f"{ref._home[1]} ".encode() + _codec.take_apart(where[0]).elsewhere().binary()
    call = ref._owner.call("again", which, _FOREVER_S, False)
    with _context.waiting():
        ready = call.wait(_pulls.left_s(_FOREVER_S))
    if not ready:
        raise GetTimeoutError(
            f"{ref._what}: its owner computes it again, and it is not ready in time")
    if not _payloads(call):  # The owner cannot, or has ended itself.
        return False
    ref._call = call
    return True


def compute_again_for(ref: ObjectRef, lost: bytes, answer: Any) -> None:
    """Completes the call of another process, which has found nothing where ``lost`` is the id of.

    It gets the payload of the value where that is now.
    """
    try:
        call = ref._native()
        if lost in ref.payload() and not compute_again(ref, call):
            answer.fail(_travel.NOT_FOUND, f"{ref._what}: it cannot be computed again")
            return
        ref.own_files(_codec.take_apart(ref.payload()))
        answer.complete_from(ref._native())
    except BaseException as error:
        answer.fail(_travel.NOT_FOUND, f"{ref._what}: {error}")


def calls_of(call: Any, parts: Sequence[Optional[ObjectRef]]) -> list[Any]:
    """The calls of a task's several results, of one that has failed its own for each.

    Files of a result are its part's from now on, or nobody's if that is None.
    """
    try:
        payloads = _payloads(call)
    except Exception:  # It cannot be read, as each will say.
        payloads = []
    if len(payloads) != len(parts):
        return [call] * len(parts)
    for part, payload in zip(parts, payloads, strict=True):
        decoded = _codec.take_apart(payload)
        if part is not None:
            part.own_files(decoded)
        elif decoded.files and decoded.receiver_owns:
            _session.current().release_files([name for name, _ in decoded.files])
    return [_native.core().completed_call(payload) for payload in payloads]


def _stayed(call: Any) -> bool:
    """Whether a call that is over has left its result with its maker, or one of several."""
    return any(map(_codec.is_elsewhere, _payloads(call)))


def _payloads(call: Any) -> list[bytes]:
    """What a call that is over has given: one payload, or those of several results."""
    try:
        data: bytes = call.result()
    except RuntimeError:
        return []
    return _codec.parts_of(data)
