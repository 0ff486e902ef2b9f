"""A rank whose parameters are not those of the others is named, with the tensor, on every rank."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Optional

import pytest
import torch

import troupe
import troupe.torch as hvd
from troupe.torch import _context
from troupe.torch.elastic import TorchState, _checksum

from fake_core import FakeCluster, Rank
from test_optimizer import DATA, TARGET, make_model

STEPS = 6


class Wide(torch.nn.Module):
    """One tensor that is taken in parts, between two that are taken whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(3))
        self.table = torch.nn.Parameter(torch.zeros(_checksum.WHOLE_BYTES // 16, 8))
        self.last = torch.nn.Parameter(torch.zeros(3))


def trained(
    change: Callable[[torch.nn.Module, int, int], None],
    every: Optional[int] = 2,
    distributed: bool = True,
) -> Callable[[Any], Any]:
    """A training that calls ``change(model, rank, step)`` after each optimizer step."""

    def main(group: Any) -> Any:
        hvd.init()
        model = make_model()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer)
        state = TorchState(model, optimizer, check_parameters_every=every, step=0)

        @hvd.elastic.run
        def train(state: Any) -> Any:
            while state.step < STEPS:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(DATA), TARGET).backward()
                optimizer.step()
                change(model, hvd.rank(), state.step)
                state.step += 1
                state.commit()
            return _context.current().user_operations, _context.current().operations

        return train(state)

    return main


def outcomes(size: int, main: Callable[[Any], Any]) -> list[Rank]:
    cluster = FakeCluster(size)
    ranks = [Rank(cluster, f"w{i}", main, i) for i in range(size)]
    return [rank.join() for rank in ranks]


def errors(size: int, main: Callable[[Any], Any]) -> list[Any]:
    found = [rank.error for rank in outcomes(size, main)]
    assert all(isinstance(error, troupe.ParametersDifferError) for error in found), found
    return found


def flip_on(rank: int, step: int, name: str) -> Callable[[torch.nn.Module, int, int], None]:
    """Changes the last bit of one value, on one rank, in a way that torch does not count."""

    def change(model: torch.nn.Module, here: int, now: int) -> None:
        if (here, now) == (rank, step):
            model.get_parameter(name).data.view(-1).view(torch.int64)[-1] ^= 1

    return change


@pytest.mark.parametrize("culprit", [0, 2])
def test_the_tensor_and_the_rank_unlike_most_are_named_on_every_rank(culprit: int) -> None:
    for error in errors(3, trained(flip_on(culprit, 2, "2.weight"))):
        assert error.tensor == "model.2.weight" and error.ranks == [culprit]
        assert error.step == 4  # Step 2 is commit 3; the next comparison follows commit 4.
        assert f"model.2.weight (float64[16, 16]) is not the same on rank {culprit}" in str(error)
        assert "commit 4" in str(error) and "most ranks" in str(error)


def test_without_a_majority_it_is_said_who_differs_from_rank_0() -> None:
    for error in errors(2, trained(flip_on(0, 3, "3.bias"))):
        assert error.tensor == "model.3.bias" and error.ranks == [1]
        assert "as on rank 0" in str(error)


def test_the_first_commit_is_compared_too() -> None:
    assert {e.step for e in errors(3, trained(flip_on(1, 0, "0.bias"), every=100))} == {1}


def test_nothing_is_compared_with_0_and_nothing_of_other_optimizers() -> None:
    for main in (trained(flip_on(1, 0, "0.bias"), every=0),
                 trained(flip_on(1, 0, "0.bias"), every=1, distributed=False)):
        assert [rank.error for rank in outcomes(3, main)] == [None] * 3


def test_equal_parameters_pass_and_cost_no_operation_of_the_users() -> None:
    idle = [rank.value for rank in outcomes(2, trained(lambda *a: None, every=0))]
    busy = [rank.value for rank in outcomes(2, trained(lambda *a: None, every=1))]
    assert [users for users, _ in idle] == [users for users, _ in busy]
    assert [every for _, every in busy] == [every + STEPS for _, every in idle]


def test_buffers_may_differ() -> None:
    def main(group: Any) -> Any:
        hvd.init()
        model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4)).double()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        state = TorchState(model, optimizer, check_parameters_every=1)

        @hvd.elastic.run
        def train(state: Any) -> torch.Tensor:
            for _ in range(2):
                optimizer.zero_grad()
                model(DATA[hvd.rank() * 4:hvd.rank() * 4 + 4]).sum().backward()
                optimizer.step()
                state.commit()
            return model[1].running_mean.clone()

        return train(state)

    ranks = outcomes(2, main)
    assert [rank.error for rank in ranks] == [None, None]
    assert not torch.equal(ranks[0].value, ranks[1].value)


def test_a_frozen_parameter_of_a_trained_module_is_compared() -> None:
    def main(group: Any) -> Any:
        hvd.init()
        model = make_model()
        model[0].requires_grad_(False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
        state = TorchState(model, optimizer, check_parameters_every=1)

        @hvd.elastic.run
        def train(state: Any) -> None:
            optimizer.zero_grad()
            model(DATA).sum().backward()
            optimizer.step()
            if hvd.rank() == 1:
                model[0].bias.data[0] += 1
            state.commit()

        return train(state)

    assert {error.tensor for error in errors(3, main)} == {"model.0.bias"}


def test_every_value_of_a_large_tensor_has_its_turn() -> None:
    model = Wide()
    tensors = list(model.parameters())
    usual = [_checksum.digests_of(tensors, turn) for turn in range(_checksum.PARTS)]
    count = model.table.numel()
    for place in (0, count // 3, count - 1):
        model.table.data.view(-1)[place] = 1
        found = [_checksum.digests_of(tensors, turn) for turn in range(_checksum.PARTS)]
        model.table.data.view(-1)[place] = 0
        unlike = [turn for turn, digest in enumerate(found) if digest != usual[turn]]
        assert unlike and all(found[turn][0] == usual[turn][0] for turn in unlike)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64,
                                   torch.complex64, torch.int64, torch.bool])
def test_a_bit_shows_in_the_sums_that_devices_take(dtype: torch.dtype) -> None:
    values = torch.linspace(0, 9, 50).to(dtype)
    other = values.clone()
    other.view(torch.uint8)[7 * values.element_size()] ^= 1
    assert int(_checksum.sum_of_bits(values)) != int(_checksum.sum_of_bits(other))


def test_the_layout_of_a_tensor_in_memory_does_not_matter() -> None:
    plain = torch.arange(64 * 64 * 3 * 3, dtype=torch.float32).view(64, 64, 3, 3)
    other = plain.clone(memory_format=torch.channels_last)
    assert plain.stride() != other.stride()
    for turn in (0, 7, 15):
        assert _checksum.digests_of([plain], turn) == _checksum.digests_of([other], turn)


@pytest.mark.parametrize("text", ["-1", "often"])
def test_a_wrong_setting_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_checksum.VARIABLE, text)
    with pytest.raises(ValueError, match=_checksum.VARIABLE):
        TorchState(step=0)
    with pytest.raises(ValueError, match="check_parameters_every"):
        TorchState(step=0, check_parameters_every=-1)


def test_the_setting_of_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_checksum.VARIABLE, "3")
    assert [_checksum.Checksum(None).due(v) for v in (1, 2, 3, 4)] == [True, False, True, False]


def test_the_error_travels() -> None:
    error = troupe.ParametersDifferError("unlike", step=7, tensor="model.a", ranks=[1])
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.step, back.tensor, back.ranks) == ("unlike", 7, "model.a", [1])
