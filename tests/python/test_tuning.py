"""bucket_bytes="auto": all ranks cut gradients alike in every step, whoever joins or dies."""

from __future__ import annotations

from typing import Any, Optional

import pytest
import torch

import troupe.torch as hvd
from troupe.torch import _tuning
from troupe.torch._reducer import Reducer
from troupe.torch._tuning import BucketTuning

import test_elastic
import test_replay
from fake_core import FakeCluster, FakeGroup, Rank, run_ranks
from test_elastic import Log, finish, kill_at, start, trainer
from test_optimizer import make_model, params_of

SIZES = (1200, 0, 300, 1 << 20)
STEPS = 4 * 2  # until all sizes are tried, with the constants below


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of few steps, over sizes that differ for a small model."""
    monkeypatch.setattr(_tuning, "CANDIDATES", SIZES)
    monkeypatch.setattr(_tuning, "_WARM_STEPS", 1)
    monkeypatch.setattr(_tuning, "_TIMED_STEPS", 1)
    monkeypatch.setattr("troupe.torch._reducer.BUCKET_BYTES", SIZES[0])
    monkeypatch.setenv("TROUPE_BUCKET_BYTES", "auto")


class Clock:
    """Steps with each size take so many seconds."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.now, self.tuning = seconds, 0.0, None

    def __call__(self) -> float:
        self.now += self.seconds[self.tuning.choice]  # type: ignore[attr-defined]
        return self.now


def search(seconds: list[tuple[float, ...]], steps: int) -> list[Any]:
    """Sizes that each rank used, step by step, its buckets at the end, and its parameters."""
    def fn() -> Any:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        reducer = optimizer._reducer
        clock = Clock(*seconds[hvd.rank()])
        reducer._tuning = clock.tuning = BucketTuning(clock)
        used = []
        for step in range(steps):
            optimizer.zero_grad()
            x = torch.full((2, 6), 1.0 + step + hvd.rank(), dtype=torch.float64)
            model(x).pow(2).mean().backward()
            optimizer.step()
            used.append(len(reducer.buckets))
        return used, reducer._tuning.bucket_bytes, reducer.signature, params_of(model)

    return run_ranks(len(seconds), fn)


def test_all_take_what_was_fastest_for_the_slowest() -> None:
    """Rank 0 alone would take the second size, rank 1 the last."""
    first, second = search([(5, 1, 2, 9), (5, 9, 2, 1)], STEPS + 3)
    assert first[:3] == second[:3] and first[1] == SIZES[2]
    assert len(set(first[0])) > 2  # it did cut differently meanwhile
    assert all(torch.equal(a, b) for a, b in zip(first[3], second[3]))


def test_the_result_does_not_depend_on_the_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = search([(5, 1, 2, 9)] * 2, STEPS + 3)
    monkeypatch.setattr(Reducer, "_cut_as_tuned", lambda self: None)
    fixed = search([(5, 1, 2, 9)] * 2, STEPS + 3)
    assert len(set(fixed[0][0])) == 1
    assert all(torch.equal(a, b) for a, b in zip(tuned[0][3], fixed[0][3]))


def test_a_gain_within_what_steps_vary_by_is_none() -> None:
    first, second = search([(5, 4.9, 4.9, 4.9)] * 2, STEPS + 3)
    assert first[1] == second[1] == SIZES[0]


def test_a_rank_that_cuts_differently_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Reducer._cut_as_tuned

    def cut(self: Reducer) -> None:
        if self.context.rank == 0:
            original(self)

    monkeypatch.setattr(Reducer, "_cut_as_tuned", cut)
    with pytest.raises(ValueError, match="buckets, layout"):
        search([(1, 1, 1, 1)] * 2, STEPS)


def test_a_joiner_takes_over_what_was_chosen() -> None:
    log = Log()
    cluster = FakeCluster(2)
    later: list[Rank] = []

    def on_step(group: FakeGroup, step: int) -> None:
        if group.name == "w0" and step == STEPS + 2 and not later:
            later.append(Rank(cluster, "late", main, 2))
            with cluster.cond:
                assert cluster.cond.wait_for(lambda: later[0].group.offer, 20)

    main = trainer(log, on_step)
    ranks = start(cluster, 2, main)
    for rank in ranks:
        rank.join()
    chosen = finish(cluster, ranks + later, log)
    assert len(chosen) == 3 and [e["size"] for e in cluster.history] == [2, 3]


@pytest.mark.parametrize("victim", ["w0", "w2"])
@pytest.mark.parametrize("operation", range(4, 40, 3))
def test_a_death_at_any_operation(victim: str, operation: int) -> None:
    log = Log()
    cluster = FakeCluster(3, before=kill_at(victim, operation))
    finish(cluster, start(cluster, 3, trainer(log)), log)
    assert [e["size"] for e in cluster.history] == [3, 2]


@pytest.mark.parametrize("round_", range(6))
def test_random_lives(round_: int) -> None:
    test_elastic.test_random_lives(round_)


def test_a_step_is_finished_from_kept_gradients_during_the_search() -> None:
    """In the fourth step the sizes are still being tried; the view after it begins anew."""
    log = Log()
    deaths = test_replay.Deaths((1, "w1", "optimizer.0.0", 4))
    cluster = FakeCluster(3, before=deaths)
    finish(cluster, start(cluster, 3, trainer(log)), log)
    assert not deaths.left and test_replay.recomputed(log) == {}
    assert [e["size"] for e in cluster.history] == [3, 2]


def compare(rows: list[list[int]], tuning: BucketTuning, size: int = 2) -> None:
    """As if the ranks had said this."""
    class Told:
        view = {"epoch": 7}
        rank = 0

        def gather_ints(self, mine: Any, name: str, team: int) -> Any:
            assert team == 0
            return rows

    Told.size = size  # type: ignore[attr-defined]
    tuning.compare(Told(), "tuning")  # type: ignore[arg-type]


@pytest.mark.parametrize("rows, choice, decided", [
    ([[0, 3, 9, 4, 5, 6], [0, 3, 9, 4, 5, 6]], 1, True),
    ([[1, 2, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]], 2, True),
    ([[0, 3, 9, 4, 5, 6], [1, 3, 0, 0, 0, 0]], 3, True),
    ([[0, 3, 9, 4, 5, 6], [0, 0, 0, 0, 0, 0]], 0, False),
    ([[0, 2, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0]], 0, False),
])
def test_what_is_chosen_follows_from_what_all_have_said(
    rows: list[list[int]], choice: int, decided: bool
) -> None:
    tuning = BucketTuning()
    compare(rows, tuning)
    assert (tuning.choice, tuning.decided) == (choice, decided)


@pytest.mark.parametrize("given, says", [
    ("large", 'must be "auto" or a number'), (-1, 'must be "auto" or a number'),
])
def test_bad_arguments(given: Any, says: str) -> None:
    def fn(compression: Optional[Any] = None) -> None:
        sgd = torch.optim.SGD(make_model().parameters(), lr=0.1)
        with pytest.raises(ValueError, match=says):
            hvd.DistributedOptimizer(sgd, bucket_bytes=given)
        with pytest.raises(ValueError, match="does not go with a GradientCompressor"):
            hvd.DistributedOptimizer(
                sgd, compression=hvd.Compression.topk(0.1), bucket_bytes="auto")

    run_ranks(1, fn)
