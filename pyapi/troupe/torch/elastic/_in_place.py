"""Commits that are held in place: the live tensors are the copy.

A commit must be there bit for bit until the next one. Usually nothing writes to the large tensors
of a step but ``optimizer.step()``, nothing can fail between that and the next ``commit()``, and so
a copy is never read. The first commits of a run are copied, while the program shows whether it is
of this kind; then parameters and optimizer state are left where they are, and only what changes
elsewhere (running statistics, small tensors, plain values) is copied.

    learning --LEARN_COMMITS steps of the known shape--> in place --a departure--> copied, for good

A joiner goes on from what the member that it has its state from has learnt.

A departure is: several steps in a commit, a collective between ``step()`` and ``commit()``, a write
by hand between ``commit()`` and ``step()``, a ``restore()`` by hand. It loses nothing by itself. If
the *first* one of a run also needs the old values, because a member dies in it or the program goes
back, this member has *lost* its commit. It then takes part in the next view with the newest commit
it has whole (one in WHOLE_EVERY is copied), so it receives the lost one from any member that has
it, or a newer one. If none has, all go back to the newest whole one. Never is there a mixture.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from troupe import _native
from troupe.torch import _context
from troupe.torch._tree import nbytes
from troupe.torch.elastic.handlers import (
    ModelHandler,
    OptimizerHandler,
    SamplerHandler,
    StateDictHandler,
    TreeHandler,
)

_log = logging.getLogger("troupe.elastic")

LEARN_COMMITS = 64
WHOLE_EVERY = 32  # commits; a whole one costs about half a step with nothing to compute
LEAST_BYTES = 1 << 20  # a state of less is copied, which costs nothing
_COMPARED = (1, 2, 4, 32)  # learning steps before which the copy is compared with all live bits
_PROBE_BYTES = 256
_KINDS = (ModelHandler, OptimizerHandler, SamplerHandler, StateDictHandler)


class Stamps:
    """Live tensors at a commit: where they lie, how often they were written, some of their bits."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.ids = frozenset(id(t) for t in tensors)
        self._addresses: list[int] = []
        # Writes through `.data` and NumPy do not count the version up, so some bits are looked at.
        self._probes: list[tuple[int, int]] = []
        self._mark: Any = None
        self.take()

    def take(self) -> None:
        """Notes the tensors as they are now."""
        addresses = self._where()
        if addresses != self._addresses:
            self._addresses = addresses
            self._probes = [
                _probe(t) for t in self.tensors if t.device.type == "cpu" and plain(t)]
        self._mark = self._look()

    def hold(self) -> bool:
        """Whether nothing is known to have written to the tensors since."""
        return self._where() == self._addresses and self._look() == self._mark

    def _where(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self.tensors]

    def _look(self) -> tuple[list[int], int]:
        versions = [tensor._version for tensor in self.tensors]
        return versions, int(_native.core().xxh64_of(self._probes))


