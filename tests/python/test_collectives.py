"""Collectives on tensors: values, dtypes, autograd, errors."""

from __future__ import annotations

import pytest
import torch

import troupe.torch as hvd
from troupe.errors import CollectiveMismatchError

from collective_cases import disagree
from fake_core import run_ranks

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def test_needs_init() -> None:
    for call in (hvd.rank, hvd.size, hvd.local_rank, lambda: hvd.allreduce(torch.ones(1))):
        with pytest.raises(ValueError, match="not been initialized"):
            call()


def test_ranks_and_sizes() -> None:
    views = run_ranks(3, lambda: (hvd.rank(), hvd.size(), hvd.local_size(), hvd.max_size()))
    assert views == [(0, 3, 3, 64), (1, 3, 3, 64), (2, 3, 3, 64)]


def test_alone_outside_of_any_executor() -> None:
    hvd.init()
    try:
        assert (hvd.rank(), hvd.size()) == (0, 1)
        assert hvd.allreduce(torch.tensor([2.0]), op=hvd.Sum, prescale_factor=3).tolist() == [6.0]
        assert hvd.allgather(torch.ones(2, 3)).shape == (2, 3)
        assert hvd.broadcast_object({"a": 1}) == {"a": 1}
        assert hvd.allgather_object("x") == ["x"]
        hvd.barrier()
    finally:
        hvd.shutdown()
    assert not hvd.is_initialized()


@pytest.mark.parametrize("dtype", FLOATS + INTS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_allreduce_values(dtype: torch.dtype, dims: int) -> None:
    def fn() -> list:
        x = torch.arange(2 ** dims).reshape([2] * dims).to(dtype) + hvd.rank()
        return [hvd.allreduce(x, op=hvd.Sum), hvd.allreduce(x), hvd.allreduce(x, op=hvd.Min),
                hvd.allreduce(x, op=hvd.Max), hvd.allreduce(x, op=hvd.Product), x]

    base = torch.arange(2 ** dims).reshape([2] * dims)
    for total, mean, low, high, product, _ in run_ranks(3, fn):
        assert total.dtype == dtype
        assert torch.equal(total, (3 * base + 3).to(dtype))
        assert torch.equal(mean, (base + 1).to(dtype))
        assert torch.equal(low, base.to(dtype))
        assert torch.equal(high, (base + 2).to(dtype))
        expected = (base * (base + 1) * (base + 2)).to(dtype)
        if dims < 3 or dtype not in (torch.uint8, torch.int8, torch.bfloat16):
            assert torch.equal(product, expected)


def test_allreduce_scales_and_average_argument() -> None:
    def fn() -> list:
        x = torch.full((3,), float(hvd.rank() + 1))
        y = torch.full((3,), hvd.rank() + 1, dtype=torch.int32)
        with pytest.raises(ValueError, match="only op"):
            hvd.allreduce(x, average=True, op=hvd.Sum)
        return [
            hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5).tolist(),
            hvd.allreduce(x, average=False).tolist(),
            hvd.allreduce(y, op=hvd.Sum, prescale_factor=2.0).tolist(),
            hvd.allreduce(y).tolist(),
        ]

    for scaled, summed, ints, int_mean in run_ranks(2, fn):
        assert scaled == [3.0] * 3 and summed == [3.0] * 3 and ints == [6] * 3
        assert int_mean == [1] * 3  # 3 / 2, truncated


def test_in_place_async_and_handles() -> None:
    def fn() -> None:
        xs = [torch.full((4,), float(hvd.rank() + i)) for i in range(5)]
        handles = [hvd.allreduce_async_(x, op=hvd.Sum, name=f"x{i}") for i, x in enumerate(xs)]
        for handle, x, i in zip(handles, xs, range(5)):
            assert hvd.synchronize(handle) is x
            assert x.tolist() == [1.0 + 2 * i] * 4
            assert hvd.poll(handle) and hvd.synchronize(handle) is None

    run_ranks(2, fn)


def test_in_place_result_is_seen_by_autograd() -> None:
    def fn() -> None:
        x = torch.ones(3)
        version = x._version
        hvd.allreduce_(x)
        assert x._version > version

    run_ranks(2, fn)


def test_duplicate_name_in_flight() -> None:
    def fn() -> None:
        x, y = torch.ones(2), torch.ones(2)
        handle = hvd.allreduce_async_(x, name="same", op=hvd.Sum)
        with pytest.raises(ValueError, match="'same' is already in flight"):
            hvd.allreduce_async_(y, name="same", op=hvd.Sum)
        hvd.synchronize(handle)
        hvd.allreduce_(y, name="same", op=hvd.Sum)
        assert x.tolist() == y.tolist() == [2.0, 2.0]

    run_ranks(2, fn)


