"""``troupe chaos`` on a fleet of ``troupe up``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fleets
from processes import assert_nothing_left

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(240)]

FLEET = """\
provider: process
training: {command: [python3, train.py], min_workers: 1, max_workers: 2}
autoscaler: {tick: 200ms, cooldown: 500ms, cooldown_max: 1s}
pools:
  - {name: a, market: spot, zone: east, max_workers: 1}
  - {name: b, market: spot, zone: west, max_workers: 1}
"""


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Iterator[fleets.Fleet]:
    with tempfile.TemporaryDirectory(prefix="chs-") as folder:
        made = fleets.Fleet(Path(folder), f"{os.getpid()}-{request.node.name}")
        (made.folder / "fleet.yaml").write_text(FLEET)
        (made.folder / "train.py").write_text(made.seen_training(fleets.NODE, 99))
        yield made


@pytest.fixture
def up(fleet: fleets.Fleet) -> Iterator[subprocess.Popen[str]]:
    with fleet.start("up", "fleet.yaml") as up:
        try:
            fleet.await_seen(up, 2)
            yield up
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=60)
        finally:
            up.kill()
    assert_nothing_left(fleet.mark)


def held(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def test_faults_and_what_they_did(fleet: fleets.Fleet, up: subprocess.Popen[str]) -> None:
    code, out = fleet.run("chaos", "kill", "stop", "disk", "zone", "notice", "--zone", "east",
                          "--lead", "5s", "--for", "3s", "--seed", "3", "-o", "json")
    assert code == 0, out
    effects = {effect["fault"]: effect for effect in held(out)}
    assert list(effects) == ["kill", "stop", "disk", "zone", "notice"]
    assert all(effect["went_on"] for effect in effects.values()), out
    for fault in ("kill", "zone", "notice"):
        assert effects[fault]["epochs"] >= 1, out
        assert effects[fault]["reason"], out
        assert effects[fault]["whole_s"] is not None, out
    assert effects["kill"]["target"].startswith("worker w")
    assert effects["zone"]["target"].startswith("zone east: a-")
    assert effects["zone"]["whole_s"] > 0, out  # Its node had to be replaced.
    # Its others stood still until they were rid of who was stopped.
    assert effects["stop"]["stood_s"] > effects["stop"]["calm_s"], out
    assert effects["stop"]["epochs"] >= 1, out


def test_what_cannot_be_done_is_said(fleet: fleets.Fleet, up: subprocess.Popen[str]) -> None:
    for words, status, said in (
            (["partition"], 1, "partition: all workers of the run are on one host"),
            (["zone"], 2, "the fault zone needs --zone"),
            (["zone", "--zone", "north"], 4, "no node has the label zone=north"),
            (["kill", "--node", "c-1"], 4, "the run has no worker on node c-1"),
            (["kill", "--run", "other"], 4, "which run is to be watched? --run NAME; running: ")):
        code, out = fleet.run("chaos", *words)
        assert code == status, out
        assert said in out
        assert "Traceback" not in out, out
