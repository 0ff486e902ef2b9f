"""A Slurm of its own on this host: a real ``slurmctld`` and several ``slurmd``, nothing of them
outside a folder. No MUNGE: who may use it is who can read the folder.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

from processes import free_port

_CONFIG = """\
ClusterName=troupetest
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool.%n
SlurmctldPidFile={dir}/ctld.pid
SlurmdPidFile={dir}/d.%n.pid
SlurmctldLogFile={dir}/ctld.log
SlurmdLogFile={dir}/d.%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
PreemptMode=REQUEUE
PreemptType=preempt/partition_prio
KillWait=3
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000
PartitionName=spot Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace}
PartitionName=prod Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


def missing() -> str:
    """Why there can be no Slurm here; empty if there can."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    programs = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel")
    gone = [name for name in programs if _program(name) is None]
    return f"{', '.join(gone)} is not here" if gone else ""


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


class SlurmCluster:
    """``count`` nodes of two CPUs each; use as a context manager."""

    def __init__(self, folder: Path, count: int, grace_s: int = 5) -> None:
        self.folder = folder
        self.names = [f"n{i + 1}" for i in range(count)]
        host = platform.node()
        config = _CONFIG.format(host=host, dir=folder, port=free_port(), grace=grace_s)
        for name in self.names:
            config += (f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 "
                       f"Port={free_port()} CPUs=2 State=UNKNOWN\n")
        self.config = folder / "slurm.conf"
        self.config.write_text(config)
        self.environment = {"SLURM_CONF": str(self.config)}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SlurmCluster:
        (self.folder / "state").mkdir()
        try:
            self._start("slurmctld", "-D", "-c")
            for name in self.names:
                (self.folder / f"spool.{name}").mkdir()
                self._start("slurmd", "-D", "-N", name)
            deadline = time.monotonic() + 60
            while self.run("sinfo", "-h", "-t", "idle", "-p", "spot", "-o", "%D").strip() != str(
                    len(self.names)):
                assert time.monotonic() < deadline, self._logs()
                time.sleep(0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, program: str, *words: str) -> None:
        path = _program(program)
        assert path is not None
        with open(self.folder / "daemons.log", "ab") as log:
            self.running["-".join((program, *words[2:]))] = subprocess.Popen(
                [path, *words], env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log)

    def run(self, *words: str, check: bool = False) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(words, env={**os.environ, **self.environment}, text=True,
                              capture_output=True, timeout=60, check=False, cwd=self.folder)
        assert done.returncode == 0 or not check, f"{words}: {done.stderr}"
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """States of all jobs that have not ended, by name."""
        lines = self.run("squeue", "-h", "-o", "%j %T").splitlines()
        return dict(line.split() for line in lines)

    def _logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:]
                         for path in sorted(self.folder.glob("*.log")))

    def __exit__(self, *_: object) -> None:
        if "slurmctld" in self.running:
            self.run("scancel", "--me")
            deadline = time.monotonic() + 20
            while self.jobs() and time.monotonic() < deadline:
                time.sleep(0.1)
        for daemon in reversed(self.running.values()):
            daemon.terminate()
        for daemon in self.running.values():
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(15)
