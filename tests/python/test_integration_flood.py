"""Nothing that a worker or a driver does starves the control plane, or makes it grow."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flood_cases import Saver, flooded, give, print_much, report_much, wait_for

import troupe
from troupe._cluster import find_bin_dir

from daemons import LocalCluster
from processes import until

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]
MOST_BYTES = 100 << 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    with LocalCluster(tmp_path, Path(find_bin_dir()), 1, 8.0) as made:
        yield made


class Watch:
    """The greatest size of some processes, while it is open."""

    def __init__(self, cluster: LocalCluster, *names: str) -> None:
        self._pids = {name: cluster.running[name].pid for name in names}
        self.peak = dict.fromkeys(names, 0)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._end.wait(0.02):
            for name, pid in self._pids.items():
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                self.peak[name] = max(self.peak[name], pages * os.sysconf("SC_PAGE_SIZE"))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._end.set()
        self._thread.join()
        print({name: f"{size >> 20} MiB" for name, size in self.peak.items()})

    def check(self) -> None:
        assert all(size < MOST_BYTES for size in self.peak.values()), self.peak


def executor(cluster: LocalCluster, workers: int, least: int = 1, **options: Any) -> Any:
    return troupe.Executor(least, workers, workers=workers, address=cluster.address,
                           key_file=str(cluster.key_file), cpus_per_worker=0.1, progress="off",
                           log_to_driver=False,
                           **options)


def recovery_s(cluster: LocalCluster, folder: Path, flood: bool) -> float:
    """From the death of a member to the next step of the others."""
    folder.mkdir()
    with executor(cluster, 3, 1, preload=["torch", "troupe.torch"]) as made:
        run = made.submit(flooded, (str(folder), flood))
        until(lambda: any(len(one["members"]) == 3 for one in run.epochs()), True, 90)
        epochs = len(run.epochs())
        if flood:
            until(lambda: (folder / "flooding").exists(), True)
            time.sleep(1.0)  # The flood is to be under way; nothing depends on how far.
        pids = [member["pid"] for member in run.epochs()[-1]["members"]]

        def steps() -> list[float]:
            path = folder / f"steps-{pids[2]}"
            return [float(line) for line in path.read_text().splitlines()] if path.exists() else []

        until(lambda: len(steps()) > 20, True)
        killed_at = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: len(run.epochs()) > epochs, True)

        def next_step() -> float:
            known = steps()
            if len(known) < 2 or sum(one > killed_at for one in known) < 50:
                return 0.0
            return max(b - a for a, b in zip(known, known[1:]) if b > killed_at)

        until(lambda: next_step() > 0, True)
        took = next_step()
        begun = time.monotonic()
        assert run.status()["state"] == "running"
        assert time.monotonic() - begun < 2.0
        (folder / "enough").touch()
        run.result(60)
    return took


def test_a_member_that_prints_without_end_does_not_slow_a_recovery(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    without = recovery_s(cluster, tmp_path / "quiet", False)
    with Watch(cluster, "head", "node0") as watch:
        under = recovery_s(cluster, tmp_path / "loud", True)
    print(f"recovery {without:.3f} s without, {under:.3f} s under the flood")
    watch.check()
    assert under < max(2 * without, 1.0)


def test_a_rank_that_prints_200_megabytes(cluster: LocalCluster) -> None:
    lines: list[str] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["kind"] == "log":
            lines.append(event["line"])

    with executor(cluster, 1) as made, Watch(cluster, "head", "node0") as watch:
        run = made.submit(print_much, (200,), on_event=on_event)
        until(lambda: len(lines) > 0, True)
        begun = time.monotonic()
        assert run.status()["state"] == "running"
        assert time.monotonic() - begun < 2.0
        assert run.result(60) == [200]
    watch.check()
    told = [line for line in lines if line == "z" * 99]
    gaps = [int(line[1:].split()[0]) for line in lines if "lines dropped" in line]
    assert len(told) + sum(gaps) == 2_000_000


def test_a_run_of_20_mib_outlives_its_head(cluster: LocalCluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with executor(cluster, 1) as made:
        run = made.submit(wait_for, (str(go), bytes(20 << 20)))
        until(lambda: len(run.epochs()) > 0, True)
        pids = [worker["pid"] for worker in run.workers()]
        cluster.kill("head")
        cluster.start_head()
        until(lambda: [worker["pid"] for worker in run.workers()], pids)
        go.touch()
        assert run.result(60) == [20 << 20]


def test_a_run_that_head_and_store_have_lost_ends(cluster: LocalCluster, tmp_path: Path) -> None:
    with executor(cluster, 1) as made:
        run = made.submit(wait_for, (str(tmp_path / "never"), b""))
        until(lambda: len(run.epochs()) > 0, True)
        cluster.kill("head")
        cluster.kill("redis")
        cluster.start_redis()
        cluster.start_head()
        with pytest.raises(troupe.TroupeError, match="lost this run"):
            run.result(60)


@pytest.mark.parametrize("size", [(256 << 10) - 400, 256 << 10, (256 << 10) + 1, 300 << 20])
def test_results_of_any_size(cluster: LocalCluster, size: int) -> None:
    with executor(cluster, 1) as made, Watch(cluster, "head", "node0") as watch:
        run = made.submit(give, (size,))
        begun = time.monotonic()
        [result] = run.result(120)
        assert len(result) == size and not result.strip(b"\0")
        print(f"{size} bytes in {time.monotonic() - begun:.2f} s")
    watch.check()


def test_a_large_result_outlives_the_head_that_had_half_of_it(cluster: LocalCluster) -> None:
    with executor(cluster, 1) as made:
        run = made.submit(give, (100 << 20,))
        until(lambda: len(run.epochs()) > 0, True)
        cluster.kill("head")
        cluster.start_head()
        assert [len(result) for result in run.result(120)] == [100 << 20]


def test_large_reports_that_the_driver_takes_slowly(cluster: LocalCluster) -> None:
    seen: list[int] = []
    go = threading.Event()

    def on_event(event: dict[str, Any]) -> None:
        if event["kind"] == "report":
            go.wait(60)
            seen.append(int.from_bytes(event["value"][:4], "big"))

    with executor(cluster, 1) as made, Watch(cluster, "head", "node0") as watch:
        run = made.submit(report_much, (20, 20), on_event=on_event)
        until(lambda: run.status()["state"], "running")
        time.sleep(2.0)  # Whatever comes meanwhile is not taken.
        go.set()
        assert run.result(120) == [20]
    watch.check()
    assert seen == list(range(20))


def test_a_store_that_hangs_while_actors_save(cluster: LocalCluster) -> None:
    troupe.init(address=cluster.address, key_file=str(cluster.key_file))
    try:
        actors = [Saver.remote() for _ in range(8)]
        assert troupe.get([actor.call.remote() for actor in actors], timeout=60) == [1] * 8
        with Watch(cluster, "head") as watch:
            with cluster.stopped("redis"):
                refs = [actor.call.remote() for actor in actors]
                time.sleep(6.0)  # Of a fault; the audit's figure was 60 MB a second.
            assert troupe.get(refs, timeout=60) == [2] * 8
        watch.check()
    finally:
        troupe.shutdown()


def test_large_states_of_many_actors_come_back(cluster: LocalCluster) -> None:
    troupe.init(address=cluster.address, key_file=str(cluster.key_file))
    try:
        again = Saver.options(max_task_retries=5)
        actors = [again.remote() for _ in range(8)]
        assert troupe.get([actor.call.remote() for actor in actors], timeout=60) == [1] * 8
        pids = troupe.get([actor.pid.remote() for actor in actors], timeout=60)
        with Watch(cluster, "head") as watch:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert troupe.get([actor.call.remote() for actor in actors], timeout=60) == [2] * 8
        watch.check()
    finally:
        troupe.shutdown()


def test_a_flood_while_the_head_is_stopped_stays_at_the_worker(cluster: LocalCluster) -> None:
    lines = threading.Event()

    def on_event(event: dict[str, Any]) -> None:
        if event["kind"] == "log":
            lines.set()

    with executor(cluster, 1) as made, Watch(cluster, "head", "node0") as watch:
        run = made.submit(print_much, (100,), on_event=on_event)
        assert lines.wait(60)
        with cluster.stopped("head"):
            time.sleep(3.0)  # Of a fault; the audit's figure was 150 MB a second at the node.
        assert run.result(60) == [100]
    watch.check()
