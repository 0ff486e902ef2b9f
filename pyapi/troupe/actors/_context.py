"""What code that runs in an actor or a task can ask about itself."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from troupe.actors import _session
from troupe.errors import NotInWorkerError


@dataclass
class Place:
    """The actor that calls run in."""

    actor_id: str
    actor_type: str
    node: str
    incarnation: int
    loan: Any = None  # Where its waits are counted; None: it has no CPU to lend.
    is_task: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)  # As started_with makes it.
    described: Any = None  # Of an actor that is made: as its host describes it.


class Running:
    """One call that runs, and where."""

    __slots__ = ("about", "place", "request")

    def __init__(self, request: Any, place: Place) -> None:
        self.request = request  # None in a constructor.
        self.place = place
        self.about = place.about  # Of a task in the pool its own.


RUNNING: contextvars.ContextVar[Optional[Running]] = contextvars.ContextVar(
    "troupe_running", default=None)


_NOT_COUNTED = contextlib.nullcontext()


def waiting() -> Any:
    """While its block runs the call here waits for what others do, and its CPU may be lent."""
    running = RUNNING.get()
    loan = running.place.loan if running is not None else None
    return _NOT_COUNTED if loan is None else loan.waiting()


def request() -> Any:
    """The call that runs here."""
    running = RUNNING.get()
    return running.request if running is not None else None


def child_of_this(send: Callable[[], Any]) -> Callable[[], Any]:
    """``send`` for a call that is to be cancelled with the one that runs here, if one does."""
    running = RUNNING.get()
    if running is None or running.request is None:
        return send
    request = running.request

    def send_child() -> Any:
        call = send()
        request.add_child(call)
        return call

    return send_child


class counted:
    """While its block runs this call runs here: its process's CPU is not lent unless it waits."""

    __slots__ = ("_call", "_token")

    def __init__(self, running: Running) -> None:
        self._call = running

    def __enter__(self) -> None:
        self._token = RUNNING.set(self._call)
        if self._call.place.loan is not None:
            self._call.place.loan.call_began()

    def __exit__(self, *raised: object) -> None:
        if self._call.place.loan is not None:
            self._call.place.loan.call_ended()
        RUNNING.reset(self._token)


