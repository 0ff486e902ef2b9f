"""Drop-in for ``horovod.torch``: a script is ported by its import line.

    import troupe.torch as hvd
"""

from __future__ import annotations

from troupe.errors import HorovodInternalError, HostsUpdatedInterrupt
from troupe.torch import elastic, mpi_ops
from troupe.torch._basics import (
    ccl_built,
    check_extension,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    device,
    epoch,
    extension_available,
    gloo_built,
    gloo_enabled,
    gpu_available,
    is_homogeneous,
    local_rank,
    local_size,
    max_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    num_rank_is_power_2,
    rank,
    rocm_built,
    size,
)
from troupe.torch._context import init, is_initialized, shutdown
from troupe.torch._timeline import start_timeline, stop_timeline
from troupe.torch.compression import Compression, Compressor, GradientCompressor
from troupe.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from troupe.torch.ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
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
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reduce,
    reducescatter,
    reducescatter_async,
    scatter,
    sparse_allreduce_async,
    synchronize,
)
from troupe.torch.optimizer import DistributedOptimizer
from troupe.torch.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from troupe.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum", "Average", "Compression", "Compressor", "DistributedOptimizer", "GradientCompressor",
    "HorovodInternalError", "HostsUpdatedInterrupt", "Max", "Min", "ProcessSet", "Product",
    "ReduceOp", "Sum", "SyncBatchNorm", "add_process_set", "allgather", "allgather_async",
    "allgather_object", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_",
    "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters",
    "ccl_built", "check_extension", "cross_rank", "cross_size", "cuda_built", "ddl_built", "device",
    "elastic", "epoch", "extension_available", "gpu_available", "num_rank_is_power_2",
    "gather", "global_process_set", "gloo_built", "gloo_enabled", "grouped_allgather",
    "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async", "init",
    "is_homogeneous", "is_initialized", "join", "local_rank", "local_size", "max_size", "mpi_built",
    "mpi_enabled", "mpi_ops", "mpi_threads_supported", "nccl_built", "poll", "rank", "reduce",
    "reducescatter", "reducescatter_async", "remove_process_set", "rocm_built", "scatter",
    "shutdown", "size", "sparse_allreduce_async", "start_timeline", "stop_timeline",
    "synchronize",
]
