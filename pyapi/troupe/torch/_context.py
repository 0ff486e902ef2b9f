"""The connection between torch tensors and this worker's group.

Everything a rank keeps between calls lives in one :class:`Context`: the view, collectives in
flight, names in use, attached optimizers. There is one per worker, bound by :func:`init`.

**Thread:** collectives may be issued from any thread of the rank, in the same order on all ranks.
"""

from __future__ import annotations

import importlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch

from troupe import _horovod, _native, _runtime
from troupe._runtime import usable_cores
from troupe.collective import _training
from troupe.errors import HorovodInternalError, TroupeError, code_of
from troupe.torch._solo import SoloWorker
from troupe.torch._tree import nbytes

_DEFAULT_TIMEOUT_S = 600.0
_DRAIN_TIMEOUT_S = 30.0
FOREVER_S = 3600.0  # The core's own limit of a collective ends it before.

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bool: "bool",
}


def in_backward() -> bool:
    """Whether this thread is inside a backward pass."""
    try:  # Only there is there an end to call back at.
        torch.autograd.Variable._execution_engine.queue_callback(lambda: None)
    except RuntimeError:
        return False
    return True


@dataclass(eq=False)
class Pending:
    """A collective in flight: the core's handles, what to do at its end, buffers to keep alive."""

    name: str
    core_handles: list[int]
    finish: Callable[[], Any]
    keep: list[Any] = field(default_factory=list)


