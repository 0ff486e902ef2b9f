"""Views, HTML and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe import _cluster, cli
from troupe.cli import doctor
from troupe.executor import display

from conftest import PYAPI


def epoch(number: int, old: int, size: int, reason: str = "start") -> dict[str, Any]:
    return {"kind": "epoch", "epoch": number, "old_size": old, "size": size, "reason": reason,
            "pause_ms": 1.25, "members": [
                {"id": f"w{i}", "rank": i, "host": "<h>", "pid": 10 + i, "version": 3}
                for i in range(size)]}


EVENTS: list[dict[str, Any]] = [
    epoch(1, 0, 2),
    {"kind": "report", "value": {"loss": 0.123456, "step": 7}},
    {"kind": "worker", "worker": "w1", "rank": 1, "host": "<h>", "pid": 11, "state": "died",
     "detail": "signal 9"},
    {"kind": "stalled", "epoch": 1, "operation": "all-reduce", "seconds": 30.04, "waiting": [0],
     "missing": [{"id": "w1#1", "rank": 1, "host": "<h>", "pid": 11}], "removed": False},
    epoch(2, 2, 1, "death <of> w1"),
    {"kind": "state", "worker": "w0", "epoch": 2, "bytes": 3 << 20},
    {"kind": "parked", "reason": "1 of 2 workers"},
    {"kind": "resumed", "message": "resumed from commit 7 in /c"},
    {"kind": "warning", "message": "no space left"},
    {"kind": "recovered", "steps_replayed": 1, "steps_recomputed": 0, "samples_returned": 8,
     "message": "the step after commit 7 was reduced again"},
    {"kind": "done", "state": "failed", "reason": "gone"},
]


class StubHandle:
    name = "train"

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.write: Any = None

    def add_listener(self, listener: Any) -> None:
        self.listeners.append(listener)

    def set_writer(self, write: Any) -> None:
        self.write = write

    def events(self) -> list[dict[str, Any]]:
        return EVENTS


def test_plain_lines(capsys: pytest.CaptureFixture) -> None:
    handle = StubHandle()
    display.attach(handle, "auto")  # type: ignore[arg-type] - stderr is captured: not a terminal
    for event in EVENTS:
        handle.listeners[0](event)
    handle.write("stdout", "[0 h] line")
    captured = capsys.readouterr()
    assert captured.out == "[0 h] line\n"
    assert captured.err.splitlines() == [
        "troupe: train: epoch 1 (start): 0 -> 2 workers, paused 1.2 ms",
        "troupe: train: worker w1 (rank 1, <h>) died: signal 9",
        "troupe: train: warning: rank 0 waited 30.0 s in all-reduce for rank 1 (w1#1, <h>)",
        "troupe: train: epoch 2 (death <of> w1): 2 -> 1 workers, paused 1.2 ms",
        "troupe: train: waiting: 1 of 2 workers",
        "troupe: train: resumed from commit 7 in /c",
        "troupe: train: warning: no space left",
        "troupe: train: the step after commit 7 was reduced again",
        "troupe: train: failed: gone",
    ]


def test_rich_view_and_a_second_one(capsys: pytest.CaptureFixture) -> None:
    first, second = StubHandle(), StubHandle()
    display.attach(first, "rich")  # type: ignore[arg-type]
    display.attach(second, "rich")  # type: ignore[arg-type]
    for event in EVENTS:
        first.listeners[0](event)
        second.listeners[0](event)
    assert capsys.readouterr().err.count("epoch 2 (death <of> w1)") == 2


def test_off_attaches_nothing() -> None:
    handle = StubHandle()
    display.attach(handle, "off")  # type: ignore[arg-type]
    assert handle.listeners == []


def test_html_is_escaped_and_complete() -> None:
    text = display.run_html(StubHandle())  # type: ignore[arg-type]
    assert "death &lt;of&gt; w1" in text and "<of>" not in text
    assert "3.0 MiB" in text and "failed" in text and "loss=0.1235 step=7" in text
    text = troupe.Executor(2, 4, gpus_per_worker=0.5)._repr_html_()
    assert "4 (min 2, max 4)" in text and "GPU 0.5" in text and "embedded" in text


def test_running_members_are_shown() -> None:
    model = display.RunModel("train")
    model.update(EVENTS[0])
    assert "<td>11</td>" in display.model_html(model)


def test_a_stall_is_shown_until_something_moves() -> None:
    model = display.RunModel("train")
    stall = next(event for event in EVENTS if event["kind"] == "stalled")
    model.update(EVENTS[0])
    model.update({**stall, "removed": True})
    assert "stalled: rank 0 waited" in model.headline()
    assert "rank 1 (w1#1, &lt;h&gt;), which is ended now" in display.model_html(model)
    model.update({"kind": "report", "value": {"step": 8}})
    assert "stalled" not in model.headline()


def test_table() -> None:
    rows = [display.epoch_row({**EVENTS[0], "state_bytes": 2048})]
    lines = display.text_table(display.EPOCH_COLUMNS, rows).splitlines()
    assert lines[0].split("  ")[0] == "epoch" and lines[2].endswith("2.0 KiB")


@pytest.mark.parametrize("count,text", [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"),
                                        (5 << 30, "5.0 GiB")])
def test_bytes(count: int, text: str) -> None:
    assert display.format_bytes(count) == text


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version_in_a_fresh_process(word: str) -> None:
    done = subprocess.run([sys.executable, "-m", "troupe", word], check=True,
                          capture_output=True, text=True, env={"PYTHONPATH": str(PYAPI)})
    assert done.stdout == f"troupe {troupe.__version__}\n"


def test_doctor_lists_what_fails(capsys: pytest.CaptureFixture,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(_cluster, "find_bin_dir", lambda: "/nowhere")
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  redis-server" in out and "apt-get install redis-server" in out
    assert "FAIL  troupe-head" in out and "ok    torch" in out and "ok    shared memory" in out
    assert doctor.check_shared_memory("/nowhere").ok is False
    assert doctor.check_module("no_such_module", False, "x").line().startswith("warn")


def write_script(folder: Path, body: str) -> str:
    path = folder / "train.py"
    path.write_text(body)
    return str(path)


def test_run_a_script(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    script = write_script(tmp_path, (
        "import sys, troupe.torch as hvd\n"
        "hvd.init()\n"
        # One write a line: here the ranks are threads that share one stdout.
        "sys.stdout.write(f'rank {hvd.rank()} of {hvd.size()} {sys.argv[1:]}\\n')\n"
        "sys.exit(0)\n"))
    assert cli.main(["run", "-np", "2", "python", script, "--lr", "1"]) == 0
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == ["rank 0 of 2 ['--lr', '1']", "rank 1 of 2 ['--lr', '1']"]


@pytest.mark.parametrize("body,message", [("raise KeyError('boo')", "boo"),
                                          ("import sys; sys.exit(4)", "status 4")])
def test_run_a_script_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture, body: str,
                                 message: str) -> None:
    assert cli.main(["run", "-np", "1", write_script(tmp_path, body)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("words", "size"), [([], 3), (["-np", "2"], 2), (["--max-np", "4"], 3),
                                             (["-np", "2", "--min-np", "2"], 2)])
def test_what_is_not_said_is_what_the_config_says(
    tmp_path: Path, capfd: pytest.CaptureFixture, words: list[str], size: int
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("{min_workers: 1, workers: 3, max_workers: 3, name: mine}")
    script = write_script(tmp_path, (
        "import sys, troupe.torch as hvd\n"
        "hvd.init()\n"
        "sys.stdout.write(f'of {hvd.size()}\\n')\n"))
    assert cli.main(["run", *words, "--config", str(config), script]) == 0
    output = capfd.readouterr()
    assert output.out.splitlines() == [f"of {size}"] * size
    assert "mine" in output.err


def test_run_errors(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert cli.main(["run", "-np", "2", "/no/such.py"]) == 1
    assert "no such script" in capsys.readouterr().err
    script = write_script(tmp_path, "")
    assert cli.main(["run", "-np", "2", "--min-np", "3", "--max-np", "4", script]) == 1
    assert "workers (2) must lie" in capsys.readouterr().err
    assert cli.main(["run", script]) == 1
    assert "-np N, or --config" in capsys.readouterr().err


def test_up_hands_over_to_the_autoscaler(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    assert cli.main(["up", "/no/such.yaml"]) == 1
    (tmp_path / "c.yaml").write_text("pools: []\n")
    for name in ("troupe-head", "troupe-autoscaler"):
        daemon = tmp_path / name
        daemon.write_text('#!/bin/sh\necho "auto $1 ${PATH%%:*}"\n')
        daemon.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "troupe", "up", str(tmp_path / "c.yaml")], capture_output=True,
        text=True, check=True, env={"PYTHONPATH": str(PYAPI), "TROUPE_BIN_DIR": str(tmp_path)})
    python = os.path.dirname(sys.executable)  # So that python3 in the file is this one.
    assert done.stdout == f"auto {tmp_path / 'c.yaml'} {python}\n"
