"""Training runs: a function on an elastic group of workers, from a script or notebook."""

from __future__ import annotations

from troupe.executor._executor import ElasticExecutor, Executor, attach
from troupe.executor.handle import RunHandle

__all__ = ["ElasticExecutor", "Executor", "RunHandle", "attach"]
