"""Training as tutorials write it: mixed precision, clipping, accumulation, schedulers, and a death.

Each is compared with one process that sees the same samples.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Optional

import pytest
import torch

import troupe.torch as hvd
from troupe.torch.elastic import ElasticSampler, TorchState, batches

from fake_core import FakeCluster, FakeGroup, Killed, Rank, run_ranks

amp = pytest.mark.skipif(
    not hasattr(getattr(torch, "amp", None), "GradScaler"), reason="no GradScaler for the CPU")

ROWS, STEPS = 24, 6
X = torch.linspace(-1, 1, ROWS * 5, dtype=torch.float64).reshape(ROWS, 5).sin()
Y = torch.linspace(0, 3, ROWS, dtype=torch.float64).reshape(ROWS, 1).cos()

_seeding = threading.Lock()  # Ranks are threads and share torch's generator.


def make_model() -> torch.nn.Module:
    with _seeding:
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(),
                                   torch.nn.Linear(7, 1)).double()


def loss_of(model: torch.nn.Module, rows: Any) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(X[rows]), Y[rows])


class Script:
    """A training script; ``wrap`` is the one line that makes it distributed."""

    def __init__(self, wrap: Callable[..., Any], scaled: bool = False, unscale: bool = False,
                 clip: float = 0.0, parts: int = 1, set_to_none: bool = True,
                 overflow_at: Optional[int] = None) -> None:
        self.model = make_model()
        self.optimizer = wrap(torch.optim.Adam(self.model.parameters(), lr=0.05))
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2) \
            if scaled else None
        self.unscale, self.clip, self.parts = unscale, clip, parts
        self.set_to_none, self.overflow_at = set_to_none, overflow_at
        self.steps = 0

    def step(self, rows: list[int]) -> None:
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        share = len(rows) // self.parts
        for part in range(self.parts):
            loss = loss_of(self.model, rows[part * share:(part + 1) * share]) / self.parts
            if self.steps == self.overflow_at and 0 in rows:
                loss = loss * float("inf")  # One rank's only: all must leave the step out.
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if self.unscale:
            self.scaler.unscale_(self.optimizer)
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.scheduler.step()
        self.steps += 1

    def picture(self) -> list[torch.Tensor]:
        scale = self.scaler.get_scale() if self.scaler else 0.0
        rest = [self.optimizer.param_groups[0]["lr"], float(self.scheduler.last_epoch), scale]
        return [*(p.detach().clone() for p in self.model.parameters()), torch.tensor(rest)]


def compare(pictures: list[list[torch.Tensor]], wanted: list[torch.Tensor]) -> None:
    for picture in pictures:
        assert all(torch.equal(a, b) for a, b in zip(picture, pictures[0], strict=True))
        for a, b in zip(picture, wanted, strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-11), (a, b)


CASES: dict[str, dict[str, Any]] = {
    "clip": {"clip": 0.05},
    "clip, zeroed in place": {"clip": 0.05, "set_to_none": False},
    "parts": {"parts": 3},
    "parts, clip": {"parts": 3, "clip": 0.05, "set_to_none": False},
    "amp": {"scaled": True},
    "amp, unscale, clip": {"scaled": True, "unscale": True, "clip": 0.05},
    "amp, parts, clip": {"scaled": True, "unscale": True, "clip": 0.05, "parts": 2},
    "amp, overflow": {"scaled": True, "unscale": True, "clip": 0.05, "overflow_at": 2},
    "amp, overflow, zeroed in place": {"scaled": True, "overflow_at": 2, "set_to_none": False},
}


@amp
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("buckets", [None, 200])
def test_equals_one_process(case: str, buckets: Optional[int]) -> None:
    options = CASES[case]
    alone = Script(lambda optimizer: optimizer, **options)
    for _ in range(STEPS):
        alone.step(list(range(ROWS)))

    def fn() -> list[torch.Tensor]:
        script = Script(lambda optimizer: hvd.DistributedOptimizer(
            optimizer, bucket_bytes=buckets,
            backward_passes_per_step=options.get("parts", 1)), **options)
        for _ in range(STEPS):
            script.step(list(range(ROWS))[hvd.rank()::2])
        return script.picture()

    compare(run_ranks(2, fn), alone.picture())


@amp
@pytest.mark.parametrize("victim", ["w0", "w1"])
@pytest.mark.parametrize("operation", [5, 6, 8, 9, 11])
def test_a_death_and_a_joiner_change_nothing(victim: str, operation: int) -> None:
    """Mixed precision, clipping, scheduler and accumulated state, all samples exactly once."""
    options = CASES["amp, unscale, clip"]
    counts: dict[str, int] = {}
    steps: dict[int, tuple[int, ...]] = {}  # The samples of each committed step.
    shares: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
    lock = threading.Lock()

    def before(member: FakeGroup, kind: str, name: str) -> None:
        with lock:
            counts[member.name] = counts.get(member.name, 0) + 1
        if member.name == victim and counts[member.name] == operation:
            raise Killed()

    cluster = FakeCluster(3, before=before)
    later: list[Rank] = []

    def main(group: FakeGroup) -> Any:
        hvd.init()
        script = Script(hvd.DistributedOptimizer, **options)
        sampler = ElasticSampler(range(ROWS), shuffle=False)
        state = TorchState(script.model, script.optimizer, sampler=sampler, step=0,
                           scheduler=script.scheduler, scaler=script.scaler)

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.step < STEPS:
                state.sampler.set_epoch(state.step // 2)
                for indices in batches(state.sampler, 4):
                    if hvd.epoch() > 1 and group.name == "w2" and not later:
                        later.append(Rank(cluster, "late", main, 3))
                        with cluster.cond:
                            assert cluster.cond.wait_for(lambda: later[0].group.offer, 20)
                    script.step(indices)
                    with lock:
                        counted = tuple(indices) if indices.counted else ()
                        at = shares.setdefault((state.version, hvd.epoch()), {})
                        at[hvd.rank()] = counted
                        steps[state.step] = tuple(sorted(
                            i for share in at.values() for i in share))
                    state.step += 1
                    state.commit()
                    if state.step == STEPS:
                        break

        train(state)
        return script.picture()

    ranks = [Rank(cluster, f"w{i}", main, i) for i in range(3)]
    pictures = []
    for rank in ranks:
        rank.join()
    for rank in [*ranks, *(r.join() for r in later)]:
        if rank.error is not None:
            raise rank.error
        if rank.value is not None:
            pictures.append(rank.value)
    assert len(pictures) == 3 and later
    alone = Script(lambda optimizer: optimizer, **options)
    for step in range(STEPS):
        alone.step(list(steps[step]))
    compare(pictures, alone.picture())


def test_clipping_before_the_average_is_an_error() -> None:
    """A parameter without a gradient: more may come, so backward() does not wait."""
    def fn() -> None:
        model = make_model()
        unused = torch.nn.Linear(2, 2).double()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([*model.parameters(), *unused.parameters()], lr=0.1))
        loss_of(model, slice(0, 4)).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
        loss_of(model, slice(0, 4)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with pytest.raises(RuntimeError, match="call optimizer.synchronize"):
            optimizer.step()

    run_ranks(2, fn)


def test_accumulation_that_the_optimizer_does_not_know_of_is_an_error() -> None:
    def fn() -> None:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        loss_of(model, slice(0, 4)).backward()
        with pytest.raises(AssertionError, match="Increase backward_passes_per_step"):
            loss_of(model, slice(4, 8)).backward()
        model.zero_grad(set_to_none=True)
        loss_of(model, slice(0, 4)).backward()  # Begun anew.
        optimizer.step()

    run_ranks(2, fn)