class InPlace:
    """Decides for one TorchState which commits are copied, and whether the others still stand.

    **Thread:** the one that trains.
    """

    def __init__(self) -> None:
        self.active = False  # The present commit is held in place.
        self.whole_version = 0  # Of the copies that the handlers keep.
        self.reason = ""  # Why commits are copied for good; empty: they need not be.
        self.lost = False  # The present commit was in place and is written over.
        self.learnt = 0  # Steps of the known shape, this member's or those of whom it came from.
        self._stamps = Stamps([])
        self.steps = 0  # Of the optimizer since the commit.
        self._operations = 0  # Of the context, when the last one ended.
        if copies_always():
            self.reason = "TROUPE_COMMIT_COPIES=always"

    # -- around a step --------------------------------------------------------------------------

    def before_step(self, handlers: Sequence[TreeHandler]) -> None:
        """The optimizer is about to write to the tensors."""
        self.steps += 1
        if not self.reason:
            if self.steps > 1:
                self.depart("several steps of the optimizer in one commit")
            elif not self._untouched(handlers):
                self.depart("tensors were written between commit() and optimizer.step()")
        self.lost = self.active  # Until the next commit.

    def after_step(self) -> None:
        """It has."""
        context = _context.current_or_none()
        self._operations = context.operations if context is not None else 0

    def learn_from(self, learnt: int) -> None:
        """Takes over what another member has seen of the same program."""
        self.learnt = max(self.learnt, learnt)

    def depart(self, reason: str) -> None:
        """The program is not of the known shape: from the next commit on all are copied."""
        if not self.reason:
            self.reason = reason
            _log.info("commits are copied from now on: %s", reason)

    def _untouched(self, handlers: Sequence[TreeHandler]) -> bool:
        if not self._stamps.hold():
            return False
        if self.active or self.learnt + 1 not in _COMPARED:
            return True
        left = self._stamps.ids
        return all(
            _same_bits(source, copied)
            for handler in handlers
            for source, copied in zip(
                handler.snapshot.sources, handler.snapshot.buffers, strict=True)
            if id(source) in left
        )

    # -- commits --------------------------------------------------------------------------------

    def choose(self, context: _context.Context, version: int) -> frozenset[int]:
        """The live tensors, by id, that the commit of this version may leave where they are."""
        if self.steps and context.operations != self._operations:
            self.depart("collectives between optimizer.step() and commit()")
        self.learnt += self.steps == 1
        if self.reason or context.replay is None or self.learnt < LEARN_COMMITS:
            return frozenset()
        return self._stamps.ids if version % WHOLE_EVERY else frozenset()

    def committed(self, version: int, in_place: bool, handlers: Sequence[TreeHandler]) -> None:
        """The state is saved as this version, whole or with tensors left in place."""
        if in_place and not self.active:
            _log.debug("version %d is held in place", version)
        self.active, self.lost, self.steps = in_place, False, 0
        if not in_place:
            self.whole_version = version
            # A tensor that the optimizer replaces later is not left in place until looked for anew.
            self._stamps = Stamps([] if self.reason else _coverable(handlers))
        else:
            self._stamps.take()

    def whole(self) -> None:
        """What was in place is copied now."""
        self.active, self.lost = False, False

    def gone_back(self) -> None:
        """The live tensors are those of the commit again."""
        self.steps = 0
        self._stamps.take()

    def usable(self) -> bool:
        """Whether the present commit can be gone back to."""
        return not self.active or (not self.lost and self._stamps.hold())


def _coverable(handlers: Sequence[TreeHandler]) -> list[torch.Tensor]:
    """Tensors that ``step()`` of the one DistributedOptimizer alone should write to."""
    optimizers = [h.value for h in handlers if isinstance(h, OptimizerHandler)]
    if len(optimizers) != 1 or not getattr(optimizers[0], "fails_untouched", False):
        return []
    found: list[torch.Tensor] = []
    for group in optimizers[0].param_groups:
        for param in group["params"]:
            entry = optimizers[0].state.get(param)
            values = entry.values() if isinstance(entry, dict) else ()
            found.extend(v for v in (param, *values) if plain(v))
    return found if sum(nbytes(t) for t in found) >= LEAST_BYTES else []


def plain(value: Any) -> bool:
    """Whether it is a tensor whose memory is all there is of it."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.is_contiguous()
        and value.numel() > 0
    )


def _probe(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and length of the middle of the tensor's memory."""
    size = nbytes(tensor)
    offset = max(0, size - _PROBE_BYTES) // 2 // 64 * 64
    return tensor.data_ptr() + offset, min(_PROBE_BYTES, size - offset)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.device.type != "cpu":
        return torch.equal(a.detach().cpu().view(torch.uint8), b.view(torch.uint8))
    core = _native.core()
    return bool(core.xxh64(a.data_ptr(), nbytes(a)) == core.xxh64(b.data_ptr(), nbytes(b)))


def known(handlers: Sequence[Any]) -> bool:
    """Whether it is known of each handler how it saves and restores."""
    return all(type(handler) in _KINDS for handler in handlers)


def copies_always() -> bool:
    """Whether TROUPE_COMMIT_COPIES asks for a copy in every commit.

    Raises:
        ValueError: it is neither "auto" nor "always".
    """
    text = os.environ.get("TROUPE_COMMIT_COPIES") or "auto"
    if text not in ("auto", "always"):
        raise ValueError(f"TROUPE_COMMIT_COPIES must be auto or always, not {text!r}")
    return text == "always"
