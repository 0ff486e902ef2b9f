"""States: what training keeps, commits, goes back to, and hands to those who join.

A state counts its commits; the number is its *version*. When a view becomes active, members whose
version is older than the newest (and those without state) receive the newest from the oldest member
that has it; if all are equal, nothing is sent.
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from troupe import _native
from troupe.errors import HostsUpdatedInterrupt, TroupeError
from troupe.torch import _basics, _context
from troupe.torch._tree import (
    copy_into,
    differences,
    flatten,
    mark_written,
    nbytes,
    slots,
    staging,
    unflatten,
)
from troupe.torch.elastic._binding import Binding, constant
from troupe.torch.elastic.durable import CommitLog, as_durable
from troupe.torch.elastic.handlers import (
    ModelHandler,
    OptimizerHandler,
    TreeHandler,
)
from troupe.torch.functions import broadcast_object

_log = logging.getLogger("troupe.elastic")


# Where scripts for Horovod look for them; they stand in modules that need this one.
_ELSEWHERE = frozenset((
    "ModelStateHandler", "OptimizerStateHandler", "SamplerStateHandler", "StateHandler",
    "TorchState", "get_handler_registry", "set_handler_registry"))


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(importlib.import_module("troupe.torch.elastic"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class State:
    """Base of states. Subclasses define ``save``, ``restore`` and ``sync``.

    Args:
        bcast_object: how a subclass may broadcast an object; default: ``broadcast_object``.
        get_rank: how it learns its rank; default: ``rank``.
    """

    def __init__(
        self,
        bcast_object: Optional[Callable[..., Any]] = None,
        get_rank: Optional[Callable[[], int]] = None,
    ) -> None:
        self._bcast_object = bcast_object or broadcast_object
        self._rank = get_rank or _basics.rank
        self._reset_callbacks: list[Callable[[], None]] = []
        self._version = 0
        self._has_state = False
        self._begun_at_save = 0

    @property
    def version(self) -> int:
        """Number of commits behind this state, equal on all members at a step boundary."""
        return self._version

    @property
    def has_state(self) -> bool:
        """Whether this member holds the group's state and not just its own beginnings."""
        return self._has_state

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Adds functions to call when the members have changed, before state is sent.

        Set from constants (``lr = base_lr * size()``) rather than multiply: a member may see fewer
        views than another.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by ``run`` when the members have changed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()
        if self._has_state and (self._reset_callbacks or type(self).reset is not State.reset):
            self.save()  # what they changed belongs to the version

    def finished(self) -> None:
        """Called by ``run`` when the function has returned."""

    def resumes_silently(self) -> bool:
        """Whether nobody wants to hear of new members."""
        kind = type(self)
        silent = kind.reset is State.reset and kind.on_reset is State.on_reset
        return silent and not self._reset_callbacks

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """For compatibility; views carry the membership, so nothing needs to be told."""

    def commit(self) -> None:
        """Saves the state as the newest version and crosses a step boundary.

        Raises:
            HostsUpdatedInterrupt: members come or go here; the commit is done.
        """
        _context.current().require_active()
        self._save_version()
        self._verify()
        if self._boundary():
            raise HostsUpdatedInterrupt()

    def check_host_updates(self) -> None:
        """Crosses a step boundary without a commit, on all members equally often.

        Raises:
            HostsUpdatedInterrupt: members come or go here; the state is kept as it is now.
        """
        if self._boundary():
            # The live state becomes a version, so that who fails from here on can roll forward.
            self._save_version()
            raise HostsUpdatedInterrupt()

    def _save_version(self) -> None:
        self._save_commit()
        self._version += 1
        self._has_state = True
        context = _context.current()
        self._begun_at_save = context.steps_begun
        with _native.collective_errors("commit"):
            context.group.set_version(self._version)

    def _boundary(self) -> bool:
        context = _context.current()
        context.require_active()
        context.flush_optimizers()
        with _native.collective_errors("step boundary"):
            return bool(context.group.boundary())

    def _save_commit(self) -> None:
        """Hook for subclasses: saves the state as the version after this one."""
        self.save()

    def _verify(self) -> None:
        """Hook for subclasses: compares what must be alike on all ranks after a commit."""

    def steps_begun(self) -> int:
        """How many steps have had gradients since the last commit; counts from here on anew."""
        begun = _context.current().steps_begun
        since, self._begun_at_save = begun - self._begun_at_save, begun
        return since

    def save(self) -> None:
        """Keeps the state as it is now."""
        raise NotImplementedError("save")

    def restore(self) -> None:
        """Goes back to what was last saved."""
        raise NotImplementedError("restore")

    def go_back(self) -> None:
        """``run`` gives up what was under way: goes back to the last commit."""
        self.restore()

    def sync(self) -> None:
        """Makes all members' states equal; called by ``run`` in every new view."""
        raise NotImplementedError("sync")

    def reset(self) -> None:
        """Hook for subclasses, called before the reset callbacks."""

    def mark_synced(self) -> None:
        """Notes that this member holds the group's state; ``run`` calls it after ``sync``."""
        self._has_state = True

    def finish_sync(self) -> None:
        """Hook for subclasses: waits for what ``sync`` has left to go on beside the training."""

    def give_up_sync(self) -> None:
        """Hook for subclasses: the view is over, and with it what ``sync`` has left to go on."""

    def settle(self) -> None:
        """Hook for subclasses: ``run`` is about to end, in whatever way."""


