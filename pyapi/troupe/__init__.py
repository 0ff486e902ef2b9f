"""Troupe: elastic training on an actor runtime.

    import troupe

    with troupe.Executor(min_workers=2, max_workers=4) as executor:
        results = executor.run(train, args=(config,))

    @troupe.remote
    class Counter: ...

    counter = Counter.remote()
    troupe.get(counter.add.remote(5))

``troupe.torch`` is a drop-in for ``horovod.torch``. Importing ``troupe`` imports neither torch nor
numpy and starts nothing.
"""

from __future__ import annotations

from troupe import actor, checkpoint, exceptions, util
from troupe._runtime import report
from troupe._version import __version__
from troupe.actors._context import current, exit_actor
from troupe.actors._context import current as get_runtime_context
from troupe.actors._groups import ActorGroup, GroupEvent, GroupMember, get_group
from troupe.actors._nodes import available_resources, cluster_resources, get_gpu_ids, nodes
from troupe.actors._others import cpp_actor, get_actor
from troupe.actors._placement import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    remove_placement_group,
)
from troupe.actors._refs import ObjectRef, cancel, get, put, wait
from troupe.actors._remote import ActorHandle, kill, method, remote
from troupe.actors._session import init, is_initialized, shutdown
from troupe.actors._streams import RemoteGenerator
from troupe.errors import (
    ActorDiedError,
    ActorError,
    ActorNameTakenError,
    ActorNotFoundError,
    ActorTaskError,
    ActorUnavailableError,
    CollectiveGroupChangedError,
    CollectiveGroupError,
    CollectiveGroupLeftError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DrainedError,
    GetTimeoutError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    JobCancelled,
    NotInWorkerError,
    ObjectLostError,
    ObjectStoreFullError,
    OwnerDiedError,
    ParametersDifferError,
    PendingCallsLimitExceededError,
    PlacementError,
    RunCancelled,
    RuntimeEnvSetupError,
    SerializationError,
    TaskCancelledError,
    TroupeError,
    WorkerCrashedError,
    WorkerError,
)
from troupe.executor import ElasticExecutor, Executor, attach
from troupe.executor.handle import RunHandle

__all__ = [
    "ActorDiedError",
    "ActorError",
    "ActorGroup",
    "ActorHandle",
    "ActorNameTakenError",
    "ActorNotFoundError",
    "ActorTaskError",
    "ActorUnavailableError",
    "CollectiveGroupChangedError",
    "CollectiveGroupError",
    "CollectiveGroupLeftError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "DrainedError",
    "ElasticExecutor",
    "Executor",
    "GetTimeoutError",
    "GroupEvent",
    "GroupMember",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "JobCancelled",
    "NotInWorkerError",
    "ObjectRef",
    "ObjectLostError",
    "ObjectStoreFullError",
    "OwnerDiedError",
    "ParametersDifferError",
    "PendingCallsLimitExceededError",
    "PlacementError",
    "PlacementGroup",
    "RemoteGenerator",
    "RunCancelled",
    "RunHandle",
    "RuntimeEnvSetupError",
    "SerializationError",
    "TaskCancelledError",
    "TroupeError",
    "WorkerCrashedError",
    "WorkerError",
    "__version__",
    "actor",
    "attach",
    "available_resources",
    "cancel",
    "checkpoint",
    "cluster_resources",
    "cpp_actor",
    "current",
    "exceptions",
    "exit_actor",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_group",
    "get_placement_group",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "placement_group",
    "put",
    "remote",
    "remove_placement_group",
    "report",
    "shutdown",
    "util",
    "wait",
]
