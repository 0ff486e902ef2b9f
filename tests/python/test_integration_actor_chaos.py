"""Actors, tasks, streams and borrowed handles while processes, nodes and the head are killed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe._cluster import find_bin_dir

from actor_cases import Ledger, count_to, square
from daemons import LocalCluster, state
from head_fault_cases import Borrower
from processes import until

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(240)]
SOON_S = 120.0
FAULTS_S = 12.0
OFTEN = 10_000  # Retries: enough for whatever comes.


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    with LocalCluster(tmp_path_factory.mktemp("chaos"), Path(find_bin_dir()), 3, 4.0) as made:
        yield made


@pytest.fixture
def cluster(running: LocalCluster) -> Iterator[LocalCluster]:
    running.revive()
    troupe.init(address=running.address, key_file=str(running.key_file))
    until(lambda: [node["state"] for node in state()["nodes"]].count("alive"), 3)
    yield running
    troupe.shutdown()


class Killer:
    """Chooses every now and then what to kill or stop; daemons it starts again."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self.cluster, self.random = cluster, random.Random(seed)
        self.done: list[str] = []

    def run(self, until_s: float) -> None:
        faults = [self.process] * 6 + [self.node, self.head, self.pause]
        while time.monotonic() < until_s:
            time.sleep(self.random.uniform(0.1, 0.6))
            self.random.choice(faults)()

    def process(self) -> None:
        """One of an actor or a task."""
        nodes = [f"node{i}" for i in range(3)]
        pids = [pid for node in nodes for pid in children(self.cluster.running[node].pid)]
        if pids:
            self.done.append("process")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.random.choice(pids), signal.SIGKILL)

    def node(self) -> None:
        number = self.random.choice([1, 2])
        self.done.append(f"node{number}")
        self.cluster.kill(f"node{number}")
        time.sleep(self.random.uniform(0, 1))
        self.cluster.start_node(number)

    def head(self) -> None:
        self.done.append("head")
        self.cluster.kill("head")
        time.sleep(self.random.uniform(0, 1))
        self.cluster.start_head()

    def pause(self) -> None:
        name = self.random.choice(["head", "node0", "node1", "redis"])
        self.done.append(f"pause {name}")
        with self.cluster.stopped(name):
            time.sleep(self.random.uniform(0.1, 1.5))


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for thread in Path(f"/proc/{pid}/task").iterdir()
                for word in (thread / "children").read_text().split()]
    return []



class Load:
    """What runs meanwhile, each part on a thread of its own, with what came of it."""

    def __init__(self) -> None:
        options = {"max_restarts": -1, "max_task_retries": OFTEN, "num_cpus": 0.1}
        self.ledgers = [Ledger.options(**options).remote() for _ in range(3)]
        self.borrowers = [Borrower.options(**options).remote() for _ in range(2)]
        self.given = [0] * 2
        self.count = {"tasks": 0, "streams": 0, "broken": 0, "lent": 0}
        self.errors: list[BaseException] = []
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Load:
        for body, *arguments in ((self.keep_books, 0), (self.keep_books, 1), (self.lend, 0),
                                 (self.lend, 1), (self.tasks,), (self.streams,)):
            thread = threading.Thread(target=self._run, args=(body, *arguments))
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(SOON_S)
            assert not thread.is_alive()

    def _run(self, body: Callable[..., None], *arguments: Any) -> None:
        try:
            while not self._over.is_set():
                body(*arguments)
        except BaseException as error:  # The test raises it.
            self.errors.append(error)

    def keep_books(self, index: int) -> None:
        troupe.get([self.ledgers[index].add.remote(i) for i in range(1, 21)], timeout=SOON_S)
        self.given[index] += 210

    def lend(self, index: int) -> None:
        """The ledger is called by an actor that got its handle in a message."""
        self.count["lent"] += 1
        key = f"{index}-{self.count['lent']}"
        ref = self.borrowers[index].add_once.remote(self.ledgers[2], key)
        assert troupe.get(ref, timeout=SOON_S) == key

    def tasks(self) -> None:
        run = square.options(max_retries=OFTEN, num_cpus=0.5)
        refs = [run.remote(x) for x in range(10)]
        assert troupe.get(refs, timeout=SOON_S) == [x * x for x in range(10)]
        self.count["tasks"] += 10

    def streams(self) -> None:
        """One whose process dies is an error, behind the values that came before it."""
        read = []
        try:
            for ref in count_to.options(num_cpus=0.1).remote(300):
                read.append(troupe.get(ref))
            assert len(read) == 300
            self.count["streams"] += 1
        except (troupe.WorkerCrashedError, troupe.ActorDiedError):
            self.count["broken"] += 1
        assert read == list(range(len(read)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost_and_nothing_is_done_twice(cluster: LocalCluster, seed: int) -> None:
    killer = Killer(cluster, seed)
    with Load() as load:
        killer.run(time.monotonic() + FAULTS_S)
    assert not load.errors, load.errors
    for ledger, given in zip(load.ledgers, load.given):
        total, calls, _ = troupe.get(ledger.state.remote(), timeout=SOON_S)
        assert (total, calls) == (given, given // 210 * 20)
        assert given > 0
    assert len(killer.done) > 5, killer.done
    assert min(load.count[part] for part in ("tasks", "streams", "lent")) > 0, load.count
