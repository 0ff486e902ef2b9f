"""Errors of the native core as the exceptions that users know."""

from __future__ import annotations

from troupe.errors import (
    ActorDiedError,
    ActorError,
    ActorNameTakenError,
    ActorNotFoundError,
    ActorTaskError,
    ActorUnavailableError,
    GetTimeoutError,
    PendingCallsLimitExceededError,
    PlacementError,
    RuntimeEnvSetupError,
    TaskCancelledError,
    TroupeError,
    WorkerCrashedError,
    code_of,
)

PYTHON, CPP, TASK, PLACEMENT = "python", "cpp", "task", "placement"  # Whose call failed.


def translate(error: RuntimeError, what: str, language: str) -> BaseException:
    """An error of the native core as the exception that users know."""
    code = code_of(error)
    if code is None:
        return error
    message = f"{what}: {getattr(error, 'message', None) or error}"
    fields = {
        "actor": getattr(error, "actor", ""), "node": getattr(error, "node", ""),
        "remote_traceback": getattr(error, "remote_traceback", ""),
        "exc_type": getattr(error, "exc_type", ""),
    }
    if code == "user_error":  # A Python method's exception is a payload: this is a constructor's.
        kind: type[ActorError] = ActorTaskError if language == CPP else ActorDiedError
        if fields["exc_type"] == RuntimeEnvSetupError.__name__:
            kind = RuntimeEnvSetupError
        return kind(message, **fields)
    if code == "peer_gone":
        return (WorkerCrashedError if language == TASK else ActorDiedError)(message, **fields)
    if code in ("invalid_argument", "corrupt"):
        wrong = ValueError if code == "invalid_argument" else TypeError
        return _usage_error(message, fields, wrong)
    if code == "not_found" and language == PLACEMENT:
        return ActorNotFoundError(message, **fields)
    if code == "not_found" and language == CPP:
        return _usage_error(message, fields, AttributeError)
    if code == "resource_exhausted":
        return PlacementError(message)
    kinds: dict[str, type[ActorError]] = {
        "deadline_exceeded": GetTimeoutError, "cancelled": TaskCancelledError,
        "unavailable": ActorUnavailableError, "backpressure": PendingCallsLimitExceededError,
        "already_exists": ActorNameTakenError,
    }
    if code in kinds:
        return kinds[code](message, **fields)
    return TroupeError(f"{message} ({code})")


def _usage_error(message: str, fields: dict[str, str], kind: type[Exception]) -> ActorTaskError:
    dual = type(f"ActorTaskError({kind.__name__})", (ActorTaskError, kind), {})
    error: ActorTaskError = dual(message, **fields)
    return error
