"""A script as tutorials write it, on real workers, one of which is killed or differs."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import troupe

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.venv_only,
              pytest.mark.timeout(240)]


class Script:
    """Mixed precision, clipping, a scheduler and a moving average, for one process or several."""

    def __init__(self, distributed: bool) -> None:
        import torch

        import troupe.torch as hvd

        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(97, 6, generator=generator, dtype=torch.float64)
        self.y = self.x.sin().sum(1, keepdim=True)
        torch.manual_seed(os.getpid() if distributed else 0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.linspace(-0.5, 0.5, p.numel()).view_as(p))
        if distributed and hvd.rank() != 0:
            for p in self.model.parameters():
                p.data.mul_(7)  # Whoever does not receive the state is found out.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        if distributed:
            self.optimizer = hvd.DistributedOptimizer(self.optimizer)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=40)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
        self.ema = torch.optim.swa_utils.AveragedModel(
            self.model, avg_fn=lambda mean, new, count: 0.9 * mean + 0.1 * new)

    def step(self, rows: Any) -> None:
        import torch

        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(self.x[rows]), self.y[rows])
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.ema.update_parameters(self.model)

    def numbers(self) -> list[float]:
        values = [v for m in (self.model, self.ema) for p in m.parameters()
                  for v in p.detach().flatten()]
        return [*map(float, values), self.optimizer.param_groups[0]["lr"], self.scaler.get_scale()]


def train_with_a_death(kill_at: int) -> Any:
    from torch.utils.data import DataLoader

    import troupe.torch as hvd

    hvd.init()
    script = Script(distributed=True)
    rows = list(range(97))
    state: Any = hvd.elastic.TorchState(
        script.model, script.optimizer, scheduler=script.scheduler, scaler=script.scaler,
        ema=script.ema, sampler=hvd.elastic.ElasticSampler(rows, seed=5), epoch=0, step=0, seen={})
    state.register_reset_callbacks([lambda: None])  # So that the step is done again as a whole.

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.epoch < 3:
            state.sampler.set_epoch(state.epoch)
            loader = DataLoader(rows, batch_sampler=hvd.elastic.batches(state.sampler, 5),
                                num_workers=1)
            for batch in loader:
                counted = [] if state.sampler.step_weight(1) == 0 else batch.tolist()
                everybodys = hvd.allgather_object(counted)
                if hvd.epoch() == 1 and state.step == kill_at and hvd.rank() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                script.step(batch)
                state.seen[state.step] = [row for part in everybodys for row in part]
                state.step += 1
                state.commit()
            state.epoch += 1

    train(state)
    return script.numbers(), state.seen


def test_a_training_with_everything_in_it_survives_a_kill() -> None:
    with troupe.Executor(2, 3, workers=3, cpus_per_worker=0.1, num_cpus=2, progress="off",
                         preload=["torch", "troupe.torch"]) as executor:
        handle = executor.submit(train_with_a_death, (4,))
        results = handle.result(200)
        assert len(handle.epochs()) > 1
    assert all(result == results[0] for result in results)
    numbers, seen = results[0]
    rows = [row for step in sorted(seen) for row in seen[step]]
    assert sorted(rows) == sorted(list(range(97)) * 3)  # Every sample once in every epoch.
    alone = Script(distributed=False)
    for step in sorted(seen):
        alone.step(seen[step])
    assert numbers == pytest.approx(alone.numbers(), rel=1e-8, abs=1e-10)


def train_with_a_rank_that_differs() -> None:
    import torch

    import troupe.torch as hvd

    hvd.init()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    state: Any = hvd.elastic.TorchState(model, optimizer, check_parameters_every=3, step=0)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while state.step < 20:
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            state.step += 1
            if state.step == 4 and hvd.rank() == 1:
                model[1].weight.data[0, 2] += 1e-3
            state.commit()

    loop(state)


def test_a_rank_whose_parameters_differ_is_named() -> None:
    with troupe.Executor(3, cpus_per_worker=0.1, num_cpus=2, progress="off",
                         preload=["torch", "troupe.torch"]) as executor:
        with pytest.raises(troupe.WorkerError, match="commit 6: model.1.weight") as failure:
            executor.run(train_with_a_rank_that_differs)
    cause = failure.value.__cause__
    assert isinstance(cause, troupe.ParametersDifferError)
    assert (cause.step, cause.tensor, cause.ranks) == (6, "model.1.weight", [1])