def test_bad_tensors() -> None:
    def fn() -> None:
        with pytest.raises(ValueError, match="contiguous"):
            hvd.allreduce_(torch.ones(3, 4).t())
        with pytest.raises(ValueError, match="dtype"):
            hvd.allreduce(torch.ones(2, dtype=torch.complex64))
        with pytest.raises(TypeError, match="torch.Tensor"):
            hvd.broadcast_([1.0], 0)
        with pytest.raises(ValueError, match="root_rank 5"):
            hvd.broadcast_(torch.ones(1), 5)
        with pytest.raises(ValueError, match="scalar"):
            hvd.allgather(torch.tensor(1.0))
        with pytest.raises(ValueError, match="process_set"):
            hvd.allreduce(torch.ones(1), process_set=object())

    run_ranks(1, fn)


@pytest.mark.parametrize("case", ["shape", "dtype", "op", "root", "kind", "scale", "name"])
def test_mismatch_is_an_error_on_every_rank(case: str) -> None:
    def fn() -> str:
        with pytest.raises(CollectiveMismatchError) as error:
            disagree(case, hvd.rank() == 1)
        return str(error.value)

    assert all("disagree" in message for message in run_ranks(2, fn))


def test_grouped_allreduce_mixed_dtypes_and_gradient() -> None:
    def fn() -> None:
        a = torch.ones(3, requires_grad=True)
        b = torch.full((2, 2), 2.0, dtype=torch.float64, requires_grad=True)
        x, y = hvd.grouped_allreduce([a, b], op=hvd.Sum)
        assert x.tolist() == [2.0] * 3 and y.tolist() == [[4.0, 4.0]] * 2
        (x.sum() * (hvd.rank() + 1)).backward(retain_graph=True)
        assert a.grad.tolist() == [3.0] * 3
        c = torch.ones(2, dtype=torch.int64)
        assert hvd.grouped_allreduce_([c], op=hvd.Sum)[0] is c and c.tolist() == [2, 2]

    run_ranks(2, fn)


@pytest.mark.parametrize("dtype", FLOATS + INTS + [torch.bool])
def test_broadcast_values(dtype: torch.dtype) -> None:
    def fn() -> None:
        x = torch.tensor([0, 1, 1]).to(dtype) if hvd.rank() == 1 else torch.zeros(3).to(dtype)
        y = hvd.broadcast(x, 1)
        assert y.dtype == dtype and y.tolist() == torch.tensor([0, 1, 1]).to(dtype).tolist()
        hvd.broadcast_(x, 1)
        assert torch.equal(x, y)
        assert torch.equal(hvd.synchronize(hvd.broadcast_async(x, 0)), y)

    run_ranks(3, fn)


def test_allgather_uneven() -> None:
    def fn() -> None:
        r = hvd.rank()
        x = torch.full((r, 2), float(r))
        y = hvd.allgather(x)
        assert y[:, 0].tolist() == [1.0, 2.0, 2.0]
        assert torch.equal(hvd.synchronize(hvd.allgather_async(x)), y)
        z = hvd.allgather(torch.tensor([r], dtype=torch.int16))
        assert z.tolist() == [0, 1, 2] and z.dtype == torch.int16
        with pytest.raises(CollectiveMismatchError):
            hvd.allgather(torch.zeros(2, r + 1))

    run_ranks(3, fn)


def test_gradients() -> None:
    def fn() -> None:
        r = hvd.rank()
        x = torch.ones(2, 2, requires_grad=True)
        (hvd.allreduce(x, op=hvd.Sum) * (r + 1)).sum().backward()
        assert x.grad.tolist() == [[3.0, 3.0]] * 2
        x = torch.ones(2, requires_grad=True)
        (hvd.allreduce(x) * (r + 1)).sum().backward()
        assert x.grad.tolist() == [1.5, 1.5]
        x = torch.ones(r + 1, requires_grad=True)
        weights = torch.tensor([1.0, 10.0, 100.0]) * (r + 1)
        (hvd.allgather(x) * weights).sum().backward()
        assert x.grad.tolist() == ([1.5] if r == 0 else [15.0, 150.0])
        x = torch.ones(2, requires_grad=True)
        (hvd.broadcast(x, 0) * (r + 1)).sum().backward()
        assert x.grad.tolist() == ([1.5, 1.5] if r == 0 else [0.0, 0.0])

    run_ranks(2, fn)


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
def test_compression(compression: type) -> None:
    def fn() -> None:
        x = torch.full((4,), hvd.rank() + 0.5)
        y = hvd.allreduce(x, compression=compression, op=hvd.Sum)
        assert y.dtype == torch.float32 and y.tolist() == [2.0] * 4
        n = torch.ones(2, dtype=torch.int64)
        assert hvd.allreduce(n, compression=compression, op=hvd.Sum).dtype == torch.int64

    run_ranks(2, fn)


