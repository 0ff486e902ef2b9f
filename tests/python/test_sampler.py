"""ElasticSampler: exact shares, equal numbers of steps, Horovod's interface."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from troupe.torch.elastic import ElasticBatchSampler, ElasticSampler, batches


def samplers(size: int, samples: int, **kwargs: object) -> list[ElasticSampler]:
    made = []
    for rank in range(size):
        sampler = ElasticSampler(range(samples), **kwargs)  # type: ignore[arg-type]
        sampler.rank, sampler.num_replicas = rank, size
        made.append(sampler)
    return made


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("samples", [0, 1, 7, 30, 31, 32, 47])
@pytest.mark.parametrize("batch_size", [1, 4, 6])
def test_batches_are_exact_and_equal_in_number(size: int, samples: int, batch_size: int) -> None:
    group = samplers(size, samples, seed=3)
    steps = [list(batches(sampler, batch_size)) for sampler in group]
    assert len({len(s) for s in steps}) == 1
    assert len(steps[0]) == -(-samples // (size * batch_size))
    counted = [i for s in steps for b in s if not b.ghost for i in b]
    assert sorted(counted) == list(range(samples))
    for per_step in zip(*steps):
        sizes = [b.counted for b in per_step]
        assert max(sizes) <= batch_size and max(sizes) - min(sizes) <= 1
        assert sum(sizes) == per_step[0].step_size
        assert all(len(b) >= 1 for b in per_step)  # a ghost still has something to compute


def test_seed_epoch_and_order() -> None:
    a, b = samplers(1, 20, seed=1)[0], samplers(1, 20, seed=1)[0]
    assert list(a) == list(b) != list(range(20))
    a.set_epoch(1)
    assert list(a) != list(b) and sorted(a) == list(range(20))
    assert list(samplers(1, 5, shuffle=False)[0]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size,next_size", [(3, 2), (2, 4), (4, 1), (1, 3)])
def test_continues_after_the_committed_prefix(size: int, next_size: int) -> None:
    old = samplers(size, 50, seed=5)
    done: list[int] = []
    for sampler in old:
        steps = batches(sampler, 4)
        for _ in range(2):
            done.extend(next(steps))
            sampler.commit()
        next(steps)  # leased, never committed
    state = old[0].state_dict()
    uncommitted = {**state, "processed_num": old[0]._ledger.committed}
    rest: list[int] = []
    for sampler in samplers(next_size, 50, seed=5):
        sampler.load_state_dict(uncommitted)
        rest.extend(i for b in batches(sampler, 4) if not b.ghost for i in b)
    assert sorted(done + rest) == list(range(50)) and len(done) == 8 * size


def test_commit_of_several_steps_at_once() -> None:
    sampler = samplers(2, 20, shuffle=False)[0]
    steps = batches(sampler, 3)
    assert next(steps) == [0, 1, 2] and next(steps) == [6, 7, 8]
    assert (sampler.processed_num, sampler._ledger.committed) == (12, 0)
    sampler.commit()
    assert next(steps) == [12, 13, 14]
    sampler.commit()
    assert sampler._ledger.committed == 18


def test_horovod_interface_with_dataloader() -> None:
    group = samplers(2, 21)
    loaders = [DataLoader(list(range(21)), batch_size=4, sampler=s) for s in group]
    assert [len(s) for s in group] == [11, 11] and [len(x) for x in loaders] == [3, 3]
    seen: list[int] = []
    for sampler, loader in zip(group, loaders):
        for index, batch in enumerate(loader):
            if index == 1:
                break
            seen.extend(batch.tolist())
            sampler.record_batch(index, 4)
        state = sampler.state_dict()
        assert state["processed_num"] == 8 and state["epoch"] == 0
        sampler.load_state_dict(state)
    assert [len(s) for s in group] == [7, 7]  # 13 left, padded on one rank
    rest = [i for s in group for i in s]
    assert sorted(set(seen + rest)) == list(range(21)) and len(rest) == 14
    group[0].set_epoch(1)
    assert group[0].processed_num == 0 and len(group[0]) == 11


def test_dataloader_with_batch_size_has_no_padding() -> None:
    group = samplers(3, 26, batch_size=4)
    loads = [[b.tolist() for b in DataLoader(list(range(26)), batch_size=4, sampler=s)]
             for s in group]
    assert [len(x) for x in loads] == [3, 3, 3] and [len(s) for s in group] == [9, 9, 9]
    weights = []
    for sampler in group:
        mine = []
        for index in range(3):
            mine.append(sampler.step_weight(1))
            sampler.record_batch(index, 4)
        weights.append(mine)
    assert weights == [[1, 1, 0.25], [1, 1, 0.25], [1, 1, 0.0]]
    counted = [i for x, w in zip(loads, weights) for b, n in zip(x, w) if n for i in b]
    assert sorted(counted) == list(range(26))
    with pytest.raises(ValueError, match="batch_size 5"):
        group[0].record_batch(0, 5)


def test_batch_sampler_for_prefetching_loaders() -> None:
    group = samplers(2, 11)
    wrapped = [ElasticBatchSampler(s, 3) for s in group]
    assert [len(w) for w in wrapped] == [2, 2]
    got = [i for w in wrapped for b in w if not b.ghost for i in b]
    assert sorted(got) == list(range(11)) and group[0].processed_num == 0
    group[0].record_batch(0, 3)
    assert len(wrapped[0]) == 2  # What divides by it does so evenly.
    group[0].reset()
    assert len(wrapped[0]) == 1 and sum(len(b) for b in wrapped[0]) == 3


def test_samples_of_committed_steps_are_counted_over_all_epochs_of_a_run() -> None:
    sampler = samplers(1, 10)[0]
    sampler.enter_run("first")
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for _ in batches(sampler, 4):
            sampler.commit()
    assert sampler.trained_num == 20
    sampler.set_epoch(2)
    next(batches(sampler, 4))
    assert sampler.trained_num == 20  # Leased, and not committed.
    before = sampler.state_dict()
    sampler.commit()
    assert sampler.trained_num == 24
    sampler.load_state_dict({**before, "processed_num": 0, "trained": (20, 0, "first")})
    assert sampler.trained_num == 20
    again = samplers(1, 10)[0]
    again.load_state_dict(before)  # What was drawn counts as recorded, as in `processed_num`.
    again.enter_run("first")
    assert again.trained_num == 24
    again.enter_run("second")
    assert again.trained_num == 0
    for _ in batches(again, 4):
        again.commit()
    assert again.trained_num == 6
    again.load_state_dict({"epoch": 3, "processed_num": 4})  # Of Horovod's form.
    assert again.trained_num == 0


@pytest.mark.parametrize("kind", ["indices", "batches"])
def test_the_length_stays_while_steps_are_recorded_and_the_epoch_comes_again(kind: str) -> None:
    sampler = samplers(1, 12)[0]
    loader: Any = DataLoader(list(range(12)), batch_size=4, sampler=sampler)
    if kind == "batches":
        loader = DataLoader(list(range(12)), batch_sampler=ElasticBatchSampler(sampler, 4))
    epochs = []
    for _ in range(3):  # Without a word of the epoch, as plain loops have it.
        seen: list[int] = []
        for index, batch in enumerate(loader):
            assert len(loader) == 3
            seen.extend(batch.tolist())
            sampler.record_batch(index, 4)
        sampler.commit()
        epochs.append(seen)
    assert epochs[0] == epochs[1] == epochs[2] and sorted(epochs[0]) == list(range(12))
    assert sampler.trained_num == 36


def test_what_remains_is_told_as_horovod_tells_it() -> None:
    sampler = samplers(2, 10)[1]
    assert sorted(sampler.remaining_indices) == list(range(10))
    assert (sampler.num_samples, sampler.total_size) == (5, 10)
    first = sampler.remaining_indices[:4]
    sampler.record_batch(0, 2)
    assert not set(first) & set(sampler.remaining_indices)
    assert len(sampler.remaining_indices) == 6


def test_an_epoch_that_was_at_its_end_when_the_members_changed_stays_there() -> None:
    sampler = samplers(1, 4)[0]
    sampler.record_batch(0, 4)
    sampler.commit()
    sampler.load_state_dict(sampler.state_dict())
    assert list(sampler) == [] and len(sampler) == 0
    sampler.set_epoch(0)
    assert sorted(sampler) == [0, 1, 2, 3]


def test_set_epoch_of_the_same_epoch_begins_anew_once_steps_were_recorded() -> None:
    sampler = samplers(1, 12)[0]
    sampler.record_batch(0, 4)
    state = sampler.state_dict()
    sampler.set_epoch(0)  # At the end of an epoch that was left early, as Horovod has it.
    assert sampler.processed_num == 0
    sampler.load_state_dict(state)
    sampler.set_epoch(0)  # At the beginning of one that goes on.
    assert sampler.processed_num == 4


def test_set_epoch_keeps_progress_of_the_same_epoch() -> None:
    sampler = samplers(1, 6)[0]
    steps = batches(sampler, 4)
    next(steps)
    sampler.commit()
    sampler.set_epoch(0)
    assert sampler.remaining == 2
    next(steps)
    sampler.commit()
    sampler.set_epoch(0)  # exhausted: a new round
    assert sampler.remaining == 6


def test_errors() -> None:
    sampler = samplers(1, 6)[0]
    with pytest.raises(ValueError, match="needs a batch_size"):
        batches(sampler)
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="at least 1"):
            batches(sampler, bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="length"):
        ElasticSampler(iter([1]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="7 samples"):
        sampler.load_state_dict({"epoch": 0, "processed_num": 7})
    with pytest.raises(ValueError, match="made for batch_size 4"):
        ElasticBatchSampler(samplers(1, 6, batch_size=4)[0], 5)
