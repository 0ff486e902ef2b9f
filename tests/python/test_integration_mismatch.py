"""Ranks that call different collectives: each is told what both sides called, and goes on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe._cluster import find_bin_dir

from collective_cases import disagree
from hosts import Hosts, missing

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]

# What the odd rank calls, and what the others call.
SIDES = {
    "shape": ("allreduce float32[300] average", "allreduce float32[400] average"),
    "dtype": ("allreduce float64[3] average", "allreduce float32[3] average"),
    "op": ("allreduce float32[3] min", "allreduce float32[3] max"),
    "root": ("broadcast float32[3] root 1", "broadcast float32[3] root 0"),
    # Of equal size, from a root that waits for nobody and has gone on when the others look.
    "bits": ("broadcast int32[3] root 0", "broadcast float32[3] root 0"),
    "kind": ("allgather float32[any]", "broadcast float32[3] root 0"),
    "scale": ("allreduce float32[3] average prescale 2.0", "allreduce float32[3] average"),
    "name": ('allreduce "b" float32[3] average', 'allreduce "a" float32[3] average'),
}
CASES = list(SIDES)


def run_cases(odd: int, known: bool) -> dict[str, Any]:
    """One mismatch after the other; what each rank was told.

    What is new in an epoch the ranks compare before they begin. If both calls are ``known``,
    everybody begins what it likes, and only the head sees that it is not the same.
    """
    import torch

    import troupe.torch as hvd
    from troupe.errors import CollectiveMismatchError

    hvd.init()
    told: list[tuple[str, int, str]] = []
    state: Any = hvd.elastic.ObjectState(step=0)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while state.step < len(CASES):
            total = hvd.allreduce(torch.arange(70_000.0) + hvd.rank(), op=hvd.Sum)
            ranks = hvd.size() * (hvd.size() - 1) // 2
            assert torch.equal(total, torch.arange(70_000.0) * hvd.size() + ranks)
            if len(told) == state.step:
                for side in (True, False) if known else ():
                    disagree(CASES[state.step], side)
                try:
                    disagree(CASES[state.step], hvd.rank() == odd)
                    hvd.barrier()  # A broadcast may be over for those that agree with its root.
                except CollectiveMismatchError as error:
                    told.append((CASES[state.step], hvd.epoch(), str(error)))
            state.step += 1
            state.commit()

    loop(state)
    return {"told": told, "step": state.step, "epoch": hvd.epoch()}


@pytest.fixture(scope="module", params=["memory", "links", "hosts"])
def executor(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[troupe.Executor]:
    """Four workers that share memory, have links, or are on two hosts."""
    options: dict[str, Any] = {"preload": ["torch", "troupe.torch"]}
    with contextlib.ExitStack() as stack:
        if request.param == "hosts":
            reason = missing()
            if reason:
                pytest.skip(reason)
            folder = tmp_path_factory.mktemp("hosts")
            hosts = stack.enter_context(Hosts(folder, Path(find_bin_dir()), count=2, cpus=8))
            made = hosts.executor(4, strategy="spread", **options)
        else:
            env = {"TROUPE_SHARED_MEMORY": "0"} if request.param == "links" else {}
            made = troupe.Executor(4, cpus_per_worker=0.1, num_cpus=2, progress="off", env=env,
                                   **options)
        yield stack.enter_context(made)


@pytest.mark.parametrize(("odd", "known"), [(0, False), (2, True), (3, True)])
def test_a_mismatch_is_told_to_every_rank_and_the_group_goes_on(
    executor: troupe.Executor, odd: int, known: bool
) -> None:
    handle = executor.submit(run_cases, (odd, known))
    results = handle.result(120)
    assert len(results) == 4
    for result in results:
        assert [case for case, _, _ in result["told"]] == CASES
        assert result["told"] == results[0]["told"]  # the same words, in the same epoch
        assert result["step"] == len(CASES)
    rank = re.compile(rf"\brank {odd}:? ")
    for case, _, why in results[0]["told"]:
        its = rank.search(why)
        assert its, (case, why)
        mine, theirs = SIDES[case]
        assert why[its.end():].startswith(mine), (case, why)
        assert theirs in why.replace(mine, ""), (case, why)
    epochs = [epoch for _, epoch, _ in results[0]["told"]]
    if known:
        assert epochs == sorted(set(epochs)) and results[0]["epoch"] > epochs[-1]
    else:  # Nothing was on its way that would have to be thrown away.
        assert len(handle.epochs()) == 1, handle.epochs()
    assert {epoch["size"] for epoch in handle.epochs()} == {4}
    died = [e for e in handle.events() if e["kind"] == "worker" and e["state"] == "died"]
    assert not died
