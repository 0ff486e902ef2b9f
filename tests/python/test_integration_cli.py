"""``troupe start | stop | status | ... | down`` on a real cluster of two nodes on this host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import MARK, assert_nothing_left, beside, free_port, until, wait_gone

pytestmark = [pytest.mark.integration, pytest.mark.once]


class Cli:
    """Runs the command with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.environment = {**os.environ, "TROUPE_HOME": str(home), MARK: str(home),
                            "TMPDIR": str(home)}  # Private clusters are looked for there.
        for name in ("TROUPE_ADDRESS", "TROUPE_KEY_FILE"):
            self.environment.pop(name, None)

    def run(self, *words: str, status: int = 0) -> str:
        done = subprocess.run([sys.executable, "-m", "troupe", *words], env=self.environment,
                              capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout if status == 0 else done.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "-o", "json"))


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    command = Cli(tmp_path)
    yield command
    command.run("stop")
    assert_nothing_left(str(tmp_path))


def test_a_cluster_of_two_nodes_from_start_to_down(cli: Cli) -> None:
    port = free_port()
    said = cli.run("start", "--head", "--host", "127.0.0.1", "--port", str(port), "--name", "first",
                   "--num-cpus", "4")
    assert f"troupe start --address 127.0.0.1:{port}" in said
    cli.run("start", "--address", f"127.0.0.1:{port}", "--name", "second", "--num-cpus", "3",
            "--label", "zone=b", "--resource", "widget=2")
    nodes = {node["id"]: node for node in cli.json("nodes")}
    assert {name: node["state"] for name, node in nodes.items()} == {"first": "alive",
                                                                   "second": "alive"}
    assert nodes["second"]["labels"] == {"zone": "b"}
    assert nodes["second"]["resources"]["widget"] == 2
    assert "2 of 2 nodes up" in cli.run("status")
    assert "zone=b" in cli.run("nodes")
    assert cli.json("actors") == []
    assert cli.json("groups") == {"groups": [], "actor_groups": [], "collective_groups": [],
                                  "placement_groups": []}
    assert "is down" in cli.run("down")
    cli.run("status", status=3)


def test_a_head_is_not_started_where_another_listens(cli: Cli) -> None:
    port = str(free_port())
    start = ("start", "--head", "--host", "127.0.0.1", "--port", port)
    cli.run(*start, "--name", "first")
    said = cli.run(*start, "--name", "second", status=1)
    assert f"port {port} of 127.0.0.1 is in use" in said
    cli.run("start", "--head", "--host", "192.0.2.9", "--port", port, "--name", "third", status=1)
    assert [node["id"] for node in cli.json("nodes")] == ["first"]


def test_stop_ends_what_runs_here_nodes_first(cli: Cli) -> None:
    port = free_port()
    cli.run("start", "--head", "--host", "127.0.0.1", "--port", str(port), "--name", "first")
    cli.run("start", "--address", f"127.0.0.1:{port}", "--name", "second")
    assert cli.run("stop").splitlines() == ["stopped node second", "stopped head first"]
    assert "nothing runs" in cli.run("stop")


def test_the_head_goes_last_when_the_cluster_is_taken_down(cli: Cli, tmp_path: Path) -> None:
    port = free_port()
    cli.run("start", "--head", "--host", "127.0.0.1", "--port", str(port), "--name", "first")
    cli.run("start", "--address", f"127.0.0.1:{port}", "--name", "second")
    (first,) = _running(f"troupe-node.*:{port}.*--name first")
    (second,) = _running(f"troupe-node.*:{port}.*--name second")
    os.kill(second, signal.SIGSTOP)
    try:
        with beside([sys.executable, "-m", "troupe", "down"], env=cli.environment) as down:
            assert not wait_gone([first], 30.0)
            time.sleep(0.5)  # the head might have gone with the node of its host
            os.kill(second, signal.SIGCONT)
            assert down.wait(30) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(second, signal.SIGCONT)
    assert_nothing_left(str(tmp_path))


def _running(pattern: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True)
    return [int(pid) for pid in found.stdout.split()
            if Path(f"/proc/{pid}/comm").read_text().startswith("troupe-node")]


def test_what_a_killed_supervisor_leaves_is_gone_with_the_next_command(
    cli: Cli, tmp_path: Path
) -> None:
    port = free_port()
    start = ("start", "--head", "--host", "127.0.0.1", "--port", str(port), "--name", "first")
    cli.run(*start)
    record = tmp_path / "run" / "first.record"
    lines = record.read_text().splitlines()
    run_dir = Path(lines[6])
    assert (run_dir / "redis.conf").exists()
    os.kill(int(lines[0]), 9)
    assert_nothing_left(str(tmp_path))  # Its daemons end with it.
    assert "nothing runs" in cli.run("stop")
    assert not run_dir.exists() and not record.exists()
    cli.run(*start)


def test_down_ends_one_cluster_of_two_with_the_same_key(cli: Cli) -> None:
    ports = {name: free_port() for name in ("one", "two")}
    for name, port in ports.items():
        cli.run("start", "--head", "--host", "127.0.0.1", "--port", str(port), "--name", name)
    cli.run("start", "--address", f"127.0.0.1:{ports['two']}", "--name", "more")
    assert "is down" in cli.run("down", "--address", f"localhost:{ports['one']}")
    cli.run("status", "--address", f"127.0.0.1:{ports['one']}", status=3)
    assert {node["id"] for node in cli.json("nodes")} == {"two", "more"}
    assert cli.run("stop").splitlines() == ["stopped node more", "stopped head two"]


