"""How each kind of value in a TorchState is saved, restored and sent.

A handler keeps the snapshot of one value. Snapshots live in host memory, in buffers that are
allocated once and written in place by every commit; while a commit is being written to disk, in a
second set of them. A light snapshot leaves large tensors where they are (``_in_place.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any, Optional

import torch

from troupe.torch._tree import (
    Slot,
    SparseSlot,
    copy_into,
    flatten,
    mark_written,
    same_layout,
    slots,
    structure,
    unflatten,
)
from troupe.torch.elastic._binding import has_state_dict
from troupe.torch.elastic.sampler import ElasticSampler

_PROBE_MIN_NUMEL = 1 << 14
_PROBE_POINTS = 64
MEMBERS = "members"  # In the tree of an optimizer: its parameters by group and name.


class StateHandler:
    """Saves, restores and synchronises one value; subclass it for types of your own.

    ``sync`` is called on all members of a new view and may use collectives.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps the value as it is now."""
        raise NotImplementedError("save")

    def restore(self) -> None:
        """Puts the value back to what was saved."""
        raise NotImplementedError("restore")

    def sync(self) -> None:
        """Makes all members' values equal."""
        raise NotImplementedError("sync")

    def set_value(self, value: Any) -> None:
        """Handles another value from now on."""
        self.value = value
        self.save()