class ExitActor(BaseException):
    """Unwinds a method that ends its actor. Not an Exception: ``except Exception`` lets it pass."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RuntimeContext:
    """Where this code runs; of a method, what is left of its call."""

    def __init__(self, running: Optional[Running]) -> None:
        self._running = running

    @property
    def actor_id(self) -> Optional[str]:
        """Id of the actor; None in a driver."""
        return self._running.place.actor_id if self._running else None

    @property
    def actor_name(self) -> Optional[str]:
        """Type of the actor; None in a driver."""
        return self._running.place.actor_type if self._running else None

    @property
    def node(self) -> str:
        """Name of the node; "driver" in a driver."""
        return self._running.place.node if self._running else "driver"

    @property
    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    @property
    def incarnation(self) -> int:
        """1 for the first process of the actor; 0 in a driver."""
        return self._running.place.incarnation if self._running else 0

    @property
    def was_restarted(self) -> bool:
        """Whether the actor has died before."""
        return self.incarnation > 1

    @property
    def job_id(self) -> str:
        """Id of the driver that this was started for."""
        return str(self._about("job", "") or _session.current().job_id)

    @property
    def namespace(self) -> str:
        """In which names of actors are looked for, and given, here; "": that of all."""
        if self._running is not None:
            return str(self._about("namespace", ""))
        return _session.current().namespace

    @property
    def task_id(self) -> Optional[str]:
        """Id of the call that runs, unique within its process; None outside of one."""
        request = self._running.request if self._running else None
        return None if request is None else f"{os.getpid():x}-{request.key:x}"

    @property
    def worker_id(self) -> str:
        """Id of this process in the cluster."""
        return str(_session.current().actors.process)

    @property
    def placement_group_id(self) -> str:
        """Of the group that this actor or task was started in; "" if in none."""
        return str(self._about("placement_group", ""))

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """As :attr:`was_restarted`."""
        return self.was_restarted

    @property
    def current_actor(self) -> Any:
        """A handle of this actor, for itself to hand out.

        Raises:
            NotInWorkerError: this is no method of an actor.
            ValueError: its constructor still runs.
        """
        from troupe.actors import _remote

        here = self._actor("current_actor")
        if here.place.described is None:
            raise ValueError("an actor has no handle before its constructor has returned")
        return _remote.own_handle(here.place.actor_type, here.place.described)

    def get_job_id(self) -> str:
        """As :attr:`job_id`."""
        return self.job_id

    def get_node_id(self) -> str:
        """As :attr:`node`."""
        return self.node

    def get_worker_id(self) -> str:
        """As :attr:`worker_id`."""
        return self.worker_id

    def get_task_id(self) -> Optional[str]:
        """As :attr:`task_id`."""
        return self.task_id

    def get_task_name(self) -> Optional[str]:
        """The option ``name`` of the task, else its function's; of a method the method's name."""
        request = self._running.request if self._running else None
        if request is None:
            return None
        return str(self._about("task", "") or request.method)

    def get_task_function_name(self) -> Optional[str]:
        """Name of the function or the method that runs; None outside of a call."""
        request = self._running.request if self._running else None
        return None if request is None else str(self._about("function", "") or request.method)

    def get_actor_id(self) -> Optional[str]:
        """Id of the actor; None in a driver or a task."""
        return None if self._running is None or self._running.place.is_task else self.actor_id

    def get_actor_name(self) -> Optional[str]:
        """The option ``name`` of the actor, "" without one; None in a driver or a task."""
        if self._running is None or self._running.place.is_task:
            return None
        return str(self._about("name", ""))

    def get_placement_group_id(self) -> Optional[str]:
        """Of the group that this actor or task was started in; None if in none."""
        return self.placement_group_id or None

    def get_assigned_resources(self) -> dict[str, float]:
        """What this actor or task was given, by resource; empty in a driver."""
        return dict(self._about("resources", {}))

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Ids of what this process was given, by kind: ``{"GPU": ["0", "1"]}``."""
        return {"GPU": gpu_ids() if self._about("resources", {}).get("GPU") else []}

    def _about(self, key: str, default: Any) -> Any:
        return self._running.about.get(key, default) if self._running else default

    def _actor(self, what: str) -> Running:
        if self._running is None or self._running.place.is_task:
            raise NotInWorkerError(f"{what} is for methods of actors")
        return self._running

    def cancelled(self) -> bool:
        """Whether nobody waits for the result of this call any more: cancelled, or too late."""
        request = self._running.request if self._running else None
        if request is None:
            return False
        left = request.remaining
        return bool(request.cancelled) or (left is not None and left <= 0)

    def is_canceled(self) -> bool:
        """As :meth:`cancelled`."""
        return self.cancelled()

    def remaining(self) -> Optional[float]:
        """Seconds until this call's deadline, at least 0; None outside a call."""
        request = self._running.request if self._running else None
        left = request.remaining if request is not None else None
        return None if left is None else max(0.0, left)

    def __repr__(self) -> str:
        where = f"{self.actor_name} {self.actor_id}" if self._running else "driver"
        return f"<RuntimeContext of {where} on {self.node}>"


def current() -> RuntimeContext:
    """What this code can ask about where it runs; in a driver, too."""
    return RuntimeContext(RUNNING.get())


def gpu_ids() -> list[str]:
    """Ids of the GPUs that this process sees, as ``CUDA_VISIBLE_DEVICES`` has them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [id.strip() for id in visible.split(",") if id.strip()]


def started_with(native: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What an actor or task that is started here can ask about itself.

    Args:
        native: its native options.
        more: ``name`` of an actor; ``task`` and ``function`` of a task; ``retries``; what is false
            is left out.
    """
    here = current()
    about = {"job": here.job_id, "namespace": here.namespace, "resources": native["resources"],
             "placement_group": native.get("placement_group"), **more}
    return {key: value for key, value in about.items() if value}


def exit_actor(reason: str = "it has ended itself") -> None:
    """Ends the actor whose method calls this; it is not restarted. The call's result is an error.

    ``sys.exit()`` does the same; with a status that is not 0 it is a crash, which ``max_restarts``
    may mend. Exit handlers (``atexit``) run.

    Raises:
        NotInWorkerError: this is no method of an actor.
    """
    running = RUNNING.get()
    if running is None or running.place.is_task or not _session.in_worker():
        raise NotInWorkerError("exit_actor() is for methods of actors")
    raise ExitActor(reason or "it has ended itself")


def about() -> Mapping[str, Any]:
    """What the actor or task that runs here was started with."""
    running = RUNNING.get()
    return running.about if running is not None else {}


def tell(about: Mapping[str, Any]) -> None:
    """What the task that runs here was started with."""
    running = RUNNING.get()
    if running is not None:
        running.about = about
