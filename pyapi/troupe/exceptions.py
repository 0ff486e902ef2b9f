"""The errors of actors and tasks under the names that programs written for Ray use.

Each name is Troupe's own class, so both names catch the same errors. A name of Ray that no error
of Troupe corresponds to is absent: importing it fails, instead of an ``except`` that never fires.
"""

from __future__ import annotations

from troupe.errors import (
    ActorDiedError,
    ActorError,
    ActorNameTakenError,
    ActorNotFoundError,
    ActorTaskError,
    ActorUnavailableError,
    ActorUnreachableError,
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OwnerDiedError,
    PendingCallsLimitExceededError,
    PlacementError,
    RuntimeEnvSetupError,
    SerializationError,
    TaskCancelledError,
    TroupeError,
    WorkerCrashedError,
)

RayError = TroupeError
RayTaskError = ActorTaskError
RayActorError = ActorUnreachableError
ActorUnschedulableError = PlacementError
ActorAlreadyExistsError = ActorNameTakenError
TaskUnschedulableError = PlacementError
PendingCallsLimitExceeded = PendingCallsLimitExceededError

__all__ = [
    "ActorAlreadyExistsError",
    "ActorDiedError",
    "ActorError",
    "ActorNameTakenError",
    "ActorNotFoundError",
    "ActorTaskError",
    "ActorUnavailableError",
    "ActorUnreachableError",
    "ActorUnschedulableError",
    "GetTimeoutError",
    "ObjectLostError",
    "ObjectStoreFullError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "PendingCallsLimitExceededError",
    "PlacementError",
    "RayActorError",
    "RayError",
    "RayTaskError",
    "RuntimeEnvSetupError",
    "SerializationError",
    "TaskCancelledError",
    "TaskUnschedulableError",
    "TroupeError",
    "WorkerCrashedError",
]
