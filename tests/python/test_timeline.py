"""Timelines: what is in them, that they are valid JSON at any moment, and who writes them."""

from __future__ import annotations

import collections
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import troupe
import troupe.torch as hvd
from troupe.torch import _timeline

from fake_core import run_ranks


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No timeline of another test's, and none left behind."""
    monkeypatch.setattr(_timeline, "_active", None)
    monkeypatch.setattr(_timeline, "_looked", False)
    yield
    if _timeline._active is not None:
        _timeline._active.close()


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The events of each track, by its name, in order of time."""
    events = json.loads(path.read_text())
    names = {(e["pid"], e["tid"]): e["args"]["name"]
             for e in events if e.get("name") == "thread_name"}
    tracks: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for event in sorted((e for e in events if "ts" in e), key=lambda e: e["ts"]):
        tracks[names.get((event["pid"], event["tid"]), "")].append(event)
    return tracks


def spans(events: list[dict[str, Any]]) -> list[str]:
    """What was on a track, after it is checked that each beginning has its end after it."""
    found, open_name = [], ""
    for event in events:
        if event["ph"] == "B":
            assert not open_name
            open_name = event["name"]
        elif event["ph"] == "E":
            assert open_name
            found.append(open_name)
            open_name = ""
        else:
            found.append(event["name"])
            assert event["ph"] == "X" and event["dur"] >= 0
    assert not open_name
    return found


def settle() -> None:
    """Waits until the timeline has seen the ends of all collectives."""
    deadline = time.monotonic() + 10
    while _timeline._active is not None and _timeline._active._flights:
        assert time.monotonic() < deadline
        time.sleep(1e-3)


def test_tracks_of_tensors_and_their_phases(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"

    def fn() -> None:
        if hvd.rank() == 0:
            hvd.start_timeline(str(path), mark_cycles=True)
        hvd.allreduce(torch.ones(3), name="loss")
        hvd.allgather(torch.ones(3), name="rows")
        hvd.broadcast_object({"a": 1}, name="settings")
        handles = [hvd.allreduce_async(torch.ones(2)) for _ in range(2)]
        for handle in handles:
            hvd.synchronize(handle)
        model = torch.nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        if hvd.rank() == 0:
            settle()
            assert json.loads(path.read_text())  # As a killed process would leave it.
            hvd.stop_timeline()
            before = path.read_text()
            hvd.stop_timeline()
        hvd.allreduce(torch.ones(3), name="after")
        if hvd.rank() == 0:
            assert path.read_text() == before

    run_ranks(2, fn)
    tracks = read(path)
    assert spans(tracks["loss"]) == ["QUEUE", "ALLREDUCE"]
    assert spans(tracks["rows"]) == ["QUEUE", "ALLGATHER"]
    assert spans(tracks["settings.data"]) == ["QUEUE", "BROADCAST"]
    for name in ("weight", "bias"):
        assert spans(tracks[name]) == ["QUEUE", "ALLREDUCE"] * 2
        (bucket,) = {e["args"]["bucket"] for e in tracks[name] if e["ph"] == "B"}
        assert bucket == "optimizer.0.0"
    whole = [e["name"] for e in tracks[""]]
    assert whole == ["EPOCH", "CYCLE_START", "CYCLE_START"] and "after" not in tracks
    assert len([name for name in tracks if name.startswith("allreduce")]) in (1, 2)


class Solo:
    """One rank's context, whose collectives are over at once, or never."""

    rank, size, provisional, view = 0, 1, False, {"epoch": 3}

    class runtime:
        class worker:
            host = "here"

    def __init__(self, over: bool) -> None:
        self.group = self
        self._over = over

    def poll(self, handle: int) -> bool:
        return self._over


def test_a_tensor_waits_from_when_its_track_is_free(tmp_path: Path) -> None:
    """Though it came before the end of the last collective was noticed."""
    solo: Any = Solo(over=True)
    path = tmp_path / "timeline.json"
    made = _timeline.Timeline(str(path), False)
    made.open(solo, truncate=True)
    before = made.now()
    made.began(solo.group, ["x"], "ALLREDUCE", [7], [before])
    deadline = time.monotonic() + 10
    while made._flights:
        assert time.monotonic() < deadline
        time.sleep(1e-3)
    made.began(solo.group, ["x"], "ALLREDUCE", [8], [before])
    made.close()
    assert spans(read(path)["x"]) == ["QUEUE", "ALLREDUCE"] * 2


