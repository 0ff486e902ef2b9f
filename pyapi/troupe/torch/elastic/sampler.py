"""A sampler over a group whose size changes: every sample is counted in exactly one committed step.

The data epoch is a seeded permutation. Each step leases the next range of it, shared among the
ranks; ``state.commit()`` makes the leased range part of the committed prefix. When members come or
go, the next step starts right after that prefix, whatever was in flight.

Every rank makes the same number of steps. A rank without a share of the last one gets a *ghost*:
one sample that is computed, so that nobody stalls, and counted with weight zero.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Optional

import torch
from torch.utils.data import Sampler

from troupe import _native
from troupe.torch import _context


class Batch(list):
    """The indices of one rank's share of a step. ``counted`` is 0 for a ghost, else its length."""

    def __init__(self, indices: Sequence[int], counted: int, step_size: int) -> None:
        super().__init__(indices)
        self.counted = counted
        self.step_size = step_size

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

    It also works as Horovod's does, given to a DataLoader, with ``record_batch`` after each batch.
    Give ``batch_size`` then too, equal to the DataLoader's: without it the last step of an epoch is
    padded on ranks that are short of a sample, as in Horovod, though counted once.

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
        self._ledger = _native.core().SampleLedger(self._samples)
        self._ledger.begin_epoch(0)
        self._pending = 0
        self._counts: collections.deque[tuple[int, int]] = collections.deque(maxlen=1024)
        self._by_lease = False
        self._order: Optional[list[int]] = None
        self.reset()

    # -- progress -------------------------------------------------------------------------------

    @property
    def processed_num(self) -> int:
        """Samples of this data epoch that are committed or recorded."""
        return int(self._ledger.committed) + self._pending

    @property
    def remaining(self) -> int:
        """Samples of this data epoch that no step has leased."""
        return self._samples - self.processed_num

    def set_epoch(self, epoch: int) -> None:
        """Begins a data epoch; naming the present one again keeps it unless it is exhausted."""
        if epoch == self.epoch and self.remaining > 0:
            return
        self.epoch = epoch
        self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        self._ledger.begin_epoch(epoch)
        self._pending = 0
        self._counts.clear()
        self._order = None

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
        self._lease(self._next_sizes(self.batch_size or batch_size, self.remaining))

    def commit(self) -> None:
        """Makes what was leased part of the committed prefix; ``state.commit()`` calls it."""
        if self._pending:
            self._ledger.commit(self._ledger.committed)
            self._pending = 0

    def reset(self) -> None:
        """Takes over rank and size of the present view."""
        context = _context.current_or_none()
        if context is not None and not context.provisional:
            self.rank, self.num_replicas = context.rank, context.size
        self._counts.clear()
        self._by_lease = False

    def state_dict(self) -> dict[str, Any]:
        """Horovod's ``epoch`` and ``processed_num``, and the ledger."""
        return {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "ledger": bytes(self._ledger.state()),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues where ``state_dict()`` was taken; Horovod's form without a ledger works too."""
        self.epoch = int(state_dict["epoch"])
        processed = int(state_dict["processed_num"])
        if not 0 <= processed <= self._samples:
            raise ValueError(
                f"the sampler's state counts {processed} samples, the dataset has {self._samples}"
            )
        self._begin(self.epoch)
        if state_dict.get("ledger"):
            self._ledger.load(state_dict["ledger"])
        extra = processed - int(self._ledger.committed)
        if extra > 0:
            self._ledger.lease(self._ledger.committed, [extra])
            self._ledger.commit(self._ledger.committed)
        self.reset()

    # -- shares ---------------------------------------------------------------------------------

    def _next_sizes(self, batch_size: int, remaining: int) -> list[int]:
        """How many samples each rank takes in a step when ``remaining`` are left."""
        size = self.num_replicas
        if remaining >= batch_size * size:
            return [batch_size] * size
        share, more = divmod(remaining, size)
        return [share + (rank < more) for rank in range(size)]

    def _lease(self, sizes: list[int]) -> tuple[int, int]:
        """Leases a step's ranges after what is already pending; this rank's [begin, end)."""
        step = self._ledger.committed
        prefix = [self._pending] if self._pending else []
        begin, end = self._ledger.lease(step, prefix + sizes)[len(prefix) + self.rank]
        self._pending += sum(sizes)
        return int(begin), int(end)

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
        order = self.permutation()
        self._by_lease = True
        while self.remaining > 0:
            sizes = self._next_sizes(batch_size, self.remaining)
            begin, end = self._lease(sizes)
            counted = end - begin
            self._counts.append((counted, batch_size))
            yield Batch(order[begin:end] if counted else order[:1], counted, sum(sizes))
        self._by_lease = False

    def plan_batches(self, batch_size: int) -> Iterator[Batch]:
        """The rest of the data epoch without leasing, for loaders that read ahead."""
        order = self.permutation()
        self._by_lease = False
        done = self.processed_num
        while done < self._samples:
            sizes = self._next_sizes(batch_size, self._samples - done)
            begin = done + sum(sizes[:self.rank])
            counted = sizes[self.rank]
            done += sum(sizes)
            yield Batch(order[begin:begin + counted] if counted else order[:1], counted, sum(sizes))

    def step_weight(self, passes: int) -> float:
        """This rank's counted samples in the present step over the nominal number; 1 if unknown."""
        if self._by_lease:
            recent = list(self._counts)[-passes:]
            if recent:
                return sum(count / nominal for count, nominal in recent) / len(recent)
        if self.batch_size is not None and self.remaining > 0:
            counted = self._next_sizes(self.batch_size, self.remaining)[self.rank]
            return counted / self.batch_size
        return 1.0

    # -- as a sampler of torch ------------------------------------------------------------------

    def __iter__(self) -> Iterator[int]:
        if self.batch_size is not None:
            for batch in self.plan_batches(self.batch_size):
                yield from batch
            return
        # Without a batch size a strided share: after any number of full steps of any batch size
        # what all ranks have taken is a prefix of the permutation.
        order = self.permutation()
        self._counts.clear()
        self._by_lease = False
        mine = order[self.processed_num + self.rank::self.num_replicas]
        yield from mine
        if len(mine) < math.ceil(self.remaining / self.num_replicas):
            yield order[-1]

    def __len__(self) -> int:
        if self.batch_size is None:
            return math.ceil(self.remaining / self.num_replicas)
        full, rest = divmod(self.remaining, self.batch_size * self.num_replicas)
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
        return self.sampler.plan_batches(self.batch_size)

    def __len__(self) -> int:
        return math.ceil(
            self.sampler.remaining / (self.batch_size * self.sampler.num_replicas)
        )


def batches(sampler: ElasticSampler, batch_size: Optional[int] = None) -> Iterator[Batch]:
    """Steps through the rest of the data epoch: this rank's indices for each step.

    All ranks get equally many steps; see :class:`Batch` for ghosts. A step is counted by the next
    ``state.commit()``. Take a batch only when the step before is done: this does not read ahead.

    Args:
        sampler: the state's sampler.
        batch_size: samples per rank and step; default: the sampler's.
    """
    batch_size = batch_size if batch_size is not None else sampler.batch_size
    if batch_size is None:
        raise ValueError("batches() needs a batch_size, here or in ElasticSampler(...)")
    _check_batch_size(batch_size)
    return sampler.lease_batches(batch_size)


def _check_batch_size(batch_size: Any) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be an int of at least 1, not {batch_size!r}")
