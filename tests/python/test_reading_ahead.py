"""A DataLoader with workers takes batches ahead of the steps that count them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import troupe.torch as hvd
from troupe.errors import TroupeError
from troupe.torch.elastic import ElasticSampler, TorchState, batches

ROWS = 61


class Rows(Dataset):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture
def state() -> Iterator[Any]:
    hvd.init()
    yield TorchState(torch.nn.Linear(1, 1), sampler=ElasticSampler(Rows(), seed=3), step=0)
    hvd.shutdown()


def loader_of(state: Any, workers: int = 2, **options: Any) -> DataLoader:
    return DataLoader(Rows(), batch_sampler=batches(state.sampler, 4), num_workers=workers,
                      **options)


@pytest.mark.parametrize("persistent", [False, True])
def test_what_training_got_is_counted_and_nothing_else(state: Any, persistent: bool) -> None:
    loader = loader_of(state, persistent_workers=persistent, prefetch_factor=3)
    for epoch in range(3):
        state.sampler.set_epoch(epoch)
        seen: list[int] = []
        assert len(loader) == 16
        while state.sampler.remaining:
            for batch in loader:
                kept = len(seen)
                seen += batch.tolist()
                assert state.sampler.processed_num == len(seen)
                if len(seen) % 20 == 16:  # As when a peer dies: this step is done again.
                    state.restore()
                    del seen[kept:]
                    break
                if len(seen) % 20 == 8 and kept % 20 == 4:
                    state.commit()
                    assert state.sampler.processed_num == len(seen)
                    break  # The next loader goes on behind what this one gave out.
                state.commit()
            if len(seen) % 20 == 12:  # What was done again is not to be broken again.
                for batch in loader:
                    seen += batch.tolist()
                    state.commit()
                    break
        assert sorted(seen) == list(range(ROWS)) and len(seen) == ROWS


def test_weights_are_those_of_the_batch_in_hand(state: Any) -> None:
    sampler = state.sampler
    weights = []
    for batch in loader_of(state):
        weights.append((len(batch), sampler.step_weight(1)))
        assert not sampler.step_leased(1)  # The rest of what was drawn is of the old members.
        state.commit()
    assert weights == [(4, 1.0)] * 15 + [(1, 0.25)]


def test_an_iterator_of_before_the_members_changed_is_an_error(state: Any) -> None:
    reading = iter(loader_of(state))
    next(reading)
    state.commit()
    state.sampler.reset()
    next(reading)
    with pytest.raises(TroupeError, match="made before the members changed"):
        state.commit()


def test_batches_themselves_may_not_be_read_ahead_by_a_thread(state: Any) -> None:
    steps = batches(state.sampler, 4)
    next(steps)
    state.commit()
    errors: list[Exception] = []

    def read() -> None:
        try:
            next(steps)
        except TroupeError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(20)
    assert "num_workers" in str(errors[0])


def test_a_loader_without_workers_takes_one_step_at_a_time(state: Any) -> None:
    for epoch in range(2):
        state.sampler.set_epoch(epoch)
        seen = []
        for batch in loader_of(state, 0):
            assert state.sampler.by_lease
            seen += batch.tolist()
            state.commit()
        assert sorted(seen) == list(range(ROWS))


def test_a_loader_that_does_not_keep_the_order_is_refused(state: Any) -> None:
    try:
        loader = loader_of(state, in_order=False)
    except TypeError:
        pytest.skip("this torch keeps the order always")
    with pytest.raises(ValueError, match="keeps the order"):
        iter(loader)
