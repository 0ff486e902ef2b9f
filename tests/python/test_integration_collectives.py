"""Every collective against a NumPy model, on real processes, over shared memory and over links."""

from __future__ import annotations

import pytest
from collective_cases import KINDS, run_cases

import troupe

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.mark.parametrize("memory", ["memory", "links"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8])
def test_collectives_match_numpy(size: int, memory: str) -> None:
    env = {"TROUPE_SHARED_MEMORY": "0"} if memory == "links" else {}
    count = 8 * len(KINDS)
    with troupe.Executor(
        size, cpus_per_worker=0.1, num_cpus=2, progress="off", env=env
    ) as executor:
        results = executor.run(run_cases, (size, count))
    assert [rank for rank, _ in results] == list(range(size))
    assert all(count / 4 < done <= count for _, done in results)


def test_what_is_not_contiguous_is_refused_before_anything_moves() -> None:
    def fn() -> float:
        import torch

        import troupe.torch as hvd

        hvd.init()
        transposed = torch.ones(4, 3).t()
        for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with pytest.raises(ValueError, match="contiguous"):
                call(transposed)
        with pytest.raises(ValueError, match="contiguous"):
            hvd.broadcast(transposed, 0)
        return float(hvd.allreduce(torch.ones(1), op=hvd.Sum))

    with troupe.Executor(2, cpus_per_worker=0.1, num_cpus=2, progress="off") as executor:
        assert executor.run(fn) == [2.0, 2.0]