def test_a_head_that_dies_is_started_again_and_knows_its_nodes(cli: Cli) -> None:
    port = free_port()
    cli.run("start", "--head", "--host", "127.0.0.1", "--port", str(port), "--name", "first")
    found = subprocess.run(["pgrep", "-f", f"troupe-head.*:{port}"], capture_output=True, text=True,
                           check=True).stdout.split()
    os.kill(int(found[-1]), 9)
    cli.run("start", "--address", f"127.0.0.1:{port}", "--name", "second")
    # The first one speaks twice a second.
    until(lambda: {node["id"] for node in cli.json("nodes")}, {"first", "second"}, limit_s=10)


def test_logs_of_actors_and_daemons_from_anywhere(cli: Cli, tmp_path: Path) -> None:
    port = free_port()
    cli.run("start", "--head", "--host", "127.0.0.1", "--port", str(port), "--name", "first")
    cli.run("start", "--address", f"127.0.0.1:{port}", "--name", "second")
    key_file = tmp_path / "cluster.key"
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import troupe
from actor_cases import Counter
troupe.init(address="127.0.0.1:{port}", key_file={str(key_file)!r})
talker = Counter.options(name="talker", node="second", lifetime="detached").remote()
troupe.get(talker.say.remote("one", "two", "three"), timeout=60)
"""
    subprocess.run([sys.executable, "-c", code], env=cli.environment, timeout=60, check=True)
    elsewhere = Cli(tmp_path / "elsewhere")  # Nothing runs there; it can reach the head.
    cluster = ("--address", f"127.0.0.1:{port}", "--key-file", str(key_file))

    def two_lines() -> tuple[str, list[str]]:
        log = elsewhere.json("logs", "talker", "-n", "2", *cluster)
        assert Path(log["file"]).parent == tmp_path / "logs" / "second"
        return log["node"], log["lines"]

    deadline = time.monotonic() + 20  # The node may have to read what has been printed yet.
    while two_lines() != ("second", ["two", "three"]):
        assert time.monotonic() < deadline, two_lines()
    text = elsewhere.run("logs", "head", "--node", "first", *cluster)
    assert text.startswith("==> first:") and "node second on" in text
    assert "no node nowhere" in elsewhere.run("logs", "node", "--node", "nowhere", *cluster,
                                              status=4)
    assert "node second: cannot read the log" in elsewhere.run(
        "logs", "redis", "--node", "second", *cluster, status=4)
    assert "no actor nobody" in elsewhere.run("logs", "nobody", *cluster, status=4)
    assert "--node NAME" in elsewhere.run("logs", "node", *cluster, status=4)


def test_top_shows_who_uses_what(cli: Cli, tmp_path: Path) -> None:
    port = free_port()
    cli.run("start", "--head", "--host", "127.0.0.1", "--port", str(port), "--name", "first")
    assert cli.json("top")["processes"] == []
    code = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import troupe
from actor_cases import Echo
troupe.init(address="127.0.0.1:{port}", key_file={str(tmp_path / "cluster.key")!r})
busy, idle = (Echo.options(name=name).remote() for name in ("busy", "idle"))
troupe.get([busy.same.remote(1), idle.same.remote(1)], timeout=60)
print("up", flush=True)
troupe.get(busy.spin.remote({str(tmp_path / "enough")!r}), timeout=60)
"""
    driver = subprocess.Popen([sys.executable, "-c", code], env=cli.environment, text=True,
                              stdout=subprocess.PIPE)
    try:
        assert driver.stdout is not None and "up" in driver.stdout.readline()
        deadline = time.monotonic() + 30
        while True:
            seen = {p["what"]: p for p in cli.json("top")["processes"]}
            assert set(seen) <= {"actor Echo busy", "actor Echo idle"}
            cores = [seen[name]["cores"] for name in sorted(seen)]
            if len(cores) == 2 and cores[0] > 0.2 and cores[1] < 0.1:
                break
            assert time.monotonic() < deadline, seen
        assert all(p["rss_bytes"] > 5 << 20 and p["node"] == "first" for p in seen.values())
        lines = cli.run("top", "-n", "2", "--interval", "0.1").splitlines()
        assert [line.split()[-1] for line in lines if " actor " in line] == ["busy", "idle"] * 2
        assert "by 2 processes" in lines[0]
        assert "--interval" in cli.run("top", "--interval", "0", status=2)
    finally:
        (tmp_path / "enough").touch()
        driver.communicate(timeout=60)


def test_mistakes_are_told_with_their_status(cli: Cli, tmp_path: Path) -> None:
    assert "troupe start --head" in cli.run("status", status=3)
    assert "no key file" in cli.run("start", "--address", "127.0.0.1:1", status=1)
    assert "NAME=" in cli.run("start", "--head", "--port", str(free_port()), "--label", "zone",
                              status=2)
    port = free_port()
    cli.run("start", "--head", "--host", "127.0.0.1", "--port", str(port), "--name", "first")
    assert "runs already" in cli.run("start", "--head", "--name", "first", status=1)
    assert "no actor" in cli.run("logs", "nobody", status=4)
    assert "offers CPU" in cli.run("logs", "head")
    (tmp_path / "other.key").write_text("")
    assert cli.run("status", "--key-file", str(tmp_path / "missing.key"), "--address",
                   f"127.0.0.1:{port}", status=3)
