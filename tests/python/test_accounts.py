"""``troupe accounts``: the figures of a journal, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from troupe.cli import main
from troupe.cli.accounts_command import USES

POOL = {
    "worker_s": dict.fromkeys(USES, 0.0) | {"useful": 5400.0, "starting": 1800.0},
    "dollars": dict.fromkeys(USES, 0.0) | {"useful": 0.75, "starting": 0.25},
    "paid_worker_s": 7200.0, "paid_dollars": 1.0, "spot_worker_s": 7200.0,
    "on_demand_dollars": 4.0, "preemptions": 3, "lost_dollars": 0.125, "steps": 2000,
}


def journal(folder: Path, *figures: Any) -> Path:
    file = folder / "demo.jsonl"
    records = [{"at": 1.0, "life": "a", "kind": "start", "text": "demo"}]
    records += [{"at": 2.0, "life": "a", "kind": "account", "figures": f} for f in figures]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def accounts(capsys: Any, file: Path, *words: str) -> tuple[int, str, str]:
    status = main(["accounts", "--journal", str(file), *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_last_account_is_told(tmp_path: Path, capsys: Any) -> None:
    both = POOL | {"pools": {"spot": POOL, "base": POOL | {"paid_worker_s": 0.0}}}
    status, out, _ = accounts(capsys, journal(tmp_path, POOL | {"steps": 1}, both))
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["useful", "1.500", "75.00%", "0.7500"] in lines
    assert ["starting", "0.500", "25.00%", "0.2500"] in lines
    assert ["paid", "2.000", "100%", "1.0000"] in lines
    assert "on demand: $4.0000; saved $3.0000 (75.0%)" in out
    assert "preemptions: 3, which cost $0.1250" in out
    assert "steps: 2000; $0.5 per thousand" in out
    assert ["spot", "2.000", "75.00%", "1.0000"] in lines
    assert ["base", "0.000", "0.00%", "1.0000"] in lines


def test_samples_and_epochs_are_told_where_a_sampler_counts(tmp_path: Path, capsys: Any) -> None:
    _, out, _ = accounts(capsys, journal(tmp_path, POOL | {"samples": 64000, "epochs": 2.5}))
    assert "samples: 64000; $0.0156 per thousand" in out
    assert "epochs: 2.500; $0.4 each" in out
    _, out, _ = accounts(capsys, journal(tmp_path, POOL | {"samples": 0, "epochs": 0.0}))
    assert "samples" not in out and "epochs" not in out


def test_without_an_on_demand_pool_nothing_is_said_of_one(tmp_path: Path, capsys: Any) -> None:
    _, out, _ = accounts(capsys, journal(tmp_path, POOL | {"on_demand_dollars": None}))
    assert "on demand" not in out


def test_programs_get_the_figures_as_they_are(tmp_path: Path, capsys: Any) -> None:
    _, out, _ = accounts(capsys, journal(tmp_path, POOL), "--json")
    assert json.loads(out) == POOL


@pytest.mark.parametrize(("figures", "expected"), [
    ([], "no accounts yet"), ([7], "no accounts yet"), ([{"worker_s": {}}], "cannot be read"),
])
def test_what_is_missing_is_told(
    tmp_path: Path, capsys: Any, figures: list[Any], expected: str
) -> None:
    status, _, err = accounts(capsys, journal(tmp_path, *figures))
    assert status == 1 and expected in err
