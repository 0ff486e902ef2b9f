"""Tasks whose results have stayed with their makers: they run again when those are lost.

A large result for another host is read from the process that has made it. Until then it is there
alone, so its caller keeps what the task was called with, for as long as it keeps the ref.

Limits: ``_KEPT_BYTES_MAX`` of arguments in a process; of tasks beyond that nothing is kept, and
their results are lost with their makers. Large buffers of arguments lie in files, as ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

from troupe.actors import _codec, _context, _pulls
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

    __slots__ = ("_lock", "_run", "_left", "_packed", "_size", "_pid")

    def __init__(self, run: Callable[[bytes], Any], most: int) -> None:
        """``run(payload)`` sends the task's call; ``most`` times at most, -1: always."""
        self._lock = threading.Lock()
        self._run = run
        self._left = most
        self._packed: Optional[Packed] = None
        self._size = 0
        self._pid = os.getpid()

    def keep(self, packed: Packed) -> None:
        """The task has been called with these arguments."""
        size = len(packed.payload)
        if self._left != 0 and _reserve(size):
            self._packed, self._size = packed, size

    def stays(self, call: Any) -> bool:
        """Whether the arguments are kept on although the call is over."""
        return self._packed is not None and is_elsewhere(call)

    def compute_again(self, ref: ObjectRef, lost: Any) -> bool:
        """Gives the ref the call of another run in place of the lost one, if there may be one.

        Raises:
            GetTimeoutError: the time of the thread's ``get`` is up.
        """
        if not is_elsewhere(lost):
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
            ref._call, ref._real = call, None
            return True
        finally:
            self._lock.release()

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


def is_elsewhere(call: Any) -> bool:
    """Whether a call that is over has left its result with its maker."""
    try:
        data: bytes = call.result()
    except RuntimeError:
        return False
    return _codec.is_elsewhere(data)
