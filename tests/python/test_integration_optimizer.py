"""DistributedOptimizer's options on real workers, one of which is killed in some."""

from __future__ import annotations

from typing import Any

import pytest

import troupe

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]


def executor(workers: int, least: int = 0) -> troupe.Executor:
    return troupe.Executor(
        least or workers, workers, workers=workers, cpus_per_worker=0.1, num_cpus=2, progress="off",
        preload=["torch", "troupe.torch"])


def every_option() -> dict[str, Any]:
    """What two steps of each kind make of parameters whose gradient is rank + 1, by option."""
    import torch

    import troupe.torch as hvd

    hvd.init()
    ends = hvd.add_process_set([0, 2])
    found = {}
    for name, options in {
        "average": {}, "sum": {"op": hvd.Sum}, "min": {"op": hvd.Min}, "max": {"op": hvd.Max},
        "product": {"op": hvd.Product}, "adasum": {"op": hvd.Adasum}, "ends": {"process_set": ends},
        "adasum ends": {"op": hvd.Adasum, "process_set": ends}, "groups": {"groups": 2},
        "predivide": {"gradient_predivide_factor": 2.0},
        "topk ends": {"process_set": ends, "compression": hvd.Compression.topk(1.0)},
    }.items():
        weights = [torch.nn.Parameter(torch.zeros(5)) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), **options)
        for _ in range(2):
            optimizer.zero_grad()
            sum((w * (hvd.rank() + 1)).sum() for w in weights).backward()
            optimizer.step()
        values = {round(v, 4) for w in weights for v in w.tolist()}
        assert len(values) == 1, (name, values)
        found[name] = -values.pop()
    found["sparse"] = sparse(hvd.global_process_set)
    found["sparse ends"] = sparse(ends)
    return found


def sparse(process_set: Any) -> list[float]:
    import torch

    import troupe.torch as hvd

    layer = torch.nn.Embedding(4, 2, sparse=True)
    torch.nn.init.zeros_(layer.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=1.0), process_set=process_set)
    for _ in range(2):
        optimizer.zero_grad()
        layer(torch.tensor([hvd.rank(), 3])).sum().backward()
        assert layer.weight.grad.is_sparse
        optimizer.step()
    return [round(v, 4) for v in (-layer.weight.detach()[:, 0]).tolist()]


def test_every_option_does_what_it_says() -> None:
    with executor(3) as workers:
        results = workers.run(every_option)
    third = 2 / 3
    # Adasum of parallel vectors: 1 with 2 is (1 - 2/2) 1 + (1 - 2/8) 2 = 1.5, their mean.
    for rank, got in enumerate(results):
        mine = 2.0 * (rank + 1)
        ends = mine if rank == 1 else 4.0
        assert got == {
            "average": 4.0, "sum": 12.0, "min": 2.0, "max": 6.0, "product": 12.0,
            "adasum": pytest.approx(results[0]["adasum"]), "ends": ends, "adasum ends": ends,
            "groups": 4.0, "predivide": 4.0, "topk ends": ends,
            "sparse": pytest.approx([third, third, third, 2.0], abs=1e-3),
            "sparse ends": [0, 2, 0, 2] if rank == 1 else [1, 0, 1, 2],
        }
    assert 4.0 <= results[0]["adasum"] <= 5.0


def test_a_first_sparse_gradient_that_a_rank_lacks_is_an_error_and_no_hang() -> None:
    def fn() -> str:
        import torch

        import troupe.torch as hvd

        hvd.init()
        layer = torch.nn.Embedding(3, 1, sparse=True)
        other = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([layer.weight, other], lr=1.0))
        if hvd.rank() == 0:
            layer(torch.tensor([0])).sum().backward()
        with pytest.raises(troupe.errors.CollectiveMismatchError, match="sparse gradients") as told:
            optimizer.step()
        return str(told.value)

    with executor(2) as workers:
        assert len(workers.run(fn)) == 2


def train(option: str, kill_at: int) -> Any:
    import os
    import signal

    import torch

    import troupe.torch as hvd

    hvd.init()
    layer = torch.nn.Embedding(8, 4, sparse=option == "sparse", dtype=torch.float64)
    torch.nn.init.ones_(layer.weight)
    options = {"op": hvd.Adasum} if option == "adasum" else {}
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.5), **options)
    state: Any = hvd.elastic.TorchState(
        layer, optimizer, sampler=hvd.elastic.ElasticSampler(range(60), shuffle=False), step=0)
    computed: list[int] = []

    def die(grad: Any) -> None:
        if hvd.epoch() == 1 and state.step == kill_at and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        for rows in hvd.elastic.batches(state.sampler, 2):
            optimizer.zero_grad()
            computed.append(state.step)
            out = layer(torch.tensor([row % 8 for row in rows]))
            out.register_hook(die)
            # What does not depend on who has which rows: all ranks' gradients of a step are alike.
            (out.sum(0) * 0 + layer(torch.tensor([state.step % 8]))).sum().backward()
            optimizer.step()
            state.step += 1
            state.commit()

    loop(state)
    return layer.weight.tolist(), state.step, computed


@pytest.mark.parametrize("option", ["sparse", "adasum"])
def test_a_kill_in_a_step_costs_that_step_at_most(option: str) -> None:
    import torch

    with executor(3, least=2) as workers:
        handle = workers.submit(train, (option, 4))
        results = handle.result(120)
        assert len(handle.epochs()) > 1
    weights, steps, _ = results[0]
    layer = torch.nn.Embedding(8, 4, dtype=torch.float64)
    torch.nn.init.ones_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        layer(torch.tensor([step % 8])).sum().backward()
        optimizer.step()
    for got, took, computed in results:
        assert took == steps
        assert torch.allclose(torch.tensor(got, dtype=torch.float64), layer.weight.detach())
        again = len(computed) - len(set(computed))
        assert again <= 1  # None, unless the replacement came before the step was reduced again.


def train_in_a_set(kill_at: int) -> Any:
    import os
    import signal

    import torch

    import troupe.torch as hvd

    hvd.init()
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer: Any = torch.optim.SGD([weight], lr=0.5, momentum=0.5)
    founder = True
    try:
        founders = hvd.add_process_set(range(hvd.size()))
        optimizer = hvd.DistributedOptimizer(optimizer, process_set=founders)
    except troupe.TroupeError:  # Who joins is in no set.
        founder = False
    model = torch.nn.ParameterList([weight])
    state: Any = hvd.elastic.TorchState(model, optimizer, step=0, sizes=[])

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while state.step < 30:
            if hvd.epoch() == 1 and state.step == kill_at and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            # Founders differ by rank, but their mean over the set does not; others have the mean.
            spread = founders.rank() - (founders.size() - 1) / 2 if founder else 0.0
            (weight * (1.0 + spread)).sum().backward()
            optimizer.step()
            state.step += 1
            if founder:
                state.sizes = [*state.sizes, founders.size()]
            state.commit()

    loop(state)
    return founder, weight.tolist(), state.sizes


def test_a_set_that_loses_a_member_goes_on_from_the_last_commit() -> None:
    import torch

    with executor(3, least=2) as workers:
        results = workers.run(train_in_a_set, (4,))
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5)
    for _ in range(30):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
    assert [founder for founder, _, _ in results].count(True) == 2
    for founder, got, sizes in results:
        assert got == pytest.approx(weight.tolist())
        if founder:
            assert sizes == [3] * 4 + [2] * 26
