"""What refers to another object of a state refers to the live one, on every member."""

from __future__ import annotations

import threading
import types
from typing import Any, Optional

import pytest
import torch
from torch.optim import lr_scheduler

import troupe.torch as hvd
from troupe.torch.elastic import ObjectState, TorchState, _binding

from fake_core import FakeCluster, FakeGroup, Rank

STEPS = 8
JOIN_AT = 3
X = torch.linspace(-1, 1, 24 * 4, dtype=torch.float64).reshape(24, 4).sin()
Y = torch.linspace(0, 1, 24, dtype=torch.float64).reshape(24, 1).cos()

_seeding = threading.Lock()  # Ranks are threads and share torch's generator.


def make_model(seed: int) -> torch.nn.Module:
    with _seeding:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(),
                                   torch.nn.Linear(5, 1)).double()


SCHEDULERS: dict[str, Any] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "multi": lambda o: lr_scheduler.MultiStepLR(o, [2, 2, 5], 0.5),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9 ** epoch),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=STEPS + 2),
    "cosine": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "sequential": lambda o: lr_scheduler.SequentialLR(o, [
        lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.ExponentialLR(o, 0.8)], [3]),
    "chained": lambda o: lr_scheduler.ChainedScheduler([
        lr_scheduler.ConstantLR(o, 0.5, 4), lr_scheduler.ExponentialLR(o, 0.9)]),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5, threshold=1.0),
}


class Training:
    """One member's program: everything that a state can hold beside a model."""

    def __init__(self, seed: int, kind: str, distributed: bool, inside: bool = True,
                 before: bool = False) -> None:
        self.model = make_model(seed)
        self.ema = torch.optim.swa_utils.AveragedModel(
            self.model, avg_fn=lambda mean, new, count: 0.5 * mean + 0.5 * new)
        plain = torch.optim.SGD(self.model[0].parameters(), lr=0.1, momentum=0.9)
        second = torch.optim.Adam(self.model[2].parameters(), lr=0.02)
        if before:  # As scripts do that wrap the optimizer in a line of its own.
            self.scheduler = SCHEDULERS[kind](plain)
        self.optimizer = hvd.DistributedOptimizer(plain) if distributed else plain
        self.second = hvd.DistributedOptimizer(second) if distributed else second
        if not before:
            self.scheduler = SCHEDULERS[kind](self.optimizer)
        self.other = lr_scheduler.StepLR(self.second, 3, 0.5)
        self.kept = {"scheduler": self.scheduler, "other": self.other} if inside else {}

    def step(self, rows: Any) -> None:
        for optimizer in (self.optimizer, self.second):
            optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(X[rows]), Y[rows])
        loss.backward()
        for optimizer in (self.optimizer, self.second):
            optimizer.step()
        if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(1.0)
        else:
            self.scheduler.step()
        self.other.step()
        self.ema.update_parameters(self.model)

    def picture(self) -> list[torch.Tensor]:
        rates = [group["lr"] for o in (self.optimizer, self.second) for group in o.param_groups]
        rates.append(float(getattr(self.scheduler, "last_epoch", 0)))
        params = [p.detach().clone() for m in (self.model, self.ema) for p in m.parameters()]
        return [*params, torch.tensor(rates, dtype=torch.float64)]


def run_group(make: Any, fail_at: Optional[int] = None) -> list[Any]:
    """Two founders and one that joins at JOIN_AT; ``make(seed)`` gives (training, state)."""
    cluster = FakeCluster(2)
    later: list[Rank] = []

    def main(group: FakeGroup) -> Any:
        hvd.init()
        training, state = make(int(group.name[1:]))
        failed: list[int] = []

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.step < STEPS:
                if state.step == JOIN_AT and group.name == "w0" and not later:
                    later.append(Rank(cluster, "w2", main, 2))
                    with cluster.cond:
                        assert cluster.cond.wait_for(lambda: later[0].group.offer, 20)
                # Side by side, or the first of two that never wait for one another may have ended
                # before the boundary at which the third one joins.
                assert hvd.allgather_object(state.step) == [state.step] * hvd.size()
                training.step(slice(hvd.rank(), 24, hvd.size()))
                if state.step == fail_at and not failed:
                    failed.append(1)
                    raise hvd.elastic.HorovodInternalError("as if a peer had died")
                state.step += 1
                state.commit()

        train(state)
        return training, state

    ranks = [Rank(cluster, f"w{i}", main, i) for i in range(2)]
    for rank in ranks:
        rank.join()
    for rank in [*ranks, *later]:
        rank.join()
        if rank.error is not None:
            raise rank.error
    assert len(later) == 1
    return [rank.value for rank in (*ranks, *later)]


