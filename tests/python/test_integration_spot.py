"""``troupe up`` from a cluster file: a training that outlives its spot nodes; nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import EXAMPLES, PYAPI
from fleets import NODE, Fleet
from processes import MARK, assert_nothing_left, marked

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]


class Up:
    """``troupe up FILE`` in a process of its own, with a temp directory of its own."""

    def __init__(self, file: Path, temp: Path, mark: str) -> None:
        env = {**os.environ, MARK: mark, "TMPDIR": str(temp), "PYTHONPATH": str(PYAPI),
               "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(temp / "state")}
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "troupe", "up", str(file)], env=env, text=True,
            cwd=temp, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )

    def read_until(self, text: str) -> str:
        """Output up to the line that contains ``text``."""
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if text in line:
                return seen
        raise AssertionError(f"no line with {text!r} in:\n{seen}")

    def __enter__(self) -> Up:
        return self

    def __exit__(self, *unused: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def mark(request: Any) -> str:
    return f"{os.getpid()}-{request.node.name}"


@pytest.fixture
def temp(tmp_path_factory: Any) -> Any:
    """Short, since the sockets in it have paths of at most 107 bytes."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="up-") as folder:
        yield Path(folder)


def waiting_cluster(folder: Path) -> Path:
    """A cluster file whose training only waits."""
    file = folder / "wait.yaml"
    file.write_text(
        "training: {command: [sleep, '600'], min_workers: 1, max_workers: 1}\n"
        "autoscaler: {tick: 50ms}\n"
        "pools:\n  - {name: base, market: on_demand, max_workers: 1}\n"
    )
    return file


def test_training_outlives_its_spot_nodes(temp: Path, mark: str) -> None:
    with Up(EXAMPLES / "spot.yaml", temp, mark) as up:
        out, _ = up.process.communicate(timeout=120)
    assert up.process.returncode == 0, out
    assert "notice: node spot-1 is taken back in 10.0 s (schedule)" in out
    assert "drain spot-1: its provider takes it back" in out
    assert "node spot-2 is gone" in out
    trained = re.search(r"trained .*'first': (\[.*?\]), 'last': (\[.*?\])", out)
    assert trained, out
    assert trained.groups() == ("['spot-1', 'spot-2']", "['spot-3', 'spot-4']"), out
    planned = re.findall(r"epoch \d+: .* planned (True|False)", out)
    assert len(planned) >= 3, out  # the first, one for the notice, one for the kill
    assert "training exited with code 0" in out
    assert_nothing_left(mark)
    assert list(temp.glob("troupe-*")) == []


def test_all_nodes_are_taken_back_at_once_and_the_state_goes_on(
    temp: Path, mark: str, tmp_path: Path
) -> None:
    fleet = Fleet(temp, mark)
    (tmp_path / "train.py").write_text(fleet.seen_training(NODE, 4))
    file = tmp_path / "bulk.yaml"
    file.write_text(
        f"training: {{command: ['{sys.executable}', train.py], working_dir: '{tmp_path}',\n"
        "           min_workers: 2, max_workers: 2}\n"
        "autoscaler: {tick: 100ms, cooldown: 200ms, cooldown_max: 1s}\n"
        "pools:\n  - {name: spot, market: spot, resources: {CPU: 1}, max_workers: 4}\n"
        "schedule:\n  - {at: 0s, add: 2, pool: spot}\n"
        # Room comes a while after the notice, which leaves enough time.
        "  - {at: 4s, after: running, notice: spot-1, deadline: 15s}\n"
        "  - {at: 4s, after: running, notice: spot-2, deadline: 15s}\n"
        "  - {at: 6s, after: running, add: 2, pool: spot}\n"
    )
    with Up(file, temp, mark) as up:
        out, _ = up.process.communicate(timeout=120)
    assert up.process.returncode == 0, out
    assert "drain spot-1: its provider takes it back" in out
    assert "drain spot-2: its provider takes it back" in out
    seen = re.search(r"seen (\[.*?\]) in (\d+) steps", out)
    assert seen, out
    assert seen[1] == "['spot-1', 'spot-2', 'spot-3', 'spot-4']"
    status, told = fleet.run("why", "spot-1")
    assert status == 0, told
    for words in (r"launch spot-1 \(pool spot\): .*per worker-hour", "up spot-1",
                  "notice spot-1: is taken back in", "drain spot-1: its provider takes it back",
                  "gone spot-1"):
        assert re.search(words, told), told
    status, told = fleet.run("why")
    assert "end: exit status 0; no node is left" in told, told
    status, told = fleet.run("accounts", "--json")
    assert status == 0, told
    account = json.loads(told)
    assert sum(account["worker_s"].values()) == pytest.approx(account["paid_worker_s"], abs=1e-3)
    assert account["worker_s"]["useful"] > 0 and account["worker_s"]["starting"] > 0
    assert account["preemptions"] == 2
    # The last step is committed when the last report of it is on its way.
    assert int(seen[2]) - 10 <= account["steps"] <= int(seen[2])
    assert_nothing_left(mark)


