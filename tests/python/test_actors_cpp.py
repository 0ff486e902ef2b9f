"""Python and C++ call each other's actors, with a program that the build has made."""

from __future__ import annotations

import array
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import troupe
from troupe.actors import _session

from conftest import PYAPI

PEER = Path(os.environ.get("TROUPE_BUILD_DIR") or PYAPI.parent) / "tests" / "python_peer"
PLUGIN = PEER.parent / "plugins" / "till.so"
ABACUS = "troupe::testing::Abacus"

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(120)]
if not PEER.exists() and os.environ.get("TROUPE_REQUIRE_CORE") != "1":
    pytestmark.append(pytest.mark.skip(reason=f"{PEER} is not built"))
SOON_S = 60.0


@troupe.remote
class Helper:
    """What C++ calls."""

    def scale(self, value: float) -> float:
        return value * 1.5

    def upper(self, text: str) -> str:
        return text.upper()

    def ordered(self, values: list[int]) -> list[int]:
        return sorted(values)

    def total(self, prices: dict[str, float]) -> float:
        return sum(prices.values())

    def doubled(self, values: list[float]) -> np.ndarray:
        return np.array(values, dtype=np.float32) * 2

    def nothing(self) -> None:
        return None

    def fail(self, why: str) -> None:
        raise LookupError(why)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    troupe.init(num_cpus=4)
    yield
    troupe.shutdown()


def spawn(start: int = 0, **options: Any) -> Any:
    return troupe.cpp_actor([str(PEER)], ABACUS, [start], **options)


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def test_python_calls_an_actor_of_cpp() -> None:
    abacus = spawn(40, name="abacus")
    assert soon(abacus.Add.remote(2)) == 42
    assert soon(abacus.Mean.remote([1, 2.5, 4])) == 2.5
    assert soon(abacus.Join.remote(["a", b"b", "ü"], by := "-")) == f"a{by}b{by}ü"
    assert soon(abacus.Doubled.remote({"x": 4, "y": -(2**40)})) == {"x": 8, "y": -(2**41)}
    assert soon(abacus.Bytes.remote()) == b"\xff\x00\x80"
    assert soon(abacus.Not.remote(True)) is False
    assert soon(abacus.Nothing.remote()) is None
    assert soon(troupe.get_actor("abacus").Add.remote(1)) == 43
    assert soon(spawn().AddTo.remote(abacus, 7)) == 50
    assert soon(abacus.Add.remote(troupe.put(5))) == 55


def test_numbers_travel_in_one_piece() -> None:
    abacus = spawn()
    many = 5_000_000  # More than an array of the wire format holds.
    counted = soon(abacus.Count.remote(many))
    assert len(counted) == many and counted[:3] == [0, 1, 2] and counted[-1] == many - 1
    total = many * (many - 1) // 2
    assert soon(abacus.Sum.remote(np.arange(many, dtype=np.int32))) == total
    assert soon(abacus.Sum.remote(counted)) == total
    assert soon(abacus.Sum.remote(array.array("q", [1, -3]))) == -2
    assert soon(abacus.Sum.remote(np.arange(6)[::2])) == 6
    assert soon(abacus.Mean.remote(np.array([1, 2], dtype=np.float32))) == 1.5
    assert soon(abacus.Rows.remote(np.arange(4.0).reshape(2, 2).T)) == [[0, 2], [1, 3]]
    assert soon(abacus.Rows.remote([[1, 2.5], []])) == [[1, 2.5], []]
    assert soon(abacus.Raw.remote(b"\x00\xff")) == [0, 255]
    assert soon(abacus.Raw.remote(memoryview(b"ab"))) == [97, 98]
    assert soon(abacus.Add.remote(np.int64(3))) == 3


def test_numbers_that_do_not_fit() -> None:
    abacus = spawn()
    with pytest.raises(TypeError, match="number out of range"):
        soon(abacus.Sum.remote(np.array([2**31])))
    with pytest.raises(TypeError, match="number out of range"):
        soon(abacus.Sum.remote(np.array([0.5])))
    with pytest.raises(TypeError, match='not of format "\\?"'):
        abacus.Sum.remote(np.array([True]))
    with pytest.raises(TypeError, match='not of format ">i"'):
        abacus.Sum.remote(np.arange(3, dtype=">i4"))
    with pytest.raises(TypeError, match="tolist"):
        abacus.Sum.remote(np.array(["a"]))
    with pytest.raises(ValueError, match="1000001 items, over the limit of 1000000"):
        abacus.Join.remote(["a"] * 1_000_001, "")


def test_python_calls_an_actor_of_a_plugin() -> None:
    till = troupe.cpp_actor(str(PLUGIN), "troupe::testing::Till", [40])
    assert soon(till.Sell.remote(2)) == 42
    assert soon(till.Program.remote()) == "troupe-worker"
    with pytest.raises(troupe.ActorError, match="/nowhere.so cannot be read"):
        soon(troupe.cpp_actor("/nowhere.so", "Till").Sell.remote(1))


