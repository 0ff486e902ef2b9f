"""``provider: exec``: a program of the user's supplies nodes; ``troupe provider check``."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest

import fleets
from fleets import SUPPLIER, SuppliedFleet
from processes import assert_nothing_left

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]

TRAINING = """\
import os
import troupe

def work():
    return os.environ["TROUPE_WORKER_NODE"], os.environ["MODE"]

with troupe.Executor(2, progress="off") as executor:
    for node, mode in sorted(executor.run(work)):
        print("worked on", node, mode)
"""


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    return f"{os.getpid()}-{request.node.name}"


@pytest.fixture
def fleet(mark: str) -> Iterator[SuppliedFleet]:
    with fleets.supplied(mark) as fleet:
        yield fleet


def test_a_program_supplies_the_nodes_of_a_training(fleet: SuppliedFleet, mark: str) -> None:
    (fleet.folder / "train.py").write_text(TRAINING)
    code, out = fleet.run("up", fleet.file(str(SUPPLIER), "[python3, train.py]"))
    assert code == 0, out
    assert "worked on spot-1 it's fast\n" in out
    assert "worked on spot-2 it's fast\n" in out
    assert fleet.nodes() == []
    assert_nothing_left(mark)
    assert list(fleet.folder.glob("troupe-*")) == []


def test_a_machine_that_ends_is_replaced_and_the_training_goes_on(
        fleet: SuppliedFleet, mark: str) -> None:
    (fleet.folder / "train.py").write_text(fleet.seen_training(fleets.NODE, 4))
    with fleet.start("up", fleet.file(str(SUPPLIER), "[python3, train.py]")) as up:
        try:
            for seen, ends in ((2, "spot-1"), (3, "spot-2")):
                fleet.await_seen(up, seen)
                machine = next(n for n in fleet.nodes() if n["tags"]["troupe-node"] == ends)
                os.killpg(machine["pid"], signal.SIGKILL)
            out, _ = up.communicate(timeout=90)
        finally:
            up.kill()
    assert up.returncode == 0, out
    assert "seen ['spot-1', 'spot-2', 'spot-3', 'spot-4']" in out
    assert "node spot-1 is gone" in out
    assert "node spot-2 is gone" in out
    assert fleet.nodes() == []
    assert_nothing_left(mark)


@pytest.mark.parametrize(("script", "said"), [
    ("echo no credentials >&2; exit 12", "list was refused for good: no credentials"),
    ("echo '{\"nodes\": 3}'", 'list: its reply has no list "nodes"'),
    ("exit 1", "list ended with status 1"),
    ("no-such-program", "status 127: .*no-such-program"),
])
def test_a_supplier_that_fails_is_named_with_its_own_words(
        fleet: SuppliedFleet, script: str, said: str) -> None:
    supplier = fleet.folder / "supplier"
    supplier.write_text(f"#!/bin/sh\n{script}\n")
    supplier.chmod(0o755)
    with fleet.start("up", fleet.file("./supplier", "[sleep, 60]")) as up:
        try:
            assert up.stdout is not None
            out = ""
            for line in up.stdout:
                out += line
                if "cannot see who else holds nodes of troupe: " in line:
                    break
            assert re.search(said, out), out
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=60)
        finally:
            up.kill()


def test_a_node_that_the_supplier_cannot_make_is_asked_for_again(fleet: SuppliedFleet) -> None:
    supplier = fleet.folder / "supplier"
    supplier.write_text(
        "#!/bin/sh\nread -r request\ncase $request in\n"
        "  *create*) echo all taken >&2; exit 10;;\n  *) echo '{\"nodes\": []}';;\nesac\n")
    supplier.chmod(0o755)
    with fleet.start("up", fleet.file("./supplier", "[sleep, 60]")) as up:
        try:
            assert up.stdout is not None
            failures = 0
            for line in up.stdout:
                failures += "launch in pool spot failed: no capacity: all taken" in line
                if failures == 2:
                    break
            assert failures == 2
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=60)
        finally:
            up.kill()


def test_the_example_keeps_the_contract(fleet: SuppliedFleet) -> None:
    code, out = fleet.run("provider", "check", str(SUPPLIER))
    assert code == 0, out
    assert "14 passed, 0 failed, 0 skipped" in out
    code, out = fleet.run("provider", "check", "--offer", "base", str(SUPPLIER))
    assert code == 0, out
    assert fleet.nodes() == []


def test_a_program_that_does_not_is_told_why(fleet: SuppliedFleet) -> None:
    code, out = fleet.run("provider", "check", "/bin/cat")
    assert code != 0
    assert "FAILED   list answers: its reply has no list" in out
    code, out = fleet.run("provider", "check", "--offer", "gold", str(SUPPLIER))
    assert code != 0
    assert "none is called gold" in out
    assert fleet.nodes() == []
    code, out = fleet.run("provider", "check")
    assert code != 0
    assert "which program" in out