class Context:
    """One rank's side of the group."""

    def __init__(self, runtime: _runtime.WorkerRuntime) -> None:
        self.runtime = runtime
        self.group = runtime.group
        self.group_name: Optional[str] = None  # Of the group of actors that it is.
        self.view: Mapping[str, Any] = {}
        self.timeout_s = _timeout_from_env()
        self._reducers: list[weakref.ref[Any]] = []
        self._ordinals: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next_ordinal = itertools.count()
        self.synced_epoch = -1
        self._lock = threading.RLock()
        self._handles = itertools.count(1)
        self._auto_names = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._names: set[str] = set()
        self._agreed: set[str] = set()
        self._abandoned: list[Pending] = []
        self._kept: list[Any] = []
        self._aside: list[Pending] = []  # Transfers in flight beside the collectives.
        self.process_sets: list[Any] = []
        self.operations = 0  # Collectives that were begun.
        self.user_operations = 0  # Of these, what the user has called for.
        self.steps_begun = 0  # Steps of optimizers for which gradients were computed.
        self.replay: Any = None  # inside elastic.run: finishes interrupted steps
        # A step has entered this view and failed for good; the elastic loop has not heard of it.
        self.unwinding = False

    # -- membership -----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return int(self.view["size"])

    @property
    def rank(self) -> int:
        return int(self.view["rank"])

    @property
    def provisional(self) -> bool:
        """Whether this worker waits to join and is not yet part of a view."""
        return bool(self.view.get("provisional"))

    def enter(self) -> None:
        """First view: the active one if there is one, a provisional one for a joiner."""
        view = self.group.view()
        if view is None:
            view = self.runtime.first_view()
        self.adopt(view)

    def rejoin(self, version: int, has_state: bool) -> None:
        """Leaves the epoch and waits for the next view."""
        self.abandon_collectives()
        self.adopt(self.runtime.await_view(version, has_state))

    def adopt(self, view: Mapping[str, Any]) -> None:
        """Takes over a view; whatever belonged to the one before is void."""
        with self._lock:
            self.view = view
            self._agreed.clear()
            self._ordinals.clear()
            self._next_ordinal = itertools.count()
            self._auto_names = itertools.count(1)
            self._abandoned.clear()
            self._kept.clear()
            self._pending.clear()
            self._aside.clear()
            self._names.clear()
        self.runtime.export_view(view)

    def require_active(self) -> None:
        """Raises if collectives cannot run: a joiner outside elastic.run, or an error passed by."""
        if self.unwinding:
            raise HorovodInternalError(
                "an optimizer's step has failed before; let its HorovodInternalError reach the "
                "function decorated with troupe.torch.elastic.run"
            )
        if self.provisional:
            raise TroupeError(
                "this worker joins a running group and has no peers yet, so collectives cannot run "
                "before the function decorated with troupe.torch.elastic.run is called; move them "
                "inside it (state.sync() there replaces broadcast_parameters)"
            )

    # -- collectives ----------------------------------------------------------------------------

    def new_name(self, kind: str, name: Optional[str]) -> str:
        """The given name, or ``kind.noname.N``, counted alike on all ranks of an epoch."""
        return name if name is not None else f"{kind}.noname.{next(self._auto_names)}"

    def reserve(self, name: str) -> None:
        """Takes a name for a collective in flight.

        Raises:
            ValueError: another one with this name has not been waited for.
        """
        with self._lock:
            if name in self._names:
                raise ValueError(
                    f"a collective named {name!r} is already in flight; wait for it with "
                    "synchronize(), or give each its own name"
                )
            self._names.add(name)

    def unreserve(self, name: str) -> None:
        """Gives a reserved name back when its collective was never issued."""
        with self._lock:
            self._names.discard(name)

    def issue(
        self,
        name: str,
        starts: Sequence[Callable[[], int]],
        finish: Callable[[], Any],
        keep: Sequence[Any],
    ) -> int:
        """Starts core collectives under one handle. The name must be reserved."""
        self._users_next()
        self.operations += 1
        core_handles: list[int] = []
        pending = Pending(name, core_handles, finish, list(keep))
        try:
            with _native.collective_errors(name):
                for start in starts:
                    core_handles.append(start())
        except BaseException:
            with self._lock:
                self._names.discard(name)
                if core_handles:
                    self._abandoned.append(pending)
            raise
        with self._lock:
            handle = next(self._handles)
            self._pending[handle] = pending
        return handle

    def poll(self, handle: int) -> bool:
        """Whether a collective is complete; an unknown handle is (it was waited for)."""
        with self._lock:
            pending = self._pending.get(handle)
        if pending is None:
            return True
        with _native.collective_errors(pending.name):
            return all(self.group.poll(h) for h in pending.core_handles)

    def wait(self, handle: int, timeout_s: Optional[float] = None) -> Any:
        """Waits for a collective and returns its output; None for an unknown handle."""
        with self._lock:
            pending = self._pending.pop(handle, None)
        if pending is None:
            return None
        try:
            with _native.collective_errors(pending.name):
                for index, core_handle in enumerate(pending.core_handles):
                    self.group.wait(core_handle, timeout_s or self.timeout_s)
                    pending.core_handles[index] = -1
        except BaseException:
            # The lane may still touch the buffers; they live until the epoch is left.
            with self._lock:
                self._names.discard(pending.name)
                pending.core_handles[:] = [h for h in pending.core_handles if h >= 0]
                self._abandoned.append(pending)
            raise
        with self._lock:
            self._names.discard(pending.name)
        return pending.finish()

    def run_now(self, name: str, start: Callable[[], int], users: bool = True) -> None:
        """Runs one core collective to its end."""
        if users:
            self._users_next()
        self.operations += 1
        with _native.collective_errors(name):
            self.group.wait(start(), self.timeout_s)

    def start_transfer(
        self, sources: Sequence[int], receivers: Sequence[int], tensors: Sequence[torch.Tensor]
    ) -> Pending:
        """Begins to send the tensors' memory; each of ``sources`` sends a part of it."""
        buffers = [(t.data_ptr(), nbytes(t)) for t in tensors if t.numel()]
        with _native.collective_errors("state transfer"):
            handle = self.group.start_transfer(list(sources), list(receivers), buffers)
        pending = Pending("state transfer", [handle], lambda: None, list(tensors))
        self._aside.append(pending)
        return pending

    def finish_transfer(self, pending: Pending, timeout_s: float) -> None:
        """Waits for a transfer; one that is not in flight any more was waited for."""
        if pending not in self._aside:
            return
        with _native.collective_errors(pending.name):
            self.group.finish_transfer(pending.core_handles[0], timeout_s)
        self._aside.remove(pending)

    def _users_next(self) -> None:
        """A collective of the user's is next: it must not carry what a state on its way lacks."""
        self.user_operations += 1
        if self.replay is not None:
            self.replay.finish_sync()

    def abandon_collectives(self) -> None:
        """Waits out what is in flight, whatever becomes of it, so that its memory may go."""
        for reducer in self.reducers():
            reducer.abandon()
        with self._lock:
            leftovers = [*self._pending.values(), *self._abandoned, *self._aside]
            self._pending.clear()
            self._abandoned, self._aside = [], []
            self._names.clear()
        for pending in leftovers:
            self.wait_out(pending.core_handles, keep=[pending])

    def wait_out(self, core_handles: Sequence[int], keep: Sequence[Any]) -> None:
        """Waits for core collectives whose results nobody wants.

        One that does not end keeps its memory until the next view is adopted, when its lane is
        gone for certain.
        """
        for core_handle in core_handles:
            try:
                self.group.wait(core_handle, _DRAIN_TIMEOUT_S)
            except RuntimeError as error:
                if code_of(error) == "deadline_exceeded":
                    self._kept.append(list(keep))

    def quiet(self) -> bool:
        """Whether no collective of the user's is in flight, and there are no process sets."""
        with self._lock:
            return not self._pending and not self.process_sets

    def flush_optimizers(self) -> None:
        """Issues gradient buckets that are due, so that all ranks issue in the same order.

        Within a backward pass none is: the rest of its gradients is still to come.
        """
        if not self._reducers or in_backward():
            return
        for reducer in self.reducers():
            reducer.flush()

    def reducers(self) -> list[Any]:
        """The gradient reducers of live optimizers, oldest first."""
        return [reducer for ref in list(self._reducers) for reducer in [ref()] if reducer]

    def add_reducer(self, reducer: Any) -> None:
        """Takes a reducer in; one that held the same parameters was replaced and is closed."""
        others = [other for other in self.reducers() if other is not reducer]
        for other in others:
            if other.shares_parameters(reducer):
                other.close()
        kept = [other for other in others if not other.shares_parameters(reducer)]
        self._reducers = [weakref.ref(r) for r in (*kept, reducer)]

    def ordinal(self, reducer: Any) -> int:
        """The place of an optimizer in the order of first use in this epoch, alike on all ranks."""
        if reducer not in self._ordinals:
            self._ordinals[reducer] = next(self._next_ordinal)
        return self._ordinals[reducer]

    # -- agreement ------------------------------------------------------------------------------

    def agree(self, text: str) -> None:
        """Checks that all ranks are about to do the same, once per text and epoch.

        Raises:
            CollectiveMismatchError: on every rank, when they are not.
        """
        if self.size == 1 or text in self._agreed:
            return
        self.run_now(text, lambda: int(self.group.barrier(text)), users=False)
        self._agreed.add(text)

    def gather_ints(
        self, values: Sequence[int], text: str, team: int = 0
    ) -> tuple[tuple[int, ...], ...]:
        """All ranks' equally long lists of ints, ordered by rank. Blocking."""
        mine = torch.tensor(list(values), dtype=torch.int64)
        size = self.size if team == 0 else len(self.group.team(team))
        if size == 1:
            return (tuple(mine.tolist()),)
        out = torch.empty((size, mine.numel()), dtype=torch.int64)
        nbytes = [mine.numel() * 8] * size
        self.run_now(
            text,
            lambda: int(
                self.group.allgather(mine.data_ptr(), out.data_ptr(), nbytes, text, team)
            ),
            users=False,
        )
        return tuple(tuple(row) for row in out.tolist())