class Snapshot:
    """A copy of a tree of tensors in host memory that is overwritten in place."""

    def __init__(self) -> None:
        self.skeleton: Any = None
        self.buffers: list[torch.Tensor] = []
        self.sources: list[torch.Tensor] = []  # The live tensors behind the buffers.
        self._stamps: list[tuple[int, int]] = []
        self._spare: tuple[list[torch.Tensor], list[tuple[int, int]]] = ([], [])
        self.taken = False
        # Whether nobody reads these buffers any more; the spare ones then are free in any case.
        self.may_overwrite: Optional[Callable[[list[torch.Tensor]], bool]] = None

    def save(self, tree: Any) -> None:
        """Copies the tree; tensors of known layout go into the buffers that are there."""
        self.save_flat(*flatten(tree))

    def save_flat(self, skeleton: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Copies a tree that is taken apart."""
        if self.buffers and self.may_overwrite and not self.may_overwrite(self.buffers):
            taken = (self.buffers, self._stamps)
            (self.buffers, self._stamps), self._spare = self._spare, taken
        if not same_layout(self.buffers, tensors):
            self.buffers = [_host_buffer(t) for t in tensors]
            self._stamps = [(-1, -1)] * len(tensors)
        changed = [i for i, t in enumerate(tensors) if not self._unchanged(i, t)]
        copy_into([self.buffers[i] for i in changed], [tensors[i] for i in changed])
        self._stamps = [(t.data_ptr(), t._version) for t in tensors]
        self.sources = list(tensors)
        self.skeleton = skeleton
        self.taken = True

    def adopt(
        self, skeleton: Any, buffers: list[torch.Tensor], sources: Sequence[torch.Tensor]
    ) -> None:
        """Takes buffers that hold a copy of ``sources`` for its own."""
        self.skeleton, self.buffers, self.sources = skeleton, buffers, list(sources)
        self._stamps = [(t.data_ptr(), t._version) for t in sources]
        self._spare = ([], [])
        self.taken = True

    def _unchanged(self, index: int, tensor: torch.Tensor) -> bool:
        """Whether a frozen parameter surely is what the buffer holds.

        Autograd's version counter misses writes through ``.data`` and by some kernels, so it is
        trusted only for large frozen parameters and together with a probe of their values.
        """
        if tensor.numel() < _PROBE_MIN_NUMEL or tensor.requires_grad:
            return False
        if not isinstance(tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
            return False
        if self._stamps[index] != (tensor.data_ptr(), tensor._version):
            return False
        stride = max(1, tensor.numel() // _PROBE_POINTS)
        mine = tensor.detach().reshape(-1)[::stride]
        return bool(torch.equal(mine, self.buffers[index].reshape(-1)[::stride]))


class LightSnapshot:
    """A copy of a tree except for tensors that nobody is to write to; those stay where they are."""

    def __init__(self) -> None:
        self.skeleton: Any = None
        self.tensors: list[torch.Tensor] = []  # Copies, or the live tensors themselves.
        self._copies = Snapshot()

    def save(self, tree: Any, left: Collection[int]) -> None:
        """Copies all tensors but those whose ``id`` is in ``left``."""
        self.skeleton, live = flatten(tree)
        self._copies.save_flat(None, [t for t in live if id(t) not in left])
        copies = iter(self._copies.buffers)
        self.tensors = [t if id(t) in left else next(copies) for t in live]


def _host_buffer(tensor: torch.Tensor) -> torch.Tensor:
    pinned = tensor.device.type == "cuda"
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)


def host_buffers(skeleton: Any) -> list[torch.Tensor]:
    """Memory for the tensors of a skeleton."""
    pinned = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [torch.empty(s.shape, dtype=s.dtype, pin_memory=pinned) for s in slots(skeleton)]


class TreeHandler(StateHandler):
    """A value whose state is a tree of tensors and plain values."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.snapshot = Snapshot()
        self._light = LightSnapshot()
        self.in_place = False  # What is saved is the light snapshot.
        self.save()

    def live_tree(self) -> Any:
        """The value's state; its tensors are the live ones."""
        raise NotImplementedError("live_tree")

    def load_tree(self, tree: Any) -> None:
        """Takes over a state of any layout; the tensors are the handler's to keep."""
        raise NotImplementedError("load_tree")

    def apply_plain(self, skeleton: Any) -> None:
        """Takes over the plain values of a skeleton of the live layout."""

    def save(self) -> None:
        self.snapshot.save(self.live_tree())
        self.in_place = False

    def save_in_place(self, left: Collection[int]) -> None:
        """Saves, but leaves the tensors of these ids where they are, unwritten until restored."""
        self._light.save(self.live_tree(), left)
        self.in_place = True

    def make_whole(self) -> None:
        """Copies what was left in place; nobody may have written to it."""
        if self.in_place:
            self.snapshot.save_flat(self._light.skeleton, self._light.tensors)
            self.in_place = False

    def back_to_whole(self) -> None:
        """Takes the last whole snapshot for the newest."""
        self.in_place = False

    def restore(self) -> None:
        if not self.snapshot.taken:
            return
        skeleton = (self._light if self.in_place else self.snapshot).skeleton
        saved = self._light.tensors if self.in_place else self.snapshot.buffers
        live = self.in_place_targets(skeleton)
        if live is None:
            copies = [tensor.detach().clone() for tensor in saved]
            self.load_tree(unflatten(copy.deepcopy(skeleton), copies))
            return
        pairs = [(t, s.detach()) for t, s in zip(live, saved, strict=True)
                 if t.data_ptr() != s.data_ptr()]
        copy_into([t for t, _ in pairs], [s for _, s in pairs])
        self.apply_plain(copy.deepcopy(skeleton))

    def room(self, skeleton: Any) -> list[torch.Tensor]:
        """Memory for the tensors of a tree until ``take``."""
        return host_buffers(skeleton)

    def prepare(self, skeleton: Any) -> None:
        """Takes over what a step begins with; the tensors of the tree follow with ``take``."""

    def give_up(self) -> None:
        """What was to be taken does not come: the value is again as it was made."""
        self.restore()

    def take(self, skeleton: Any, buffers: list[torch.Tensor]) -> None:
        """Takes over the tensors of a tree, and their memory for the copy of the last commit."""
        live = self.in_place_targets(skeleton)
        if live is not None:  # Else it was changed by hand since, by all: then it is sent again.
            copy_into(live, buffers)
            for tensor in live:
                mark_written(tensor)
        self.snapshot.adopt(skeleton, buffers, flatten(self.live_tree())[1])
        self.in_place = False

    def sync(self) -> None:
        """Nothing to do: the state sends trees by itself, to those that need them."""

    def in_place_targets(self, skeleton: Any) -> Optional[list[torch.Tensor]]:
        """Live tensors that match the skeleton one by one, or None when the layouts differ."""
        live_skeleton, tensors = flatten(self.live_tree())
        if structure(live_skeleton) != structure(skeleton):
            return None
        return [t.detach() for t in tensors]


class ModelHandler(TreeHandler):
    """A ``torch.nn.Module``: parameters, buffers, extra state."""

    def live_tree(self) -> Any:
        return self.value.state_dict(keep_vars=True)

    def room(self, skeleton: Any) -> list[torch.Tensor]:
        # The copies of a model that has not begun: the live tensors are the same until ``take``.
        mine, wanted = self.snapshot.buffers, slots(skeleton)
        fits = len(mine) == len(wanted) and all(
            tuple(b.shape) == slot.shape and b.dtype == slot.dtype
            for b, slot in zip(mine, wanted, strict=True)
        )
        return mine if fits else host_buffers(skeleton)

    def give_up(self) -> None:
        self.snapshot.buffers = []  # Something may still arrive in these.
        self.save()

    def load_tree(self, tree: Any) -> None:
        self.value.load_state_dict(tree)


class OptimizerHandler(TreeHandler):
    """A ``torch.optim.Optimizer``: state per parameter, hyperparameters, groups added later.

    The groups that it was made with all members have. Once there are others a tree says by name
    which parameters each has.
    """

    def __init__(self, value: Any) -> None:
        self._made = _groups_of(value)
        # The parameters of the state's modules by name, if this belongs to a state.
        self.named_parameters: Callable[[], dict[str, torch.nn.Parameter]] = dict
        self._names: tuple[list[list[torch.Tensor]], Any] = ([], None)
        super().__init__(value)

    def set_value(self, value: Any) -> None:
        self._made = _groups_of(value)
        super().set_value(value)

    def live_tree(self) -> Any:
        tree = self.value.state_dict()
        groups = _groups_of(self.value)
        if not _same_parameters(groups, self._made):
            if not _same_parameters(groups, self._names[0]):
                self._names = (groups, self._name(groups))
            tree[MEMBERS] = self._names[1]
        return tree

    def _name(self, groups: list[list[torch.Tensor]]) -> list[list[tuple[str, bool]]]:
        names = {id(p): name for name, p in self.named_parameters().items()}
        for number, group in enumerate(groups):
            for p in group:
                if id(p) not in names:
                    raise ValueError(
                        f"group {number} of the optimizer was added after the state was made and "
                        f"has a parameter of shape {tuple(p.shape)} that is in no module of the "
                        "state; pass that module to TorchState(...) too"
                    )
        return [[(names[id(p)], p.requires_grad) for p in group] for group in groups]

    def load_tree(self, tree: Any) -> None:
        self._take_members(tree)
        self.value.load_state_dict({k: v for k, v in tree.items() if k != MEMBERS})

    def _take_members(self, tree: Any) -> None:
        """Makes the groups have the parameters that the tree is of."""
        wanted = self._made
        if MEMBERS in tree:
            named = self.named_parameters()
            wanted = [[named[name].requires_grad_(flag) for name, flag in group]
                      for group in tree[MEMBERS]]
        if _same_parameters(_groups_of(self.value), wanted):
            return
        groups = [{**self.value.defaults, **old} for old in self.value.param_groups[:len(wanted)]]
        groups += [dict(self.value.defaults) for _ in wanted[len(groups):]]
        for group, params in zip(groups, wanted, strict=True):
            group["params"] = list(params)  # All else the tree has.
        rebuild = getattr(self.value, "set_param_groups", None)
        if rebuild is not None:
            rebuild(groups)
            return
        self.value.param_groups[:] = groups
        kept = {id(p) for group in wanted for p in group}
        for param in [p for p in self.value.state if id(p) not in kept]:
            del self.value.state[param]

    def in_place_targets(self, skeleton: Any) -> Optional[list[torch.Tensor]]:
        if self.live_tree().get(MEMBERS) != skeleton.get(MEMBERS):
            return None
        return super().in_place_targets(skeleton)

    def restore(self) -> None:
        self.abandon_step()
        super().restore()

    def abandon_step(self) -> None:
        """Drops gradients in flight of a DistributedOptimizer."""
        abandon = getattr(self.value, "abandon_step", None)
        if abandon is not None:
            abandon()

    def prepare(self, skeleton: Any) -> None:
        # Its state has the right layout from now on: loading drops gradients that are in flight.
        if self.in_place_targets(skeleton) is None:
            # Zeros: the memory is touched for the first time here, where nobody waits for it.
            zeros = [torch.zeros(slot.shape, dtype=slot.dtype) for slot in slots(skeleton)]
            self.load_tree(unflatten(copy.deepcopy(skeleton), zeros))
        else:
            self.apply_plain(copy.deepcopy(skeleton))

    def apply_plain(self, skeleton: Any) -> None:
        for group, saved in zip(self.value.param_groups, skeleton["param_groups"], strict=True):
            group.update({k: v for k, v in saved.items() if k != "params" and not _has_slot(v)})
        params = [p for group in self.value.param_groups for p in group["params"]]
        ids = [i for saved in skeleton["param_groups"] for i in saved["params"]]
        for index, param in zip(ids, params, strict=True):
            saved = skeleton["state"].get(index, {})
            if isinstance(saved, dict) and saved:
                plain = {k: v for k, v in saved.items() if not _has_slot(v)}
                self.value.state[param].update(plain)


def _groups_of(optimizer: Any) -> list[list[torch.Tensor]]:
    return [list(group["params"]) for group in optimizer.param_groups]


def _same_parameters(a: list[list[torch.Tensor]], b: list[list[torch.Tensor]]) -> bool:
    return len(a) == len(b) and all(
        len(x) == len(y) and all(p is q for p, q in zip(x, y, strict=True))
        for x, y in zip(a, b, strict=True)
    )


class StateDictHandler(TreeHandler):
    """A learning-rate scheduler, a ``GradScaler``, or anything else with ``state_dict()``.

    The object stays the one that it is, bound to what it is bound to; its state is loaded.
    """

    def live_tree(self) -> Any:
        return self.value.state_dict()

    def load_tree(self, tree: Any) -> None:
        self.value.load_state_dict(tree)
        # Which optimizers a scaler has unscaled belongs to a step that is not finished.
        unfinished = getattr(self.value, "_per_optimizer_states", None)
        if isinstance(unfinished, dict):
            unfinished.clear()

    def in_place_targets(self, skeleton: Any) -> Optional[list[torch.Tensor]]:
        return None  # What state_dict() returned may be copies: all is loaded.

    def prepare(self, skeleton: Any) -> None:
        if not slots(skeleton):
            self.load_tree(copy.deepcopy(skeleton))

    def take(self, skeleton: Any, buffers: list[torch.Tensor]) -> None:
        if buffers:
            self.load_tree(unflatten(copy.deepcopy(skeleton), [b.clone() for b in buffers]))
        self.snapshot.adopt(skeleton, buffers, [])
        self.in_place = False


class SamplerHandler(TreeHandler):
    """An :class:`ElasticSampler`: its data epoch and ledger."""

    def prepare(self, skeleton: Any) -> None:
        self.value.load_state_dict(skeleton)

    def take(self, skeleton: Any, buffers: list[torch.Tensor]) -> None:
        self.snapshot.adopt(skeleton, buffers, [])  # Steps may have been leased since.
        self.in_place = False

    def live_tree(self) -> Any:
        return self.value.state_dict()

    def load_tree(self, tree: Any) -> None:
        self.value.load_state_dict(tree)

    def apply_plain(self, skeleton: Any) -> None:
        self.value.load_state_dict(skeleton)


def _has_slot(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_slot(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_slot(v) for v in value)
    return isinstance(value, (Slot, SparseSlot))


Registry = Sequence[tuple[type, type[StateHandler]]]

_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelHandler),
    (torch.optim.Optimizer, OptimizerHandler),
    (ElasticSampler, SamplerHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """The pairs (type, handler class) that TorchState looks values up in, first match wins."""
    return list(_registry)


def set_handler_registry(registry: Registry) -> None:
    """Replaces the registry; states made afterwards use it."""
    _registry[:] = list(registry)


def find_handler(value: Any) -> Optional[StateHandler]:
    """A new handler for the value, None if it is a plain one.

    That is of the first type of the registry that matches, else of any object with
    ``state_dict()`` and ``load_state_dict()``.
    """
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return StateDictHandler(value) if has_state_dict(value) else None


Handlers = dict[str, StateHandler]