def alike(results: list[Any], reference: Training) -> None:
    wanted = reference.picture()
    for training, _ in results:
        for a, b in zip(training.picture(), wanted, strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-12), (a, b)
    first = results[0][0].picture()
    for training, _ in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(training.picture(), first, strict=True))


@pytest.fixture
def reference(request: Any) -> Training:
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    kind = params.get("kind", "step")
    training = Training(0, kind, distributed=False)
    for _ in range(STEPS):
        training.step(slice(0, 24))
    return training


@pytest.mark.parametrize("kind", list(SCHEDULERS))
def test_a_joiner_has_the_schedulers_and_the_averaged_model(
    kind: str, reference: Training
) -> None:
    def make(seed: int) -> Any:
        t = Training(seed, kind, distributed=True)
        state = TorchState(t.model, t.optimizer, second=t.second, ema=t.ema, step=0, **t.kept)
        return t, state

    results = run_group(make)
    alike(results, reference)
    for training, state in results:
        assert state.scheduler is training.scheduler
        assert state.scheduler.optimizer is training.optimizer


@pytest.mark.parametrize("kind", ["onecycle", "sequential"])
def test_a_scheduler_made_before_the_wrapper_stays_its_optimizers(
    kind: str, reference: Training
) -> None:
    def make(seed: int) -> Any:
        t = Training(seed, kind, distributed=True, before=True)
        return t, TorchState(t.model, t.optimizer, second=t.second, ema=t.ema, step=0, **t.kept)

    alike(run_group(make), reference)


@pytest.mark.parametrize("kind", ["step", "sequential"])
def test_a_scheduler_that_was_left_out_is_taken_in(kind: str, reference: Training) -> None:
    def make(seed: int) -> Any:
        t = Training(seed, kind, distributed=True, inside=False)
        return t, TorchState(t.model, t.optimizer, second=t.second, ema=t.ema, step=0)

    alike(run_group(make), reference)


