"""Drives a training by a seed through every fault of :mod:`faults`, and checks what it did.

    python tests/chaos/run.py --seed 3 --minutes 20

Exact samples (in the books and, with odd seeds, in sums that the ranks reduce), identical
parameters, no step done again that a survivor had committed, a new step within ``--pause-s``
seconds of every fault, a group that grows again and whose epochs are told, daemons that run and
stay below 100 MB, and nothing left behind. Needs root and network namespaces. The last line says
what held; the exit status is 0 then.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "python", HERE.parents[1] / "examples"):
    sys.path.insert(0, str(folder))

from clock import Clock  # noqa: E402

from troupe._cluster import find_bin_dir  # noqa: E402 - the lines above say where the rest is

import witness  # noqa: E402
from books import RunningBooks  # noqa: E402
from faults import MOST_WORKERS, Faults  # noqa: E402
from hosts import Hosts, missing  # noqa: E402
from processes import MARK, assert_nothing_left  # noqa: E402

WORKERS = 4
DISK = "size=192m"
END_S = 180.0
MOST_RSS_BYTES = 100 << 20  # Of the head and of a node, as docs/guarantees.md says.


class ChaosHosts(Hosts):
    """Two hosts whose run directories lie on a disk that can be filled.

    All that runs in the cluster reads the time of day from a clock that can be set.
    """

    def __enter__(self) -> ChaosHosts:
        disk = self.folder / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(disk)], check=True)
        os.environ[MARK] = str(self.folder)
        self.clock = Clock(self.folder)
        self._run_dirs: dict[str, str] = {}
        super().__enter__()
        return self

    def start(self, name: str, command: list[str]) -> None:
        super().start(name, [*self.clock.prefix(), *command])

    def node_command(self, name: str, data_address: str, cpus: float) -> list[str]:
        """Every second start of a node is in its run directory of before, as by a supervisor."""
        command = super().node_command(name, data_address, cpus)
        kept = self._run_dirs.pop(name, None)
        folder = kept or tempfile.mkdtemp(dir=self.folder / "disk")
        if kept is None:
            self._run_dirs[name] = folder
        command[command.index("--run-dir") + 1] = folder
        return command

    def check_daemons(self, fault: str) -> None:
        """All that were started, and not ended by a fault, run."""
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        said = "\n".join(self.log(name)[-2000:] for name in ended)
        assert not ended, f"{ended} ended by themselves after {fault}: {said}"

    def __exit__(self, *unused: object) -> None:
        try:
            super().__exit__()
            assert_nothing_left(str(self.folder))
        finally:
            os.environ.pop(MARK, None)
            subprocess.run(["umount", "-l", str(self.folder / "disk")], check=False)


def chaos(seed: int, seconds: float, pause_s: float, folder: Path) -> dict[str, Any]:
    """One run; what it did. An AssertionError says what did not hold."""
    journals = folder / "journals"
    journals.mkdir(parents=True)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f}  {text}", flush=True)

    books = RunningBooks(journals, witness.SAMPLES)
    sums = seed % 2 == 1
    with ChaosHosts(folder, Path(find_bin_dir()), count=2, cpus=8) as hosts, \
            hosts.executor(1, MOST_WORKERS, workers=WORKERS, strategy="spread",
                           cpus_per_worker=0.5, stall_report_s=5, elastic_timeout=120,
                           log_to_driver=False, preload=["torch", "troupe.torch"],
                           env=_environment()) as executor:
        run = executor.submit(witness.train, (str(journals), sums))

        def steps() -> int:
            books.advance()
            return books.steps

        faults = Faults(hosts, hosts.clock, run, seed, steps, say)
        pauses, sizes = _Pauses(books, run, pause_s, say), Sizes()
        pauses.await_step("the start")
        rest = random.Random(seed + 1)
        while time.monotonic() - began < seconds:
            name = faults.one()
            sizes.check(hosts, name)
            pauses.await_step(name)
            sizes.check(hosts, name)
            hosts.check_daemons(name)
            time.sleep(rest.uniform(0.1, 2))
        say("the end is asked for")
        (journals / witness.STOP_FILE).touch()
        results = run.result(END_S)
        epochs = run.epochs()
    return {**_check(results, books, sums), "faults": faults.done, "epochs": epochs[-1]["epoch"],
            "longest_pause_s": round(pauses.longest, 1), "peak_rss_mib": sizes.peak >> 20}


class Sizes:
    """That head and nodes stay small, whatever happens to them."""

    def __init__(self) -> None:
        self.peak = 0

    def check(self, hosts: Any, fault: str) -> None:
        """Of the processes that run now, the greatest size since each began."""
        for pid in daemon_pids(hosts):
            size = peak_rss(pid)
            self.peak = max(self.peak, size)
            assert size < MOST_RSS_BYTES, f"process {pid} took {size >> 20} MiB after {fault}"


def daemon_pids(hosts: Any) -> list[int]:
    """Of the head and the node daemons; what they were started through has become them."""
    return [process.pid for name, process in hosts.running.items()
            if name != "redis" and process.poll() is None]


def peak_rss(pid: int) -> int:
    """In bytes, of the life of a process; 0 if it is gone."""
    try:
        status = Path("/proc", str(pid), "status").read_text()
    except OSError:
        return 0
    sizes = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
    return max(sizes, default=0) << 10


class _Pauses:
    """That the training goes on after every fault."""

    def __init__(self, books: RunningBooks, run: Any, limit_s: float, say: Any) -> None:
        self.books, self.run, self.limit_s, self.say = books, run, limit_s, say
        self.longest = 0.0

    def await_step(self, fault: str) -> None:
        steps, since = self.books.steps, time.monotonic()
        self.books.advance()
        while self.books.steps <= steps:
            waited = time.monotonic() - since
            if self.run.done():
                print(f"the run ended after {fault}: {self.run.status()}", flush=True)
                self.run.result(END_S)  # Raises what it ended with.
                raise AssertionError("the training has no end of its own, but returned")
            assert waited < self.limit_s, (
                f"no step for {waited:.0f} s after {fault}: {self.run.status()}; "
                f"{[e for e in self.run.events() if e['kind'] != 'report'][-12:]}")
            time.sleep(0.02)
            self.books.advance()
        self.longest = max(self.longest, time.monotonic() - since)


def _environment() -> dict[str, str]:
    """Workers run on the test's modules as well."""
    return {"PYTHONPATH": os.pathsep.join(
        [*map(str, sys.path[:3]), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}


def _check(results: list[dict[str, Any]], books: RunningBooks, sums: bool) -> dict[str, Any]:
    assert results and all(r == results[0] for r in results), results
    closed = books.close()
    counts = (closed.steps_lost, closed.samples_missing, closed.samples_doubled)
    assert counts == (0, 0, 0), closed
    assert closed.steps == results[0]["step"], (closed.steps, results[0]["step"])
    if sums:  # each sample once in each data epoch
        assert results[0]["seen"] == [results[0]["epoch"]], results[0]
    return {"steps": closed.steps, "data_epochs": results[0]["epoch"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--pause-s", type=float, default=60.0)
    parser.add_argument("--keep", action="store_true", help="keep journals and logs")
    options = parser.parse_args()
    if missing():
        sys.exit(f"chaos: {missing()}")
    folder = Path(tempfile.mkdtemp(prefix="troupe-chaos-"))
    failed = True
    try:
        done = chaos(options.seed, 60 * options.minutes, options.pause_s, folder)
        failed = False
    finally:
        if failed or options.keep:
            print(f"journals and logs are in {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    print(f"seed {options.seed}: exact; {done}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
