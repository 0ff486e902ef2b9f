"""The C++ API as a user meets it: installed, found by CMake from outside the tree, built, run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / os.environ.get("PRESET", "release")

pytestmark = [pytest.mark.integration, pytest.mark.once]


def run(*command: str, **more: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **more}, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_actor_program_builds_outside_the_tree_and_runs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "examples" / "counter", source)
    prefix = tmp_path / "prefix"
    cmake = "/usr/bin/cmake" if os.access("/usr/bin/cmake", os.X_OK) else "cmake"
    run(cmake, "--install", str(BUILD), "--component", "cpp", "--prefix", str(prefix))
    build = tmp_path / "build"
    run(cmake, "-S", str(source), "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}")
    run(cmake, "--build", str(build))
    out = run(str(build / "counter"), TROUPE_BIN_DIR=str(prefix / "bin"))
    assert out.splitlines() == [
        "apples 30, pears 125",
        "refused: user_error: Counter::Add threw: a counter only counts up",
        "after the end: peer_gone: cancelled by the driver",
    ]