def describe(
    kind: str, name: Optional[str], dtype: Optional[torch.dtype], shape: Sequence[Any], *more: str
) -> str:
    """What all ranks must agree on in a collective, for people too: ``kind "name" dtype[shape]``.

    A counted name is left out (None): ranks then agree once for all collectives that look alike.
    """
    parts = [kind]
    if name is not None:
        parts.append(f'"{name}"')
    if dtype is not None:
        parts.append(f"{DTYPE_NAMES[dtype]}[{', '.join(str(d) for d in shape)}]")
    return " ".join([*parts, *(m for m in more if m)])


def _timeout_from_env() -> float:
    text = os.environ.get("TROUPE_COLLECTIVE_TIMEOUT_S", "")
    try:
        return float(text) if text else _DEFAULT_TIMEOUT_S
    except ValueError:
        raise ValueError(
            f"TROUPE_COLLECTIVE_TIMEOUT_S must be a number of seconds, not {text!r}"
        ) from None


# -- the context of this thread or process ----------------------------------------------------

_process_context: Optional[Context] = None
_thread = threading.local()


def current() -> Context:
    """The initialised context.

    Raises:
        ValueError: ``init()`` was not called, as Horovod reports it.
    """
    context = current_or_none()
    if context is None:
        raise ValueError("Troupe has not been initialized; call troupe.torch.init() first.")
    return context


