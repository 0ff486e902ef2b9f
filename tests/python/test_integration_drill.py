"""``examples/spot``: a training on a spot market that takes its nodes away, and its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import EXAMPLES, PYAPI
from processes import MARK, assert_nothing_left

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(240)]

DRILL = EXAMPLES / "spot" / "drill.py"


def drill(mark: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, MARK: mark, "PYTHONPATH": str(PYAPI)}
    return subprocess.run([sys.executable, str(DRILL), *words], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200)


def test_preemptions_cost_no_sample_and_are_told(tmp_path: Path, request: Any) -> None:
    mark = f"{os.getpid()}-{request.node.name}"
    page, figures = tmp_path / "report.html", tmp_path / "figures.json"
    held = drill(mark, "--seconds", "15", "--seed", "3", "--report", str(page), "--json",
                 str(figures))
    assert held.returncode == 0, held.stdout
    assert "every promise was kept" in held.stdout
    told = json.loads(figures.read_text())
    assert told["training"]["accuracy"] > 0.9
    assert told["fleet"]["accounts"]["preemptions"] >= 1, held.stdout
    assert told["fleet"]["last_loss"] < told["fleet"]["first_loss"]
    assert "loss over time" in page.read_text()
    assert_nothing_left(mark)


def test_a_market_that_is_none_is_told(tmp_path: Path, request: Any) -> None:
    mark = f"{os.getpid()}-{request.node.name}"
    held = drill(mark, "--market", str(tmp_path / "none.json"))
    assert held.returncode == 1
    assert "none.json" in held.stdout and "did not start" in held.stdout
    assert_nothing_left(mark)
