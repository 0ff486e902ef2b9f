"""The run directory of an embedded cluster: for nobody else to read, and made whole again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe._cluster import find_bin_dir

from processes import MARK, marked, until, wait_gone

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(120)]
OPTIONS: dict[str, Any] = {"cpus_per_worker": 0.1, "num_cpus": 1, "progress": "off"}


def named(mark: str, name: str) -> list[int]:
    return [pid for pid in marked(mark) if name in Path(f"/proc/{pid}/comm").read_text()]


def test_its_files_are_private_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"{os.getpid()}-run-dir"
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setattr(tempfile, "tempdir", None)
    with troupe.Executor(1, **OPTIONS) as executor:
        executor.start()
        assert executor._cluster is not None
        folder = Path(executor._cluster.driver.run_dir)
        for name in ("redis.conf", "redis.password"):
            assert (folder / name).stat().st_mode & 0o077 == 0
        (folder / "redis.password").unlink()
        for _ in range(2):
            (head,) = named(mark, "troupe-head")
            os.kill(head, signal.SIGKILL)
            assert not wait_gone([head], 10)
            until(lambda: [n["alive"] for n in _nodes(executor)], [True])
            assert executor.run(lambda: 5) == [5]
        assert (folder / "redis.password").exists()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    out = subprocess.run(
        [os.path.join(find_bin_dir(), "troupe-local"), "--run-dir", str(folder), "--bin-dir",
         find_bin_dir()], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert out.returncode == 1 and "nobody else's to write to" in out.stdout
    assert folder.exists()


def test_a_node_refuses_the_folder_of_another_user(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    reason = "user 12345 owns it"
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    else:
        folder.chmod(0o770)
        reason = "chmod 700"
    out = subprocess.run(
        [os.path.join(find_bin_dir(), "troupe-node"), "--head", "127.0.0.1:1", "--run-dir",
         str(folder)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert out.returncode == 1 and reason in out.stdout + out.stderr, out
    assert list(folder.iterdir()) == []


def test_what_cannot_start_is_tried_less_and_less(tmp_path: Path) -> None:
    redis = tmp_path / "redis"
    redis.write_text(f"#!/bin/sh\necho start >> {tmp_path}/starts\nexit 1\n")
    redis.chmod(0o755)
    command = [os.path.join(find_bin_dir(), "troupe-local"), "--run-dir", str(tmp_path / "run"),
               "--bin-dir", find_bin_dir(), "--redis-server", str(redis), "--no-node",
               "--log-dir", str(tmp_path / "logs")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as local:
        starts = tmp_path / "starts"
        begun = time.monotonic()
        until(lambda: starts.exists() and len(starts.read_text().split()) >= 5, True)
        assert time.monotonic() - begun > 1.75  # 0 + 0.25 + 0.5 + 1 s
        local.communicate(timeout=30)


def _nodes(executor: troupe.Executor) -> list[dict[str, Any]]:
    assert executor._cluster is not None
    try:
        return list(executor._cluster.driver.cluster()["nodes"])
    except RuntimeError:  # The head is away.
        return []


def test_a_daemon_that_has_lived_for_two_seconds_is_started_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is killed: only one that dies as it starts waits longer each time."""
    mark = f"{os.getpid()}-killed"
    monkeypatch.setenv(MARK, mark)
    with troupe.Executor(1, log_dir=str(tmp_path), **OPTIONS) as executor:
        executor.start()
        for _ in range(3):
            (head,) = named(mark, "troupe-head")
            time.sleep(2.2)
            os.kill(head, signal.SIGKILL)
            assert not wait_gone([head], 10)
            until(lambda: len(named(mark, "troupe-head")), 1)
    again = re.findall(r"troupe-head .*starting it again in (\d+)",
                       (tmp_path / "local.log").read_text())
    assert again == ["0", "0", "0"]
