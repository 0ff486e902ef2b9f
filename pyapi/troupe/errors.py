"""Exceptions of Troupe.

Everything Troupe raises by itself derives from :class:`TroupeError`; bad arguments are plain
``TypeError`` and ``ValueError``. Each message says what happened, to whom (worker, rank, host)
and what to do next.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Optional


class TroupeError(RuntimeError):
    """Base of all errors that Troupe raises."""


class NotInWorkerError(TroupeError):
    """A call that only makes sense inside a function run by an executor was made elsewhere."""


class SerializationError(TroupeError):
    """A function, argument or result cannot be pickled; the message names the culprit."""


class PlacementError(TroupeError):
    """The cluster can never offer the resources that the run asks for."""


class RunCancelled(TroupeError):
    """The run was cancelled, by ``RunHandle.cancel()``, Ctrl-C or ``Executor.shutdown()``."""


JobCancelled = RunCancelled  # Its name before 0.2.


class DrainedError(TroupeError):
    """This worker was asked to leave its group. Unwinding with it is a clean end, no failure."""


class CollectiveMismatchError(TroupeError, ValueError):
    """Ranks called one collective with different shapes, dtypes, roots or operations.

    Raised on every rank of the group before any data moves.
    """


class CollectiveGroupError(TroupeError):
    """A collective group of actors does not exist, has ended, or this actor is out of it."""


class CollectiveGroupChangedError(CollectiveGroupError):
    """A collective was cut short, or not begun, because the members of its group have changed.

    Every member gets it once. The next collective goes on with those that the message names.
    """


class CollectiveGroupLeftError(CollectiveGroupError, DrainedError):
    """This actor is to leave a collective group, or the group has ended: there is no next step."""


class CollectiveTimeoutError(CollectiveGroupError, TimeoutError):
    """Not every member that a collective needs has called it in time."""


class ParametersDifferError(TroupeError):
    """Some ranks' parameters are not those of the others. Raised on every rank, by ``commit()``.

    Attributes:
        step: number of the commit after which they were compared.
        tensor: the first parameter that differs, as ``model.layer.weight``.
        ranks: ranks that differ from most, or from rank 0 if there is no majority.
    """

    def __init__(self, message: str, *, step: int = 0, tensor: str = "",
                 ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.step = step
        self.tensor = tensor
        self.ranks = list(ranks)

    def __reduce__(self) -> tuple:
        return (_rebuild_differ_error, (self.args[0], self.step, self.tensor, self.ranks))


def _rebuild_differ_error(
    message: str, step: int, tensor: str, ranks: list[int]
) -> ParametersDifferError:
    return ParametersDifferError(message, step=step, tensor=tensor, ranks=ranks)


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


class ActorError(TroupeError):
    """Base of what a call to an actor or a task can end with.

    Attributes:
        actor: the actor as "Type id", empty if it is not known.
        node: where it ran, empty if it is not known.
        remote_traceback: traceback of the code that failed, as text; empty if there is none.
        exc_type: name of the original exception's type; empty if there is none.
    """

    def __init__(
        self,
        message: str,
        *,
        actor: str = "",
        node: str = "",
        remote_traceback: str = "",
        exc_type: str = "",
    ) -> None:
        RuntimeError.__init__(self, message)
        self.message = message
        self.actor = actor
        self.node = node
        self.remote_traceback = remote_traceback
        self.exc_type = exc_type

    def __str__(self) -> str:
        if not self.remote_traceback:
            return self.message
        where = f" of {self.actor}" if self.actor else ""
        return f"{self.message}\n\nTraceback{where}:\n{self.remote_traceback.rstrip()}"

    def __reduce__(self) -> tuple:
        return (_rebuild_actor_error, (type(self), self.message, _fields_of(self), None))


class ActorTaskError(ActorError):
    """A method of an actor, or a task, raised an exception.

    ``__cause__`` (also ``cause``) is the original exception if it could be pickled; the error is
    then an instance of its type, too, so ``except ValueError`` catches what was a ``ValueError``.
    """

    cause: Optional[BaseException] = None

    def __reduce__(self) -> tuple:
        return (_rebuild_actor_error,
                (ActorTaskError, self.message, _fields_of(self), _pickled(self.cause)))


class ActorUnreachableError(ActorError):
    """No answer comes from the actor: it has ended, or cannot be reached at the moment."""


class ActorDiedError(ActorUnreachableError):
    """The actor has ended: it was killed, its process died, or it could not be made."""


class WorkerCrashedError(ActorError):
    """The process that ran a task died more often than the task's ``max_retries`` allows."""


