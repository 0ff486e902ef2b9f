"""Two ``troupe up`` of one cluster, ``troupe up`` that was killed, and ``troupe down FILE``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fleets
from fleets import SUPPLIER, SuppliedFleet
from processes import assert_nothing_left, until

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Iterator[SuppliedFleet]:
    with fleets.supplied(f"{os.getpid()}-{request.node.name}") as fleet:
        yield fleet


def holding(fleet: SuppliedFleet, *words: str) -> subprocess.Popen[str]:
    """``troupe up`` with the nodes of a training that does not end by itself."""
    (fleet.folder / "train.py").write_text(fleet.seen_training(fleets.NODE, 99))
    up = fleet.start("up", fleet.file(str(SUPPLIER), "[python3, train.py]"), *words)
    fleet.await_seen(up, 2)
    return up


def kill(up: subprocess.Popen[str]) -> None:
    """The whole machine of ``troupe up``, as its nodes see it."""
    up.kill()
    up.communicate()


def lines_until(up: subprocess.Popen[str], text: str) -> str:
    assert up.stdout is not None
    out = ""
    for line in up.stdout:
        out += line
        if text in line:
            return out
    raise AssertionError(f"{text!r} was never said:\n{out}")


def test_a_second_one_on_this_host_is_refused_and_down_ends_the_first(
        fleet: SuppliedFleet) -> None:
    with holding(fleet) as up:
        try:
            before = fleet.nodes()
            code, out = fleet.run("up", "fleet.yaml")
            assert code == 3, out
            assert f"process {up.pid} of " in out
            assert "fleet.yaml` ends it" in out
            assert fleet.nodes() == before
            code, out = fleet.run("down", "fleet.yaml")
            assert code == 0, out
            assert "nothing is left of cluster troupe: no node was there" in out
            assert "interrupted; ending the cluster" in up.communicate(timeout=30)[0]
        finally:
            up.kill()
    assert up.returncode == 130
    assert fleet.nodes() == []
    assert_nothing_left(fleet.mark)


def test_down_ends_what_a_killed_one_has_left(fleet: SuppliedFleet) -> None:
    with holding(fleet) as up:
        kill(up)
    assert len(fleet.nodes()) == 2
    code, out = fleet.run("down", "troupe")  # By its name: the file is known.
    assert code == 0, out
    assert "ending spot-1 (" in out
    assert "nothing is left of cluster troupe: 2 nodes were ended" in out
    assert fleet.nodes() == []
    assert_nothing_left(fleet.mark)
    code, out = fleet.run("down", "troupe")
    assert code == 4, out
    assert "nothing of a cluster of that name is left here" in out


def test_the_next_one_ends_what_a_killed_one_has_left(fleet: SuppliedFleet) -> None:
    with holding(fleet) as up:
        kill(up)
    left = {node["pid"] for node in fleet.nodes()}
    with holding(fleet) as up:
        try:
            until(lambda: sum(node["pid"] not in left for node in fleet.nodes()), 2)
            assert not left & {node["pid"] for node in fleet.nodes()}  # Gone before the first one.
            up.send_signal(signal.SIGINT)
            out, _ = up.communicate(timeout=60)
        finally:
            up.kill()
    assert "ending what an earlier `troupe up` has left: spot-1 (" in out
    assert fleet.nodes() == []
    assert_nothing_left(fleet.mark)


def test_one_on_another_host_launches_nothing_until_it_takes_over(fleet: SuppliedFleet) -> None:
    with holding(fleet) as up:
        try:
            before = fleet.nodes()
            elsewhere = {"XDG_STATE_HOME": str(Path(fleet.folder, "elsewhere"))}
            fleet.environment.update(elsewhere)
            with fleet.start("up", "fleet.yaml") as second:
                out = lines_until(second, "waiting: ")
                assert "another `troupe up` holds cluster troupe with spot-1 (" in out
                assert "they end by themselves within 3" in out
                second.send_signal(signal.SIGINT)
                second.communicate(timeout=30)
            assert fleet.nodes() == before
            taken = fleet.start("up", "fleet.yaml", "--take-over")
            with taken:
                try:
                    until(lambda: {node["pid"] for node in fleet.nodes()}
                          & {node["pid"] for node in before}, set(), limit_s=60)
                    taken.send_signal(signal.SIGINT)
                    taken.communicate(timeout=60)
                finally:
                    taken.kill()
        finally:
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=60)
            up.kill()
    assert fleet.nodes() == []
    assert_nothing_left(fleet.mark)


def test_down_says_what_it_cannot_end(fleet: SuppliedFleet) -> None:
    supplier = fleet.folder / "supplier"
    supplier.write_text("#!/bin/sh\necho no credentials >&2; exit 12\n")
    supplier.chmod(0o755)
    fleet.file("./supplier", "[sleep, 60]")
    code, out = fleet.run("down", "fleet.yaml", "--timeout-s", "2")
    assert code == 1, out
    assert "nodes of cluster troupe may be left: " in out
    assert "no credentials" in out
    code, out = fleet.run("down", "no-such.yaml")
    assert code == 4, out


def test_an_interruption_while_the_command_becomes_the_daemon_is_heard(
    fleet: SuppliedFleet
) -> None:
    """Python's own handler would only note it, and the note would go with Python."""
    fleet.file(str(SUPPLIER), "[sleep, '100']")
    code = ("import os, signal, sys; from troupe.cli import main; become = os.execv\n"
            "os.execv = lambda *words: (os.kill(os.getpid(), signal.SIGINT), become(*words))\n"
            "sys.exit(main(['up', 'fleet.yaml']))")
    done = subprocess.run([sys.executable, "-c", code], env=fleet.environment, cwd=fleet.folder,
                          text=True, capture_output=True, timeout=60)
    assert done.returncode == 130, done
    assert "interrupted; ending the cluster" in done.stdout + done.stderr
    assert fleet.nodes() == []
    assert_nothing_left(fleet.mark)
