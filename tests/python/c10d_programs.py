"""Functions of torch.distributed that tests run in workers."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

STEPS = 5


def net() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, 2))


def rows(step: int, rank: int) -> Any:
    import torch

    return torch.randn(8, 10, generator=torch.Generator().manual_seed(step * 10 + rank))


def train(model: Any, optimizer: Any) -> None:
    import torch.distributed as dist

    for step in range(STEPS):
        optimizer.zero_grad()
        model(rows(step, dist.get_rank())).pow(2).mean().backward()
        optimizer.step()


def alone(size: int, make: Callable[[Any], Any]) -> list[float]:
    """The parameters after the same steps in one process, with the rows of all ranks at once."""
    import torch

    model = net()
    optimizer = make(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.cat([rows(step, rank) for rank in range(size)])).pow(2).mean().backward()
        optimizer.step()
    return numbers(model)


def numbers(model: Any) -> list[float]:
    return [float(v) for p in model.parameters() for v in p.detach().double().flatten()]


def data_parallel() -> dict[str, Any]:
    """The furthest that a parameter is from where one process gets it, for each kind of DDP."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("troupe")
    found: dict[str, Any] = {}

    def sgd(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, 0.1)

    def adam(parameters: Any) -> Any:
        return torch.optim.Adam(parameters, 0.01)

    def compare(name: str, make: Callable[[Any], Any], optimizer: Any = None,
                hook: Any = None, **options: Any) -> None:
        model = DistributedDataParallel(net(), **options)
        if hook is not None:
            model.register_comm_hook(*hook)
        train(model, optimizer(model.parameters()) if optimizer else make(model.parameters()))
        wanted = alone(dist.get_world_size(), make)
        found[name] = max(abs(a - b) for a, b in zip(numbers(model), wanted))

    compare("plain", sgd)
    compare("bucket views", sgd, gradient_as_bucket_view=True)
    compare("static graph", sgd, static_graph=True)
    compare("unused parameters", sgd, find_unused_parameters=True)
    compare("many buckets", sgd, bucket_cap_mb=0.001)
    compare("hook", sgd, hook=(None, default_hooks.allreduce_hook))
    compare("fp16 hook", sgd, hook=(None, default_hooks.fp16_compress_hook))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=3)
    compare("PowerSGD", sgd, hook=(state, powerSGD_hook.powerSGD_hook))
    compare("sharded optimizer", adam, optimizer=lambda parameters: ZeroRedundancyOptimizer(
        parameters, torch.optim.Adam, lr=0.01))

    model = DistributedDataParallel(net())
    with model.no_sync():
        model(rows(0, dist.get_rank())).pow(2).mean().backward()
    model(rows(1, dist.get_rank())).pow(2).mean().backward()
    gathered = [torch.empty(64, 10) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, next(model.parameters()).grad)
    found["no_sync"] = max(float((g - gathered[0]).abs().max()) for g in gathered)
    dist.destroy_process_group()
    return found


