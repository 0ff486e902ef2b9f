"""A sampler over a group whose size changes: every sample is counted in exactly one committed step.

The data epoch is a seeded permutation. Each step leases the next samples of it, shared among the
ranks; ``state.commit()`` makes what was leased part of the committed samples. When members come or
go, the next step goes on with what is not committed, whatever was in flight. The share of a rank
that died in a step which the others completed goes back, and is leased before all others.

Every rank makes the same number of steps. A rank without a share of the last one gets a *ghost*:
one sample that is computed, so that nobody stalls, and counted with weight zero.
"""

from __future__ import annotations

import collections
import math
import sys
import threading
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Optional

import torch
from torch.utils.data import Sampler

from troupe import _native
from troupe.errors import TroupeError
from troupe.torch import _context
from troupe.torch.elastic._ahead import ReadAhead, reading_ahead

Range = tuple[int, int]  # [begin, end) positions of the permutation


class Batch(list):
    """The indices of one rank's share of a step. ``counted`` is 0 for a ghost, else its length.

    ``step_size`` is the number of samples of the whole step, ``lost_ranks`` are those that died in
    it: after ``optimizer.step()`` their samples are not part of the step.
    """

    def __init__(self, indices: Sequence[int], counted: int, step_size: int) -> None:
        super().__init__(indices)
        self.counted = counted
        self.step_size = step_size
        self.lost_ranks: tuple[int, ...] = ()

    @property
    def ghost(self) -> bool:
        """Whether this rank has no share of the step."""
        return self.counted == 0


