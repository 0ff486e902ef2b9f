"""The C++ API as a user meets it: installed, found by CMake from outside the tree, built, run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from processes import free_port

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / os.environ.get("PRESET", "release")

pytestmark = [pytest.mark.integration, pytest.mark.once]


SAID = [
    "apples 30, pears 125, together 155",
    "a task: 144",
    "refused: Counter::Add threw: a counter only counts up",
    "after the end: peer_gone",
]


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
    program = str(build / "counter")
    out = run(program, TROUPE_BIN_DIR=str(prefix / "bin"))
    assert out.splitlines() == ["on one node: yes", *SAID]
    # The same program on a cluster of two nodes, as the README has it.
    home = {"TROUPE_HOME": str(tmp_path / "home")}
    troupe = (sys.executable, "-m", "troupe")
    port = free_port()
    run(*troupe, "start", "--head", "--host", "127.0.0.1", "--port", str(port), "--name", "first",
        **home)
    try:
        run(*troupe, "start", "--address", f"127.0.0.1:{port}", "--name", "second", **home)
        out = run(program, TROUPE_ADDRESS=f"127.0.0.1:{port}",
                  TROUPE_KEY_FILE=str(tmp_path / "home" / "cluster.key"))
        assert out.splitlines() == ["on one node: no", *SAID]
    finally:
        run(*troupe, "stop", **home)
