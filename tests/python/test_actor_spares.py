"""Processes that are started ahead of their actors: who gets them, what they know, their ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import troupe
from troupe import collective

from processes import MARK, assert_nothing_left, marked, until, wait_gone

pytestmark = [pytest.mark.integration, pytest.mark.once]


@troupe.remote(num_cpus=0.1)
class Probe:
    """Tells what its process is like."""

    def pid(self) -> int:
        return os.getpid()

    def modules(self) -> set[str]:
        return set(sys.modules)

    def look(self) -> dict[str, Any]:
        return {"argv": sys.argv, "stdin": os.readlink("/proc/self/fd/0"), "read": sys.stdin.read(),
                "process": os.environ["TROUPE_WORKER_PROCESS"],
                "devices": os.environ["CUDA_VISIBLE_DEVICES"],
                "group": os.environ["TROUPE_ACTOR_GROUP"], "mine": os.environ.get("MINE")}

    def draw(self) -> float:
        return float(np.random.random())

    def sum_of_ones(self) -> float:
        data = np.ones(4)
        collective.get_group_handle("ahead").allreduce(data)
        return float(data[0])


@pytest.fixture
def mark(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    value = f"{os.getpid()}-{request.node.name}"
    monkeypatch.setenv(MARK, value)
    yield value
    troupe.shutdown()
    assert_nothing_left(value)


def spares(mark: str) -> set[int]:
    """The processes that wait for an actor: their standard input is the pipe it will come by."""
    found = set()
    for pid in marked(mark):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            waits = os.readlink(f"/proc/{pid}/fd/0").startswith("pipe:")
        except OSError:  # it has ended
            continue
        if b"--spare" in words and words[0].endswith(b"python") and waits:
            found.add(pid)
    return found


def servers(mark: str) -> set[int]:
    """The processes that those that wait are forks of: their standard input is the node's."""
    found = set()
    for pid in marked(mark):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            serves = os.readlink(f"/proc/{pid}/fd/0").startswith("socket:")
        except OSError:  # it has ended
            continue
        if words[0].endswith(b"python") and b"--spare" in words and serves:
            found.add(pid)
    return found


def await_spares(mark: str, count: int, besides: Collection[int] = ()) -> set[int]:
    until(lambda: len(spares(mark).difference(besides)), count)
    return spares(mark).difference(besides)


def test_the_next_actors_get_processes_that_were_started_ahead(mark: str) -> None:
    troupe.init(num_cpus=2)
    first = Probe.remote()
    mine = troupe.get(first.look.remote())
    waiting = await_spares(mark, 2)
    actors = [Probe.remote() for _ in range(3)]
    pids = troupe.get([actor.pid.remote() for actor in actors])
    assert len(set(pids)) == 3 and waiting < set(pids)
    looks = troupe.get([actor.look.remote() for actor in actors])
    assert len({look["process"] for look in looks} | {mine["process"]}) == 4
    for look in looks:  # Nothing in them tells that they have waited.
        assert {**look, "process": mine["process"]} == mine
        assert len(look["argv"]) == 1 and look["read"] == "" and look["stdin"] == "/dev/null"
    await_spares(mark, 2, besides=set(pids))
    troupe.kill(actors[0])
    with pytest.raises(troupe.ActorDiedError):
        troupe.get(actors[0].pid.remote())


def test_they_have_imported_what_init_was_told(mark: str) -> None:
    troupe.init(num_cpus=1, preload=["wave", "there_is_no_such_module"])
    troupe.get(Probe.remote().pid.remote())
    (spare,) = await_spares(mark, 1)
    actor = Probe.remote()
    assert troupe.get(actor.pid.remote()) == spare
    assert "wave" in troupe.get(actor.modules.remote())


def test_an_actor_with_an_environment_of_its_own_has_a_process_of_its_own(mark: str) -> None:
    troupe.init(num_cpus=2)
    troupe.get(Probe.remote().pid.remote())
    waiting = await_spares(mark, 2)
    actor = Probe.options(runtime_env={"env_vars": {"MINE": "yes"}}).remote()
    assert troupe.get(actor.pid.remote()) not in waiting
    assert troupe.get(actor.look.remote())["mine"] == "yes"
    assert troupe.get(Probe.remote().look.remote())["mine"] is None


def test_they_see_the_devices_that_their_actors_were_given(mark: str) -> None:
    troupe.init(num_cpus=4, num_gpus=2)
    troupe.get(Probe.remote().pid.remote())
    waiting = await_spares(mark, 4)
    actors = [Probe.options(num_gpus=1).remote() for _ in range(2)] + [Probe.remote()]
    assert set(troupe.get([actor.pid.remote() for actor in actors])) < waiting
    looks = troupe.get([actor.look.remote() for actor in actors])
    assert sorted(look["devices"] for look in looks) == ["", "0", "1"]


def test_a_group_is_made_of_them(mark: str) -> None:
    troupe.init(num_cpus=4)
    troupe.get(Probe.remote().pid.remote())
    waiting = await_spares(mark, 4)
    group = Probe.group(4, name="ahead").remote()
    assert set(troupe.get(group.pid.remote(), timeout=60)) == waiting
    assert {look["group"] for look in troupe.get(group.look.remote())} == {"ahead"}
    assert troupe.get(group.sum_of_ones.remote(), timeout=60) == [4.0] * 4