class ObjectState(State):
    """A state of plain Python attributes.

    Args:
        bcast_object, get_rank: see :class:`State`.
        durable: a directory, or :class:`DurableCommits`, to keep commits in, so that a group whose
            members have all died resumes; default: commits live in the members' memory only.
        kwargs: the attributes and their first values; they must be picklable.
    """

    def __init__(
        self,
        bcast_object: Optional[Callable[..., Any]] = None,
        get_rank: Optional[Callable[[], int]] = None,
        durable: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        settings = as_durable(durable)
        self._commits = None if settings is None else CommitLog(settings)
        self._sending: Any = None  # A transfer that goes on beside the training.
        self._saved_state: dict[str, Any] = {}
        self._names: list[str] = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._save_objects()
        self._binding().check(self._saved_state)  # Now, not when somebody joins.

    def save(self) -> None:
        self._save_objects()

    def restore(self) -> None:
        for name, value in self._copied(self._saved_state).items():
            setattr(self, name, value)

    def _save_objects(self) -> None:
        self._saved_state = self._copied({name: getattr(self, name) for name in self._names})

    def _copied(self, values: dict[str, Any]) -> dict[str, Any]:
        if constant(list(values.values())):
            return copy.deepcopy(values)
        return self._binding().copied(values)

    def _binding(self) -> Binding:
        """The live objects that plain values may refer to."""
        return Binding({})

    def sync(self) -> None:
        """Sends the newest state to the members that lack it; saves what was received.

        In a new view the view says who lacks it. Called once more by hand it sends rank 0's state
        to everyone.

        Raises:
            HorovodInternalError: a member died meanwhile.
        """
        context = _context.current()
        context.require_active()
        self._before_sync()
        chain = self._chain(context)
        if len(chain) > 1:
            sources = [chain[0], *self._helpers(context, chain)]
            beside = self._beside_training(context, chain)
            if context.rank in sources:
                self._send(context, sources, chain[1:], beside)
            elif context.rank in chain:
                self._receive(context, sources, chain[1:], beside)
        context.synced_epoch = int(context.view["epoch"])
        self._after_sync()

    def _chain(self, context: _context.Context) -> list[int]:
        """The source followed by the ranks that receive."""
        view = context.view
        everyone = [0] + [rank for rank in range(context.size) if rank != 0]
        again = context.synced_epoch == view["epoch"]
        if again or not any(member["has_state"] for member in view["members"]):
            if self._commits is not None and not self._has_state:
                return self._resume(context, self._commits, everyone)
            return everyone
        source = int(view["source_rank"])
        return [source] + [int(rank) for rank in view["needs_state"] if int(rank) != source]

    def _beside_training(self, context: _context.Context, chain: list[int]) -> bool:
        """Whether the tensors may follow while the members train; alike on all of them."""
        return False

    def _helpers(self, context: _context.Context, chain: list[int]) -> list[int]:
        """One more holder of the state per other host, where it holds the very same bits.

        Tensors then come over the network of several hosts at once. Buffers such as running
        statistics may differ between ranks; then the source sends alone.
        """
        hosts = {context.view["members"][chain[0]]["host"]}
        helpers = []
        for rank, member in enumerate(context.view["members"]):
            if rank not in chain and member["host"] not in hosts:
                hosts.add(member["host"])
                helpers.append(rank)
        if not helpers:
            return []
        digest = 0
        if context.rank in (chain[0], *helpers):
            core = _native.core()
            for tensor in self._live_tensors()[1]:
                work = staging(tensor)
                digest = (digest * 31 + int(core.xxh64(work.data_ptr(), nbytes(work)))) % (1 << 63)
        digests = context.gather_ints([digest], "digests of the state")
        return [rank for rank in helpers if digests[rank] == digests[chain[0]]]

    def _live_tensors(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Skeletons of the handled values, and their live tensors in the order they travel."""
        trees, tensors = {}, []
        for name, handler in sorted(self._tree_handlers().items()):
            trees[name], mine = flatten(handler.live_tree())
            tensors.extend(mine)
        return trees, tensors

    def _resume(
        self, context: _context.Context, commits: CommitLog, everyone: list[int]
    ) -> list[int]:
        """Loads the newest durable commit where it is; the chain for those who lack it.

        Only when no living member holds the state, so what is on disk never competes with it.
        """
        mine = commits.find(context)
        newest = commits.agree(context, mine)
        if newest is None:
            return everyone
        version, source, holders = newest
        if context.rank in holders:
            where = f"commit {version} in {commits.folder}"
            self._load_commit(mine, where)
            if context.rank == source:
                _log.info("resumed from %s", where)
                context.runtime.worker.tell("resumed", f"resumed from {where}")
        return [source] + [rank for rank in range(context.size) if rank not in holders]

    def _load_commit(self, commit: Any, where: str) -> None:
        advice = (
            "run the program that made it, or give the run another name (or durable= another "
            "directory) to begin anew"
        )
        try:
            header = self._binding().loads(commit.header)
            self._check_fit(header)
            incoming = self._incoming(header)
            works = [work for item in incoming for work in item.works]
            commit.copy_to([(w.data_ptr(), nbytes(w)) for w in works])
            for item in incoming:
                item.load()
        except Exception as error:
            raise TroupeError(f"{where} does not fit this state: {error}; {advice}") from error
        self._take_over({**header, "version": commit.version})

    def _check_fit(self, header: dict[str, Any]) -> None:
        """Raises ValueError if a commit is of another program."""
        handlers = self._tree_handlers()
        found, wanted = ({*t, *o} for t, o in (
            (header["trees"], header["objects"]), (handlers, self._names)))
        if found != wanted:
            raise ValueError(f"it holds {sorted(found)}, the state has {sorted(wanted)}")
        for name, handler in handlers.items():
            if isinstance(handler, ModelHandler):
                unlike = differences(header["trees"][name], flatten(handler.live_tree())[0])
                if unlike:
                    raise ValueError(f"{name}: {unlike}")
            kind, mine = header["kinds"][name], type(handler.value).__qualname__
            if isinstance(handler, OptimizerHandler) and kind != mine:
                raise ValueError(f"{name}: it is of a {kind}, the state has a {mine}")

    def _make_durable(self, context: _context.Context, commits: CommitLog) -> None:
        handlers = sorted(self._tree_handlers().items())
        binding, objects = self._binding(), self._saved_state

        def header() -> bytes:
            return binding.dumps({
                "trees": {name: handler.snapshot.skeleton for name, handler in handlers},
                "kinds": {name: type(handler.value).__qualname__ for name, handler in handlers},
                "objects": objects,
            }, objects)

        buffers = [handler.snapshot.buffers for _, handler in handlers]
        commits.save(context, self._version, header, buffers)

    def _save_version(self) -> None:
        super()._save_version()
        if self._commits is not None:
            self._make_durable(_context.current(), self._commits)

    def settle(self) -> None:
        context = _context.current_or_none()
        if self._commits is not None and context is not None:
            self._commits.settle(context)

    def _tree_handlers(self) -> dict[str, TreeHandler]:
        return {}

    def _before_sync(self) -> None:
        """Hook for what comes before every sync, on all members."""

    def _after_sync(self) -> None:
        """Hook for what follows every sync, on all members."""

    def _send(
        self, context: _context.Context, sources: list[int], receivers: list[int], beside: bool
    ) -> None:
        if not self._has_state:
            self.save()
        trees, tensors = self._saved_tensors() if beside else self._live_tensors()
        if context.rank == sources[0]:
            objects = {name: getattr(self, name) for name in self._names}
            header = {"trees": trees, "objects": objects, "version": self._version}
            data = self._binding().dumps({**header, **self._experience()}, objects)
            _send_bytes(context, sources[0], receivers, data)
        if beside:
            self._sending = context.start_transfer(sources, receivers, tensors)
        else:
            _transfer(context, sources, receivers, [staging(t) for t in tensors])

    def _experience(self) -> dict[str, Any]:
        """Hook for subclasses: what a receiver gets to know beside the state."""
        return {}

    def _saved_tensors(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """As `_live_tensors`, of the copies that the last commit has made."""
        handlers = sorted(self._tree_handlers().items())
        trees = {name: handler.snapshot.skeleton for name, handler in handlers}
        return trees, [buffer for _, handler in handlers for buffer in handler.snapshot.buffers]

    def _receive(
        self, context: _context.Context, sources: list[int], receivers: list[int], beside: bool
    ) -> None:
        header = self._binding().loads(_receive_bytes(context, sources[0], receivers))
        handlers = self._tree_handlers()
        if sorted(header["trees"]) != sorted(handlers) or sorted(header["objects"]) != sorted(
            self._names
        ):
            raise TroupeError(
                f"the members' states differ: rank {sources[0]} sends "
                f"{sorted(header['trees']) + sorted(header['objects'])}, this one has "
                f"{sorted(handlers) + sorted(self._names)}; all must run the same code"
            )
        if beside:
            self._follow(context, sources, receivers, header)
            return
        incoming = self._incoming(header)
        _transfer(context, sources, receivers, [w for i in incoming for w in i.works])
        for item in incoming:
            item.load()
        self._take_over(header)

    def _follow(
        self, context: _context.Context, sources: list[int], receivers: list[int],
        header: dict[str, Any],
    ) -> None:
        """Begins to receive the tensors of a state whose plain values are here."""
        raise NotImplementedError("_follow")

    def _send_trees(self, context: _context.Context, source: int, receivers: list[int],
                    names: Sequence[str]) -> None:
        """Sends live trees alone, to members that have all else of the state."""
        handlers = self._tree_handlers()
        parts = {name: flatten(handlers[name].live_tree()) for name in sorted(names)}
        trees = {name: skeleton for name, (skeleton, _) in parts.items()}
        _send_bytes(context, source, receivers, self._binding().dumps({"trees": trees}, {}))
        _transfer(context, [source], receivers,
                  [staging(t) for _, tensors in parts.values() for t in tensors])

    def _receive_trees(self, context: _context.Context, source: int, receivers: list[int]) -> None:
        header = self._binding().loads(_receive_bytes(context, source, receivers))
        incoming = self._incoming(header)
        _transfer(context, [source], receivers, [w for i in incoming for w in i.works])
        for item in incoming:
            item.load()

    def _incoming(self, header: dict[str, Any]) -> list[_Incoming]:
        handlers = self._tree_handlers()
        return [_Incoming(handlers[name], tree) for name, tree in sorted(header["trees"].items())]

    def _take_over(self, header: dict[str, Any]) -> None:
        """Plain values and version of a state whose trees are loaded; saves it."""
        for name, value in header["objects"].items():
            setattr(self, name, value)
        self._version = header["version"]
        self.save()
        self._has_state = True
        with _native.collective_errors("sync"):
            _context.current().group.set_version(self._version)


class _Incoming:
    """Memory for one handler's tree that is about to arrive: live tensors where they match."""

    def __init__(self, handler: TreeHandler, skeleton: Any) -> None:
        self.handler = handler
        self.skeleton = skeleton
        self.live = handler.in_place_targets(skeleton)
        if self.live is None:
            self.works = [torch.empty(s.shape, dtype=s.dtype) for s in slots(skeleton)]
        else:
            self.works = [staging(t) for t in self.live]

    def load(self) -> None:
        """Hands over what has arrived."""
        if self.live is None:
            self.handler.load_tree(unflatten(self.skeleton, self.works))
            return
        pairs = zip(self.live, self.works, strict=True)
        staged = [(t, w) for t, w in pairs if t.data_ptr() != w.data_ptr()]
        copy_into([t for t, _ in staged], [w for _, w in staged])
        for tensor in self.live:
            mark_written(tensor)
        self.handler.apply_plain(self.skeleton)


def _transfer(context: _context.Context, sources: list[int], receivers: list[int],
              tensors: list[torch.Tensor]) -> None:
    if any(t.numel() for t in tensors):
        pending = context.start_transfer(sources, receivers, tensors)
        context.finish_transfer(pending, context.runtime.elastic_timeout_s)


def _send_bytes(context: _context.Context, source: int, receivers: list[int],
                content: bytes) -> None:
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    _transfer(context, [source], receivers, [torch.tensor([data.numel()])])
    _transfer(context, [source], receivers, [data])


def _receive_bytes(context: _context.Context, source: int, receivers: list[int]) -> bytes:
    length = torch.zeros(1, dtype=torch.int64)
    _transfer(context, [source], receivers, [length])
    data = torch.empty(int(length), dtype=torch.uint8)
    _transfer(context, [source], receivers, [data])
    return bytes(data.numpy().tobytes())
