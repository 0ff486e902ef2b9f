"""Two minutes of random faults; ``make chaos SEED= MINUTES=`` runs as long as you like."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import need_hosts
from hosts import missing

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.venv_only,
              pytest.mark.timeout(420)]
CHAOS = Path(__file__).resolve().parents[1] / "chaos" / "run.py"
MINUTES_EACH = 1.0


@pytest.mark.parametrize("seed", [1, 2])  # odd: with sums of their own; even: replayed gradients
def test_a_minute_of_faults(seed: int) -> None:
    need_hosts(missing())
    done = subprocess.run(
        [sys.executable, str(CHAOS), "--seed", str(seed), "--minutes", str(MINUTES_EACH)],
        capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert f"seed {seed}: exact" in done.stdout
