"""Collective groups of actors, with the names of ``ray.util.collective``.

    @troupe.remote
    class Trainer:
        def join(self, size, rank):
            collective.init_collective_group(size, rank, group_name="train")

        def step(self):
            gradient = np.ones(8, dtype=np.float32)
            collective.allreduce(gradient, "train")   # in place

Every actor can be in several groups at once. A **fixed** group has ``world_size`` ranks, and each
collective needs all of them: while an actor is being restarted the others wait for it, and when it
is dead for good the group ends. An **elastic** group goes on with the members that it has.

When a member dies, each of the others gets :class:`CollectiveGroupChangedError` exactly once: from
the collective that was cut short or, before it begins, from the next one. So all can come to the
same point again, and go on.

Tensors are NumPy arrays, or torch tensors on the CPU or a CUDA device; bytes move through shared
memory, Gloo or NCCL, whatever joins the members fastest. ``backend`` is accepted and not needed.
Groups exist inside actors; a driver can make and destroy them.
"""

from __future__ import annotations

from troupe.collective._functions import (
    allgather,
    allreduce,
    barrier,
    broadcast,
    create_collective_group,
    destroy_collective_group,
    get_collective_group_size,
    get_group_handle,
    get_rank,
    init_collective_group,
    is_group_initialized,
    recv,
    reduce,
    reducescatter,
    send,
)
from troupe.collective._group import Backend, CollectiveGroup, ReduceOp

__all__ = [
    "Backend", "CollectiveGroup", "ReduceOp", "allgather", "allreduce", "barrier", "broadcast",
    "create_collective_group", "destroy_collective_group", "get_collective_group_size",
    "get_group_handle", "get_rank", "init_collective_group", "is_group_initialized", "recv",
    "reduce", "reducescatter", "send",
]
