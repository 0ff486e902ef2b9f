"""The backend "troupe" of ``torch.distributed``.

    import troupe.torch.distributed       # not needed under `troupe run`
    torch.distributed.init_process_group("troupe")

Its process groups run on the group of this worker: of a run (``troupe run``, ``Executor``), or of
the group of actors that this actor is in. When a member dies, every rank gets HorovodInternalError
from its collective, and in a run the function begins again on those that are left, in the same
processes; see :mod:`troupe.checkpoint` for where it goes on.

It works with torch 1.13 and later. Methods that DistributedDataParallel and other parts in C++ call
are those of the running version: torch before 2.1 calls all-reduce, broadcast, all-gather,
reduce-scatter, send and recv only, which is what DistributedDataParallel needs.
"""

from __future__ import annotations

from troupe.torch.distributed._process_group import BACKEND, ProcessGroup
from troupe.torch.distributed._restarts import on_restart
from troupe.torch.distributed._session import register

__all__ = ["BACKEND", "ProcessGroup", "on_restart", "register"]

register()
