"""A death is told with its cause; who joins never fails a group that trains; restarts back off."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from death_cases import die_once, one_too_many, train
from orphan_cases import await_file

import troupe

from processes import until

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(120)]
OPTIONS: dict[str, Any] = {"cpus_per_worker": 0.1, "num_cpus": 1, "progress": "off"}


def deaths(handle: Any) -> list[dict[str, Any]]:
    return [e for e in handle.events() if e["kind"] == "worker" and e["state"] == "died"]


@pytest.mark.parametrize(("how", "cause"), [
    ("crash", "signal SIGSEGV (Segmentation fault)"), ("exit", "exit code 3"),
    ("kill", "signal SIGKILL (Killed)"), ("exit 255", "exit code 255")])
def test_a_death_is_told_with_its_cause(how: str, cause: str, tmp_path: Path) -> None:
    with troupe.Executor(2, **OPTIONS) as executor:
        handle = executor.submit(die_once, (str(tmp_path), how))
        # One that crashed runs again, also if the other one had finished; one that was killed need
        # not.
        assert len(handle.result(60)) in ((1, 2) if how == "kill" else (2,))
        (death,) = deaths(handle)
        assert death["detail"] == cause
        assert "last words" in death["last_lines"]


def test_a_worker_that_crashes_in_every_life_fails_the_run_with_the_cause(tmp_path: Path) -> None:
    with troupe.Executor(3, **OPTIONS) as executor:
        begun = time.monotonic()
        handle = executor.submit(one_too_many, (str(tmp_path),))
        with pytest.raises(troupe.WorkerError) as info:
            handle.result(60)
        assert "5 times in a row" in str(info.value) and "exit code 3" in str(info.value)
        assert "cannot go on" in str(info.value)
        assert len(deaths(handle)) == 5
        assert time.monotonic() - begun > 1.75  # 0 + 0.25 + 0.5 + 1 s


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that does not start while the file ``broken`` is there, nor ever as a spare.

    Else those that follow would be forks of one that has started before.
    """
    script = tmp_path / "python"
    broken = tmp_path / "broken"
    script.write_text(f"#!/bin/sh\nif [ -e {broken} ]; then echo no start >&2; exit 9; fi\n"
                      'case "$*" in *--spare*) echo not as a spare >&2; exit 8;; esac\n'
                      f'exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.mark.venv_only
def test_joiners_that_die_at_start_do_not_fail_a_group_that_trains(
    python: Path, tmp_path: Path
) -> None:
    with troupe.Executor(1, 2, python=str(python), **OPTIONS) as executor:
        handle = executor.submit(train, (str(tmp_path),))
        await_file(tmp_path / "rank-1")
        (tmp_path / "broken").touch()
        killed: set[int] = set()

        def joiners_that_died() -> int:
            """Kills rank 1, and the spare that may have taken its place."""
            members = {w["pid"] for w in handle.workers() if w["rank"] == 1} - killed
            for pid in members:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
            return len([d for d in deaths(handle) if "exit code 9" in d["detail"]])

        until(lambda: joiners_that_died() >= 4, True)
        assert handle.status()["state"] == "running"
        (tmp_path / "broken").unlink()
        until(lambda: handle.epochs()[-1]["size"], 2)
        (tmp_path / "enough").touch()
        assert len(set(handle.result(60))) == 1


def test_a_run_whose_workers_cannot_start_says_why(python: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with troupe.Executor(1, python=str(python), **OPTIONS) as executor:
        with pytest.raises(troupe.WorkerError) as info:
            executor.submit(os.getpid).result(60)
        assert "exit code 9" in str(info.value) and "no start" in str(info.value)
