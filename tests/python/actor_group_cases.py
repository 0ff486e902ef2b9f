"""Actors that are members of collective groups, for tests."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

import troupe
from troupe import collective
from troupe.collective import ReduceOp


@troupe.remote
class Member:
    """Does what it is told in a group."""

    def join(self, size: int, rank: int, name: str = "default", **options: Any) -> None:
        collective.init_collective_group(size, rank, group_name=name, **options)

    def leave(self, name: str = "default") -> None:
        collective.destroy_collective_group(name)

    def pid(self) -> int:
        return os.getpid()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def nap(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, name: str, timeout_s: float) -> dict[str, Any]:
        return collective.get_group_handle(name).wait(timeout_s)

    def place(self, name: str = "default") -> tuple[int, int, bool]:
        return (collective.get_rank(name), collective.get_collective_group_size(name),
                collective.is_group_initialized(name))

    def allreduce(self, value: float, name: str = "default", op: ReduceOp = ReduceOp.SUM,
                  count: int = 4, dtype: str = "float32", timeout_s: float = 60.0) -> list[float]:
        data = np.full(count, value, dtype=dtype)
        collective.get_group_handle(name).allreduce(data, op, timeout_s)
        return data.tolist()

    def broadcast(self, value: float, root: int, name: str = "default") -> float:
        data = np.full(1, value)
        collective.broadcast(data, root, name)
        return float(data[0])

    def all_kinds(self, name: str = "default") -> dict[str, Any]:
        """One of each, by rank."""
        rank = collective.get_rank(name)
        size = collective.get_collective_group_size(name)
        mine = np.arange(3, dtype=np.int64) + 10 * rank
        summed = mine.copy()
        collective.reduce(summed, dst_rank=size - 1, group_name=name)
        sent = mine.copy()
        collective.broadcast(sent, src_rank=1, group_name=name)
        gathered = [np.zeros(3, dtype=np.int64) for _ in range(size)]
        collective.allgather(gathered, mine, group_name=name)
        part = np.zeros(3, dtype=np.int64)
        collective.reducescatter(part, [mine + i for i in range(size)], group_name=name)
        passed = np.zeros(3, dtype=np.int64)
        if rank == 0:
            collective.send(mine, size - 1, name)
        if rank == size - 1:
            collective.recv(passed, 0, name)
        collective.barrier(name)
        return {"reduce": summed.tolist(), "broadcast": sent.tolist(),
                "allgather": [block.tolist() for block in gathered],
                "reducescatter": part.tolist(), "passed": passed.tolist()}

    def tensors(self, name: str = "default") -> list[Any]:
        """Of torch: one that is contiguous, one that is not, one of another dtype."""
        import torch

        rank = collective.get_rank(name)
        plain = torch.full((2, 3), float(rank + 1))
        turned = (torch.arange(6.0).reshape(2, 3) * (rank + 1)).t()
        half = torch.full((4,), rank + 1, dtype=torch.bfloat16)
        for tensor in (plain, turned, half):
            collective.allreduce(tensor, name, ReduceOp.AVERAGE if tensor is plain
                                 else ReduceOp.SUM)
        return [plain.tolist(), turned.tolist(), half.tolist()]

    def send(self, peer: int, count: int, name: str = "default", timeout_s: float = 60.0) -> None:
        data = np.arange(count, dtype=np.float32)
        collective.get_group_handle(name).send(data, peer, timeout_s)

    def recv(self, peer: int, count: int, name: str = "default",
             timeout_s: float = 60.0) -> float:
        data = np.zeros(count, dtype=np.float32)
        collective.get_group_handle(name).recv(data, peer, timeout_s)
        return float(data.sum())

    def train(self, steps: int, name: str, pace_s: float = 0.0) -> dict[str, Any]:
        """Sums until all of ``steps`` are done; after a change the group agrees where it is."""
        group = collective.get_group_handle(name)
        step, total, changes, fresh = 0, 0.0, 0, True
        while step < steps:
            try:
                if fresh:  # Nobody knows what the others have done.
                    place = np.array([step, total], dtype=np.float64)
                    group.allreduce(place, ReduceOp.MAX)
                    step, total, fresh = int(place[0]), float(place[1]), False
                    continue
                share = np.ones(1, dtype=np.float64)
                group.allreduce(share)
                total += float(share[0]) / group.size
                step += 1
                time.sleep(pace_s)
            except troupe.CollectiveGroupChangedError:
                changes, fresh = changes + 1, True
        return {"step": step, "total": total, "changes": changes}