def test_a_rollback_takes_schedulers_back(reference: Training) -> None:
    hvd.init()
    try:
        t = Training(0, "step", distributed=True)
        state = TorchState(t.model, t.optimizer, second=t.second, ema=t.ema, step=0, **t.kept)
        for _ in range(STEPS):
            t.step(slice(0, 24))
            state.commit()
            t.step(slice(0, 7))
            state.restore()
        assert state.scheduler.optimizer is t.optimizer
        for a, b in zip(t.picture(), reference.picture(), strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
    finally:
        hvd.shutdown()


class Shadow:
    """A moving average as people write it, with neither state_dict() nor parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.of = list(model.parameters())
        self.values = [p.detach().clone() for p in self.of]

    def update(self) -> None:
        for value, p in zip(self.values, self.of, strict=True):
            value.lerp_(p.detach(), 0.5)


def test_plain_values_that_hold_on_to_the_model_hold_on_to_the_live_one() -> None:
    def make(seed: int) -> Any:
        t = Training(seed, "step", distributed=True)
        state = TorchState(t.model, t.optimizer, second=t.second, ema=t.ema, step=0,
                           shadow=Shadow(t.model), **t.kept)
        step = t.step

        def and_shadow(rows: Any) -> None:
            step(rows)
            state.shadow.update()

        t.step = and_shadow  # type: ignore[method-assign]
        return t, state

    results = run_group(make)
    shadows = [state.shadow.values for _, state in results]
    for (training, state), values in zip(results, shadows, strict=True):
        assert state.shadow.model is training.model
        assert state.shadow.of[0] is training.model[0].weight
        assert all(torch.equal(a, b) for a, b in zip(values, shadows[0], strict=True))
        assert not torch.equal(values[0], training.model[0].weight)


@pytest.mark.parametrize("distributed", [False, True])
def test_groups_that_were_added_travel_and_go(distributed: bool) -> None:
    """The head trains alone, then the backbone is unfrozen: only those who were there call it."""
    def make(seed: int) -> Any:
        t = Training(seed, "step", distributed=False)
        for p in t.model[0].parameters():
            p.requires_grad_(False)
        t.optimizer = torch.optim.SGD(t.model[2].parameters(), lr=0.1, momentum=0.9)
        t.second = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
        if distributed:
            t.optimizer = hvd.DistributedOptimizer(t.optimizer)
        t.scheduler = t.other = types.SimpleNamespace(step=lambda: None)
        state = TorchState(t.model, t.optimizer, ema=t.ema, step=0)
        step = t.step

        def unfreeze_then_step(rows: Any) -> None:
            if state.step == JOIN_AT - 1:
                for p in t.model[0].parameters():
                    p.requires_grad_(True)
                t.optimizer.add_param_group({"params": t.model[0].parameters(), "lr": 0.03})
            step(rows if distributed else slice(0, 24))

        t.step = unfreeze_then_step  # type: ignore[method-assign]
        return t, state

    hvd.init()
    t, state = make(0)
    for _ in range(STEPS):
        t.step(slice(0, 24))
        state.step += 1
        state.commit()
    hvd.shutdown()
    # A failure just behind the call takes the group away again, or a second call would raise.
    alike(run_group(make, fail_at=None if distributed else JOIN_AT - 1), t)


def test_a_restore_across_an_added_group_begins_without_it() -> None:
    hvd.init()
    try:
        model = make_model(0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model[0].parameters(), lr=0.1))
        state = TorchState(model, optimizer)
        state.commit()
        for _ in range(2):
            optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.2})
            state.restore()
            assert len(optimizer.param_groups) == 1
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
        with pytest.raises(ValueError, match=r"group 1 .* shape \(2,\) .* no module"):
            state.commit()
    finally:
        hvd.shutdown()


def test_what_cannot_be_copied_or_pickled_is_named() -> None:
    class Unpicklable:
        def __reduce__(self) -> Any:
            raise RuntimeError("it has a socket")

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    hvd.init()
    try:
        with pytest.raises(TypeError, match="'guard' of the state, a lock, cannot be copied"):
            ObjectState(step=0, guard=threading.Lock())
        with pytest.raises(TypeError, match="'logger' of the state.*cannot be pickled: it has a"):
            TorchState(torch.nn.Linear(1, 1), step=0, logger=Unpicklable())
    finally:
        hvd.shutdown()


def test_an_object_with_a_state_dict_is_in_the_state_from_when_it_is_set() -> None:
    hvd.init()
    try:
        model = make_model(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state: Any = TorchState(model, optimizer)
        state.scheduler = scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
        state.commit()
        optimizer.step()
        scheduler.step()
        state.restore()
        assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (0, 0.1)
        with pytest.raises(ValueError, match="'late' .* after training began"):
            state.late = lr_scheduler.StepLR(optimizer, 1, 0.5)
    finally:
        hvd.shutdown()


def test_a_look_for_schedulers_does_not_disturb_other_threads() -> None:
    """What they are making is nobody else's yet; see CPython's tuple of a generator."""
    failures: list[BaseException] = []
    over = threading.Event()

    def make() -> None:
        while not over.is_set():
            try:
                tuple(i for i in range(50))
            except SystemError as error:
                failures.append(error)

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    model = make_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    try:
        for _ in range(20):
            assert _binding.unlisted({"optimizer": optimizer}) == {"optimizer": [scheduler]}
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures


def test_run_without_a_state_says_so() -> None:
    @hvd.elastic.run
    def train(state: Any, more: int = 0) -> int:
        return more

    for arguments in ((), (3,)):
        with pytest.raises(TypeError, match=r"train\(\) .* first argument must be a state"):
            train(*arguments)
    hvd.init()
    try:
        assert train(ObjectState(), 4) == 4 and train(state=ObjectState(), more=5) == 5
    finally:
        hvd.shutdown()
