"""Collectives on tensors, with Horovod's names, arguments, defaults and autograd behaviour.

All ranks call the same collectives in the same order. What they are about to do they compare once
per epoch, so that a mismatch of shapes, dtypes, operations or roots is an error on every rank and
never a hang. Tensors may live on any device; those outside of the CPU are staged through host
memory.
"""

from __future__ import annotations

from troupe.torch._movements import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    gather,
    grouped_allgather,
    grouped_allgather_async,
    scatter,
    sparse_allreduce_async,
)
from troupe.torch._operations import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    join,
    poll,
    resolve_op,
    synchronize,
)
from troupe.torch._reduce_scatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from troupe.torch._reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    reduce,
)

__all__ = [
    "Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum", "allgather",
    "allgather_async", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_",
    "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "gather", "grouped_allgather", "grouped_allgather_async",
    "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async", "join",
    "poll", "reduce", "reducescatter", "reducescatter_async", "resolve_op", "scatter",
    "sparse_allreduce_async", "synchronize",
]
