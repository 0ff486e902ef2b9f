"""How a task that runs learns that its call was cancelled.

The runtime sends the main thread a signal, which also ends a wait in ``sleep``, ``select`` or a
lock. Its handler raises only while the code of a task runs, and only if it is this very call that
was cancelled: the worker's own code and whatever task follows are never hit, however late the
signal is. One that comes when Python has looked for signals for the last time before such a wait
does not end it: the runtime sends another each second until the call says that it has heard.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

SIGNAL = int(signal.SIGRTMIN) + 7  # Ctrl-C, the usual ones and the first real-time ones are taken.
_TEXT = "troupe.cancel() has ended this task"


class TaskInterrupt(KeyboardInterrupt):
    """Raised in a task that runs when its call is cancelled, as Ctrl-C would be."""


class Interrupts:
    """Ends the one task that runs on the main thread.

    Thread: the main thread, on which Python also runs handlers of signals.
    Invariants: IN-1 nothing is raised outside of ``run``. IN-2 nor for another call than the one
    that runs. IN-3 nor twice for one call.
    """

    def __init__(self) -> None:
        self._open: Any = None  # The call whose task runs and has not been ended.

    def install(self) -> int:
        """Handles the signal from now on; its number."""
        signal.signal(SIGNAL, self._on_signal)
        return SIGNAL

    def run(self, request: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What ``fn`` returns, unless ``request`` is cancelled meanwhile, or was before.

        Raises:
            TaskInterrupt: it is cancelled. What ``fn`` raises.
        """
        try:
            self._open = request
            if request.cancelled:  # The signal may have come before the line above.
                request.heard()
                raise TaskInterrupt(_TEXT)
            return fn(*args, **kwargs)
        finally:  # The handler may raise here, too: then it has done this itself.
            self._open = None

    def _on_signal(self, number: int, frame: Any) -> None:
        request = self._open
        if request is None or not request.cancelled:
            return
        self._open = None
        request.heard()
        raise TaskInterrupt(_TEXT)
