"""How ranks find each other with ``init_method="env://"``: the one place that knows torch's table.

torch's own way reads MASTER_ADDR and MASTER_PORT and waits until as many ranks as it was told have
come, for half an hour if one of them has died. A worker knows who its peers are.
"""

from __future__ import annotations

import importlib
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Optional

import torch.distributed as dist

_DEFAULT_S = 1800.0

Meet = Callable[[float], Optional[tuple[dist.Store, int, int]]]


def replace(meet: Meet) -> None:
    """Asks ``meet`` first, with the time limit in seconds; torch's way follows if it has none."""
    # The package has a function of the module's name.
    module: Any = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Any] = module._rendezvous_handlers
    theirs = handlers["env"]

    def handler(url: str, timeout: Any = None, **kwargs: Any) -> Iterator[Any]:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else _DEFAULT_S
        found = meet(seconds)
        if found is not None:
            _check(url, *found[1:])
            yield found
            raise RuntimeError("a process group cannot change its members in place; call "
                               "destroy_process_group() and init_process_group() again")
        more = {} if timeout is None else {"timeout": timeout}
        yield from theirs(url, **more, **kwargs)

    handlers["env"] = handler


def replace_barrier(present: Callable[[], bool]) -> None:
    """Leaves out torch's barrier in the store, which waits for the dead, in groups of Troupe's.

    torch before 2.1 has one behind each new group. Making a group here takes all of its ranks
    anyway.
    """
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    theirs = getattr(module, "_store_based_barrier", None)
    if theirs is None:
        return

    def barrier(*args: Any, **kwargs: Any) -> None:
        if not present():
            theirs(*args, **kwargs)

    module._store_based_barrier = barrier


def _check(url: str, rank: int, size: int) -> None:
    """Raises ValueError if the caller of init_process_group has another rank or size in mind."""
    said = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
    told = (int(said.get("rank", rank)), int(said.get("world_size", size)))
    if told != (rank, size):
        raise ValueError(
            f"init_process_group() is told rank {told[0]} of {told[1]}, but this worker is rank "
            f"{rank} of {size}; leave out rank and world_size, or pass the variables RANK and "
            "WORLD_SIZE")
