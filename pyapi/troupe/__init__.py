"""Troupe: elastic training on an actor runtime.

    import troupe

    with troupe.Executor(min_workers=2, max_workers=4) as executor:
        results = executor.run(train, args=(config,))

``troupe.torch`` is a drop-in for ``horovod.torch``. Importing ``troupe`` imports neither torch nor
numpy and starts nothing.
"""

from __future__ import annotations

from troupe._runtime import report
from troupe._version import __version__
from troupe.errors import (
    CollectiveMismatchError,
    DrainedError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    JobCancelled,
    NotInWorkerError,
    PlacementError,
    SerializationError,
    TroupeError,
    WorkerError,
)
from troupe.executor import ElasticExecutor, Executor
from troupe.handle import RunHandle

__all__ = [
    "CollectiveMismatchError",
    "DrainedError",
    "ElasticExecutor",
    "Executor",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "JobCancelled",
    "NotInWorkerError",
    "PlacementError",
    "RunHandle",
    "SerializationError",
    "TroupeError",
    "WorkerError",
    "__version__",
    "report",
]
