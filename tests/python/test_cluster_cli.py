"""What ``troupe start | stop | down`` know of this host's processes, without a cluster."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from troupe import _host_records
from troupe._host_records import Record
from troupe.cli import _shown, cluster_commands

from processes import wait_gone

TALKS = "import sys, time; print({!r}, end='', flush=True); time.sleep({})"
LIMIT_S = 20.0


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "troupe-run"
    folder.mkdir()
    (folder / "redis.conf").touch()
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TROUPE_HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    return tmp_path


class Supervisor:
    """Stands for a troupe-local with a record."""

    def __init__(self, home: Path, name: str, run_dir: Path, code: str) -> None:
        self.path = home / "run" / f"{name}.record"
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"print(flush=True); {code}", "--record", str(self.path)],
            stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()  # Its handlers are there.
        self.path.write_text("\n".join([str(self.process.pid), "head", "tcp://127.0.0.1:1", "key",
                                        name, "logs", str(run_dir), ""]))

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def supervisor(home: Path, run_dir: Path) -> Iterator[Supervisor]:
    made = Supervisor(home, "one", run_dir, "import time; time.sleep(600)")
    yield made
    made.close()


def launch(code: str, run_dir: Path) -> tuple[subprocess.Popen[bytes], str]:
    return cluster_commands._launch([sys.executable, "-c", code], str(run_dir), run_dir.parent)


@pytest.mark.parametrize("said", ["", "ready tcp://127"])
def test_a_start_that_hangs_is_ended_at_its_limit(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    started: list[int] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self.pid)

    monkeypatch.setattr(cluster_commands, "_START_LIMIT_S", 1.0)
    monkeypatch.setattr(subprocess, "Popen", Noted)
    begun = time.monotonic()
    with pytest.raises(cluster_commands.CommandError, match=f"within 1 s.*{run_dir.parent}"):
        launch(TALKS.format(said, 600), run_dir)
    assert time.monotonic() < begun + LIMIT_S
    assert len(started) == 1 and not wait_gone(started, 0)
    assert not run_dir.exists()


def test_a_start_that_fails_says_why(run_dir: Path) -> None:
    with pytest.raises(cluster_commands.CommandError, match="^no redis$"):
        launch(TALKS.format("error no redis\n", 600), run_dir)
    assert not run_dir.exists()
    with pytest.raises(cluster_commands.CommandError, match="did not start; see"):
        launch(TALKS.format("", 0), run_dir)


def test_a_start_that_works_says_where(run_dir: Path) -> None:
    process, address = launch(TALKS.format("ready tcp://127.0.0.1:7 1 2\n", 600), run_dir)
    try:
        assert address == "127.0.0.1:7"
        assert process.poll() is None and run_dir.exists()
    finally:
        process.kill()
        process.wait()


def test_what_a_killed_supervisor_left_is_removed(supervisor: Supervisor, run_dir: Path) -> None:
    (record,) = _host_records.records()
    assert (record.node, record.run_dir, record.pid) == ("one", str(run_dir),
                                                         supervisor.process.pid)
    supervisor.process.kill()
    os.waitid(os.P_PID, supervisor.process.pid, os.WEXITED | os.WNOWAIT)  # It stays as a zombie.
    assert _host_records.records() == []
    assert not run_dir.exists() and not supervisor.path.exists()


def test_only_a_run_directory_is_removed(home: Path) -> None:
    precious, link = home / "precious", home / "troupe-link"
    precious.mkdir()
    link.symlink_to(precious)
    for folder in (precious, link):
        path = home / "run" / "gone.record"
        path.write_text("\n".join(["999999999", "head", "a", "key", "n", "logs", str(folder)]))
        assert _host_records.records() == []
        assert precious.exists() and not path.exists()


def test_another_process_of_its_pid_is_not_taken_for_it(home: Path) -> None:
    record = Record(home / "run" / "x.record", os.getpid(), "head", "a", "key", "x", "logs")
    assert not record.alive()
    assert _host_records.end(record, 0.0)  # Else this process would have got its SIGTERM.
    assert _host_records.await_end([record], 0.0) == []


@pytest.mark.parametrize("pidfd", [True, False])
def test_waiting_for_the_end_of_a_supervisor(
    home: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, pidfd: bool
) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    elif not hasattr(os, "pidfd_open"):
        pytest.skip("this Python has no pidfd_open")
    stubborn = Supervisor(home, "stubborn", run_dir, "import signal, time; "
                          "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); time.sleep(600)")
    willing = Supervisor(home, "willing", run_dir, "import time; time.sleep(600)")
    try:
        until_ignored(stubborn.process.pid)
        running = {record.node: record for record in _host_records.records()}
        assert not _host_records.end(running["stubborn"], 0.2)
        assert _host_records.end(running["willing"], LIMIT_S)
        assert willing.process.wait(LIMIT_S) == -signal.SIGTERM
        left = _host_records.await_end(running.values(), 0.2)
        assert [record.node for record in left] == ["stubborn"]
    finally:
        stubborn.close()
        willing.close()


def until_ignored(pid: int) -> None:
    """Waits until the process ignores SIGTERM."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        (mask,) = [line.split()[1] for line in lines if line.startswith("SigIgn:")]
        if int(mask, 16) >> (signal.SIGTERM - 1) & 1:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_which_cluster_a_record_is_of(tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    link = tmp_path / "link"
    link.symlink_to(key)
    record = Record(tmp_path / "r", 1, "node", "tcp://127.0.0.1:7000", str(key), "n", "logs")
    own = _host_records.address_towards("0.0.0.0")
    for address in ("127.0.0.1:7000", "tcp://127.0.0.1:7000", "localhost:7000", f"{own}:7000"):
        assert record.serves(address, str(key)), address
    assert record.serves("127.0.0.1:7000", str(link))
    assert not record.serves("127.0.0.1:7000", str(other))
    assert not record.serves("127.0.0.1:7001", str(key))
    assert not record.serves("192.0.2.7:7000", str(key))


def test_the_dead_are_not_counted_as_working() -> None:
    def run(*states: str) -> dict[str, Any]:
        return {"workers": [{"state": state} for state in states]}

    assert cluster_commands.working(run("active", "starting", "draining", "finished")) == 4
    assert cluster_commands.working(run("active", "active", "active", "dead")) == 3
    assert cluster_commands.working(run("active", "drained", "dead")) == 1


def test_a_notice_is_shown_with_what_is_left_and_a_warning_as_a_question() -> None:
    told = {"kind": "preempt", "source": "aws", "reason": "x", "left_s": 115.7}
    risk = {"kind": "rebalance", "source": "aws", "reason": "x"}
    assert cluster_commands.notice({"notice": None, "warning": None}) == "-"
    assert cluster_commands.notice({"notice": told, "warning": risk}) == "preempt (aws) in 1m55s"
    assert cluster_commands.notice({"notice": None, "warning": risk}) == "rebalance (aws)?"


def test_times_have_units() -> None:
    times = {"30": 30, "30s": 30, "2m": 120, "1.5h": 5400, "7d": 604800}
    assert {text: _shown.seconds_of(text) for text in times} == times
    for text in ("", "s", "soon", "2x"):
        with pytest.raises(argparse.ArgumentTypeError, match="30s"):
            _shown.seconds_of(text)


def test_status_says_how_many_work_and_which_nodes_are_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = {"resources": {"CPU": 2.0}, "used": {}}
    run = {"name": "fit", "state": "running", "target": 4, "epoch": 7, "run": "j1",
           "detached": False,
           "workers": [{"state": state} for state in ("active", "active", "active", "dead")]}
    state = {"nodes": [{"id": "a", "state": "alive", **node}, {"id": "b", "state": "dead", **node}],
             "actors": [], "groups": [run], "waiting": []}
    monkeypatch.setattr(cluster_commands, "ask", lambda address, key_file: state)
    monkeypatch.setattr(_host_records, "private_clusters", lambda: [])
    cluster_commands._status(
        argparse.Namespace(address="127.0.0.1:1", key_file="k", output="table"))
    out = capsys.readouterr().out
    assert "1 of 2 nodes up" in out and "run fit: running, 3 of 4 workers" in out
    assert "4 of 4" not in out
