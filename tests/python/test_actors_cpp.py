"""Python and C++ call each other's actors, with a program that the build has made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe.actors import _session

from conftest import PYAPI

PEER = Path(os.environ.get("TROUPE_BUILD_DIR") or PYAPI.parent) / "tests" / "python_peer"
PLUGIN = PEER.parent / "plugins" / "till.so"
ABACUS = "troupe::testing::Abacus"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
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


def test_python_calls_an_actor_of_a_plugin() -> None:
    till = troupe.cpp_actor(str(PLUGIN), "troupe::testing::Till", [40])
    assert soon(till.Sell.remote(2)) == 42
    assert soon(till.Program.remote()) == "troupe-worker"
    with pytest.raises(troupe.ActorError, match="/nowhere.so cannot be read"):
        soon(troupe.cpp_actor("/nowhere.so", "Till").Sell.remote(1))


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
    assert "user_error" in lines["error"] and "LookupError: on purpose" in lines["error"]
    assert lines["unknown"].startswith("not_found") and lines["other"].startswith("corrupt")
    assert soon(helper.scale.remote(2)) == 3