class ElasticSampler(Sampler):
    """Shares a dataset among the present members, exactly.

    Preferred use, where every step is leased and weighted by what it counts::

        for indices in elastic.batches(state.sampler, batch_size):
            ...
            optimizer.step()
            state.commit()

    It also works as Horovod's does, given to a DataLoader, with ``record_batch`` after each batch;
    without ``set_epoch`` such a loader gives the same epoch again. Give ``batch_size`` then too,
    equal to the DataLoader's: without it the last step of an epoch is padded on ranks that are
    short of a sample, as in Horovod, though counted once.

    Its length stays as it was when the epoch or the view began, so that what divides by it, such as
    a warm-up of the learning rate, does so evenly.

    Args:
        dataset: anything with a length.
        shuffle: permute anew in each data epoch.
        seed: of the permutations; equal on all ranks.
        batch_size: samples per rank and step.

    Raises:
        TypeError, ValueError: the dataset has no length, or ``batch_size`` is not positive.
    """

    def __init__(
        self, dataset: Sized, shuffle: bool = True, seed: int = 0, batch_size: Optional[int] = None
    ) -> None:
        if not hasattr(dataset, "__len__"):
            raise TypeError(f"dataset must have a length, {type(dataset).__name__} has none")
        if batch_size is not None:
            _check_batch_size(batch_size)
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.batch_size = batch_size
        self.epoch = 0
        self.rank = 0
        self.num_replicas = 1
        self._samples = len(dataset)
        self._trained = 0  # Samples committed over all data epochs,
        self._trained_before = 0  # those of them that earlier runs have committed,
        self._run = ""  # and the run that came after them.
        self._ledger = _native.core().SampleLedger(self._samples)
        self._ledger.begin_epoch(0)
        self._counts: collections.deque[tuple[int, int]] = collections.deque(maxlen=1024)
        self._by_lease = False
        self._ahead: Optional[ReadAhead] = None  # Of the loader with workers that is in use.
        self._trainer: Optional[int] = None  # The thread that commits.
        self._followers: frozenset[int] = frozenset()
        self._forget_leases()
        self._order: Optional[list[int]] = None
        self._planned = self._samples  # What the length goes by: left when epoch or view began.
        self._recorded = False  # Steps by record_batch() since then.
        self.reset()

    # -- progress -------------------------------------------------------------------------------

    @property
    def processed_num(self) -> int:
        """Samples of this data epoch that are committed or recorded."""
        self._catch_up()
        return int(self._ledger.committed) + self._drawn - _length(self._returned)

    @property
    def remaining(self) -> int:
        """Samples of this data epoch that no step has leased."""
        return self._samples - self.processed_num

    @property
    def remaining_indices(self) -> list[int]:
        """The samples that no step has leased, in the order in which they will be."""
        return _pick(self.permutation(), self._rest())

    @property
    def num_samples(self) -> int:
        """This rank's samples of the epoch, from where that or the view began: its length."""
        return len(self)

    @property
    def total_size(self) -> int:
        """Those of all ranks, as if each had as many."""
        return len(self) * self.num_replicas

    @property
    def trained_num(self) -> int:
        """Samples of steps that this run has committed, over all data epochs."""
        return self._trained - self._trained_before

    def enter_run(self, run: str) -> None:
        """What is committed is of earlier runs, unless this one was entered before."""
        if run != self._run:
            self._run, self._trained_before = run, self._trained

    def set_epoch(self, epoch: int) -> None:
        """Begins a data epoch. Naming the present one again keeps it, as after members have come or
        gone, unless it is exhausted or steps of it were recorded since: then, as with Horovod,
        which has this called at the end of an epoch, it begins anew.
        """
        if epoch == self.epoch and self.remaining > 0 and not self._recorded:
            return
        self.epoch = epoch
        self._retire_ahead()
        self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        self._ledger.begin_epoch(epoch)
        self._forget_leases()
        self._counts.clear()
        self._order = None
        self._planned, self._recorded = self._samples, False

    def _forget_leases(self) -> None:
        """Nothing is leased, or all of it is committed."""
        self._drawn = 0  # samples leased from the ledger
        self._returned: list[Range] = []  # of these, what dead ranks have given back
        # What each rank got in the steps that may still be interrupted, and how many of these
        # leases the optimizer has not stepped with.
        self._shares: collections.deque[list[list[Range]]] = collections.deque(maxlen=1024)
        self._batches: collections.deque[Batch] = collections.deque(maxlen=1024)
        self._unstepped = 0

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Counts the step that all ranks have just made with DataLoader batches of ``batch_size``.

        Not needed with :func:`batches`, which counts by itself. ``batch_idx`` is unused.
        """
        _check_batch_size(batch_size)
        if self.batch_size is not None and batch_size > self.batch_size:
            raise ValueError(
                f"record_batch got batch_size {batch_size}, but the sampler was made for "
                f"{self.batch_size}; give the DataLoader and the sampler the same batch_size"
            )
        if self.remaining == 0:
            return
        self._recorded = True
        self._lease(self._next_sizes(self.batch_size or batch_size, self.remaining))

    def commit(self) -> None:
        """Makes what was leased part of the committed samples; ``state.commit()`` calls it."""
        self._trainer = threading.get_ident()
        self._catch_up()
        if self._drawn:
            self._trained += self._drawn - _length(self._returned)
            self._ledger.commit(self._ledger.next_step, self._returned)
            self._forget_leases()

    @property
    def by_lease(self) -> bool:
        """Whether the present step's samples are those of :func:`batches`, one step at a time."""
        return self._by_lease and self._ahead is None

    def follow(self, ranks: Sequence[int]) -> None:
        """Leaves these ranks, whose state is on its way, without a share of the next step."""
        self._followers = frozenset(ranks)

    def reset(self) -> None:
        """Takes over rank and size of the present view."""
        context = _context.current_or_none()
        if context is not None and not context.provisional:
            self.rank, self.num_replicas = context.rank, context.size
        self._counts.clear()
        self._by_lease = False
        self._followers = frozenset()
        self._retire_ahead()
        done = int(self._ledger.committed) + self._drawn - _length(self._returned)
        self._planned, self._recorded = self._samples - done, False

    def state_dict(self) -> dict[str, Any]:
        """Horovod's ``epoch`` and ``processed_num``, and the ledger."""
        state: dict[str, Any] = {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "ledger": bytes(self._ledger.state()),
            "trained": (self._trained + self._drawn - _length(self._returned),
                        self._trained_before, self._run),
        }
        if self._returned:
            state["returned"] = list(self._returned)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues where ``state_dict()`` was taken; Horovod's form without a ledger works too."""
        self.epoch = int(state_dict["epoch"])
        processed = int(state_dict["processed_num"])
        if not 0 <= processed <= self._samples:
            raise ValueError(
                f"the sampler's state counts {processed} samples, the dataset has {self._samples}"
            )
        whole = self.epoch * self._samples + processed
        trained = state_dict.get("trained", (whole, whole, ""))
        self._trained, self._trained_before, self._run = trained
        self._begin(self.epoch)
        if state_dict.get("ledger"):
            self._ledger.load(state_dict["ledger"])
        returned = [(int(begin), int(end)) for begin, end in state_dict.get("returned", ())]
        extra = processed - int(self._ledger.committed) + _length(returned)
        if extra > 0:
            self._ledger.lease(self._ledger.next_step, [extra])
            self._ledger.commit(self._ledger.next_step, returned)
        self.reset()

    # -- shares ---------------------------------------------------------------------------------

    def _next_sizes(self, batch_size: int, remaining: int) -> list[int]:
        """How many samples each rank takes in a step when ``remaining`` are left."""
        takers = [rank for rank in range(self.num_replicas) if rank not in self._followers]
        share, more = divmod(min(remaining, batch_size * len(takers)), len(takers))
        sizes = [0] * self.num_replicas
        for place, rank in enumerate(takers):
            sizes[rank] = share + (place < more)
        return sizes

    def _lease(self, sizes: list[int]) -> list[Range]:
        """Leases a step's samples after what is leased already; this rank's ranges."""
        reused, self._returned = _split(self._returned, sum(sizes))
        fresh = sum(sizes) - _length(reused)
        # One lease holds all steps since the last commit; it gives the earlier ones the same again.
        rest = reused + self._ledger.lease(self._ledger.next_step, [self._drawn, fresh])[1]
        self._drawn += fresh
        shares = []
        for size in sizes:
            share, rest = _split(rest, size)
            shares.append(share)
        self._shares.append(shares)
        self._unstepped += 1
        return shares[self.rank]

    def _rest(self) -> list[Range]:
        """What no step has leased, in the order in which it will be."""
        return self._returned + _split(self._ledger.pool(), self._drawn)[1]

    # -- interrupted steps ----------------------------------------------------------------------

    def step_leased(self, passes: int) -> bool:
        """Whether the step under way has exactly the samples of the last ``passes`` leases."""
        leased_alone = len(self._batches) == len(self._shares) == passes
        return self.by_lease and self._unstepped == passes and leased_alone

    def lease_key(self) -> tuple[int, int, int]:
        """Names the last lease, alike on all ranks."""
        return self.epoch, int(self._ledger.committed), self._drawn

    def note_step(self) -> None:
        """The optimizer has the gradients of all leases so far."""
        self._catch_up()
        self._unstepped = 0
        self._followers = frozenset()
        self._shares.clear()
        self._batches.clear()

    def finish_without(self, lost: Sequence[int], rank: int, size: int) -> int:
        """The step under way was completed without the samples of these ranks, which go back.

        ``rank`` and ``size`` are those of the next lease. Returns how many samples went back.
        """
        before = _length(self._returned)
        for shares, batch in zip(self._shares, self._batches, strict=True):
            for lost_rank in lost:
                self._returned.extend(shares[lost_rank])
                batch.step_size -= _length(shares[lost_rank])
            batch.lost_ranks = tuple(lost)
        self._returned.sort()
        self.rank, self.num_replicas = rank, size
        return _length(self._returned) - before

    # -- order ----------------------------------------------------------------------------------

    def permutation(self) -> list[int]:
        """The order of this data epoch, the same on all ranks."""
        if self._order is None:
            if self.shuffle:
                generator = torch.Generator()
                generator.manual_seed((self.seed + self.epoch) % (1 << 63))
                self._order = torch.randperm(self._samples, generator=generator).tolist()
            else:
                self._order = list(range(self._samples))
        return self._order

    def lease_batches(self, batch_size: int) -> Iterator[Batch]:
        """The rest of the data epoch, each step leased when it is taken; see :func:`batches`."""
        self._catch_up()
        self._ahead, self._by_lease = None, True
        while self.remaining > 0:
            yield self._lease_batch(batch_size)
        self._by_lease = False

    def _lease_batch(self, batch_size: int) -> Batch:
        order = self.permutation()
        remaining = self._samples - int(self._ledger.committed) - self._drawn
        sizes = self._next_sizes(batch_size, remaining + _length(self._returned))
        share = self._lease(sizes)
        counted = _length(share)
        self._counts.append((counted, batch_size))
        batch = Batch(_pick(order, share) if counted else order[:1], counted, sum(sizes))
        self._batches.append(batch)
        return batch

    def read_ahead(self, loader: Any, batch_size: int) -> Iterator[list[int]]:
        """The rest of the data epoch for a loader, each step leased when the loader gives it out.

        Raises:
            ValueError: the loader does not keep the order.
        """
        self._catch_up()
        self._ahead = ahead = ReadAhead(loader, batch_size)
        return ahead.draw(self.plan_batches(batch_size))

    def _retire_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.retire()

    def _catch_up(self) -> None:
        """Leases what a loader that reads ahead has given out meanwhile.

        Raises:
            TroupeError: it gives out what it has read before the members changed.
        """
        ahead = self._ahead
        for batch in () if ahead is None else ahead.given():
            assert ahead is not None
            self._by_lease = True
            if list(self._lease_batch(ahead.batch_size)) != list(batch):
                raise TroupeError(
                    "the sampler was used in another way while a DataLoader read ahead; give each "
                    "data epoch to one loader alone"
                )

    def plan_batches(self, batch_size: int) -> Iterator[Batch]:
        """The rest of the data epoch without leasing, for loaders that read ahead."""
        order = self.permutation()
        self._by_lease = False
        self._catch_up()
        rest = self._rest()
        while rest:
            sizes = self._next_sizes(batch_size, _length(rest))
            step, rest = _split(rest, sum(sizes))
            mine = _split(_split(step, sum(sizes[:self.rank]))[1], sizes[self.rank])[0]
            yield Batch(_pick(order, mine) if mine else order[:1], _length(mine), sum(sizes))

    def step_weight(self, passes: int) -> float:
        """This rank's counted samples in the present step over the nominal number; 1 if unknown."""
        self._catch_up()
        if self.rank in self._followers:
            return 0.0
        if self._by_lease:
            recent = list(self._counts)[-passes:]
            if recent:
                return sum(count / nominal for count, nominal in recent) / len(recent)
        if self.batch_size is not None and self.remaining > 0:
            counted = self._next_sizes(self.batch_size, self.remaining)[self.rank]
            return counted / self.batch_size
        return 1.0

    # -- as a sampler of torch ------------------------------------------------------------------

    def _once_more(self) -> None:
        """Begins the epoch again that was stepped through by ``record_batch``."""
        if self._recorded and self.remaining == 0:
            self._begin(self.epoch)

    def __iter__(self) -> Iterator[int]:
        self._once_more()
        if self.batch_size is not None:
            for batch in self.plan_batches(self.batch_size):
                yield from batch
            return
        # Without a batch size a strided share: after any number of full steps of any batch size
        # what all ranks have taken is a prefix of the permutation.
        order = self.permutation()
        self._counts.clear()
        self._by_lease = False
        mine = _pick(order, self._rest())[self.rank::self.num_replicas]
        yield from mine
        if len(mine) < math.ceil(self.remaining / self.num_replicas):
            yield order[-1]

    def __len__(self) -> int:
        if self.batch_size is None:
            return math.ceil(self._planned / self.num_replicas)
        full, rest = divmod(self._planned, self.batch_size * self.num_replicas)
        if rest == 0:
            return full * self.batch_size
        last = self._next_sizes(self.batch_size, rest)[self.rank]
        return full * self.batch_size + max(1, last)