def test_objects() -> None:
    def fn() -> None:
        r = hvd.rank()
        assert hvd.broadcast_object({"rank": r}, root_rank=1) == {"rank": 1}
        assert hvd.allgather_object("x" * r) == ["", "x", "xx"]

    run_ranks(3, fn)


def test_broadcast_parameters_and_optimizer_state() -> None:
    def fn() -> list:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (hvd.rank() + 1))
        if hvd.rank() == 1:
            model(torch.ones(5, 3)).pow(2).sum().backward()
            optimizer.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        moments = [s["exp_avg"] for s in optimizer.state.values()]
        rate = torch.tensor(optimizer.param_groups[0]["lr"])
        return [*model.state_dict().values(), *moments, rate]

    first, second = run_ranks(2, fn)
    assert len(first) == len(second) > 8
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert first[-1].item() == pytest.approx(0.2)


def test_barrier_holds_everyone() -> None:
    import threading

    entered = threading.Semaphore(0)

    def fn() -> int:
        if hvd.rank() == 0:
            entered.acquire(timeout=10)  # rank 1 is about to enter
        else:
            entered.release()
        hvd.barrier()
        return hvd.rank()

    assert run_ranks(2, fn) == [0, 1]


def test_init_again_after_shutdown() -> None:
    def fn() -> int:
        hvd.shutdown()
        assert not hvd.is_initialized()
        hvd.init()
        return int(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())

    assert run_ranks(2, fn) == [2, 2]


def test_adasum_adds_what_is_orthogonal_and_averages_what_is_equal() -> None:
    def fn() -> None:
        apart = torch.zeros(4)
        apart[hvd.rank()] = 2.0
        assert hvd.allreduce(apart, op=hvd.Adasum).tolist() == [2.0, 2.0, 2.0, 0.0]
        same = torch.tensor([1.0, -3.0], dtype=torch.float64)
        assert hvd.allreduce(same, op=hvd.Adasum).tolist() == [1.0, -3.0]
        with pytest.raises(ValueError, match="floating"):
            hvd.allreduce(torch.ones(1, dtype=torch.int32), op=hvd.Adasum)

    run_ranks(3, fn)


def test_reducescatter_of_uneven_rows_and_its_gradient() -> None:
    def fn() -> None:
        r, size = hvd.rank(), hvd.size()
        x = torch.arange(10, dtype=torch.float32).reshape(5, 2) * (r + 1)
        rows = [slice(0, 2), slice(2, 4), slice(4, 5)][r]
        total = torch.arange(10, dtype=torch.float32).reshape(5, 2) * 6
        assert torch.equal(hvd.reducescatter(x, op=hvd.Sum), total[rows])
        assert torch.equal(hvd.reducescatter(x), total[rows] / size)
        exact = hvd.reducescatter(x.to(torch.int32), prescale_factor=2.0)
        assert torch.equal(exact, (total[rows] * 2).to(torch.int32) // size)
        a, b = hvd.grouped_reducescatter([x, x.double()], op=hvd.Sum)
        assert torch.equal(a, total[rows]) and torch.equal(b, total[rows].double())
        x.requires_grad_()
        hvd.reducescatter(x).sum().backward()
        assert x.grad.tolist() == [[1.0, 1.0]] * 5
        with pytest.raises(ValueError, match="Max"):
            hvd.reducescatter(x, op=hvd.Max)
        with pytest.raises(ValueError, match="scalar"):
            hvd.reducescatter(torch.tensor(1.0))

    run_ranks(3, fn)


def test_alltoall_with_and_without_splits() -> None:
    def fn() -> None:
        r, size = hvd.rank(), hvd.size()
        x = torch.arange(size * 2).reshape(size, 2) + 100 * r
        assert hvd.alltoall(x).tolist() == [
            [2 * r + 100 * p, 2 * r + 1 + 100 * p] for p in range(size)
        ]
        # Rank r sends p rows to rank p.
        y = torch.full((3,), float(r), requires_grad=True)
        out, received = hvd.alltoall(y, splits=torch.tensor([0, 1, 2]))
        assert received.tolist() == [r] * 3
        assert out.tolist() == [float(p) for p in range(size) for _ in range(r)]
        (out * (r + 1)).sum().backward()
        assert y.grad.tolist() == [2.0, 3.0, 3.0]
        with pytest.raises(ValueError, match="add up"):
            hvd.alltoall(y, splits=[1, 1, 2])
        with pytest.raises(ValueError, match="evenly"):
            hvd.alltoall(torch.ones(4))

    run_ranks(3, fn)


def test_gather_scatter_and_reduce_to_a_root() -> None:
    def fn() -> None:
        r = hvd.rank()
        mine = torch.full((r, 2), r, dtype=torch.int64)
        gathered = hvd.gather(mine, 1)
        assert (gathered is None) == (r != 1)
        if gathered is not None:
            assert gathered[:, 0].tolist() == [1, 2, 2]
        whole = torch.arange(8.0).reshape(4, 2) if r == 2 else None
        share = hvd.scatter(whole, 2)
        assert share.tolist() == [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0]], [[6.0, 7.0]]][r]
        back = hvd.gather(share, 0)
        assert torch.equal(back, torch.arange(8.0).reshape(4, 2)) if r == 0 else back is None
        top = hvd.reduce(torch.tensor([float(r)]), 0, op=hvd.Max)
        assert top.tolist() == [2.0] if r == 0 else top is None

    run_ranks(3, fn)


