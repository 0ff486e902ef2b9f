"""Access to the native core, loaded on first use so that ``import troupe`` stays light."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from troupe.errors import (
    CollectiveMismatchError,
    DrainedError,
    HorovodInternalError,
    PlacementError,
    TroupeError,
    code_of,
)

# Codes that mean "this collective has no result, but the group goes on without the culprit".
RETRYABLE_CODES = frozenset({"epoch_changed", "peer_gone", "deadline_exceeded", "unavailable"})


def core() -> Any:
    """The module ``troupe._core``; a clear ImportError if the package was installed without it."""
    loaded = sys.modules.get("troupe._core")
    if loaded is not None:  # Every call of an actor comes here.
        return loaded
    try:
        # Ctrl-C inside the first import would come out as an ImportError.
        with deferred_interrupt():
            return importlib.import_module("troupe._core")
    except ImportError as error:
        raise ImportError(
            f"the native part of Troupe cannot be loaded ({error}); build it (see README.md) or "
            "install a wheel for this interpreter, then run `troupe doctor`"
        ) from error


def trace_phase(name: str) -> None:
    """Tells the trace, if there is one, what the elastic loop does from now on."""
    core().trace_enter("elastic loop", name)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Holds Ctrl-C back until the end of the block; only the main thread ever gets it."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: held.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])


@contextmanager
def collective_errors(what: str) -> Iterator[None]:
    """Turns the core's errors inside a collective into the exceptions that users know."""
    try:
        yield
    except RuntimeError as error:
        code = code_of(error)
        if code is None:
            raise
        message = getattr(error, "message", None) or str(error)
        if code in RETRYABLE_CODES:
            raise HorovodInternalError(f"{what}: {message} ({code})") from error
        if code == "drained":
            raise DrainedError(f"this worker leaves the group: {message}") from error
        if code == "mismatch":
            raise CollectiveMismatchError(message) from error
        if code == "invalid_argument":
            raise ValueError(f"{what}: {message}") from error
        raise TroupeError(f"{what}: {message} ({code})") from error


@contextmanager
def driver_errors(what: str) -> Iterator[None]:
    """Turns the core's errors of a driver call into Troupe's exceptions."""
    try:
        yield
    except RuntimeError as error:
        code = code_of(error)
        if code is None:
            raise
        message = getattr(error, "message", None) or str(error)
        if code == "resource_exhausted":
            raise PlacementError(f"{what}: {message}") from error
        if code == "invalid_argument":
            raise ValueError(f"{what}: {message}") from error
        if code == "deadline_exceeded":
            raise TimeoutError(f"{what}: {message}") from error
        raise TroupeError(f"{what}: {message} ({code})") from error
