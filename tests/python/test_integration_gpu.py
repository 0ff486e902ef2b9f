"""Collectives of CUDA tensors on real GPUs, skipped with the reason elsewhere; and the way of
device memory through the extension module, over a stand-in for the driver, anywhere."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

import troupe

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FAKE = Path(troupe.__file__).parents[2] / "tests" / "libfake_gpu.so"


def need_gpus(count: int) -> None:
    """Skips the test unless torch has CUDA and there are so many devices."""
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no CUDA device")
    if torch.cuda.device_count() < count:
        pytest.skip(f"{torch.cuda.device_count()} CUDA devices, {count} are needed")


def sums_on_gpus(shared: bool) -> dict[str, Any]:
    import torch

    import troupe.torch as hvd

    hvd.init()
    device = torch.device("cuda", 0 if shared else hvd.local_rank())
    torch.cuda.set_device(device)
    rank, size = hvd.rank(), hvd.size()
    mine = torch.full((1000,), float(1 << rank), device=device)
    total = hvd.allreduce(mine, op=hvd.Sum)
    rows = torch.full((rank + 1, 2), rank, device=device)
    gathered = hvd.allgather(rows)
    hvd.broadcast_(mine, 0)
    back = hvd.alltoall(torch.arange(2 * size, device=device, dtype=torch.float32))
    share = hvd.reducescatter(torch.ones(2 * size, 3, device=device), op=hvd.Sum)
    model = torch.nn.Linear(4, 2, bias=False).to(device)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    model(torch.full((1, 4), float(rank), device=device)).sum().backward()
    optimizer.step()
    return {
        "devices": {str(t.device) for t in (total, gathered, back, share, model.weight.grad)},
        "total": total.unique().tolist(), "gathered": gathered[:, 0].tolist(),
        "root": mine.unique().tolist(), "back": back.tolist(), "share": share.unique().tolist(),
        "weight": model.weight.unique().tolist(),
    }


@pytest.mark.parametrize("nccl", ["1", "0"])
@pytest.mark.parametrize("shared", [True, False])
def test_collectives_of_cuda_tensors(nccl: str, shared: bool) -> None:
    need_gpus(1 if shared else 2)
    env = {"TROUPE_NCCL": nccl, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
    with troupe.Executor(
        2, cpus_per_worker=0.1, num_cpus=2, progress="off", env=env
    ) as executor:
        results = executor.run(sums_on_gpus, (shared,))
    for rank, got in enumerate(results):
        device = f"cuda:{0 if shared else rank}"
        assert got["devices"] == {device}
        assert got["total"] == [3.0] and got["gathered"] == [0, 1, 1]
        assert got["root"] == [1.0] and got["share"] == [2.0]
        assert got["back"] == [2.0 * rank, 2.0 * rank + 1] * 2
        assert got["weight"] == [0.5]  # 1 minus the mean of inputs 0 and 1


def through_the_core(library: str) -> tuple[list[float], list[float], bool]:
    import torch

    import troupe.torch as hvd
    from troupe.torch import _context

    hvd.init()
    fake = ctypes.CDLL(library)
    context = ctypes.c_void_p()
    fake.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    fake.cuCtxSetCurrent(context)
    address = ctypes.c_uint64()
    assert fake.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(40)) == 0
    raw = (ctypes.c_float * 10).from_address(address.value)
    values = torch.frombuffer(raw, dtype=torch.float32)
    values.fill_(float(1 << hvd.rank()))
    group = _context.current().group
    memory = (hvd.rank(), 0)
    buffer = (address.value, 40)

    def wait(handle: int) -> None:
        group.wait(handle, 60.0)

    wait(group.allreduce([buffer], [buffer], 10, "float32", "sum", 1.0, 1.0, "sum on cuda", 0,
                         memory))
    total = values.tolist()
    if hvd.rank() == 1:
        values.fill_(9.0)
    wait(group.broadcast(address.value, 40, 1, "broadcast on cuda", 0, memory))
    sent = values.tolist()
    # Another rank's copy in host memory, and no operation on host memory in between.
    plain = torch.ones(10)
    place = (plain.data_ptr(), 40)
    if hvd.rank() == 0:
        wait(group.allreduce([place], [place], 10, "float32", "sum", 1.0, 1.0, "mixed on cuda", 0,
                             (-2, 0)))
        mixed = bool((plain == 10.0).all())
    else:
        wait(group.allreduce([buffer], [buffer], 10, "float32", "sum", 1.0, 1.0, "mixed on cuda",
                             0, memory))
        mixed = bool((values == 10.0).all())
    fake.cuMemFree_v2(address)
    return total, sent, mixed


def test_device_memory_goes_through_the_core() -> None:
    if not FAKE.is_file():
        pytest.skip(f"a build without the headers of NCCL: there is no {FAKE.name}")
    env = {"TROUPE_CUDA_LIBRARY": str(FAKE), "TROUPE_NCCL": "0"}
    with troupe.Executor(
        2, cpus_per_worker=0.1, num_cpus=2, progress="off", env=env
    ) as executor:
        for total, sent, mixed in executor.run(through_the_core, (str(FAKE),)):
            assert total == [3.0] * 10
            assert sent == [9.0] * 10
            assert mixed
