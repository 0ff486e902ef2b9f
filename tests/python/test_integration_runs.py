"""Runs from the command line, detached runs, and runs that lose their driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe._cluster import find_bin_dir

from conftest import PYAPI
from daemons import LocalCluster
from processes import assert_nothing_left, beside, free_port, until
from test_integration_cli import Cli

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]

# Trains until the file says so, and prints its steps.
TRAIN = """
import sys, time
from pathlib import Path
import troupe.torch as hvd

@hvd.elastic.run
def train(state):
    while not Path(sys.argv[1]).exists():
        state.step += 1
        if state.step == 3:
            print("third step of", hvd.rank(), flush=True)
        state.commit()
        time.sleep(0.02)

hvd.init()
train(hvd.elastic.ObjectState(step=0))
"""
SUBMIT = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import troupe
from pathlib import Path

def wait(path):
    while not Path(path).exists():
        time.sleep(0.05)
    return os.getpid()

executor = troupe.Executor(2, cpus_per_worker=0.1, progress="off", name="waits")
handle = executor.submit(wait, (sys.argv[2],), detached=sys.argv[3] == "detached")
print("run", handle.run_id, flush=True)
if sys.argv[3] == "detached":
    executor.shutdown()
else:
    handle.wait()
"""


class Cluster(Cli):
    """The command with a cluster of one node."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.address, self.key_file = f"127.0.0.1:{free_port()}", home / "cluster.key"
        self.environment |= {"PYTHONPATH": PYAPI}
        host, port = self.address.split(":")
        self.run("start", "--head", "--host", host, "--port", port, "--name", "first",
                 "--num-cpus", "4")

    def attach(self, run: str) -> troupe.RunHandle:
        return troupe.attach(run, address=self.address, key_file=str(self.key_file),
                             progress="off")

    def state_of(self, run: str) -> str:
        return next((r["state"] for r in self.json("runs") if r["run"] == run), "unknown")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("runs")
    made = Cluster(home)
    yield made
    made.run("down")
    assert_nothing_left(str(home))


def submit(cluster: Cluster, tmp_path: Path, how: str) -> subprocess.Popen[str]:
    """A driver of its own; its first line names the run."""
    path = tmp_path / "submit.py"
    path.write_text(SUBMIT)
    environment = {**cluster.environment, "TROUPE_ADDRESS": cluster.address,
                   "TROUPE_KEY_FILE": str(cluster.key_file)}
    return subprocess.Popen([sys.executable, str(path), str(PYAPI), str(tmp_path / "go"), how],
                            env=environment, stdout=subprocess.PIPE, text=True)


def run_id(driver: Any) -> str:
    word, run = driver.stdout.readline().split()
    assert word == "run"
    return str(run)


def test_a_detached_run_outlives_its_driver_and_is_taken_up_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    with submit(cluster, tmp_path, "detached") as driver:
        run = run_id(driver)
        assert driver.wait(60) == 0
    handle = cluster.attach(run)
    assert not handle.done()
    (tmp_path / "go").touch()
    pids = handle.result(timeout=60)
    assert len(set(pids)) == 2
    # Also after its end, as often as one likes.
    again = cluster.attach(run)
    assert again.result(timeout=60) == pids
    assert any(event["kind"] == "worker" for event in again.events())


def test_a_driver_that_is_killed_here_takes_its_run_along_at_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    with submit(cluster, tmp_path, "attached") as driver:
        run = run_id(driver)
        handle = cluster.attach(run)  # It looks on.
        driver.send_signal(signal.SIGKILL)
    with pytest.raises(troupe.RunCancelled, match="its driver has ended"):
        handle.result(timeout=14)  # Not an hour.


def test_a_run_from_submit_to_cancel(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    run = cluster.run("submit", "-np", "2", "--min-np", "1", "--max-np", "3", "--cpus-per-worker",
                      "0.1", str(script), str(tmp_path / "never")).strip()
    shown = cluster.run("runs")
    assert run in shown and "train.py" in shown and "detached" in shown
    assert f"{run}, detached" in cluster.run("status")
    with beside([sys.executable, "-m", "troupe", "logs", "-f", run], env=cluster.environment,
                stdout=subprocess.PIPE) as follow:
        assert follow.stdout is not None
        seen = {follow.stdout.readline().strip().rpartition(" of ")[2] for _ in range(2)}
        assert seen == {"0", "1"}
        assert "third step" in cluster.run("logs", "train.py/w0")
        cluster.run("resize", "train.py", "3")
        until(lambda: sum(w["rank"] >= 0 for r in cluster.json("runs") if r["run"] == run
                          for w in r["workers"]), 3)
        assert "cannot resize to 9" in cluster.run("resize", run, "9", status=1)
        with beside([sys.executable, "-m", "troupe", "attach", run], env=cluster.environment,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as attach:
            assert attach.stdout is not None
            while "third step" not in attach.stdout.readline():
                assert attach.poll() is None
            attach.send_signal(signal.SIGINT)
            assert "goes on" in attach.stdout.read() and attach.wait(20) == 0
        assert cluster.state_of(run) == "running"
        assert f"cancelled {run}" in cluster.run("cancel", "train.py")
        assert follow.wait(20) == 0
    assert cluster.state_of(run) == "cancelled"


def test_what_is_not_there_is_told_with_what_is(cluster: Cluster) -> None:
    for words in (("cancel", "nobody"), ("attach", "nobody"), ("resize", "nobody", "2"),
                  ("logs", "nobody")):
        said = cluster.run(*words, status=4)
        assert "no run nobody; there" in said, said
    assert "there is first" in cluster.run("drain", "nowhere", status=4)
    with pytest.raises(troupe.TroupeError, match="no run nobody"):
        cluster.attach("nobody")
    for command in ("submit", "runs", "attach", "cancel", "resize", "drain", "logs"):
        assert f"example:\n  troupe {command}" in cluster.run(command, "--help")


def test_a_drained_node_is_left_for_another(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "drained.py"
    script.write_text(TRAIN)
    run = cluster.run("submit", "-np", "1", "--max-np", "2", "--cpus-per-worker", "0.1",
                      str(script), str(tmp_path / "end")).strip()

    def nodes() -> set[str]:
        return {w["node"] for r in cluster.json("runs") if r["run"] == run
                for w in r["workers"] if w["rank"] >= 0}

    until(nodes, {"first"})
    cluster.run("start", "--address", cluster.address, "--name", "second", "--num-cpus", "2")
    cluster.run("drain", "first", "--deadline", "30")
    until(nodes, {"second"})
    assert {n["id"]: n["state"] for n in cluster.json("nodes")}["first"] == "draining"
    (tmp_path / "end").touch()
    until(lambda: cluster.state_of(run), "succeeded")


def test_status_finds_the_clusters_of_drivers(tmp_path: Path) -> None:
    alone = Cli(tmp_path)
    code = ("import troupe, sys; e = troupe.Executor(1, num_cpus=1, progress='off').start();"
            "print('up', flush=True); sys.stdin.read()")
    environment = {**alone.environment, "PYTHONPATH": PYAPI}
    with beside([sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "up\n"
        said = alone.run("status")
        assert f"cluster at ipc://{tmp_path}/troupe-" in said and "1 of 1 nodes up" in said
        assert json.loads(alone.run("runs", "-o", "json")) == []
        driver.communicate("")
    assert "no cluster runs" in alone.run("status", status=3)
    assert_nothing_left(str(tmp_path))


def test_a_private_cluster_cannot_hold_a_detached_run() -> None:
    with troupe.Executor(1, num_cpus=1, progress="off") as executor:
        with pytest.raises(ValueError, match="troupe start --head"):
            executor.submit(os.getpid, detached=True)
        began = time.monotonic()
        assert executor.run(os.getpid) and time.monotonic() - began < 60


def test_a_driver_of_a_detached_run_ends_as_it_says(cluster: Cluster) -> None:
    """A thread still waits for events in the runtime when the interpreter ends."""
    for status, last in ((0, "pass"), (3, "sys.exit(3)")):
        code = (f"import os, sys, troupe; e = troupe.Executor(1, cpus_per_worker=0.1, "
                f"address={cluster.address!r}, key_file={str(cluster.key_file)!r});"
                "e.submit(os.getpid, detached=True); " + last)
        for _ in range(6):
            done = subprocess.run([sys.executable, "-c", code], env=cluster.environment,
                                  capture_output=True, text=True, timeout=60)
            assert done.returncode == status and "terminate" not in done.stderr, done.stderr


def test_a_driver_that_is_stopped_for_long_finds_its_run(cluster: Cluster, tmp_path: Path) -> None:
    with submit(cluster, tmp_path, "attached") as driver:
        run = run_id(driver)
        until(lambda: cluster.state_of(run), "running")
        driver.send_signal(signal.SIGSTOP)
        time.sleep(20)
        assert cluster.state_of(run) == "running"
        driver.send_signal(signal.SIGCONT)
        (tmp_path / "go").touch()
        assert driver.wait(60) == 0
    assert cluster.state_of(run) == "succeeded"


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_metrics_of_a_private_and_of_a_started_cluster(tmp_path: Path) -> None:
    port = free_port()
    with troupe.Executor(1, cpus_per_worker=0.1, num_cpus=1, progress="off",
                         metrics_port=port) as executor:
        assert executor.run(lambda: 3) == [3]
        until(lambda: 'troupe_runs{state="succeeded"} 1' in scraped(port), True)
    command = Cli(tmp_path)
    command.run("start", "--head", "--host", "127.0.0.1", "--port", str(free_port()), "--name",
                "first", "--metrics-port", str(port))
    try:
        until(lambda: 'troupe_nodes{state="alive"} 1' in scraped(port), True)
    finally:
        command.run("stop")
    assert_nothing_left(str(tmp_path))


def test_traces_travel_with_a_run(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    (tmp_path / "go").touch()
    cluster.environment["TROUPE_TRACE_DIR"] = str(folder)
    try:
        with submit(cluster, tmp_path, "attached") as driver:
            run_id(driver)
            assert driver.wait(60) == 0
    finally:
        del cluster.environment["TROUPE_TRACE_DIR"]
    roles = sorted(path.name.split("-")[0] for path in folder.glob("*.trace.json"))
    assert roles == ["driver", "worker", "worker"]


def test_logs_of_workers_are_bounded(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with LocalCluster(tmp_path, Path(find_bin_dir()), 0, 1.0) as daemons:
        daemons.start("loud", [*daemons.node_command("loud", "127.0.0.1", 1.0), "--log-dir",
                               str(logs), "--worker-log-mb", "1", "--logs-mb", "2"])

        def shout() -> None:
            for n in range(40_000):
                print(f"{n:099}")

        with troupe.Executor(1, cpus_per_worker=0.1, progress="off", address=daemons.address,
                             key_file=str(daemons.key_file), log_to_driver=False) as executor:
            for _ in range(4):
                executor.run(shout)
        files = list(logs.glob("worker-*.log*"))
        assert any("039999" in path.read_text()[-1000:] for path in files)
        assert all(path.stat().st_size <= 1 << 20 for path in files), files
        assert sum(path.stat().st_size for path in files) <= 4 << 20
