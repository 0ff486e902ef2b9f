"""Whose CPU is for others, and when: nested calls, idle actors and idle processes of tasks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import troupe

from processes import MARK, marked, until, wait_gone

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(240)]
SOON_S = 90.0
AT_ONCE_S = 5.0  # Idle processes would go by themselves after 10 to 15 s.


@pytest.fixture
def one_cpu() -> Iterator[None]:
    troupe.init(num_cpus=1)
    yield
    troupe.shutdown()


@pytest.fixture
def two_cpus() -> Iterator[None]:
    troupe.init(num_cpus=2)
    yield
    troupe.shutdown()


@troupe.remote
def nested(depth: int) -> int:
    return 0 if depth == 0 else 1 + troupe.get(nested.remote(depth - 1), timeout=SOON_S)


@troupe.remote
def fib(n: int) -> int:
    if n < 2:
        return n
    return sum(troupe.get([fib.remote(n - 1), fib.remote(n - 2)], timeout=SOON_S))


@troupe.remote
def pid() -> int:
    return os.getpid()


@troupe.remote
def nap(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@troupe.remote
def begin_then_nest(folder: str) -> int:
    (Path(folder) / "begun").touch()
    until((Path(folder) / "go").exists, True)
    return troupe.get(nested.remote(1), timeout=SOON_S)


@troupe.remote
def above(folder: str) -> int:
    return 1 + troupe.get(begin_then_nest.remote(folder), timeout=SOON_S)


@troupe.remote
class Idle:
    def ping(self) -> str:
        return "pong"

    def count(self, n: int) -> Iterator[int]:
        for i in range(n):
            yield troupe.get(nested.remote(0), timeout=SOON_S) + i


@troupe.remote(num_cpus=1)
class Waits:
    """Keeps a CPU for life, but while it waits."""

    def __init__(self) -> None:
        self.first = troupe.get(nested.remote(0), timeout=SOON_S)

    def by_get(self) -> int:
        return troupe.get(nested.remote(1), timeout=SOON_S)

    def by_wait(self) -> int:
        ready, rest = troupe.wait([nested.remote(0), nested.remote(0)], num_returns=2,
                                  timeout=SOON_S)
        return len(ready) - len(rest)

    def by_generator(self, source: troupe.ActorHandle) -> list[int]:
        return [troupe.get(ref) for ref in source.count.remote(3)]


@troupe.remote(num_cpus=1)
class Awaits:
    async def work(self) -> int:
        return await nested.remote(1)


def test_tasks_nest_on_one_cpu(one_cpu: None) -> None:
    assert troupe.get(nested.remote(5), timeout=SOON_S) == 5


def test_recursive_tasks_run_on_two_cpus(two_cpus: None) -> None:
    assert troupe.get(fib.remote(6), timeout=SOON_S) == 8


def test_an_actor_lends_its_cpu_in_every_kind_of_wait(one_cpu: None) -> None:
    source, waits = Idle.remote(), Waits.remote()
    assert troupe.get(waits.by_get.remote(), timeout=SOON_S) == 1
    assert troupe.get(waits.by_wait.remote(), timeout=SOON_S) == 2
    assert troupe.get(waits.by_generator.remote(source), timeout=SOON_S) == [0, 1, 2]
    troupe.kill(waits)
    awaits = Awaits.remote()
    assert troupe.get([awaits.work.remote(), awaits.work.remote()], timeout=SOON_S) == [1, 1]


def test_idle_actors_keep_no_task_waiting(one_cpu: None) -> None:
    actors = [Idle.remote() for _ in range(3)]
    assert troupe.get([a.ping.remote() for a in actors], timeout=SOON_S) == ["pong"] * 3
    assert troupe.get(nested.remote(0), timeout=SOON_S) == 0


def test_idle_processes_give_way_at_once(two_cpus: None) -> None:
    troupe.get([nap.remote(0.5), nap.remote(0.5)], timeout=SOON_S)
    began = time.monotonic()
    wide = Idle.options(num_cpus=2).remote()
    assert troupe.get(wide.ping.remote(), timeout=SOON_S) == "pong"
    troupe.kill(wide)
    troupe.get([nap.remote(0.5), nap.remote(0.5)], timeout=SOON_S)
    group = troupe.placement_group([{"CPU": 2}])
    assert group.wait(SOON_S)
    assert time.monotonic() - began < 2 * AT_ONCE_S


def test_idle_processes_are_kept_for_tasks_of_their_kind(one_cpu: None) -> None:
    first = troupe.get([nap.remote(0.3) for _ in range(4)], timeout=SOON_S)
    second = troupe.get([nap.remote(0.3) for _ in range(4)], timeout=SOON_S)
    assert set(first) == set(second)
    assert len(set(first)) == 1


def test_what_is_lent_outlives_a_restart_of_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both that share the CPU are claimed by the next head, and lend it again."""
    mark = f"{os.getpid()}-lent"
    monkeypatch.setenv(MARK, mark)

    def heads() -> list[int]:
        return [pid for pid in marked(mark)
                if "troupe-head" in Path(f"/proc/{pid}/comm").read_text()]

    troupe.init(num_cpus=1)
    try:
        result = above.remote(str(tmp_path))
        until((tmp_path / "begun").exists, True)
        (head,) = heads()
        os.kill(head, signal.SIGKILL)
        assert not wait_gone([head], 10)
        until(lambda: len(heads()), 1)
        (tmp_path / "go").touch()
        assert troupe.get(result, timeout=SOON_S) == 2
    finally:
        troupe.shutdown()
