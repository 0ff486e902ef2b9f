"""Every collective against a NumPy model, on real processes, over shared memory and over links."""

from __future__ import annotations

from typing import Any

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


def test_a_process_set_follows_its_members_through_a_death_and_a_join() -> None:
    def fn() -> Any:
        import os
        import signal

        import torch

        import troupe.torch as hvd

        hvd.init()
        state = hvd.elastic.ObjectState(step=0, founders=[])
        mine: dict[str, Any] = {}

        @hvd.elastic.run
        def loop(state: Any) -> list:
            seen = []
            if not state.founders:
                state.founders = hvd.allgather_object(os.getpid())
                mine["ends"] = hvd.add_process_set([0, 2])
                state.commit()
            while state.step < 60:
                if state.step == 20 and os.getpid() == state.founders[1]:
                    os.kill(os.getpid(), signal.SIGKILL)
                if "ends" in mine and mine["ends"].included():
                    total = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=mine["ends"])
                    seen.append((hvd.size(), mine["ends"].ranks, int(total)))
                hvd.allreduce(torch.ones(1))
                state.step += 1
                while state.step == 40 and hvd.size() < 3:
                    state.check_host_updates()  # Until the replacement is here.
                state.commit()
            # Who has joined knows nothing of the first set, and takes part in the next.
            later = hvd.add_process_set([1, 2])
            if later.included():
                assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=later).item() == 2
            return seen

        return loop(state)

    with troupe.Executor(
        2, 3, workers=3, cpus_per_worker=0.1, num_cpus=2, progress="off"
    ) as executor:
        results = executor.run(fn)
    assert len(results) == 3
    for seen in results[:2]:
        sizes = [size for size, _, _ in seen]
        assert 3 in sizes and all(total == 2 for _, _, total in seen)
        assert {tuple(ranks) for size, ranks, _ in seen if size == 2} <= {(0, 1)}
