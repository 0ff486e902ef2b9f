"""Nothing that a worker has started outlives it, nor its node, nor its driver, however they end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from orphan_cases import Forking, await_file, fork_and, leave_descendants, use_in_child

import troupe

from conftest import PYAPI
from processes import MARK, Script, assert_nothing_left, marked, wait_gone

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(120)]
OPTIONS: dict[str, Any] = {"cpus_per_worker": 0.1, "num_cpus": 1, "progress": "off"}


@pytest.fixture
def mark(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Marks every process that this test starts."""
    value = f"{os.getpid()}-{request.node.name}"
    monkeypatch.setenv(MARK, value)
    return value


def named(mark: str, name: str) -> list[int]:
    """Pids of the test's processes with that name."""
    found = []
    for pid in marked(mark):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", ["return", "exit", "signal"])
def test_a_worker_that_ends_takes_all_with_it(how: str, tmp_path: Path) -> None:
    with troupe.Executor(1, **OPTIONS) as executor:
        result = executor.run(leave_descendants, (str(tmp_path), how))
        assert result == ["returned" if how == "return" else "again"]
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 4 and not wait_gone(pids, 10)


@pytest.mark.parametrize("victim", ["worker", "guard", "node", "node and guard"])
def test_what_is_killed_leaves_nothing(victim: str, tmp_path: Path, mark: str) -> None:
    with troupe.Executor(1, **OPTIONS) as executor:
        executor.submit(leave_descendants, (str(tmp_path), "wait"))
        pids = [int(pid) for pid in await_file(tmp_path / "pids").split()]
        guard = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        assert guard in named(mark, "troupe-guard")
        (node,) = named(mark, "troupe-node")
        killed = {"worker": [pids[0]], "guard": [guard], "node": [node],
                  "node and guard": [node, guard]}[victim]
        for pid in killed:
            os.kill(pid, signal.SIGSTOP)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        assert not wait_gone([*pids, guard], 10)
    assert_nothing_left(mark)


def test_a_cancelled_run_leaves_nothing(tmp_path: Path) -> None:
    with troupe.Executor(1, **OPTIONS) as executor:
        handle = executor.submit(leave_descendants, (str(tmp_path), "wait"))
        pids = [int(pid) for pid in await_file(tmp_path / "pids").split()]
        handle.cancel()
        assert not wait_gone(pids, 10)


FORKING_DRIVER = """
import os, time
import troupe

executor = troupe.Executor(1, cpus_per_worker=0.1, num_cpus=1, progress="off").start()
child = os.fork()
if child == 0:
    time.sleep(600)
print("FORKED", child, flush=True)
time.sleep(600)
"""


def test_a_forked_child_does_not_keep_its_drivers_cluster(tmp_path: Path, mark: str) -> None:
    with Script(tmp_path / "driver.py", FORKING_DRIVER, mark, str(PYAPI)) as driver:
        child = int(driver.read_until("FORKED").split()[1])
        try:
            daemons = [pid for pid in marked(mark) if pid not in (child, driver.process.pid)]
            assert len(daemons) >= 3  # Redis has overwritten its environment.
            driver.kill(signal.SIGKILL)
            assert not wait_gone(daemons, 20)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)
    assert_nothing_left(mark)


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("sys.exit", 7), ("raise", 1)])
def test_a_forked_child_does_not_answer_for_its_worker(how: str, code: int) -> None:
    with troupe.Executor(2, **OPTIONS) as executor:
        assert executor.run(fork_and, (how,)) == [code, code]


@pytest.mark.parametrize("method", ["fork", "fork_later"])
def test_a_forked_child_does_not_answer_for_its_actor(method: str) -> None:
    troupe.init(num_cpus=2)
    try:
        actor = troupe.remote(num_cpus=0.1)(Forking).remote()
        codes = [troupe.get(getattr(actor, method).remote(how), timeout=30)
                 for how in ("return", "sys.exit", "raise")]
        assert codes == [0, 7, 1]
    finally:
        troupe.shutdown()


@pytest.mark.venv_only
def test_a_forked_child_that_speaks_is_told_why_not() -> None:
    with troupe.Executor(2, **OPTIONS) as executor:
        for told in executor.run(use_in_child):
            assert len(told) == 2 and all("forked from it" in line for line in told), told
