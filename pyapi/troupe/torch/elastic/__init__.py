"""Elastic training: ``run``, states, and a sampler that counts every sample exactly once."""

from __future__ import annotations

from troupe.errors import HorovodInternalError, HostsUpdatedInterrupt
from troupe.torch.elastic.durable import DurableCommits
from troupe.torch.elastic.handlers import (
    ModelHandler as ModelStateHandler,
)
from troupe.torch.elastic.handlers import (
    OptimizerHandler as OptimizerStateHandler,
)
from troupe.torch.elastic.handlers import (
    SamplerHandler as SamplerStateHandler,
)
from troupe.torch.elastic.handlers import (
    StateHandler,
    TreeHandler,
    get_handler_registry,
    set_handler_registry,
)
from troupe.torch.elastic.loop import run
from troupe.torch.elastic.sampler import Batch, ElasticBatchSampler, ElasticSampler, batches
from troupe.torch.elastic.state import ObjectState, State
from troupe.torch.elastic.torch_state import TorchState

__all__ = [
    "Batch",
    "DurableCommits",
    "ElasticBatchSampler",
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "State",
    "StateHandler",
    "TorchState",
    "TreeHandler",
    "batches",
    "get_handler_registry",
    "run",
    "set_handler_registry",
]