class ActorUnavailableError(ActorUnreachableError):
    """The actor cannot be reached at the moment; the message says why. It may come back."""


class PendingCallsLimitExceededError(ActorUnavailableError):
    """As many calls wait in the actor as ``max_pending_calls`` allows."""


class TaskCancelledError(ActorError):
    """The call was cancelled, or the runtime was shut down while it was on its way."""


class GetTimeoutError(ActorError, TimeoutError):
    """The result was not there in time; the message says whose time was up."""


class ActorNameTakenError(ActorError, ValueError):
    """A living actor has this name; ``get_if_exists=True`` takes that one."""


class ActorNotFoundError(ActorError, ValueError):
    """There is no living actor of this name."""


class RuntimeEnvSetupError(ActorDiedError):
    """The process of an actor or a task could not set up its ``runtime_env``; says what failed."""


class ObjectLostError(ActorError):
    """The value of a ref is not there any more, and is not computed again; says why."""


class OwnerDiedError(ObjectLostError):
    """The process that had made a ref has ended, and the value of the ref with it."""


class ObjectStoreFullError(TroupeError, MemoryError):
    """A large buffer does not fit into what this host sets aside for them."""


_FIELDS = ("actor", "node", "remote_traceback", "exc_type")


def _fields_of(error: ActorError) -> dict[str, str]:
    return {name: getattr(error, name) for name in _FIELDS}


def _pickled(error: Optional[BaseException]) -> Optional[bytes]:
    """An exception as bytes, None if it does not survive pickling."""
    import cloudpickle

    if error is None:
        return None
    try:
        blob: bytes = cloudpickle.dumps(error)
        pickle.loads(blob)
        return blob
    except Exception:
        return None


def _rebuild_actor_error(
    kind: type, message: str, fields: dict[str, str], cause: Optional[bytes]
) -> ActorError:
    if kind is ActorTaskError:
        return task_error(message, cause, **fields)
    error: ActorError = kind(message, **fields)
    return error


def task_error(message: str, blob: Optional[bytes], **fields: str) -> ActorTaskError:
    """An ActorTaskError that is also an instance of the pickled original's type, if that works."""
    cause: Optional[BaseException] = None
    if blob is not None:
        try:
            cause = pickle.loads(blob)
        except Exception:
            cause = None
    if cause is None:
        return ActorTaskError(message, **fields)
    error = _dual_error(cause, message, fields)
    error.cause = cause
    error.__cause__ = cause
    return error


def _dual_error(
    cause: BaseException, message: str, fields: dict[str, str]
) -> ActorTaskError:
    root: Optional[BaseException] = cause
    while isinstance(root, ActorTaskError):  # It went through several actors.
        root = root.cause
    kind = type(root)
    if not isinstance(root, Exception):
        return ActorTaskError(message, **fields)  # Exits stay exits only where they happened.
    try:
        namespace = {"__getattr__": lambda self, name: getattr(_cause_of(self), name)}
        dual: Any = type(f"ActorTaskError({kind.__name__})", (ActorTaskError, kind), namespace)
        # Python wants that of the base that lays the object out.
        make: Any = OSError.__new__ if issubclass(kind, OSError) else kind.__new__
        error: Any = make(dual, message)
        ActorTaskError.__init__(error, message, **fields)
        if isinstance(root, OSError) and isinstance(error, OSError):  # Its fields are its own.
            error.errno, error.strerror = root.errno, root.strerror
            error.filename, error.filename2 = root.filename, root.filename2
        made: ActorTaskError = error
        return made
    except TypeError:  # Its layout, or its __new__, does not go together with ours.
        return ActorTaskError(message, **fields)


def _cause_of(error: ActorTaskError) -> Any:
    cause = error.__dict__.get("cause")
    if cause is None:
        raise AttributeError("there is no original exception")
    return cause


def code_of(error: BaseException) -> Optional[str]:
    """The snake_case code of an error raised by the native core, ``None`` for any other error."""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else None
