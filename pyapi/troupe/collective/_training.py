"""What a training loop needs of the collective group of the actor it runs in."""

from __future__ import annotations

import functools
import os
import socket
from typing import Optional

from troupe import _runtime
from troupe.actors import _context, _session
from troupe.collective._group import ASK_S, TIMEOUT_S, check_actor, native_actors, translated

_OWN_GROUP = "TROUPE_ACTOR_GROUP"  # Set in the members of groups of actors.


def train_in(
    group_name: Optional[str], elastic_timeout_s: Optional[float] = None
) -> Optional[_runtime.WorkerRuntime]:
    """What a training loop of this actor needs to know of its group; for ``troupe.torch.init``.

    Args:
        elastic_timeout_s: of each wait for a view.
        group_name: of an elastic group that was made by ``create_collective_group``, or that of
            a group of actors; None: the one that this actor is a member of.

    Returns:
        None if no name is given and this is no member of a group of actors.

    Raises:
        ValueError: the group is none to train in, or this actor uses it otherwise.
        CollectiveGroupError: there is none of this name.
        NotInWorkerError: a name is given, and this is no actor.
    """
    name = group_name if group_name is not None else os.environ.get(_OWN_GROUP)
    if group_name is not None:
        check_actor()
    if not name or not _session.in_worker():
        return None
    with translated(name):
        group = native_actors().enter_training(name, timeout_s=ASK_S)
    actor = _context.current().actor_id
    worker = _runtime.TrainingActor(
        group, name, str(actor), socket.gethostname(), functools.partial(_missing, name))
    return _runtime.WorkerRuntime(
        worker, {"name": name}, TIMEOUT_S if elastic_timeout_s is None else elastic_timeout_s)


def _missing(name: str) -> str:
    """Which actors of a group are not in it now."""
    try:
        members = dict(native_actors().collective("status", {"name": name}, ASK_S))["members"]
    except RuntimeError as error:
        return str(error)
    return "; ".join(f"actor {m['actor']} is {m['state']}"
                     for m in members if m["state"] != "member")


def end_training(group_name: str) -> None:
    """This actor is no member any more; for ``troupe.torch.shutdown``."""
    with translated(group_name):
        native_actors().leave_collective(group_name, ASK_S)
