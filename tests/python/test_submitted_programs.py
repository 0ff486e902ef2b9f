"""`troupe submit -- PROGRAM`: drivers that run in the cluster and outlive their terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import assert_nothing_left, beside, marked, until, wait_gone
from test_integration_runs import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]

# Has an actor and a task; waits for a file if it is given one, and ends with a status.
PROGRAM = """
import os, sys, time
import troupe as ray
import beside_it

@ray.remote
class Adder:
    def add(self, a, b):
        return a + b

    def pid(self):
        return os.getpid()

@ray.remote
def double(x):
    return 2 * x

adder = Adder.remote()
print("sum", ray.get(adder.add.remote(1, beside_it.TWO)), "double", ray.get(double.remote(4)))
print("colour", os.environ.get("COLOUR"), file=sys.stderr)
print("pids", os.getpid(), ray.get(adder.pid.remote()))
waits = sys.argv[2:] and sys.argv[2]
while waits and not os.path.exists(waits):
    time.sleep(0.02)
print("after", ray.get(adder.add.remote(5, 5)))
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("programs")
    made = Cluster(home)
    made.environment["TROUPE_ENVIRONMENTS"] = str(home / "environments")
    yield made
    made.run("down")
    assert_nothing_left(str(home))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a program and a module of its own."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "drive.py").write_text(PROGRAM)
    (made / "beside_it.py").write_text("TWO = 2\n")
    return made


def submit(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "troupe", "submit", "--working-dir", str(folder), *words],
        env=cluster.environment, capture_output=True, text=True, timeout=60, check=False)


def logs_of(cluster: Cluster, run: str) -> str:
    return cluster.run("logs", run)


def pids_of(cluster: Cluster, run: str) -> list[int]:
    """Of the program and its actor, as soon as it has printed them."""
    def found() -> list[str]:
        state = cluster.state_of(run)
        assert state in ("starting", "running", "waiting", "pending", "unknown"), state
        if state != "running":
            return []
        return [line for line in logs_of(cluster, run).splitlines() if "pids" in line]

    until(lambda: len(found()), 1)
    return [int(word) for word in found()[0].split("pids")[1].split()]


def test_output_and_status_of_a_program_are_those_of_the_command(
    cluster: Cluster, folder: Path
) -> None:
    done = submit(cluster, folder, "--env", "COLOUR=blue", "--", "python", "drive.py", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "sum 3 double 8"
    assert done.stdout.splitlines()[-1] == "after 10"
    assert "colour blue" in done.stderr
    run = done.stderr.split()[0]
    assert cluster.state_of(run) == "succeeded"
    failed = submit(cluster, folder, "--name", "fails", "drive.py", "7")
    assert failed.returncode == 7
    assert failed.stderr.splitlines()[-1].endswith("drive.py 7 exited with status 7")
    assert "exited with status 7" in cluster.run("attach", "fails", status=7)
    assert [r["state"] for r in cluster.json("runs") if r["name"] == "fails"] == ["failed"]


def test_what_cannot_be_run_is_refused(cluster: Cluster, folder: Path) -> None:
    assert "say what to run" in cluster.run("submit", status=2)
    assert "NAME=VALUE" in cluster.run("submit", "--env", "X", "--", "true", status=2)
    assert "of a program" in cluster.run("submit", "-np", "1", "--no-wait", "x.py", status=2)
    assert "no folder" in cluster.run("submit", "--working-dir", "/none", "--", "true", status=1)
    assert "cannot be started" in cluster.run("submit", "--", "no-such-program", status=127)
    assert "SIGKILL" in cluster.run("submit", "--", "sh", "-c", "kill -9 $$", status=137)


def test_a_program_outlives_its_terminal_and_the_head(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    command = [sys.executable, "-m", "troupe", "submit", "--working-dir", str(folder), "--name",
               "lasts", "--", "python", "drive.py", "0", str(go)]
    with beside(command, env=cluster.environment, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True) as terminal:
        assert terminal.stderr is not None
        run = terminal.stderr.readline().strip()
        pids = pids_of(cluster, run)
        os.killpg(terminal.pid, signal.SIGHUP)
        assert terminal.wait(20) != 0
    head = next(pid for pid in marked(cluster.environment["TROUPE_HOME"])
                if b"troupe-head" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])
    os.kill(head, signal.SIGKILL)
    assert wait_gone([head], 10) == []
    until(lambda: cluster.state_of(run), "running")
    go.touch()
    until(lambda: cluster.state_of(run), "succeeded")
    assert wait_gone(pids, 20) == []
    assert "after 10" in cluster.run("logs", "-f", run)


def test_a_program_that_is_cancelled_ends_with_what_it_has_started(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    done = submit(cluster, folder, "--no-wait", "--", "python", "drive.py", "0",
                  str(tmp_path / "never"))
    run = done.stdout.strip()
    pids = pids_of(cluster, run)
    assert len(pids) == 2
    cluster.run("cancel", run)
    assert wait_gone(pids, 30) == []
    until(lambda: cluster.state_of(run), "cancelled")
    until(lambda: {a["state"] for a in cluster.json("actors")} - {"dead"}, set())


def test_nobody_runs_a_program_a_second_time(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    run = submit(cluster, folder, "--no-wait", "--", "python", "drive.py", "0",
                 str(tmp_path / "never")).stdout.strip()
    program, _ = pids = pids_of(cluster, run)
    status = Path(f"/proc/{program}/status").read_text()
    worker = int(status.split("PPid:")[1].split()[0])
    os.kill(worker, signal.SIGKILL)
    until(lambda: cluster.state_of(run), "failed")
    assert wait_gone(pids, 30) == []