def current_or_none() -> Optional[Context]:
    context = getattr(_thread, "context", None)
    return context if context is not None else _process_context


def init(
    comm: Any = None, process_sets: Any = None, *, group: Optional[str] = None,
    elastic_timeout: Optional[float] = None,
) -> None:
    """Connects this worker to its group; harmless when already initialised.

    In a worker that joins a running group it returns at once, with a provisional rank and size;
    collectives then work inside ``elastic.run`` only. In a member of a group of actors the group is
    that of all members, and stays bound from call to call until :func:`shutdown`. Elsewhere it is
    this process alone.

    Args:
        comm: for compatibility; only None, or the list of all ranks.
        process_sets: registered at once, on all ranks alike, each as by ``add_process_set``; or
            "dynamic", which changes nothing, since sets can be added at any time. Who joins a
            running group is in the global set only.
        group: name of the elastic collective group that this actor is to train in, made by
            ``create_collective_group``, if not that of its own group of actors. Other groups can
            be used beside it.
        elastic_timeout: seconds that this actor waits for a view of its group, now and after each
            change, before it gives up; 600 if not given. Workers of a run have that of the run.

    Raises:
        ValueError: ``comm`` is something else, or ``process_sets`` is none of these or has a set
            that cannot be registered; the group is a fixed one, or one whose members call
            collectives of :mod:`troupe.collective`; another one is bound.
        CollectiveGroupError: there is no such group.
        NotInWorkerError: ``group`` is given, and this is no actor.
    """
    global _process_context
    sets = _check_arguments(comm, process_sets)
    bound = current_or_none()
    if bound is not None:
        if group is not None and group != bound.group_name:
            raise ValueError(
                f"this actor trains in group {bound.group_name!r}; call shutdown() before "
                f"init(group={group!r})")
        return
    runtime = _runtime.current() if group is None else None
    training = None if runtime is not None else _training.train_in(group, elastic_timeout)
    if training is not None:
        runtime = training
    if runtime is None:
        runtime = _runtime.WorkerRuntime(SoloWorker(), {}, own_process=False)
    context = Context(runtime)
    context.group_name = None if training is None else training.worker.name
    context.enter()
    if runtime.own_process:
        _process_context = context
        _limit_threads(context)
    elif _runtime.current() is None:
        _process_context = context
    else:
        _thread.context = context
    try:
        _finish_init(context, comm, sets)
    except BaseException:
        shutdown()
        raise


def _check_arguments(comm: Any, process_sets: Any) -> list[Any]:
    if comm is not None and not isinstance(comm, (list, tuple)):
        raise ValueError(
            "init(comm=...) takes the list of all ranks, and no communicator of MPI: the executor "
            "decides the group"
        )
    if process_sets is None or process_sets == "dynamic":
        return []
    if not isinstance(process_sets, (list, tuple)):
        raise ValueError(
            f'init(process_sets=...) takes a list of ProcessSet or "dynamic", not {process_sets!r}'
        )
    return list(process_sets)


def _finish_init(context: Context, comm: Any, process_sets: Sequence[Any]) -> None:
    """What takes the group's size, which who joins does not know yet; and logging."""
    _horovod.apply_logging()
    if context.provisional:
        return
    if comm is not None and sorted(comm) != list(range(context.size)):
        raise ValueError(
            f"init(comm={list(comm)}) is not all ranks of this group of {context.size}; start that "
            "many workers, or call collectives of a ProcessSet"
        )
    for process_set in process_sets:
        importlib.import_module("troupe.torch.process_sets").add_process_set(process_set)


def shutdown() -> None:
    """Disconnects; ``init()`` may follow. Waits for collectives in flight. Harmless when not
    initialised."""
    global _process_context
    context = current_or_none()
    if context is None:
        return
    context.abandon_collectives()
    if getattr(_thread, "context", None) is not None:
        _thread.context = None
    else:
        _process_context = None
    if context.group_name is not None:
        _training.end_training(context.group_name)


def is_initialized() -> bool:
    """Whether :func:`init` was called and :func:`shutdown` not since."""
    return current_or_none() is not None


def _limit_threads(context: Context) -> None:
    """Shares the cores among the workers of this host unless the user has decided otherwise."""
    if os.environ.get("OMP_NUM_THREADS"):
        return
    share = max(1, usable_cores() // max(1, int(context.view["local_size"])))
    if share < torch.get_num_threads():
        torch.set_num_threads(share)
