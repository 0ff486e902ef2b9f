"""``provider: slurm``: a fleet of jobs, with a real Slurm of three nodes on this host."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fleets
import slurm_cluster
from processes import assert_nothing_left, free_port, until

MISSING = slurm_cluster.missing()
pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(240),
              pytest.mark.skipif(bool(MISSING), reason=MISSING)]

TRAINING = """\
import os
import troupe

def work():
    return os.environ["SLURM_JOB_NAME"], os.environ["SLURMD_NODENAME"]

with troupe.Executor(2, progress="off") as executor:
    for job, node in sorted(executor.run(work)):
        print("worked in", job, "on", node)
"""


class Fleet(fleets.Fleet):
    """``troupe up`` beside a Slurm."""

    def __init__(self, folder: Path, mark: str, slurm: slurm_cluster.SlurmCluster) -> None:
        super().__init__(folder, mark, **slurm.environment)
        self.slurm = slurm

    def up(self, training: str, options: str = "") -> subprocess.Popen[str]:
        (self.folder / "train.py").write_text(training)
        path = self.folder / "fleet.yaml"
        path.write_text(
            f"name: demo\nprovider: slurm\nslurm: {{interval: 500ms{options}}}\n"
            f"head: {{listen: '127.0.0.1:{free_port()}'}}\n"
            f"training: {{command: ['{sys.executable}', train.py], min_workers: 1,"
            "  max_workers: 2}\n"
            "autoscaler: {tick: 200ms, cooldown: 1s, drain_timeout: 10s}\n"
            "pools: [{name: spot, market: spot, max_workers: 2, sbatch: [--partition=spot]}]\n")
        return self.start("up", str(path))

    def job_of(self, node: str) -> str:
        """The job that is a node."""
        for line in self.slurm.run("squeue", "-h", "-o", "%j %A").splitlines():
            name, job = line.split()
            if name == f"troupe-{node}":
                return job
        raise AssertionError(f"no job is {node}: {self.slurm.jobs()}")


@pytest.fixture(scope="module")
def slurm() -> Iterator[slurm_cluster.SlurmCluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        with slurm_cluster.SlurmCluster(Path(folder), 3) as made:
            yield made


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    return f"{os.getpid()}-{request.node.name}"


@pytest.fixture
def fleet(slurm: slurm_cluster.SlurmCluster, mark: str) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="slf-") as folder:  # Short, for sockets.
        yield Fleet(Path(folder), mark, slurm)
        slurm.run("scancel", "--me")
        until(slurm.jobs, {}, limit_s=60)


def test_a_training_in_jobs(fleet: Fleet, mark: str) -> None:
    with fleet.up(TRAINING) as up:
        try:
            out, _ = up.communicate(timeout=120)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert re.search(r"worked in troupe-spot-1 on n[1-3]\n", out), out
    assert re.search(r"worked in troupe-spot-2 on n[1-3]\n", out), out
    until(fleet.slurm.jobs, {}, limit_s=30)
    assert_nothing_left(mark)


def test_jobs_that_slurm_takes_back_are_replaced(fleet: Fleet, mark: str) -> None:
    training = fleet.seen_training(fleets.NODE, 4)
    with fleet.up(training, ", options: [--exclusive]") as up:
        try:
            fleet.await_seen(up, 2)
            fleet.slurm.run("scancel", fleet.job_of("spot-1"), check=True)  # As an operator does.
            fleet.await_seen(up, 3)
            # A job of a partition that goes before takes two of three machines for a moment.
            fleet.slurm.run("sbatch", "-p", "prod", "-N2", "--exclusive", "--output=/dev/null",
                            "--wrap", "sleep 1", check=True)
            out, _ = up.communicate(timeout=150)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert "node spot-1 is gone" in out
    assert re.search(r"node spot-[23] is gone", out), out
    assert re.search(r"seen \['spot-1', 'spot-2', 'spot-3', 'spot-4'", out), out
    until(fleet.slurm.jobs, {}, limit_s=30)
    assert_nothing_left(mark)


def test_a_time_limit_is_a_notice(fleet: Fleet, mark: str) -> None:
    limit = ", notice: 48s, options: [--time=1]"  # Minutes; a node serves for twelve seconds.
    training = fleet.seen_training(fleets.NODE, 4)  # Both jobs end at the same time.
    with fleet.up(training, limit) as up:
        try:
            out, _ = up.communicate(timeout=120)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert re.search(r"notice: node spot-1 is taken back in 4\d\.\d s", out), out
    assert "drain spot-1: its provider takes it back" in out
    # Who came knows what those knew that had to go. On a busy host a node can be over before its
    # worker has a part; then a later one has.
    seen = re.search(r"seen \['spot-1', 'spot-2', 'spot-\d+', 'spot-\d+'", out)
    assert seen, out
    assert_nothing_left(mark)


def test_what_slurm_refuses_is_told_with_the_key(fleet: Fleet) -> None:
    with fleet.up("import time; time.sleep(60)", ", options: [--nodelist=gold]") as up:
        try:
            assert up.stdout is not None
            out = ""
            for line in up.stdout:
                out += line
                if "launch in pool spot failed" in line:
                    break
            assert "nvalid" in out, out
            assert "see slurm.options and pools[].sbatch" in out, out
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=60)
        finally:
            up.kill()
