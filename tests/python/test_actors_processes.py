"""Whole driver processes with actors: Ctrl-C, SIGKILL, forks, output, the end; nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import troupe

from actor_cases import Counter, Echo
from conftest import PYAPI
from processes import MARK, Script, assert_nothing_left, marked

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(120)]
HERE = Path(__file__).resolve().parent
PATHS = os.pathsep.join([str(PYAPI), str(HERE)])
HEAD = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(HERE)!r})
import troupe
"""


@pytest.fixture
def mark(request: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Marks every process that this test starts, and gives their clusters a directory."""
    value = f"{os.getpid()}-{request.node.name}"
    monkeypatch.setenv(MARK, value)
    temp = tmp_path / "t"
    temp.mkdir()
    monkeypatch.setenv("TMPDIR", str(temp))
    return value


def assert_clean(mark: str, tmp_path: Path) -> None:
    assert_nothing_left(mark)
    assert os.listdir(tmp_path / "t") == []


def test_first_use_starts_a_cluster_and_the_end_of_the_program_ends_it(
    tmp_path: Path, mark: str
) -> None:
    code = HEAD + """
from actor_cases import Counter, square
assert not troupe.is_initialized()
counter = Counter.remote()
print("sum", troupe.get(counter.add.remote(5)), troupe.is_initialized())
print("square", troupe.get(square.remote(4)))
"""
    with Script(tmp_path / "driver.py", code, mark, PATHS) as script:
        assert script.read_until("sum") == "sum 5 True"
        assert script.read_until("square") == "square 16"
        assert script.wait(60) == 0, script.lines
    assert_clean(mark, tmp_path)


def test_init_and_shutdown_again_and_again(tmp_path: Path, mark: str) -> None:
    for _ in range(2):
        troupe.init(num_cpus=2)
        try:
            with pytest.raises(troupe.TroupeError, match="called before"):
                troupe.init()
            troupe.init(ignore_reinit_error=True)
            actor = Counter.remote()
            assert troupe.get(actor.add.remote(), timeout=60) == 1
            pending = Echo.remote().sleep.remote(3600)
        finally:
            troupe.shutdown()
        with pytest.raises((troupe.TaskCancelledError, troupe.ActorDiedError)):
            troupe.get(pending, timeout=60)
        with pytest.raises((troupe.TaskCancelledError, troupe.ActorDiedError)):
            troupe.get(actor.add.remote(), timeout=60)
        troupe.shutdown()
        assert not troupe.is_initialized()
    many = {"resources": {f"r{i}": 1 for i in range(10_000)}}
    for wrong in ({"num_cpus": -1}, {"address": "nowhere"}, {"nonsense": 1}, many):
        with pytest.raises((TypeError, ValueError)):
            troupe.init(**wrong)
    assert_clean(mark, tmp_path)


def test_nothing_is_left_of_a_driver_that_was_killed(tmp_path: Path, mark: str) -> None:
    code = HEAD + """
import numpy
from actor_cases import Arrays, Counter
kept = troupe.put(numpy.ones(1 << 20))
actors = [Counter.options(max_restarts=-1).remote(), Counter.options(lifetime="detached").remote()]
troupe.get([actor.add.remote() for actor in actors])
arrays = Arrays.remote()
result = arrays.ones.remote(1 << 20)
troupe.wait([result])
print("ready", flush=True)
threading.Event().wait()
"""
    with Script(tmp_path / "driver.py", code, mark, PATHS) as script:
        script.read_until("ready")
        assert len(marked(mark)) > 4
        script.kill(signal.SIGKILL)
        assert script.wait(60) == -signal.SIGKILL
        assert_clean(mark, tmp_path)


def test_ctrl_c_ends_a_wait_and_leaves_the_rest_usable(tmp_path: Path, mark: str) -> None:
    code = HEAD + """
from actor_cases import Echo
echo = Echo.remote()
troupe.get(echo.same.remote(1))
ref = echo.sleep.remote(3600)
try:
    print("waiting", flush=True)
    troupe.get(ref)
except KeyboardInterrupt:
    troupe.cancel(ref)
    print("interrupted", troupe.get(echo.same.remote("still here")), flush=True)
"""
    with Script(tmp_path / "driver.py", code, mark, PATHS) as script:
        script.read_until("waiting")
        os.killpg(script.process.pid, signal.SIGINT)  # As a terminal does: to all of the group.
        assert script.read_until("interrupted") == "interrupted still here"
        assert script.wait(60) == 0, script.lines
    assert_clean(mark, tmp_path)


def test_a_forked_child_is_told_and_harms_nothing(tmp_path: Path, mark: str) -> None:
    code = HEAD + """
from actor_cases import Counter
counter = Counter.remote()
ref = counter.add.remote()
troupe.get(ref)
pid = os.fork()
if pid == 0:
    for use in (lambda: counter.add.remote(), lambda: troupe.get(ref)):
        try:
            use()
        except troupe.TroupeError as error:
            print("child:", "forked" in str(error), troupe.is_initialized(), flush=True)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
print("parent", troupe.get(counter.add.remote()), flush=True)
"""
    with Script(tmp_path / "driver.py", code, mark, PATHS) as script:
        assert script.read_until("child") == "child: True False"
        assert script.read_until("child") == "child: True False"
        assert script.read_until("parent") == "parent 2"
        assert script.wait(60) == 0, script.lines
    assert_clean(mark, tmp_path)


def test_what_actors_print_comes_with_type_pid_and_node(tmp_path: Path, mark: str) -> None:
    code = HEAD + """
from actor_cases import Counter
counter = Counter.remote()
pid = troupe.get(counter.pid.remote())
print("pid", pid, flush=True)
troupe.get(counter.say.remote("first", "second"))
while True:  # A wait without end is not interrupted by a signal that comes just before it.
    time.sleep(0.1)
"""
    with Script(tmp_path / "driver.py", code, mark, PATHS) as script:
        pid = script.read_until("pid").split()[1]
        assert script.read_until("first") == f"(Counter pid={pid} node=local) first"
        assert script.read_until("second") == f"(Counter pid={pid} node=local) second"
        script.kill(signal.SIGINT)
        script.wait(60)
    assert_clean(mark, tmp_path)


def test_a_detached_actor_outlives_its_driver(tmp_path: Path, mark: str) -> None:
    troupe.init(num_cpus=2)
    try:
        session = troupe.actors._session.current()
        assert session.cluster is not None
        code = HEAD + f"""
from actor_cases import Counter
troupe.init(address={session.cluster.driver.address!r})
left = Counter.options(name="left", lifetime="detached").remote(10)
gone = Counter.options(name="gone").remote(10)
print("sum", troupe.get([left.add.remote(), gone.add.remote()]))
"""
        with Script(tmp_path / "driver.py", code, mark, PATHS) as script:
            assert script.read_until("sum") == "sum [11, 11]"
            assert script.wait(60) == 0, script.lines
        assert troupe.get(troupe.get_actor("left").add.remote(), timeout=60) == 12
        with pytest.raises((troupe.ActorNotFoundError, troupe.ActorDiedError)):
            troupe.get(troupe.get_actor("gone").add.remote(), timeout=60)
    finally:
        troupe.shutdown()
    assert_clean(mark, tmp_path)


def test_actors_and_an_executor_share_a_cluster(tmp_path: Path, mark: str) -> None:
    troupe.init(num_cpus=2)
    try:
        with troupe.Executor(1, num_cpus=2, progress="off") as executor:
            assert executor.run(lambda: 5) == [5]
            assert troupe.get(Counter.remote().add.remote(), timeout=60) == 1
        assert troupe.get(Counter.remote().add.remote(), timeout=60) == 1
    finally:
        troupe.shutdown()
    assert_clean(mark, tmp_path)


def test_the_example(tmp_path: Path, mark: str) -> None:
    """It prints what the documentation says it prints."""
    root = HERE.parents[1]
    env = {**os.environ, "PYTHONPATH": str(PYAPI)}
    done = subprocess.run([sys.executable, str(root / "examples" / "actors.py")], env=env,
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    document = (root / "docs" / "actors.md").read_text()
    assert (root / "examples" / "actors.py").read_text().split('"""\n', 1)[1].strip() in document
    printed = [line for line in done.stdout.splitlines() if not line.startswith("(")]
    assert "\n".join(printed) in document
    assert_clean(mark, tmp_path)