def test_calls_on_threads_may_block() -> None:
    abacus = spawn(threads=True, max_concurrency=3)
    assert troupe.get([abacus.Meet.remote(3) for _ in range(3)], timeout=SOON_S) == [3, 3, 3]
    with pytest.raises(troupe.ActorError, match="calls on threads are at most 1000 at once"):
        spawn(threads=True, max_concurrency=2000)


def test_errors_of_an_actor_of_cpp() -> None:
    abacus = spawn()
    with pytest.raises(troupe.ActorTaskError, match="on purpose") as info:
        soon(abacus.Fail.remote("on purpose"))
    assert info.value.exc_type == "std::runtime_error" and info.value.node == "local"
    with pytest.raises(AttributeError, match="has no method Subtract"):
        soon(abacus.Subtract.remote(1))
    with pytest.raises(TypeError, match="expected a signed integer"):
        soon(abacus.Add.remote("one"))
    with pytest.raises(TypeError, match="wrong number of fields"):
        soon(abacus.Add.remote(1, 2))
    with pytest.raises(TypeError, match="a C.. actor takes bool, int.* not complex"):
        abacus.Add.remote(1j)
    with pytest.raises(ValueError, match="64 bits"):
        abacus.Add.remote(2**64)
    with pytest.raises(TypeError, match="no keyword arguments"):
        abacus.Add.remote(by=1)
    with pytest.raises(troupe.ActorTaskError, match="start is negative"):
        soon(spawn(-1).Add.remote(1))
    with pytest.raises(troupe.ActorError, match="does not describe an actor type Nonsense"):
        soon(troupe.cpp_actor([str(PEER)], "Nonsense").Add.remote(1))


SHOP = """
import troupe

LIMIT = 3


@troupe.remote
class Till:
    def __init__(self, owner, start):
        if start < 0:
            raise ValueError("start is negative")
        self.owner, self.sum = owner, start

    def sell(self, count):
        self.sum += count
        return self.sum


class Maths:
    @staticmethod
    def square(value):
        return value * value


@troupe.remote
def total(prices):
    return sum(prices)


def nothing():
    pass


def fail():
    raise LookupError("no tea")
"""


def test_cpp_starts_actors_and_tasks_of_python(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    session = _session.current()
    assert session.cluster is not None
    path = os.pathsep.join([str(tmp_path), str(PYAPI), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [str(PEER), session.cluster.driver.address, sys.executable, path],
        capture_output=True, text=True, timeout=100)
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (lines["sold"], lines["sum"], lines["last"]) == ("42", "500", "361")
    assert (lines["later"], lines["none"]) == ("16", "1")
    assert lines["raised"].startswith("user_error") and "LookupError: no tea" in lines["raised"]
    assert "No module named 'no_such_module'" in lines["nowhere"]
    assert "module shop has no nobody" in lines["unknown"]
    assert "shop:LIMIT is a int, which cannot be called" in lines["constant"]
    assert "start is negative" in lines["refused"] and "shop:Till" in lines["refused"]
    assert "module shop has no Nobody" in lines["missing"]


def test_cpp_calls_an_actor_of_python() -> None:
    helper = Helper.options(name="helper").remote()
    assert soon(spawn(10).ScaledBy.remote("helper")) == 15.0
    session = _session.current()
    assert session.cluster is not None
    done = subprocess.run([str(PEER), session.cluster.driver.address, "helper"],
                          capture_output=True, text=True, timeout=60)
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line[:7] != "ordered")
    ordered = [line.split()[1] for line in done.stdout.splitlines() if line[:7] == "ordered"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert (lines["scale"], lines["upper"], lines["total"]) == ("10.5", "TEXT", "0.5")
    assert ordered == ["1", "2", "3"] and lines["nothing"] == "1"
    assert (lines["doubled"], lines["later"]) == ("2000000 of 1", "4.5")
    assert "user_error" in lines["error"] and "LookupError: on purpose" in lines["error"]
    assert lines["unknown"].startswith("not_found") and lines["other"].startswith("corrupt")
    assert soon(helper.scale.remote(2)) == 3


def peers() -> list[str]:
    """Processes of the program."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if line.read_bytes().startswith(str(PEER).encode() + b"\0"):
                found.append(line.parent.name)
        except OSError:  # It has ended.
            continue
    return found


def all_gone(but: set[str]) -> None:
    gc.collect()
    end = time.monotonic() + SOON_S
    while left := set(peers()) - but:
        assert time.monotonic() < end, f"{len(left)} processes are left"
        time.sleep(0.05)


def test_a_thousand_actors_that_are_made_and_dropped_leave_no_process() -> None:
    before = set(peers())  # What was passed to C++ is held for longer.
    for begin in range(0, 1000, 10):
        some = [spawn(i) for i in range(begin, begin + 10)]
        assert soon([one.Add.remote(1) for one in some]) == list(range(begin + 1, begin + 11))
        del some
    all_gone(before)