def test_the_death_of_one_is_no_actors_death(mark: str) -> None:
    troupe.init(num_cpus=2)
    troupe.get(Probe.remote().pid.remote())
    waiting = await_spares(mark, 2)
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)
    actors = [Probe.options(max_restarts=0).remote() for _ in range(3)]  # As the node hears of it.
    pids = troupe.get([actor.pid.remote() for actor in actors], timeout=60)
    assert len(set(pids)) == 3 and not waiting & set(pids)
    assert wait_gone(list(waiting), 10) == []


def test_they_are_forks_of_one_process(mark: str) -> None:
    troupe.init(num_cpus=2)
    actors = [Probe.remote() for _ in range(6)]
    pids = troupe.get([actor.pid.remote() for actor in actors], timeout=60)
    (server,) = servers(mark)
    words = {Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (server, *pids)}
    assert len(words) == 1 and len(set(pids)) == 6  # Also those that nothing was ready for.
    draws = troupe.get([actor.draw.remote() for actor in actors])
    assert len(set(draws)) == 6
    node = {parent(parent(pid)) for pid in pids} | {parent(server)}
    assert [name_of(pid) for pid in node] == ["troupe-node"]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_actors_outlive_the_process_that_they_were_forked_of(mark: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    troupe.init(num_cpus=2, log_dir=str(logs))
    before = Probe.remote()
    pid = troupe.get(before.pid.remote())
    (server,) = servers(mark)
    await_spares(mark, 2)
    os.kill(server, signal.SIGKILL)
    after = [Probe.remote() for _ in range(4)]  # Two of them are started by themselves.
    assert len(set(troupe.get([actor.pid.remote() for actor in after], timeout=60))) == 4
    assert troupe.get(before.pid.remote()) == pid
    until(lambda: "started ahead of its actor has ended (killed by signal 9" in text_of(logs), True)


def test_what_starts_a_thread_when_it_is_imported_is_not_forked(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    logs = tmp_path / "logs"
    troupe.init(num_cpus=2, preload=["threaded"], log_dir=str(logs))
    first = troupe.get(Probe.remote().pid.remote(), timeout=60)
    waiting = await_spares(mark, 2)
    actor = Probe.remote()
    assert troupe.get(actor.pid.remote()) in waiting - {first}
    assert "threaded" in troupe.get(actor.modules.remote())
    assert servers(mark) == set() and text_of(logs).count("cannot be forked") == 1


def test_one_that_cannot_start_is_said_once_and_costs_nothing(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_it.py").write_text("import os, sys\n"
                                         "print('no licence', file=sys.stderr, flush=True)\n"
                                         "os._exit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    logs = tmp_path / "logs"
    troupe.init(num_cpus=2, preload=["ends_it"], log_dir=str(logs))
    said = "started ahead of its actor has ended"
    for _ in range(3):
        troupe.get(Probe.remote().pid.remote(), timeout=60)
        until(lambda: said in text_of(logs), True)
    assert text_of(logs).count(said) == 1 and "no licence" in text_of(logs)


def text_of(folder: Path) -> str:
    """All that the daemons have logged."""
    return "".join(path.read_text() for path in folder.glob("*.log"))


def test_they_end_with_a_node_that_is_killed(mark: str) -> None:
    troupe.init(num_cpus=2)
    troupe.get(Probe.remote().pid.remote())
    waiting = await_spares(mark, 2) | servers(mark)
    assert len(waiting) == 3
    (node,) = [pid for pid in marked(mark) if name_of(pid) == "troupe-node"]
    os.kill(node, signal.SIGKILL)
    assert wait_gone(list(waiting), 10) == []


def name_of(pid: int) -> str:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def stay(folder: str) -> int:
    """Says which process it is, and stays until it may go."""
    place = Path(folder)
    (place / str(os.getpid())).touch()
    until(lambda: (place / "go").exists(), True, limit_s=120)
    return os.getpid()


def test_a_replacement_in_a_run_is_one_that_the_run_has_asked_for(
    mark: str, tmp_path: Path
) -> None:
    def workers() -> set[int]:
        return {int(file.name) for file in tmp_path.iterdir() if file.name != "go"}

    with troupe.Executor(2, cpus_per_worker=0.5, progress="off", preload=["wave"]) as executor:
        run = executor.submit(stay, (str(tmp_path),))
        until(lambda: len(workers()), 2)
        first = workers()
        (spare,) = await_spares(mark, 1)
        assert b"wave" in Path(f"/proc/{spare}/cmdline").read_bytes().split(b"\0")
        os.kill(min(first), signal.SIGKILL)
        until(lambda: workers() - first, {spare})
        await_spares(mark, 1, besides={spare})
        (tmp_path / "go").touch()
        assert max(first) in run.result(60)
        until(lambda: len(spares(mark)), 0)  # It was the run's.


@pytest.mark.venv_only
def test_a_module_that_never_comes_back_does_not_keep_actors_waiting(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stuck.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    logs = tmp_path / "logs"
    troupe.init(num_cpus=2, preload=["stuck"], log_dir=str(logs))
    assert troupe.get(Probe.remote().pid.remote(), timeout=90) > 0
    assert "within 30 s" in text_of(logs) and servers(mark) == set()
