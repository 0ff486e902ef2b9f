"""TorchState: models, optimizers, samplers and plain attributes as one state.

It decides with :class:`InPlace` which commits are copied, and keeps its promises to it: what a
commit has left in place is copied before anything but the optimizer's step writes to it.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
import zlib
from typing import Any, Optional

import torch

from troupe import _native
from troupe.errors import HorovodInternalError
from troupe.torch import _context
from troupe.torch.elastic import _following as following
from troupe.torch.elastic import _in_place as in_place
from troupe.torch.elastic._binding import Binding, unlisted
from troupe.torch.elastic._checksum import Checksum
from troupe.torch.elastic._progress import Progress
from troupe.torch.elastic.durable import CommitLog
from troupe.torch.elastic.handlers import (
    Handlers,
    ModelHandler,
    OptimizerHandler,
    SamplerHandler,
    StateDictHandler,
    StateHandler,
    TreeHandler,
    find_handler,
)
from troupe.torch.elastic.sampler import ElasticSampler
from troupe.torch.elastic.state import ObjectState

_log = logging.getLogger("troupe.elastic")


class TorchState(ObjectState):
    """A state of models, optimizers, samplers and plain attributes.

    Args:
        model: a module; more may be given by other names.
        optimizer: an optimizer; more may be given by other names.
        durable: see :class:`ObjectState`; everything in the state becomes durable together.
        joiners_follow: let members train on while a large state is sent to a joiner, which makes
            its first step on a sample of weight zero, with parameters of its own making. Set it if
            the training function looks at the model only to compute gradients until
            ``optimizer.step()``; ``_following.py`` says what else it takes.
        check_parameters_every: commits between comparisons of all ranks' parameters, 0 for none,
            alike on all ranks; default: TROUPE_CHECK_PARAMETERS_EVERY, else 100. If they differ,
            ``commit()`` raises :class:`troupe.ParametersDifferError` on every rank.
        kwargs: further modules, optimizers, ``ElasticSampler`` objects, values of types in the
            handler registry, schedulers, ``GradScaler`` objects and all else that has
            ``state_dict()`` and ``load_state_dict()``, or plain picklable objects. What refers to
            another object of the state refers to the live one on every member.

    A scheduler that was left out is taken in when training begins, if it is the only one of its
    optimizer. Parameter groups added later travel, and go when a commit without them is
    gone back to.

    Assigning a handled attribute (``state.model = other``) handles and saves the new value. With
    one ElasticSampler among the values, its DistributedOptimizers average over counted samples.
    """

    _handlers: Handlers

    def __init__(
        self,
        model: Optional[torch.nn.Module] = None,
        optimizer: Optional[torch.optim.Optimizer] = None,
        durable: Any = None,
        joiners_follow: bool = False,
        check_parameters_every: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        self._checksum = Checksum(check_parameters_every)
        values = dict(kwargs)
        if model is not None:
            values["model"] = model
        if optimizer is not None:
            values["optimizer"] = optimizer
        self._handlers = {}
        plain: dict[str, Any] = {}
        for name, value in values.items():
            handler = find_handler(value)
            if handler is None:
                plain[name] = value
            else:
                self._handlers[name] = handler
                object.__setattr__(self, name, value)
        self._in_place = in_place.InPlace()
        self._joiners_follow = joiners_follow
        self._habits = following.Habits()
        self._following: Optional[following.Following] = None
        self._followers: list[int] = []  # Ranks whose first step comes before their state.
        self._followed_in = -1  # The group epoch in which that is so.
        self._unwritten: Optional[in_place.Stamps] = None  # What they must not miss a change of.
        self._whole_objects: dict[str, Any] = {}
        self._looked_for_unlisted = False
        self._progress = Progress()
        super().__init__(durable=durable, **plain)
        self._saved(0, False)
        self._attach()
        if self._commits is not None:
            self._guard_snapshots(self._commits)

    def _guard_snapshots(self, commits: CommitLog) -> None:
        trees = self._tree_handlers()
        for name, handler in self._handlers.items():
            if name not in trees:
                raise TypeError(
                    f"{name} cannot be made durable: derive {type(handler).__name__} from "
                    "TreeHandler, which says what is to be written, or leave durable= out"
                )
            trees[name].snapshot.may_overwrite = commits.may_overwrite

    @property
    def held_in_place(self) -> bool:
        """Whether the last commit is in the live tensors and nowhere else (``_in_place.py``)."""
        return self._in_place.active

    def commit_stands(self) -> bool:
        """Whether the last commit can be gone back to."""
        return self._in_place.usable()

    def save(self) -> None:
        self.finish_sync()
        for handler in self._handlers.values():
            handler.save()
        super().save()
        self._saved(self._version, False)

    def restore(self) -> None:
        """Goes back to what was last saved.

        Raises:
            HorovodInternalError: that was left in place and is written over; the members will
                agree on what to go back to, and this one copies each commit from then on.
        """
        self.finish_sync()
        self._in_place.depart("restore() was called by hand")
        if not self._in_place.usable():
            raise HorovodInternalError(
                f"commit {self._version} was held in place, and is written over: let this error "
                "reach the function decorated with troupe.torch.elastic.run, or set "
                "TROUPE_COMMIT_COPIES=always to have each commit copied"
            )
        self._restore()

    def go_back(self) -> None:
        if type(self).restore is not TorchState.restore:
            self.restore()
            return
        if not self._in_place.usable():
            self._lose_commit()
        self._restore()

    def _restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()
        self._in_place.gone_back()

    def _lose_commit(self) -> None:
        """The last whole copy stands for a commit that is written over."""
        lost, self._version = self._version, self._in_place.whole_version
        self._in_place.depart(f"commit {lost} was needed and is written over")
        self._saved_state = self._whole_objects
        for handler in self._tree_handlers().values():
            handler.back_to_whole()
        self._in_place.whole()
        message = (
            f"commit {lost} was held in place and is written over, so this member has commit "
            f"{self._version}; the group goes on from the newest that any member has, and copies "
            "each commit from now on"
        )
        _log.warning("%s", message)
        _context.current().runtime.worker.tell("warning", message)

    def _make_whole(self) -> None:
        """Copies what a commit has left in place, before it is written to on purpose."""
        self._finish_sending()
        if self._in_place.active and self._in_place.usable():
            for handler in self._tree_handlers().values():
                handler.make_whole()
            self._whole_objects = self._saved_state
            self._in_place.whole_version = self._version
            self._in_place.whole()

    def _save_version(self) -> None:
        self.finish_sync()
        self._confirm_followers()
        for sampler in self._samplers():
            sampler.commit()
        super()._save_version()
        self._progress.committed(_context.current(), self._samplers())

    def finished(self) -> None:
        self._progress.tell(_context.current(), self._samplers())

    def _save_commit(self) -> None:
        context, version = _context.current(), self._version + 1
        by_lease = all(sampler.by_lease for sampler in self._samplers())
        self._habits.committed(context.user_operations, by_lease and self._in_place.steps == 1)
        must_copy = self._commits is not None and self._commits.wants(context, version)
        left = self._in_place.choose(context, version) if self._known_ways() else frozenset()
        if must_copy or not left:
            self.save()
            self._saved(version, False)
            return
        for handler in self._tree_handlers().values():
            handler.save_in_place(left)
        self._save_objects()
        self._saved(version, True)

    def _saved(self, version: int, in_place: bool) -> None:
        if not in_place:
            self._whole_objects = self._saved_state
        self._in_place.committed(version, in_place, list(self._tree_handlers().values()))

    def _verify(self) -> None:
        if self._checksum.due(self._version):
            self._checksum.compare(_context.current(), list(self._handlers.items()), self._version)

    def _known_ways(self) -> bool:
        """Whether nothing of the user's has a part in saving and restoring."""
        kind = type(self)
        return (
            kind.save is TorchState.save
            and kind.restore is TorchState.restore
            and in_place.known(list(self._handlers.values()))
        )

    def settle(self) -> None:
        self._followers, self._unwritten = [], None
        with contextlib.suppress(HorovodInternalError):  # Who was to receive the state is dead.
            self._finish_sending()
        self._make_whole()
        super().settle()

    # -- joining --------------------------------------------------------------------------------

    def _beside_training(self, context: _context.Context, chain: list[int]) -> bool:
        members = context.view["members"]
        if not members[chain[0]]["has_state"] or context.synced_epoch == context.view["epoch"]:
            return False  # The group begins, or sync() was called by hand.
        handlers = self._tree_handlers()
        able = self._joiners_follow and self._own_ways() and following.able(handlers)
        if context.rank in chain[1:]:
            able &= not self._has_state
        else:
            habitual = self._habits.calm and not self._in_place.reason
            more = all(sampler.remaining > 0 for sampler in self._samplers())
            able &= habitual and more and following.large(handlers)
        reducers = context.reducers()
        layout = [zlib.crc32(r.signature.encode()) + len(r.buckets) for r in reducers[:1]] or [0]
        rows = context.gather_ints([int(able), *layout], "state beside training")
        beside = all(row[0] and row == rows[0] for row in rows)
        _log.debug("state beside training: %s; %s", rows, self._in_place.reason)
        self._followers, self._unwritten = chain[1:] if beside else [], None
        if beside:
            reducers[0].agree()  # Later it would wait for the transfer.
        if beside and self._has_state:
            self._unwritten = in_place.Stamps(following.written_by_steps(handlers))
        return beside

    def _own_ways(self) -> bool:
        """Whether nothing of the user's has a part in the state's coming and going."""
        names = ("sync", "mark_synced", "finish_sync", "give_up_sync", "_after_sync")
        kind = type(self)
        return self._known_ways() and all(
            getattr(kind, name) is getattr(TorchState, name) for name in names)

    def _experience(self) -> dict[str, Any]:
        return {} if self._in_place.reason else {"learnt": self._in_place.learnt}

    def _take_over(self, header: dict[str, Any]) -> None:
        self._in_place.learn_from(header.get("learnt", 0))
        super()._take_over(header)

    def _send(
        self, context: _context.Context, sources: list[int], receivers: list[int], beside: bool
    ) -> None:
        if beside:
            self._make_whole()  # The members write to the live tensors before they are sent.
        super()._send(context, sources, receivers, beside)

    def _receive(
        self, context: _context.Context, sources: list[int], receivers: list[int], beside: bool
    ) -> None:
        self._make_whole()  # What arrives is written over it, and may not arrive completely.
        super()._receive(context, sources, receivers, beside)

    def _follow(
        self, context: _context.Context, sources: list[int], receivers: list[int],
        header: dict[str, Any],
    ) -> None:
        coming = following.Following(self._tree_handlers(), header)
        coming.transfer = context.start_transfer(sources, receivers, coming.buffers)
        for name, value in header["objects"].items():
            setattr(self, name, value)
        coming.prepare()
        self._following, self._version = coming, coming.version
        self._in_place.learn_from(header.get("learnt", 0))

    def _confirm_followers(self) -> None:
        """Before a follower's first step: is its state really that of the others?

        Not if they have written to it between commit and step, as they never did before. Then they
        send it once more. Nothing is written over yet, should somebody die here.

        Raises:
            HorovodInternalError: a member died meanwhile.
        """
        if not self._followers:
            return
        context = _context.current()
        unwritten, self._unwritten = self._unwritten, None
        unlike = unwritten is not None and self._written_since(unwritten)
        rows = context.gather_ints([int(unlike)], "state of followers")
        followers, self._followers = self._followers, []
        if not any(row[0] for row in rows):
            return
        message = (
            "tensors were written between commit() and optimizer.step() while state was sent "
            "beside the training; it is sent again"
        )
        _log.warning("%s", message)
        if context.synced_epoch != self._followed_in:  # The step was finished in another view.
            raise HorovodInternalError(message)
        source = min(set(range(context.size)) - set(followers))
        if context.rank == source:
            kinds = (ModelHandler, OptimizerHandler)
            names = [n for n, h in self._tree_handlers().items() if isinstance(h, kinds)]
            self._send_trees(context, source, followers, names)
        elif context.rank in followers:
            self._receive_trees(context, source, followers)

    def _written_since(self, stamps: in_place.Stamps) -> bool:
        now = following.written_by_steps(self._tree_handlers())
        return not stamps.hold() or frozenset(id(tensor) for tensor in now) != stamps.ids

    def mark_synced(self) -> None:
        if self._following is None:
            super().mark_synced()

    def finish_sync(self) -> None:
        """Takes over the tensors that were to follow.

        Raises:
            HorovodInternalError: a member died meanwhile.
        """
        self._finish_sending()
        self._take_over_tensors()

    def _take_over_tensors(self) -> None:
        coming = self._following
        if coming is None:
            return
        _native.trace_phase("take over")
        context = _context.current()
        context.finish_transfer(coming.transfer, context.runtime.elastic_timeout_s)
        self._following = None
        coming.take()
        self._saved_state = coming.objects
        self._saved(coming.version, False)
        self._has_state = True
        with _native.collective_errors("sync"):
            context.group.set_version(coming.version)
        _native.trace_phase("train")

    def give_up_sync(self) -> None:
        self._sending, self._unwritten = None, None
        self._followers = []
        coming, self._following = self._following, None
        if coming is not None:  # It is as it was made, and will receive all again.
            self._version = 0
            coming.give_up()
            ObjectState.restore(self)
            self._saved(0, False)

    def _finish_sending(self) -> None:
        sending, self._sending = self._sending, None
        context = _context.current_or_none()
        if sending is not None and context is not None:
            context.finish_transfer(sending, context.runtime.elastic_timeout_s)

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            self.finish_sync()
            self._make_whole()
            handlers[name].set_value(value)
            self._attach()
        elif not name.startswith("_") and "_looked_for_unlisted" in self.__dict__:
            self._set_new(name, value)
        object.__setattr__(self, name, value)

    def _set_new(self, name: str, value: Any) -> None:
        """An attribute that the state was not made with: part of it if it has a state itself."""
        if name in self._names or (handler := find_handler(value)) is None:
            return
        if self._has_state:
            raise ValueError(
                f"{name!r} has a state of its own and was set after training began, so those who "
                "join would lack it; pass it to TorchState(...), or keep it outside of the state"
            )
        self._add_handler(name, handler)
        self._attach()

    def _tree_handlers(self) -> dict[str, TreeHandler]:
        return {n: h for n, h in self._handlers.items() if isinstance(h, TreeHandler)}

    def _after_sync(self) -> None:
        for handler in self._handlers.values():
            if not isinstance(handler, TreeHandler):
                handler.sync()
        context = _context.current()
        for sampler in self._samplers():
            sampler.enter_run(str(context.runtime.assignment.get("run", "")))
            sampler.reset()
            sampler.follow(self._followers)
        self._followed_in = context.synced_epoch
        self._habits.entered(context.user_operations)

    def _binding(self) -> Binding:
        return Binding({name: handler.value for name, handler in self._handlers.items()})

    def _before_sync(self) -> None:
        if not self._looked_for_unlisted:
            self._looked_for_unlisted = True
            self._adopt_unlisted()

    def _adopt_unlisted(self) -> None:
        """Takes schedulers in that the user has left out; in a joiner they would start anew."""
        for name, found in unlisted({n: h.value for n, h in self._handlers.items()}).items():
            if name and len(found) == 1:
                _log.info("the scheduler of %s is kept with the state, as if passed to it", name)
                self._add_handler(f"scheduler of {name}", StateDictHandler(found[0]))
                continue
            what = f"{len(found)} schedulers of {name} are" if name else "a GradScaler is"
            message = (
                f"{what} not in the state, so that a worker that joins begins with another scale "
                "or learning rate; pass it to TorchState(..., scheduler=..., scaler=...)"
            )
            _log.warning("%s", message)
            _context.current().runtime.worker.tell("warning", message)

    def _add_handler(self, name: str, handler: StateHandler) -> None:
        self._handlers[name] = handler
        if self._commits is not None:
            self._guard_snapshots(self._commits)
        self._saved(self._version, False)

    def _named_parameters(self) -> dict[str, torch.nn.Parameter]:
        return {
            f"{name}.{path}": param
            for name, handler in self._handlers.items() if isinstance(handler, ModelHandler)
            for path, param in handler.value.named_parameters()
        }

    def _samplers(self) -> list[ElasticSampler]:
        return [h.value for h in self._handlers.values() if isinstance(h, SamplerHandler)]

    def _attach(self) -> None:
        samplers = self._samplers()
        for handler in self._handlers.values():
            value = handler.value
            if isinstance(handler, OptimizerHandler):
                handler.named_parameters = self._named_parameters
            if isinstance(handler, OptimizerHandler) and hasattr(value, "attach_sampler"):
                value.attach_sampler(samplers[0] if len(samplers) == 1 else None)
                value.attach_commits(_Watch(self))


class _Watch:
    """What a DistributedOptimizer tells the state that it belongs to."""

    def __init__(self, state: TorchState) -> None:
        self._state = weakref.ref(state)  # An optimizer outlives a state.

    def before_synchronize(self) -> None:
        """The optimizer is about to wait for gradients, and to write to what they are of."""
        state = self._state()
        if state is not None:
            state._take_over_tensors()  # What is being sent is not waited for yet.

    def before_step(self) -> None:
        """The optimizer is about to write to parameters and its own state."""
        state = self._state()
        if state is not None:
            state._take_over_tensors()
            state._confirm_followers()
            state._in_place.before_step(list(state._tree_handlers().values()))

    def after_step(self) -> None:
        """It has done so."""
        state = self._state()
        if state is not None:
            state._in_place.after_step()

    def before_load(self) -> None:
        """The optimizer is about to load another state."""
        state = self._state()
        if state is not None:
            state.finish_sync()
            state._make_whole()