def test_the_exit_code_is_that_of_the_training(temp: Path, mark: str, tmp_path: Path) -> None:
    file = waiting_cluster(tmp_path)
    file.write_text(file.read_text().replace("[sleep, '600']", "[sh, -c, 'exit 7']"))
    with Up(file, temp, mark) as up:
        out, _ = up.process.communicate(timeout=60)
    assert up.process.returncode == 7, out
    assert_nothing_left(mark)
    assert list(temp.glob("troupe-*")) == []


def test_an_entrypoint_runs_on_as_many_workers_as_the_file_says(
    temp: Path, mark: str, tmp_path: Path
) -> None:
    (tmp_path / "run.py").write_text(
        "import os\n\ndef main():\n    print('rank', os.environ['TROUPE_RANK'], 'of',\n"
        "          os.environ['TROUPE_SIZE'], os.environ['COLOUR'])\n"
    )
    file = tmp_path / "entry.yaml"
    file.write_text(
        f"training: {{entrypoint: 'run:main', working_dir: '{tmp_path}', env: {{COLOUR: green}},\n"
        "           min_workers: 2, max_workers: 2}\n"
        "autoscaler: {tick: 50ms}\n"
        "pools:\n  - {name: base, market: on_demand, max_workers: 2}\n"
    )
    with Up(file, temp, mark) as up:
        out, _ = up.process.communicate(timeout=60)
    assert up.process.returncode == 0, out
    assert "rank 0 of 2 green" in out and "rank 1 of 2 green" in out
    assert_nothing_left(mark)
    assert list(temp.glob("troupe-*")) == []


def test_what_the_training_left_running_is_ended(temp: Path, mark: str, tmp_path: Path) -> None:
    file = waiting_cluster(tmp_path)
    left = "setsid sleep 600 & sleep 600 & setsid -f sh -c 'sleep 600 & sleep 600'; exit 7"
    file.write_text(file.read_text().replace("[sleep, '600']", f'[sh, -c, "{left}"]'))
    with Up(file, temp, mark) as up:
        out, _ = up.process.communicate(timeout=60)
    assert up.process.returncode == 7, out
    assert "training exited with code 7" in out
    assert_nothing_left(mark)


def test_a_training_that_a_signal_ended_is_told_so(temp: Path, mark: str, tmp_path: Path) -> None:
    file = waiting_cluster(tmp_path)
    crash = "[sh, -c, 'ulimit -c 0; kill -SEGV $$']"
    file.write_text(file.read_text().replace("[sleep, '600']", crash))
    with Up(file, temp, mark) as up:
        out, _ = up.process.communicate(timeout=60)
    assert up.process.returncode == 128 + signal.SIGSEGV, out
    assert "training killed by signal 11" in out


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_a_signal(
    temp: Path, mark: str, tmp_path: Path, how: signal.Signals
) -> None:
    file = waiting_cluster(tmp_path)
    command = '[sh, -c, "setsid -f sleep 600; sleep 600"]'
    file.write_text(file.read_text().replace("[sleep, '600']", command))
    with Up(file, temp, mark) as up:
        up.read_until("node base-1 is up")
        assert len(marked(mark)) >= 5  # autoscaler, redis, head, node, training, local
        up.process.send_signal(how)
        code = up.process.wait(timeout=30)
    assert code == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    assert_nothing_left(mark)
    assert list(temp.glob("troupe-*")) == []


def test_a_wrong_file_is_refused_with_its_place(temp: Path, mark: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("pools:\n  - {name: a, market: sopt, max_workers: 1}\n")
    with Up(file, temp, mark) as up:
        out, _ = up.process.communicate(timeout=30)
    assert up.process.returncode == 2
    assert re.search(r"wrong\.yaml:2:\d+: .*market", out), out


def config(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(PYAPI)}
    return subprocess.run([sys.executable, "-m", "troupe", "config", *words], env=env, text=True,
                          capture_output=True, timeout=60)


def test_a_file_is_checked_and_explained_and_nothing_is_started(tmp_path: Path) -> None:
    example = str(EXAMPLES / "spot.yaml")
    checked = config("check", example)
    assert checked.returncode == 0, checked.stderr
    assert "no problems" in checked.stdout
    explained = config("explain", example)
    assert re.search(r"training\.command: python3, spot_training\.py +# line 4", explained.stdout)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("pools:\n  - {name: a, market: sopt, max_workers: 1}\n")
    for what in ("check", "explain"):
        refused = config(what, str(wrong))
        assert refused.returncode == 2
        assert re.search(r"wrong\.yaml:2:\d+: .*market.*did you mean spot", refused.stderr)
    assert config("check", str(tmp_path / "none.yaml")).returncode != 0


def test_the_schema_is_json_with_every_part_of_a_file() -> None:
    printed = config("schema")
    assert printed.returncode == 0, printed.stderr
    schema = json.loads(printed.stdout)
    assert set(schema["properties"]) == {
        "name", "provider", "exec", "ssh", "slurm", "ec2", "gce", "kubernetes", "head", "nodes",
        "training", "autoscaler", "pools", "schedule"}
