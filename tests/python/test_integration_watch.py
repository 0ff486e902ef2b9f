"""Daemons that hang, hosts cut off for good, keys of another cluster, a store that lasts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flood_cases import wait_for

import troupe
from troupe._cluster import find_bin_dir

from actor_cases import Counter
from conftest import PYAPI
from daemons import Daemons, LocalCluster, states
from processes import MARK, assert_nothing_left, free_port, marked, until, wait_gone
from test_integration_cli import Cli

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]
BIN = Path(find_bin_dir())


def named(mark: str, name: str) -> list[int]:
    found = []
    for pid in marked(mark):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == name[:15]:
                found.append(pid)
        except OSError:  # It has just ended.
            continue
    return found


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What a test starts carries it; nothing of it is left."""
    text = str(tmp_path)
    monkeypatch.setenv(MARK, text)
    yield text
    assert_nothing_left(text)


def test_a_head_or_node_that_hangs_is_started_anew(tmp_path: Path, mark: str) -> None:
    logs = tmp_path / "logs"
    command = [str(BIN / "troupe-local"), "--run-dir", str(tmp_path / "run"), "--bin-dir", str(BIN),
               "--log-dir", str(logs), "--watchdog-s", "5"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as local:
        assert local.stdout is not None
        assert local.stdout.readline().startswith(b"ready ")
        for name in ("troupe-head", "troupe-node"):
            until(lambda name=name: len(named(mark, name)), 1)
        before = {name: named(mark, name) for name in ("troupe-head", "troupe-node")}
        time.sleep(7)  # Who moves is left alone.
        assert before == {name: named(mark, name) for name in before}
        for name, (pid,) in before.items():
            os.kill(pid, signal.SIGSTOP)
            assert wait_gone([pid], 20) == []
            until(lambda name=name: len(named(mark, name)), 1)
        said = (logs / "local.log").read_text()
        assert said.count("has not moved for a long time") >= 2 and "T (stopped)" in said
        local.communicate(timeout=30)


def test_a_node_that_is_cut_off_for_good_ends_its_actors(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, BIN, 0, 1.0) as cluster:
        cluster.start("alone", [*cluster.node_command("alone", "127.0.0.1", 2.0), "--fence-s", "2"])
        where: dict[str, Any] = {"address": cluster.address, "key_file": str(cluster.key_file)}
        go = tmp_path / "go"
        troupe.init(**where)
        try:
            until(lambda: states().get("alone"), "alive")
            counter = Counter.remote()  # Its handle keeps it.
            pid = troupe.get(counter.pid.remote(), timeout=60)
            with troupe.Executor(1, cpus_per_worker=0.5, progress="off", **where) as executor:
                run = executor.submit(wait_for, (str(go), b""))
                until(lambda: len(run.epochs()), 1)
                time.sleep(4)  # A head that answers keeps it alive.
                os.kill(pid, 0)
                with cluster.stopped("head"):
                    assert wait_gone([pid], 20) == []
                assert "was not heard for 2 s" in cluster.log("alone")
                until(lambda: states().get("alone"), "alive")
                assert troupe.get(Counter.remote().pid.remote(), timeout=60) != pid
                go.touch()
                assert run.result(60) == [0] and len(run.epochs()) == 1  # It went on.
        finally:
            troupe.shutdown()


def test_the_key_of_another_cluster_is_named(tmp_path: Path) -> None:
    folders = [tmp_path / "ours", tmp_path / "theirs"]
    for folder in folders:
        folder.mkdir()
    with LocalCluster(folders[0], BIN, 0, 1.0) as ours:
        theirs = Daemons(folders[1], BIN, f"127.0.0.1:{free_port()}")
        theirs.start_redis()
        theirs.start_head()
        theirs.await_key()
        theirs.end()
        with pytest.raises(troupe.TroupeError, match="does not go with the key file"):
            troupe.init(address=ours.address, key_file=str(theirs.key_file), start_timeout=6)
        ours.start("stranger", [*theirs.node_command("stranger", "127.0.0.1", 1.0)[:2],
                                f"tcp://{ours.address}", "--key-file", str(theirs.key_file),
                                "--run-dir", str(tmp_path / "run")])
        until(lambda: "does not go with the key file" in ours.log("stranger"), True)
        with ours.stopped("head"), pytest.raises(TimeoutError, match="does not answer"):
            troupe.init(address=ours.address, key_file=str(ours.key_file), start_timeout=4)
    with pytest.raises(TimeoutError, match="no connection comes about"):
        troupe.init(address=ours.address, key_file=str(ours.key_file), start_timeout=4)


class OneHost(Cli):
    """The command, with a cluster of this host alone."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.home, self.port = home, free_port()
        self.environment |= {"PYTHONPATH": PYAPI}

    def start(self, *words: str, status: int = 0) -> str:
        return self.run("start", "--head", "--host", "127.0.0.1", "--port", str(self.port),
                        "--name", "one", "--num-cpus", "1", *words, status=status)

    def runs(self) -> dict[str, str]:
        return {run["run"]: run["state"] for run in self.json("runs")}

    def crash(self) -> None:
        """As a power cut would."""
        local = named(str(self.home), "troupe-local")
        others = marked(str(self.home))
        for pid in [*local, *others]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert wait_gone(others, 20) == []


@pytest.fixture
def host(tmp_path: Path) -> Iterator[OneHost]:
    made = OneHost(tmp_path)
    yield made
    made.run("stop")
    assert_nothing_left(str(tmp_path))


SUBMIT = """
import sys, time
import troupe
from pathlib import Path

def wait(folder):
    with Path(folder, "begun").open("a") as file:
        file.write("x")
    while not Path(folder, "go").exists():
        time.sleep(0.05)

with troupe.Executor(1, cpus_per_worker=0.5, progress="off") as executor:
    print(executor.submit(wait, (sys.argv[1],), detached=True).run_id)
"""


def submit(host: OneHost, folder: Path) -> str:
    """A detached run that waits for a file; its id."""
    script = folder / "submit.py"
    script.write_text(SUBMIT)
    environment = {**host.environment, "TROUPE_ADDRESS": f"127.0.0.1:{host.port}",
                   "TROUPE_KEY_FILE": str(folder / "cluster.key")}
    out = subprocess.run([sys.executable, str(script), str(folder)], env=environment, text=True,
                         capture_output=True, timeout=90, check=False)
    assert out.returncode == 0, out.stderr
    return out.stdout.strip()


def begun(folder: Path) -> int:
    """How many lives the function has had."""
    file = folder / "begun"
    return len(file.read_text()) if file.exists() else 0


def survives(host: OneHost, *kept: str) -> None:
    host.start(*kept)
    run = submit(host, host.home)
    until(lambda: begun(host.home), 1)
    host.crash()
    host.start(*kept)
    until(lambda: begun(host.home), 2)
    (host.home / "go").touch()
    until(lambda: host.runs().get(run), "succeeded")
    (host.home / "go").unlink()
    submit(host, host.home)  # Goes on while the cluster is taken down.
    until(lambda: begun(host.home), 3)
    host.run("down")
    assert wait_gone(marked(str(host.home)), 20) == []
    host.start(*kept)  # That cluster is over; this is a new one.
    assert host.runs() == {}


def test_a_run_outlives_a_power_cut_with_a_store_directory(
    host: OneHost, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept = ("--store-dir", str(tmp_path / "my store"))
    survives(host, *kept)
    other = OneHost(tmp_path_factory.mktemp("other"))
    assert "is another cluster's" in other.start(*kept, status=1)


def test_a_run_outlives_a_power_cut_with_a_redis_of_its_own(
    host: OneHost, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, port = tmp_path_factory.mktemp("redis"), free_port()
    secret = folder / "password"
    secret.write_text("open sesame\n")
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(folder),
               "--requirepass", "open sesame"]
    ask = ["redis-cli", "-p", str(port), "-a", "open sesame", "--no-auth-warning"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as redis:
        try:
            until(lambda: subprocess.run([*ask, "set", "mine", "1"], capture_output=True,
                                         check=False).stdout, b"OK\n")
            survives(host, "--redis", f"127.0.0.1:{port}", "--redis-password-file", str(secret))
            keys = subprocess.run([*ask, "keys", "*"], capture_output=True, text=True, check=True)
            names = keys.stdout.split()
            assert "troupe:head/owner" in names
            other = OneHost(tmp_path_factory.mktemp("other"))
            said = other.start("--redis", f"127.0.0.1:{port}", "--redis-password-file",
                               str(secret), status=1)
            assert "another head keeps its records" in said
            secret.unlink()
            said = other.start("--redis", f"127.0.0.1:{port}", "--redis-password-file",
                               str(secret), status=1)
            assert "No such file" in said
            assert "mine" in names  # What others keep there stays.
            assert all(name == "mine" or name.startswith("troupe:") for name in names)
        finally:
            redis.terminate()