def test_a_track_has_no_two_collectives_at_once(tmp_path: Path) -> None:
    solo: Any = Solo(over=False)
    path = tmp_path / "timeline.json"
    made = _timeline.Timeline(str(path), False)
    made.open(solo, truncate=True)
    for _ in range(2):
        made.began(solo.group, ["x"], "ALLREDUCE", [7], [None])
    open_ones = read(path)  # As a killed process leaves it: what was in flight has no end.
    assert [e["ph"] for e in open_ones["x"] + open_ones["x (2)"]] == ["B", "B"]
    made.close()
    assert spans(read(path)["x"]) == spans(read(path)["x (2)"]) == ["ALLREDUCE"]
    # Another process goes on in the file.
    again = _timeline.Timeline(str(path), False)
    again.open(solo, truncate=False)
    again.instant("LATER")
    again.close()
    events = json.loads(path.read_text())
    assert events[-1]["name"] == "LATER" and events[0]["args"]["name"] == "rank 0 on here"


def test_what_is_no_timeline_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_text("something else")

    def fn() -> None:
        _timeline.Timeline(str(path), False).open(hvd._context.current(), truncate=False)

    run_ranks(1, fn)
    assert [e["name"] for e in json.loads(path.read_text())] == ["process_name"]


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="init"):
        hvd.start_timeline("x")

    def fn() -> None:
        with pytest.raises(OSError, match="nowhere"):
            hvd.start_timeline(str(tmp_path / "nowhere" / "x"))
        hvd.start_timeline(str(tmp_path / "x"))
        with pytest.raises(ValueError, match="stop_timeline"):
            hvd.start_timeline(str(tmp_path / "y"))
        hvd.stop_timeline()
        hvd.start_timeline(str(tmp_path / "y"))

    run_ranks(1, fn)


@pytest.mark.parametrize("value", ["DYNAMIC", "dynamic", ""])
def test_a_timeline_that_is_to_be_started_later(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOROVOD_TIMELINE", value)
    run_ranks(2, lambda: hvd.allreduce(torch.ones(1)))
    assert os.listdir(tmp_path) == []


def test_a_file_that_cannot_be_written_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "nowhere" / "x"))
    assert [float(v) for v in run_ranks(2, lambda: hvd.allreduce(torch.ones(1)))] == [1.0, 1.0]
    assert "no timeline is written" in caplog.text


def train(kill_at: int) -> int:
    import signal

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    state: Any = hvd.elastic.TorchState(model, optimizer, step=0)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while state.step < 12:
            if state.step == kill_at and hvd.rank() == 0 and hvd.epoch() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            state.step += 1
            state.commit()

    loop(state)
    return os.getpid()


@pytest.mark.integration
@pytest.mark.once
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kill_at", [-1, 5])
def test_rank_0_writes_it_and_after_its_death_the_next_one_does(
    kill_at: int, tmp_path: Path
) -> None:
    path = tmp_path / "timeline.json"
    env = {"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    with troupe.Executor(2, 2, workers=2, cpus_per_worker=0.1, num_cpus=2, progress="off", env=env,
                         preload=["torch", "troupe.torch"]) as executor:
        executor.run(train, (kill_at,))
    events = json.loads(path.read_text())
    writers = [e["pid"] for e in events if e.get("name") == "process_name"]
    assert len(writers) == len(set(writers)) == (1 if kill_at < 0 else 2)
    for writer in writers:
        mine = [e for e in events if e["pid"] == writer]
        began = [e for e in mine if e["ph"] == "B" and e["name"] == "ALLREDUCE"]
        cycles = [e for e in mine if e.get("name") == "CYCLE_START"]
        assert len(began) >= 2 and len(cycles) >= 5, (began, cycles)