def sharded() -> dict[str, float]:
    """The same for parameters that are spread over the ranks."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("cpu:troupe,cuda:troupe")
    size = dist.get_world_size()
    wanted = alone(size, lambda parameters: torch.optim.SGD(parameters, 0.1))

    def off(values: list[float]) -> float:
        return max(abs(a - b) for a, b in zip(values, wanted))

    first: Any = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    train(first, torch.optim.SGD(first.parameters(), 0.1))
    with FullyShardedDataParallel.summon_full_params(first):
        found = {"FSDP1": off(numbers(first))}

    mesh = init_device_mesh("cpu", (size,))
    second: Any = net()
    for layer in second:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(second, mesh=mesh)
    train(second, torch.optim.SGD(second.parameters(), 0.1))
    found["FSDP2"] = off(
        [float(v) for p in second.parameters() for v in p.full_tensor().double().flatten()])

    left = distribute_tensor(torch.arange(32.0).reshape(8, 4), mesh, [Shard(0)])
    right = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
    product = (left @ right).redistribute(mesh, [Replicate()]).to_local()
    exact = torch.arange(32.0).reshape(8, 4) @ torch.ones(4, 4)
    found["DTensor"] = float((product - exact).abs().max())
    grid = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("rows", "columns"))
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total, group=grid["columns"].get_group())
    dist.all_reduce(total, group=grid["rows"].get_group())
    found["mesh"] = abs(float(total) - size * (size - 1) / 2)
    dist.destroy_process_group()
    return found


def messages() -> list[str]:
    """What goes wrong between two ranks that send to each other in many orders; what they say."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("troupe")
    me = dist.get_rank()
    peer = 1 - me
    told = []
    for eager in range(2):  # A barrier between the send and the receive of one of them only.
        work = dist.isend(torch.full((3,), float(me)), peer)
        box = torch.zeros(3)
        if me == eager:
            dist.barrier()
        receipt = dist.irecv(box, peer)
        if me != eager:
            dist.barrier()
        receipt.wait()
        work.wait()
        assert box.eq(peer).all(), box
    large = torch.arange(3_000_000) + me  # More than a socket takes at once, both ways.
    room = torch.empty_like(large)
    for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, large, peer), dist.P2POp(dist.irecv, room, peer)]):
        work.wait()
    assert torch.equal(room, torch.arange(3_000_000) + peer)
    number = torch.zeros(1, dtype=torch.int64)
    if me == 0:
        for tag in (5, 6):
            dist.send(torch.tensor([tag]), 1, tag=tag)
        assert dist.recv(number) == 1  # From anybody.
    else:
        for tag in (6, 5):
            dist.recv(number, 0, tag=tag)
            assert int(number) == tag
        dist.send(number, 0)
    objects: list[Any] = [None, None]
    if me == 0:
        dist.broadcast_object_list([{"a": 1}, "x"], 0)
    else:
        dist.broadcast_object_list(objects, 0)
        assert objects == [{"a": 1}, "x"]
    everybody: list[Any] = [None, None]
    dist.all_gather_object(everybody, ("from", me))
    assert everybody == [("from", 0), ("from", 1)]
    try:
        if me == 0:
            dist.send(torch.zeros(3), 1)
        else:
            dist.recv(torch.zeros(2), 0)
    except ValueError as error:
        told.append(str(error))
    sparse = torch.sparse_coo_tensor(torch.tensor([[me, 2]]), torch.tensor([1.0, 2.0]), (4,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0, 1.0, 4.0, 0.0]
    dist.barrier()
    dist.destroy_process_group()
    return told


def interrupted(flag: str, die_at: int, steps: int) -> dict[str, Any]:
    """Trains with a checkpoint every five steps; rank 1 dies once. Where each attempt began."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import troupe
    from troupe import _runtime

    dist.init_process_group("troupe")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    start = troupe.checkpoint.load({"step": 0})
    if start["step"]:
        model.module.load_state_dict(start["model"])
    begun.append((os.getpid(), start["step"], size))
    for step in range(start["step"], steps):
        optimizer.zero_grad()
        model(rows(step, 0)).pow(2).mean().backward()  # All alike, whatever their number.
        optimizer.step()
        if step % 5 == 4:
            troupe.checkpoint.save({"step": step + 1, "model": model.module.state_dict()})
        if step == die_at and rank == 1 and not os.path.exists(flag):
            with open(flag, "w") as file:
                file.write(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    runtime = _runtime.current()
    assert runtime is not None and runtime.elastic_timeout_s == 600  # A joiner's, too.
    value = {"begun": list(begun), "numbers": numbers(model.module), "size": size}
    dist.destroy_process_group()
    return value


begun: list[tuple[int, int, int]] = []
earlier: list[Any] = []


def forgetful(settings: dict[str, Any]) -> dict[str, Any]:
    """Rank 2 dies in a backward pass. What the second attempt finds of the first one."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("troupe")
    found = {"changed": settings.get("changed", False), "alive": [ref() for ref in earlier],
             "size": dist.get_world_size(), "attempt": len(earlier) + 1}
    settings["changed"] = True
    model = DistributedDataParallel(net(), bucket_cap_mb=0.001)
    earlier.append(weakref.ref(next(model.parameters())))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        loss = model(rows(step, dist.get_rank())).pow(2).mean()
        if step == 1 and found["size"] == 3 and dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    return found


def uninterrupted(steps: int) -> list[float]:
    import torch

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(rows(step, 0)).pow(2).mean().backward()
        optimizer.step()
    return numbers(model)


def hunted(folder: str) -> dict[str, Any]:
    """Trains, with a subgroup and messages, until there is a file ``stop`` in ``folder``.

    Whoever has a file of its own there may be killed.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import troupe

    with open(os.path.join(folder, str(os.getpid())), "w"):
        dist.init_process_group("troupe")
    rank, size = dist.get_rank(), dist.get_world_size()
    ends = dist.new_group([0, size - 1]) if size > 2 else None
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    start = troupe.checkpoint.load({"step": 0})
    if start["step"]:
        model.module.load_state_dict(start["model"])
    step, stop = start["step"], torch.zeros(1)
    while not stop:
        optimizer.zero_grad()
        model(rows(step, 0)).pow(2).mean().backward()
        optimizer.step()
        step += 1
        if ends is not None and rank in (0, size - 1):
            dist.all_reduce(torch.ones(3), group=ends)
        if size > 1:
            work = dist.isend(torch.ones(10), (rank + 1) % size)
            dist.recv(torch.zeros(10), (rank - 1) % size)
            work.wait()
        if step % 10 == 0:
            stop.fill_(float(os.path.exists(os.path.join(folder, "stop"))))
            dist.broadcast(stop, 0)
            troupe.checkpoint.save({"step": step, "model": model.module.state_dict()})
    dist.destroy_process_group()
    return {"steps": step, "numbers": numbers(model.module)}


def behind() -> dict[str, Any]:
    """Rank 0 has saved once more than rank 1 when rank 2 dies. What each goes on with."""
    import torch
    import torch.distributed as dist

    import troupe

    dist.init_process_group("troupe")
    rank, size = dist.get_rank(), dist.get_world_size()
    found = troupe.checkpoint.load()
    if size == 2:
        return {**found, "weight": found["weight"].tolist(), "version": troupe.checkpoint.version()}
    for step in range(1, 4 if rank == 0 else 3):
        troupe.checkpoint.save({"step": step, "weight": torch.full((3,), float(step))})
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    raise AssertionError("rank 2 is there")


def durable(folder: str, steps: int, flag: str) -> dict[str, Any]:
    """Saves each step to disk too; rank 1 dies once at step 3, before and after it has loaded."""
    import torch
    import torch.distributed as dist

    import troupe

    dist.init_process_group("troupe")
    dist.barrier()
    if dist.get_rank() == 1 and not os.path.exists(f"{flag}-early"):
        with open(f"{flag}-early", "w"):
            os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    found = troupe.checkpoint.load({"step": 0, "weight": torch.zeros(2)}, directory=folder)
    for step in range(found["step"] + 1, steps + 1):
        weight = torch.full((2,), float(step))
        troupe.checkpoint.save({"step": step, "weight": weight})
        dist.all_reduce(torch.ones(1))
        if step == 3 and dist.get_rank() == 1 and not os.path.exists(flag):
            with open(flag, "w"):
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
    return {"began": found["step"], "weight": found["weight"].tolist(),
            "version": troupe.checkpoint.version()}


def again_after_subgroups() -> list[float]:
    """DDP trains when subgroups were made and destroyed; works that nobody waits for go."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("troupe")
    lost = []
    for _ in range(3):
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(3), group=group, async_op=True)  # Dropped.
        if dist.get_rank() == 0:
            work = dist.irecv(torch.zeros(3), 1)  # Never sent.
            lost.append(weakref.ref(work))
            del work
        dist.destroy_process_group(group)
    model = DistributedDataParallel(net())
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    assert [ref() for ref in lost] == [None] * len(lost)
    try:
        if dist.get_rank() == 0:
            dist.barrier(async_op=True).wait(timedelta(seconds=0.3))
    except RuntimeError as error:
        assert "not done after 0.3 s; do all ranks call it?" in str(error), error
        dist.send(torch.ones(1), 1)
    else:
        assert dist.get_rank() == 1
        dist.recv(torch.zeros(1), 0)
        dist.barrier()  # The group is as good as ever.
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    return numbers(model.module)


