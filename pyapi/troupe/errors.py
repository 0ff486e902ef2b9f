"""Exceptions of Troupe.

Everything Troupe raises by itself derives from :class:`TroupeError`; bad arguments are plain
``TypeError`` and ``ValueError``. Each message says what happened, to whom (worker, rank, host)
and what to do next.
"""

from __future__ import annotations

from typing import Optional


class TroupeError(RuntimeError):
    """Base of all errors that Troupe raises."""


class NotInWorkerError(TroupeError):
    """A call that only makes sense inside a function run by an executor was made elsewhere."""


class SerializationError(TroupeError):
    """A function, argument or result cannot be pickled; the message names the culprit."""


class PlacementError(TroupeError):
    """The cluster can never offer the resources that the run asks for."""


class JobCancelled(TroupeError):
    """The run was cancelled, by ``RunHandle.cancel()``, Ctrl-C or ``Executor.shutdown()``."""


class DrainedError(TroupeError):
    """This worker was asked to leave its group. Unwinding with it is a clean end, no failure."""


class CollectiveMismatchError(TroupeError, ValueError):
    """Ranks called one collective with different shapes, dtypes, roots or operations.

    Raised on every rank of the group before any data moves.
    """


class HorovodInternalError(TroupeError):
    """A collective ended without a result: a peer died or the epoch changed under it.

    Under ``troupe.torch.elastic.run`` the state goes back to its last commit and training resumes
    with the members that are left.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """The group changes its members at this step boundary; the state is kept.

    ``skip_sync``: whether the members that stay need no state. Kept for compatibility; Troupe
    decides from the view who receives state, so nothing depends on it.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the members of the group change at this step boundary")
        self.skip_sync = skip_sync


class WorkerError(TroupeError):
    """The function failed on a worker.

    Attributes:
        worker: id of the worker process.
        rank: its rank when it failed, -1 if it was not part of the group then.
        host: name of its host.
        remote_traceback: the worker's traceback as text, empty if the process died.
        exc_type: name of the original exception's type, empty if the process died.

    ``__cause__`` is the original exception if it could be pickled.
    """

    def __init__(
        self,
        message: str,
        *,
        worker: str = "",
        rank: int = -1,
        host: str = "",
        remote_traceback: str = "",
        exc_type: str = "",
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.rank = rank
        self.host = host
        self.remote_traceback = remote_traceback
        self.exc_type = exc_type

    def __str__(self) -> str:
        text = super().__str__()
        if self.remote_traceback:
            text = f"{text}\n\nTraceback on the worker:\n{self.remote_traceback.rstrip()}"
        return text

    def __reduce__(self) -> tuple:  # keyword-only arguments do not survive the default
        state = dict(self.__dict__)
        return (_rebuild_worker_error, (self.args[0], state))


def _rebuild_worker_error(message: str, state: dict) -> WorkerError:
    error = WorkerError(message)
    error.__dict__.update(state)
    return error


def code_of(error: BaseException) -> Optional[str]:
    """The snake_case code of an error raised by the native core, ``None`` for any other error."""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else None
