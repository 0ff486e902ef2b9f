"""Frameworks from PyPI on the backend "troupe": a worker dies, and training begins again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import troupe

import framework_programs

pytestmark = [pytest.mark.integration, pytest.mark.venv_only, pytest.mark.timeout(180)]


@pytest.mark.parametrize("program", [framework_programs.lightning, framework_programs.accelerate],
                         ids=lambda program: program.__name__)
def test_a_framework_trains_on_when_a_worker_dies(program: Any, tmp_path: Path) -> None:
    """With the ranks and the size of those that are left, and one result on all of them."""
    results = {}
    for name, flag in (("killed", tmp_path / "died"), ("whole", tmp_path / "died")):
        size = 3 if name == "killed" else 2
        with troupe.Executor(2, size, workers=size, cpus_per_worker=0.4, num_cpus=2,
                             progress="off", log_to_driver=False) as executor:
            results[name] = list(executor.run(program, (str(flag),)))
    for found in results.values():
        assert sorted(result["rank"] for result in found) == [0, 1]
        assert {result["size"] for result in found} == {2}
        assert {result["steps"] for result in found} == {framework_programs.BATCHES}
        assert {result["backend"] for result in found} == {"troupe"}
    # Two workers from the beginning get to the very same model.
    weights = {tuple(r["weight"]) for found in results.values() for r in found}
    assert len(weights) == 1
