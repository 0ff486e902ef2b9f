"""Every collective against a NumPy model, on real processes, over shared memory and over links."""

from __future__ import annotations

from typing import Any

import pytest

import troupe

from collective_cases import KINDS, run_cases

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]


@pytest.mark.parametrize("memory", ["memory", "links"])
@pytest.mark.parametrize("size", range(1, 9))
def test_collectives_match_numpy(size: int, memory: str) -> None:
    env = {"TROUPE_SHARED_MEMORY": "0"} if memory == "links" else {}
    count = 8 * len(KINDS)
    with troupe.Executor(
        size, cpus_per_worker=0.1, num_cpus=2, progress="off", env=env
    ) as executor:
        results = executor.run(run_cases, (size, count))
    assert [rank for rank, _ in results] == list(range(size))
    assert all(len(KINDS) <= done <= count for _, done in results)


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


@pytest.mark.parametrize("memory", ["memory", "links"])
def test_ranks_with_less_data_join_while_the_others_go_on(memory: str) -> None:
    def fn() -> Any:
        import torch

        import troupe.torch as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        sums = []
        for step in range(4 + 3 * rank):
            active = [r for r in range(size) if step < 4 + 3 * r]
            got = hvd.allreduce(torch.full((3,), float(2**rank)), op=hvd.Sum)
            assert got.tolist() == [float(sum(2**r for r in active))] * 3
            low = hvd.allreduce(torch.tensor([rank + 5], dtype=torch.int32), op=hvd.Min)
            assert low.item() == active[0] + 5
            rows = hvd.allgather(torch.full((rank + 1,), rank))
            assert rows.tolist() == [r for r in active for _ in range(r + 1)]
            assert hvd.broadcast(torch.tensor([rank]), size - 1).item() == size - 1
            big = hvd.allreduce(torch.ones(200_000))  # Averages are still over all.
            assert torch.allclose(big, torch.full((200_000,), len(active) / size))
            sums.append(len(active))
        last = hvd.join()
        # Everybody is back.
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
        return last, sums

    env = {"TROUPE_SHARED_MEMORY": "0"} if memory == "links" else {}
    with troupe.Executor(
        3, cpus_per_worker=0.1, num_cpus=2, progress="off", env=env
    ) as executor:
        results = executor.run(fn)
    assert [last for last, _ in results] == [2, 2, 2]
    assert results[2][1] == [3] * 4 + [2] * 3 + [1] * 3


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("hvd.alltoall(torch.ones(3), splits=[1, 1, 1])", "joined.*needs a share of everybody"),
        ("hvd.broadcast(torch.ones(3), 1)", "joined, but is the root of.*nobody has what"),
    ],
)
def test_what_needs_everybody_fails_on_all_while_one_has_joined(call: str, why: str) -> None:
    def fn(call: str) -> None:
        import torch

        import troupe.torch as hvd

        hvd.init()
        if hvd.rank() == 1:
            hvd.join()
        eval(call, {"hvd": hvd, "torch": torch})

    with troupe.Executor(
        3, cpus_per_worker=0.1, num_cpus=2, progress="off"
    ) as executor, pytest.raises(troupe.WorkerError, match=why):
        executor.run(fn, (call,))