def probed() -> str:
    """Who asks for torch before it is imported finds it, and the backend is there all the same."""
    import importlib.util
    import sys

    assert "torch" not in sys.modules
    for _ in range(2):
        spec = importlib.util.find_spec("torch")
        assert spec is not None and spec.loader.get_filename("torch").endswith("__init__.py")
    dist = importlib.import_module("torch.distributed")
    dist.init_process_group("troupe")
    return str(dist.get_backend())


def dies_at_once(flag: str) -> int:
    """Rank 1 dies while the others are in init_process_group."""
    import torch.distributed as dist

    if os.environ["RANK"] == "1" and not os.path.exists(flag):
        with open(flag, "w"):
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
    dist.init_process_group("troupe")
    return int(dist.get_world_size())


def late(seconds: float) -> float:
    """Rank 0 goes on alone for so long, as to evaluate, when the others have returned."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("troupe")
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() == 0:
        time.sleep(seconds)
    return seconds


def waiting(how: str) -> str:
    """Rank 0 dies while rank 1 waits for it in what is no collective of tensors."""
    import torch
    import torch.distributed as dist

    import troupe.torch as hvd

    dist.init_process_group("troupe")
    if dist.get_world_size() == 1:
        return f"alone in epoch {hvd.epoch()}"
    if dist.get_rank() == 0:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "recv":
        dist.recv(torch.zeros(3), 0)
    elif how == "future":
        dist.all_reduce(torch.zeros(3), async_op=True).get_future().wait()
    else:
        dist.new_group([0, 1])
        dist.barrier(dist.new_group([0, 1]))
    return "went on"


def wrong(kind: str) -> None:
    import torch
    import torch.distributed as dist

    size = dist.get_world_size() if dist.is_initialized() else 0
    assert size == 0
    if kind == "gloo":
        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.zeros(1))
    if kind == "rank":
        dist.init_process_group("troupe", rank=0, world_size=1)
    dist.init_process_group("troupe")
    if kind == "error":
        raise KeyError("the user's own")
    if kind == "op":
        dist.all_reduce(torch.zeros(2), op=dist.ReduceOp.BAND)
    if kind == "size":
        dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.zeros(3))
    if kind == "mismatch":
        dist.all_reduce(torch.zeros(2 + dist.get_rank()))
