"""Gradients through collectives, among ranks that are threads and on real workers."""

from __future__ import annotations

import pytest

import troupe

from autograd_cases import KINDS, check_all, check_in_worker
from fake_core import run_ranks


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_follow_the_rules(size: int) -> None:
    sets = [[0, 2], [1, 2]] if size == 3 else []
    done = run_ranks(size, lambda: check_all(sets))
    assert done == [len(KINDS) * k for k in ([2, 2, 3] if size == 3 else [1] * size)]


@pytest.mark.integration
@pytest.mark.once
def test_gradients_follow_the_rules_on_workers() -> None:
    with troupe.Executor(3, cpus_per_worker=0.1, num_cpus=2, progress="off") as executor:
        done = executor.run(check_in_worker, ([[0, 2], [1, 2]],))
    assert done == [len(KINDS) * k for k in (2, 2, 3)]
