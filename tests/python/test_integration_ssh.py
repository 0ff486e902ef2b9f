"""``provider: ssh``: a fleet on hosts that are reached with the real ssh and sshd.

The hosts are network namespaces with names and homes of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fleets
import network
from conftest import PYAPI
from processes import MARK, assert_nothing_left, free_port, until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
MISSING = network.missing() or ("" if os.path.exists(SSHD) else "openssh-server is not here")
pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(240),
              pytest.mark.skipif(bool(MISSING), reason=MISSING)]

TRAINING = """\
import platform
import troupe

def work():
    return platform.node()

with troupe.Executor(2, progress="off") as executor:
    print("worked on", *sorted(executor.run(work)))
"""


class Hosts(fleets.Fleet):
    """``count`` hosts with an sshd each, and a user here whom they know."""

    def __init__(self, folder: Path, mark: str, count: int) -> None:
        super().__init__(folder, mark)
        self.count = count
        self.network = network.Network(count)
        self.daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        self.network.__enter__()
        for key in ("user", "host"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                            str(self.folder / key)], check=True)
        shutil.copy(self.folder / "user.pub", self.folder / "authorized")
        host_key = " ".join((self.folder / "host.pub").read_text().split()[:2])
        (self.folder / "known").write_text(
            "".join(f"{self.network.address(i)} {host_key}\n" for i in range(self.count)))
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for index in range(self.count):
            self.start_sshd(index)
        return self

    def start_sshd(self, index: int) -> None:
        home = self.home(index)
        home.mkdir(exist_ok=True)
        config = self.folder / f"sshd{index}.conf"
        config.write_text(
            f"HostKey {self.folder}/host\nAuthorizedKeysFile {self.folder}/authorized\n"
            f"PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\n"
            f"SetEnv HOME={home} {MARK}={self.mark} TMPDIR={home}\n")
        named = f'hostname host{index} && exec "$@"'
        with open(self.folder / f"sshd{index}.log", "ab") as log:
            self.daemons.append(subprocess.Popen(
                ["ip", "netns", "exec", self.network.space(index), "unshare", "--uts", "sh", "-c",
                 named, "sh", SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log))
        until(lambda: subprocess.run(self.ssh(index, "true"), capture_output=True,
                                     check=False).returncode, 0, limit_s=20)

    def home(self, index: int) -> Path:
        return self.folder / f"h{index}"

    def ssh(self, index: int, *words: str) -> list[str]:
        return ["ssh", *self.options(), self.network.address(index), *words]

    def options(self) -> list[str]:
        return ["-F", "none", "-i", f"{self.folder}/user", "-o",
                f"UserKnownHostsFile={self.folder}/known", "-o", "GlobalKnownHostsFile=none"]

    def fleet(self, hosts: str, training: str, more: str = "") -> str:
        (self.folder / "train.py").write_text(training)
        path = self.folder / "fleet.yaml"
        options = ", ".join(f"'{word}'" for word in self.options())
        path.write_text(
            "provider: ssh\n"
            f"ssh: {{{hosts}, options: [{options}], interval: 500ms, cooldown: 2s}}\n"
            f"head: {{listen: '0.0.0.0:{free_port()}'}}\n"
            f"training: {{command: ['{sys.executable}', train.py], min_workers: 1,"
            f"  max_workers: 2, env: {{PYTHONPATH: '{PYAPI}'}}}}\n"
            "autoscaler: {tick: 200ms, cooldown: 1s, drain_timeout: 10s}\n"
            "pools: [{name: gpu, market: on_demand, max_workers: 2}]\n" + more)
        return str(path)

    def left(self) -> list[Path]:
        """What nodes have left in the homes of their hosts."""
        return [path for i in range(self.count)
                for path in self.home(i).glob(".troupe/fleets/**/*")]

    def __exit__(self, *_: object) -> None:
        for daemon in self.daemons:
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            daemon.wait(10)
        self.network.__exit__()


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    with tempfile.TemporaryDirectory(prefix="ssh-") as folder:  # Short, for sockets.
        mark = re.sub(r"\W", "-", f"{os.getpid()}-{request.node.name}")
        with Hosts(Path(folder), mark, 3) as made:
            yield made


def test_a_training_on_hosts_of_a_file(hosts: Hosts) -> None:
    (hosts.folder / "hosts").write_text("".join(f"{hosts.network.address(i)} slots=1\n"
                                                for i in range(2)))
    with hosts.start("up", hosts.fleet("hosts_file: hosts", TRAINING)) as up:
        try:
            out, _ = up.communicate(timeout=120)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert "worked on host0 host1" in out, out
    assert_nothing_left(hosts.mark)
    assert hosts.left() == []
    assert list(hosts.folder.glob("**/*.key")) == []


def test_hosts_of_a_discovery_script_come_and_go(hosts: Hosts) -> None:
    script = hosts.folder / "discover.sh"
    script.write_text("#!/bin/sh\ncat hosts.now\n")
    script.chmod(0o755)

    def tell(*indexes: int) -> None:
        new = hosts.folder / "hosts.new"
        new.write_text("".join(f"{hosts.network.address(i)}:1\n" for i in indexes))
        new.rename(hosts.folder / "hosts.now")

    tell(0, 1)
    training = hosts.seen_training(fleets.HOST, 3)
    fleet = hosts.fleet("discovery: {command: ./discover.sh, interval: 300ms}", training)
    with hosts.start("up", fleet) as up:
        try:
            hosts.await_seen(up, 2)
            tell(1, 2)
            out, _ = up.communicate(timeout=90)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert "seen ['host0', 'host1', 'host2']" in out, out
    assert "is no longer among the hosts" in out
    assert re.search(r"drain gpu-1: its provider takes it back", out), out
    assert_nothing_left(hosts.mark)
    assert hosts.left() == []


def test_a_host_that_vanishes_is_replaced(hosts: Hosts) -> None:
    lines = "".join(f"{hosts.network.address(i)}\n" for i in range(3))
    (hosts.folder / "hosts").write_text(lines)
    training = hosts.seen_training(fleets.HOST, 3)
    with hosts.start("up", hosts.fleet("hosts_file: hosts, timeout: 5s", training)) as up:
        try:
            hosts.await_seen(up, 2)
            for pid in hosts.network.pids(0):  # Its power is cut.
                if pid not in [daemon.pid for daemon in hosts.daemons]:
                    os.kill(pid, signal.SIGKILL)
            out, _ = up.communicate(timeout=120)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert "seen ['host0', 'host1', 'host2']" in out, out


def test_down_ends_nodes_of_a_fleet_that_was_killed(hosts: Hosts) -> None:
    name = f"hosts: [{hosts.network.address(0)}, {hosts.network.address(1)}]"
    file = hosts.fleet(name, hosts.seen_training(fleets.HOST, 9))
    with hosts.start("up", file) as up:
        try:
            hosts.await_seen(up, 2)
        finally:
            up.kill()
            up.communicate()
    hosts.daemons[1].send_signal(signal.SIGTERM)  # Its nodes run on; they cannot be reached.
    hosts.daemons[1].wait(10)
    code, out = hosts.run("down", file, "--timeout-s", "8")
    assert code == 1, out
    assert f"not known what is there on {hosts.network.address(1)}: " in out
    assert f"ending gpu-1 ({hosts.network.address(0)}/gpu-1)" in out or "ending gpu-2" in out
    hosts.start_sshd(1)
    code, out = hosts.run("down", file)
    assert code == 0, out
    assert "nothing is left of cluster troupe: one node was ended" in out
    assert_nothing_left(hosts.mark)
    assert hosts.left() == []


def test_a_partition_of_two_hosts_is_made_told_and_taken_back(hosts: Hosts) -> None:
    name = f"hosts: [{hosts.network.address(0)}, {hosts.network.address(1)}]"
    with hosts.start("up", hosts.fleet(name, hosts.seen_training(fleets.HOST, 9))) as up:
        try:
            hosts.await_seen(up, 2)
            code, out = hosts.run("chaos", "partition", "--for", "8s", "-o", "json")
            assert code == 0, out
            effect = json.loads(out.strip().splitlines()[-1])
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=60)
        finally:
            up.kill()
    assert effect["fault"] == "partition" and effect["went_on"], out
    assert effect["stood_s"] > 2, out  # Nobody else can tell that they do not reach each other.
    for index in range(2):
        routes = subprocess.run(["ip", "netns", "exec", hosts.network.space(index), "ip", "route"],
                                capture_output=True, text=True, check=True).stdout
        assert "blackhole" not in routes
    assert_nothing_left(hosts.mark)


@pytest.mark.parametrize(("options", "said"), [
    (["-o", "UserKnownHostsFile=/dev/null"], "Host key verification failed"),
    (["-i", "/dev/null"], "Permission denied"),
    (["-p", "9"], "Connection refused"),
])
def test_a_host_that_refuses_is_named_with_what_to_do(
        hosts: Hosts, options: list[str], said: str) -> None:
    (hosts.folder / "hosts").write_text(hosts.network.address(0) + "\n")
    keep = hosts.options

    def changed() -> list[str]:
        kept = [word for word in keep() if not word.startswith(("-i", f"{hosts.folder}/user"))]
        return [*options, *(kept if options[0] == "-i" else keep())]

    hosts.options = changed  # type: ignore[method-assign]
    with hosts.start("up", hosts.fleet("hosts_file: hosts", "import time; time.sleep(60)")) as up:
        try:
            assert up.stdout is not None
            deadline = time.monotonic() + 60
            out = ""
            for line in up.stdout:
                out += line
                if "launch in pool gpu failed" in line or time.monotonic() > deadline:
                    break
            assert said in out, out
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=60)
        finally:
            up.kill()


def test_a_node_that_cannot_boot_tells_why(hosts: Hosts) -> None:
    (hosts.folder / "hosts").write_text(hosts.network.address(0) + "\n")
    setup = "nodes: {setup: ['echo no space left >&2; exit 7']}\n"
    fleet = hosts.fleet("hosts_file: hosts", "import time; time.sleep(60)", setup)
    with hosts.start("up", fleet) as up:
        try:
            assert up.stdout is not None
            out = ""
            for line in up.stdout:
                out += line
                if "no space left" in line:
                    break
            assert "no space left" in out, out
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=60)
        finally:
            up.kill()
    assert_nothing_left(hosts.mark)
