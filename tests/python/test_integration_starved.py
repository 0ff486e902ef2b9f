"""Files that hang, drivers that do not read, memory that runs out: each told, none spreading."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flood_cases import Shouter, hoard, print_much

import troupe
from troupe._cluster import find_bin_dir

from conftest import PYAPI
from daemons import LocalCluster, state
from processes import beside, until
from test_integration_flood import Watch, cluster, executor

__all__ = ["cluster"]  # A fixture.
pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]


def test_an_actor_that_prints_200_megabytes(cluster: LocalCluster) -> None:
    troupe.init(address=cluster.address, key_file=str(cluster.key_file), log_to_driver=False)
    try:
        loud, quiet = Shouter.remote(), Shouter.remote()
        assert troupe.get([loud.shout.remote(0), quiet.shout.remote(0)], timeout=60) == [0, 0]
        with Watch(cluster, "head", "node0") as watch:
            shouted = loud.shout.remote(200)
            slowest = 0.0
            while not troupe.wait([shouted], timeout=0)[0]:
                begun = time.monotonic()
                assert troupe.get(quiet.shout.remote(0), timeout=60) == 0
                assert len(state()["actors"]) == 2
                slowest = max(slowest, time.monotonic() - begun)
            assert troupe.get(shouted, timeout=60) == 200
        print(f"the slowest call and question took {slowest:.3f} s")
        watch.check()
        assert slowest < 10.0  # Some 0.06 s if nothing else runs here.
    finally:
        troupe.shutdown()


UNREAD = """
import os, sys, threading, time
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import troupe
from flood_cases import print_and_touch

def size():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def watch():
    first = peak = size()
    while True:
        peak = max(peak, size())
        Path(sys.argv[2], "draft").write_text(str(peak - first))
        Path(sys.argv[2], "draft").rename(Path(sys.argv[2], "growth"))
        time.sleep(0.05)

address, key_file = sys.argv[1].split(",")
with troupe.Executor(1, address=address, key_file=key_file, cpus_per_worker=0.1,
                     progress="off") as executor:
    run = executor.submit(lambda: None)
    run.result(60)
    threading.Thread(target=watch, daemon=True).start()
    print(executor.run(print_and_touch, (100, sys.argv[2])), flush=True)
"""


def test_a_driver_whose_output_nobody_reads(cluster: LocalCluster, tmp_path: Path) -> None:
    script = tmp_path / "unread.py"
    script.write_text(UNREAD)
    command = [sys.executable, str(script), f"{cluster.address},{cluster.key_file}", str(tmp_path),
               str(PYAPI), str(Path(__file__).parent)]
    with Watch(cluster, "head", "node0") as watch:
        with beside(command, stdout=subprocess.PIPE) as driver:
            until(lambda: (tmp_path / "printed").exists(), True, 90)  # The worker is not held up.
            time.sleep(2.0)  # Whatever still comes is not read.
            assert driver.poll() is None
            out, _ = driver.communicate(timeout=90)
            assert driver.returncode == 0 and out.splitlines()[-1] == "[100]"
    watch.check()
    growth = int((tmp_path / "growth").read_text())
    print(f"the driver grew by up to {growth >> 20} MiB")
    assert growth < 64 << 20  # It would by 200 if it kept what was printed.


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, which the test freezes."""
    if os.geteuid() != 0 or shutil.which("fsfreeze") is None:
        pytest.skip("freezing a file system needs root and util-linux")
    image, folder = tmp_path / "image", tmp_path / "logs"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(folder)], capture_output=True,
                             text=True)
    if mounted.returncode != 0:
        pytest.skip(f"loop devices are not allowed here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["fsfreeze", "-u", str(folder)], capture_output=True)
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_log_folder_that_hangs_holds_up_nobody_else(
    tmp_path: Path, frozen: Path
) -> None:
    with LocalCluster(tmp_path, Path(find_bin_dir()), 0, 4.0) as daemons:
        daemons.start("node0", [*daemons.node_command("node0", "127.0.0.1", 4.0), "--log-dir",
                                str(frozen)])
        lines = threading.Event()
        with executor(daemons, 1) as made:
            assert made.run(print_much, (1,)) == [1]
            subprocess.run(["fsfreeze", "-f", str(frozen)], check=True)
            with Watch(daemons, "head", "node0") as watch:
                loud = made.submit(print_much, (50,), on_event=lambda event: lines.set())
                assert lines.wait(60)
                begun = time.monotonic()
                assert made.run(hoard, (1,)) == [1]  # Another worker starts, runs and ends.
                print(f"a run beside it took {time.monotonic() - begun:.2f} s")
                assert loud.status()["state"] == "running"
                subprocess.run(["fsfreeze", "-u", str(frozen)], check=True)
                assert loud.result(60) == [50]
            watch.check()


class Memory:
    """A control group that allows so many bytes."""

    def __init__(self, limit: int) -> None:
        legacy = Path("/sys/fs/cgroup/memory")
        self.folder = (legacy if legacy.exists() else Path("/sys/fs/cgroup")) / f"tt-{os.getpid()}"
        self.folder.mkdir()
        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        for name in names if legacy.exists() else ("memory.max",):
            if (self.folder / name).exists() or "memsw" not in name:
                (self.folder / name).write_text(str(limit))
        swap = self.folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")

    def add(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))


@pytest.fixture
def memory() -> Iterator[Memory]:
    try:
        made = Memory(400 << 20)
    except OSError as error:
        for left in Path("/sys/fs/cgroup").glob(f"**/tt-{os.getpid()}"):
            left.rmdir()
        pytest.skip(f"control groups are not allowed here: {error}")
    yield made
    until(lambda: (made.folder / "cgroup.procs").read_text(), "")
    made.folder.rmdir()


def test_a_worker_that_runs_out_of_memory_is_told_so(tmp_path: Path, memory: Memory) -> None:
    with LocalCluster(tmp_path, Path(find_bin_dir()), 1, 4.0) as daemons:
        memory.add(daemons.running["node0"].pid)
        with executor(daemons, 1) as made:
            run = made.submit(hoard, (1 << 30,))
            with pytest.raises(troupe.TroupeError, match="out of memory"):
                run.result(90)
        assert daemons.running["node0"].poll() is None  # It was not the one that was ended.