def test_grouped_allgather_and_sparse_allreduce() -> None:
    def fn() -> None:
        r = hvd.rank()
        a, b = hvd.grouped_allgather([torch.full((r,), r), torch.ones(1, 2)])
        assert a.tolist() == [1, 2, 2] and b.shape == (3, 2)
        x = torch.sparse_coo_tensor([[r, 3]], [1.0, 3.0], (4,))
        wait = hvd.sparse_allreduce_async(x)
        assert wait().to_dense().tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 3.0])
        assert hvd.sparse_allreduce_async(x, op=hvd.Sum)().to_dense().tolist() == [1, 1, 1, 9]
        with pytest.raises(ValueError, match="sparse"):
            hvd.sparse_allreduce_async(torch.ones(2))

    run_ranks(3, fn)


def test_process_sets_are_members_with_their_own_collectives() -> None:
    def fn() -> None:
        r = hvd.rank()
        outer = hvd.add_process_set([0, 2])
        pair = hvd.add_process_set(hvd.ProcessSet([1, 0]))
        assert outer.ranks == [0, 2] and pair.ranks == [0, 1]
        assert (outer.included(), outer.rank()) == ((True, r // 2) if r != 1 else (False, -1))
        x = torch.tensor([float(r + 1)])
        if outer.included():
            assert hvd.allreduce(x, op=hvd.Sum, process_set=outer).item() == 4.0
            assert hvd.allreduce(x, process_set=outer).item() == 2.0
            assert hvd.broadcast(x, 2, process_set=outer).item() == 3.0
            with pytest.raises(ValueError, match="root_rank 1"):
                hvd.broadcast(x, 1, process_set=outer)
            assert hvd.allgather(x, process_set=outer).tolist() == [1.0, 3.0]
            hvd.barrier(process_set=outer)
        else:
            with pytest.raises(ValueError, match="not in"):
                hvd.allreduce(x, process_set=outer)
        with pytest.raises(ValueError, match="already"):
            hvd.add_process_set([2, 0])
        with pytest.raises(ValueError, match="not ranks"):
            hvd.add_process_set([0, 7])
        assert hvd.remove_process_set(outer) and not hvd.remove_process_set(outer)
        with pytest.raises(ValueError, match="not registered"):
            hvd.allreduce(x, process_set=outer)
        assert not hvd.remove_process_set(hvd.global_process_set)

    run_ranks(3, fn)


def test_init_registers_process_sets_and_takes_all_ranks_for_comm() -> None:
    def fn() -> None:
        hvd.shutdown()
        pair, rest = hvd.ProcessSet([0, 1]), hvd.ProcessSet([2])
        hvd.init(comm=[0, 1, 2], process_sets=[pair, rest])
        mine = pair if pair.included() else rest
        total = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=mine)
        assert total.item() == mine.size() == (1 if hvd.rank() == 2 else 2)
        for wrong, why in (({"comm": [0, 1]}, "not all ranks of this group of 3"),
                           ({"comm": object()}, "no communicator of MPI"),
                           ({"process_sets": 7}, 'a list of ProcessSet or "dynamic"'),
                           ({"process_sets": [[0, 9]]}, "not ranks of a group of 3")):
            hvd.shutdown()
            with pytest.raises(ValueError, match=why):
                hvd.init(**wrong)
            assert not hvd.is_initialized()
        hvd.init(process_sets="dynamic")

    run_ranks(3, fn)
