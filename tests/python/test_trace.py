"""Merging traces: clocks of several machines, files of killed processes, real runs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe import cli
from troupe._trace import merge_traces


def write(path: Path, boot: str, unix_us: float, ts_us: float, *events: dict[str, Any]) -> None:
    clock = {"ph": "M", "name": "troupe_clock", "pid": 1, "tid": 0,
             "args": {"boot": boot, "unix_us": unix_us, "ts_us": ts_us}}
    path.write_text("[\n" + ",\n".join(json.dumps(e) for e in [clock, *events]))


def test_processes_of_one_boot_keep_their_clock_and_others_are_shifted(tmp_path: Path) -> None:
    write(tmp_path / "a-1.trace.json", "one", 1000.0, 500.0, {"name": "a", "ph": "i", "ts": 510.0})
    # The time of day was set between the two starts; the clock they share was not.
    write(tmp_path / "b-2.trace.json", "one", 9000.0, 520.0, {"name": "b", "ph": "i", "ts": 509.0})
    write(tmp_path / "c-3.trace.json", "two", 1000.0, 40.0, {"name": "c", "ph": "i", "ts": 49.5})
    events, processes = merge_traces(tmp_path)
    assert processes == 3
    assert [(e["name"], e["ts"]) for e in events if "ts" in e] == [
        ("b", 509.0), ("c", 509.5), ("a", 510.0)]


def test_a_half_written_event_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "w-1.trace.json"
    write(file, "one", 0.0, 0.0, {"name": "a", "ph": "i", "ts": 1.0})
    file.write_text(file.read_text() + ',\n{"name": "b", "ph": "i", "t')
    assert [e["name"] for e in merge_traces(tmp_path)[0]] == ["troupe_clock", "a"]


def test_the_command_writes_one_file_or_says_what_to_do(tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["trace", str(tmp_path)]) == 1
    assert f"TROUPE_TRACE_DIR={tmp_path}" in capsys.readouterr().err
    write(tmp_path / "a-1.trace.json", "one", 0.0, 0.0, {"name": "a", "ph": "i", "ts": 1.0})
    out = tmp_path / "out.json"
    assert cli.main(["trace", str(tmp_path), "-o", str(out)]) == 0
    assert "2 events of 1 processes" in capsys.readouterr().out
    assert len(json.loads(out.read_text())["traceEvents"]) == 2


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_a_recovery_is_seen_from_the_death_to_the_first_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TROUPE_TRACE_DIR", str(tmp_path))

    def fn() -> int:
        import torch

        import troupe.torch as hvd

        hvd.init()
        state = hvd.elastic.ObjectState(step=0)

        @hvd.elastic.run
        def loop(state: Any) -> int:
            while state.step < 40:
                if state.step == 20 and hvd.size() == 3 and hvd.rank() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                hvd.allreduce(torch.ones(8), op=hvd.Sum)
                state.step += 1
                state.commit()
            return hvd.size()

        return loop(state)

    with troupe.Executor(min_workers=2, max_workers=3, cpus_per_worker=0.1, num_cpus=2,
                         progress="off") as executor:
        executor.run(fn)
    events, processes = merge_traces(tmp_path)
    roles = [e["args"]["name"].split()[0] for e in events if e.get("name") == "process_name"]
    assert processes == len(roles)
    # This process traces only if it has not used the package before; the replacement may come late.
    assert [roles.count(role) for role in ("head", "node")] == [1, 1]
    assert roles.count("worker") >= 3, roles
    names = [e["name"] for e in events if "name" in e]
    for wanted in ("life lost", "death noticed", "persist epoch", "preparing", "linking",
                   "epoch 2", "ready", "link", "allreduce float32[8] sum", "sync", "train",
                   "to the first collective"):
        assert wanted in names, wanted
    epoch = next(e for e in events if e.get("name") == "epoch 2")
    assert epoch["ph"] == "X" and 0 < epoch["dur"] < 30e6
    assert "died" in epoch["args"]["reason"]
