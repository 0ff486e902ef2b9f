"""Hosts that join with a one-time token: ``troupe token``, ``troupe start --token``."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import MARK, assert_nothing_left, free_port, until

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(120)]


class Host:
    """The command with a home of its own, as another host has it."""

    def __init__(self, home: Path, mark: str) -> None:
        home.mkdir()
        self.home = home
        self.environment = {**os.environ, "TROUPE_HOME": str(home), MARK: mark,
                            "TMPDIR": str(home.parent)}
        for name in ("TROUPE_ADDRESS", "TROUPE_KEY_FILE"):
            self.environment.pop(name, None)

    def run(self, *words: str, status: int = 0) -> str:
        done = subprocess.run([sys.executable, "-m", "troupe", *words], env=self.environment,
                              capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout if status == 0 else done.stderr


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, str(folder)
        self.hosts: list[Host] = []
        self.port = free_port()
        self.head = self.host("a")
        self.head.run("start", "--head", "--host", "127.0.0.1", "--port", str(self.port),
                      "--name", "a", "--num-cpus", "1")

    def host(self, name: str) -> Host:
        self.hosts.append(Host(self.folder / name, self.mark))
        return self.hosts[-1]

    def token(self, *words: str) -> str:
        told = json.loads(self.head.run("token", "-o", "json", *words))
        assert told["address"] == f"127.0.0.1:{self.port}"
        return str(told["token"])

    def start(self, host: Host, name: str, token: str, status: int = 0) -> str:
        return host.run("start", "--address", f"127.0.0.1:{self.port}", "--name", name,
                        "--token", token, "--num-cpus", "1", status=status)

    def nodes(self) -> dict[str, str]:
        told = json.loads(self.head.run("nodes", "-o", "json"))
        return {node["id"]: node["state"] for node in told}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    for host in reversed(made.hosts):
        host.run("stop")
    assert_nothing_left(made.mark)


def test_a_host_joins_with_the_command_that_token_prints(cluster: Cluster) -> None:
    command = cluster.head.run("token", "--node", "b").split()
    assert command[:2] == ["troupe", "start"]
    other = cluster.host("b")
    other.run(*command[1:], "--num-cpus", "1")
    assert cluster.nodes() == {"a": "alive", "b": "alive"}
    key = other.home / "cluster.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_bytes() == (cluster.head.home / "cluster.key").read_bytes()
    other.run("stop")
    other.run("start", "--address", f"127.0.0.1:{cluster.port}", "--name", "b")  # It has the key.
    assert cluster.nodes() == {"a": "alive", "b": "alive"}


def test_a_token_is_good_once_for_its_node_and_for_its_time(cluster: Cluster) -> None:
    token = cluster.token()
    cluster.start(cluster.host("b"), "b", token)
    thief = cluster.host("thief")
    assert "was used before" in cluster.start(thief, "c", token, status=1)
    assert list(thief.home.glob("*.key")) == []
    log = (cluster.head.home / "logs" / "a" / "head.log").read_text()
    assert "was used twice" in log
    assert "is for the node d" in cluster.start(thief, "c", cluster.token("--node", "d"), status=1)
    short = cluster.token("--valid", "1s")
    time.sleep(1.5)
    assert "refuses this join token" in cluster.start(thief, "c", short, status=1)
    assert "no join token" in cluster.start(thief, "c", "troupe-join-1234", status=1)
    assert "--valid wants a time" in cluster.head.run("token", "--valid", "8d", status=2)
    assert cluster.nodes() == {"a": "alive", "b": "alive"}


def test_a_token_outlives_the_head_that_made_it(cluster: Cluster) -> None:
    token = cluster.token()
    record = (cluster.head.home / "run" / "a.record").read_text().splitlines()
    heads = subprocess.run(["pgrep", "-P", record[0], "-x", "troupe-head"], capture_output=True,
                           text=True, check=True).stdout.split()
    os.kill(int(heads[0]), signal.SIGKILL)
    cluster.start(cluster.host("b"), "b", token)
    until(cluster.nodes, {"a": "alive", "b": "alive"}, limit_s=20)


def test_a_cluster_of_one_host_makes_none(tmp_path: Path) -> None:
    host = Host(tmp_path / "x", str(tmp_path))
    script = "import troupe; e = troupe.Executor(1, progress='off'); e.start(); input()"
    with subprocess.Popen([sys.executable, "-c", script], env=host.environment, text=True,
                          stdin=subprocess.PIPE) as program:
        until(lambda: len(list(tmp_path.glob("troupe-*/head.sock"))), 1, limit_s=30)
        assert "is of one host" in host.run("token", status=1)
        program.communicate("\n", timeout=30)
    assert_nothing_left(str(tmp_path))