class ElasticBatchSampler(Sampler):
    """Batches of an :class:`ElasticSampler` for ``DataLoader(batch_sampler=...)``.

    Call ``sampler.record_batch(batch_idx, batch_size)`` after each step.
    """

    def __init__(self, sampler: ElasticSampler, batch_size: int) -> None:
        _check_batch_size(batch_size)
        if sampler.batch_size not in (None, batch_size):
            raise ValueError(
                f"the sampler was made for batch_size {sampler.batch_size}, not {batch_size}"
            )
        sampler.batch_size = batch_size
        self.sampler = sampler
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Batch]:
        self.sampler._once_more()
        return self.sampler.plan_batches(self.batch_size)

    def __len__(self) -> int:
        return math.ceil(
            self.sampler._planned / (self.batch_size * self.sampler.num_replicas)
        )


class Batches:
    """What :func:`batches` returns: to step through, or as ``DataLoader(batch_sampler=...)``."""

    def __init__(self, sampler: ElasticSampler, batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self._leases: Optional[Iterator[Batch]] = None

    def __iter__(self) -> Iterator[list[int]]:
        loader = reading_ahead(sys._getframe(1))
        return self if loader is None else self.sampler.read_ahead(loader, self.batch_size)

    def __next__(self) -> Batch:
        trainer = self.sampler._trainer
        if trainer is not None and trainer != threading.get_ident():
            raise TroupeError(
                "batches() was read by another thread than the one that commits, which may be "
                "ahead of it; use DataLoader(batch_sampler=batches(...), num_workers=N) to read "
                "ahead"
            )
        if self._leases is None:
            self._leases = self.sampler.lease_batches(self.batch_size)
        try:
            return next(self._leases)
        except StopIteration:
            self._leases = None
            raise

    def __len__(self) -> int:
        """Steps from where the data epoch or the view began to the end of the epoch."""
        step = self.batch_size * self.sampler.num_replicas
        return math.ceil(self.sampler._planned / step)


def batches(sampler: ElasticSampler, batch_size: Optional[int] = None) -> Batches:
    """Steps through the rest of the data epoch: this rank's indices for each step.

    All ranks get equally many steps; see :class:`Batch` for ghosts. A step is counted by the next
    ``state.commit()``. Take a batch only when the step before is done: this does not read ahead.
    A ``DataLoader(batch_sampler=batches(...), num_workers=N)`` does, and its batches count when it
    gives them out; make its iterator anew in each call of the training function.

    Args:
        sampler: the state's sampler.
        batch_size: samples per rank and step; default: the sampler's.
    """
    batch_size = batch_size if batch_size is not None else sampler.batch_size
    if batch_size is None:
        raise ValueError("batches() needs a batch_size, here or in ElasticSampler(...)")
    _check_batch_size(batch_size)
    return Batches(sampler, batch_size)


def _length(ranges: Sequence[Range]) -> int:
    return sum(end - begin for begin, end in ranges)


def _split(ranges: Sequence[Range], size: int) -> tuple[list[Range], list[Range]]:
    """The first ``size`` positions, or all if there are fewer, and the others."""
    front: list[Range] = []
    for index, (begin, end) in enumerate(ranges):
        part = min(size, end - begin)
        if part:
            front.append((begin, begin + part))
        size -= part
        if begin + part < end:
            return front, [(begin + part, end), *ranges[index + 1:]]
    return front, []


def _pick(order: Sequence[int], ranges: Sequence[Range]) -> list[int]:
    return [index for begin, end in ranges for index in order[begin:end]]


def _check_batch_size(batch_size: Any) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be an int of at least 1, not {batch_size!r}")
