"""All workers of a run are killed, or the run ends: the next ones continue from the disk."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import troupe

from processes import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SAMPLES, BATCH, WORKERS = 240, 4, 3
STEPS = SAMPLES // (BATCH * WORKERS)  # of a data epoch


def train(folder: str, data_epochs: int, hold_at: int = -1, until_there: str = "") -> dict:
    """Trains; the state counts for each sample how often the model has seen it.

    At step ``hold_at`` it waits, uncommitted: for the file ``until_there``, or for ever.
    """
    import torch

    import troupe.torch as hvd

    hvd.init()
    torch.manual_seed(3 + os.getpid())  # only what comes from rank 0 or the disk is alike
    model = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    for index, parameter in enumerate(model.parameters()):
        with torch.no_grad():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape)
                            .mul(3 + index).sin())
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    state: Any = hvd.elastic.TorchState(
        model, optimizer, sampler=hvd.elastic.ElasticSampler(range(SAMPLES), seed=5),
        durable=folder, epoch=0, step=0, seen=[0] * SAMPLES,
    )
    data = torch.linspace(-1, 1, SAMPLES * 6).reshape(SAMPLES, 6).sin()
    begun: list[int] = []

    @hvd.elastic.run
    def loop(state: Any) -> None:
        begun.append(state.step)
        while state.epoch < data_epochs:
            for indices in hvd.elastic.batches(state.sampler, BATCH):
                optimizer.zero_grad()
                model(data[indices]).pow(2).mean().backward()
                optimizer.step()
                mine = torch.zeros(SAMPLES, dtype=torch.int64)
                mine[indices] += 1 if indices.counted else 0
                state.seen = (torch.tensor(state.seen) + hvd.allreduce(mine, op=hvd.Sum)).tolist()
                state.step += 1
                while state.step == hold_at and not (until_there and os.path.exists(until_there)):
                    time.sleep(0.01)
                state.commit()
                if hvd.rank() == 0:
                    troupe.report({"step": state.step})
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
        state.commit()

    loop(state)
    blob = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return {"step": state.step, "version": state.version, "begun": begun,
            "seen": sorted(set(state.seen)), "hash": hashlib.sha256(blob).hexdigest()}


def make(name: str) -> troupe.Executor:
    return troupe.Executor(
        WORKERS, cpus_per_worker=0.2, num_cpus=2, progress="off", name=name,
        elastic_timeout=120, preload=["torch", "troupe.torch"],
    )


@pytest.fixture(scope="module")
def executor() -> Any:
    with make("durable") as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(executor: troupe.Executor, tmp_path_factory: pytest.TempPathFactory) -> dict:
    results = executor.run(train, (str(tmp_path_factory.mktemp("undisturbed")), 2))
    assert all(result == results[0] for result in results) and results[0]["begun"] == [0]
    assert results[0]["seen"] == [2] and results[0]["step"] == 2 * STEPS
    return dict(results[0])


def of_kind(handle: troupe.RunHandle, kind: str) -> list[dict]:
    return [event for event in handle.events() if event["kind"] == kind]


def resumed_from(event: dict) -> int:
    words = event["message"].split()
    return int(words[words.index("commit") + 1])


def kill_all(handle: Any) -> None:
    """All at once: stopped first, so that no replacement finds anybody who still has the state."""
    stopped: set[int] = set()
    while pids := {worker["pid"] for worker in handle.workers()} - stopped:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        stopped |= pids
    for pid in stopped:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_resumes_by_itself_when_all_its_workers_are_killed(
    executor: troupe.Executor, tmp_path: Path, undisturbed: dict, seed: int
) -> None:
    at = random.Random(seed).randrange(3, 2 * STEPS - 2)
    reached = threading.Event()

    def on_event(event: dict) -> None:
        if event["kind"] == "report" and event["value"]["step"] >= at:
            reached.set()

    killed = tmp_path / "killed"  # the last step waits for it: training may outrun the kill
    handle = executor.submit(
        train, (str(tmp_path / "commits"), 2, 2 * STEPS, str(killed)), on_event=on_event)
    assert reached.wait(60)
    # Training does not wait for the disk: what is on none yet when all die is lost.
    until(lambda: any((tmp_path / "commits").glob("*/commit-*")), True)
    kill_all(handle)
    killed.touch()
    results = handle.result(120)
    assert len(results) == WORKERS
    (resumed,) = of_kind(handle, "resumed")
    version = resumed_from(resumed)
    for result in results:
        assert result == {**undisturbed, "begun": [version]}
    died = [e for e in of_kind(handle, "worker") if e["state"] == "died"]
    assert len(died) == WORKERS
    assert of_kind(handle, "parked") and not of_kind(handle, "warning")
    assert version > 0


def test_killed_before_the_first_commit_it_begins_anew(
    executor: troupe.Executor, tmp_path: Path, undisturbed: dict
) -> None:
    """Nothing is on disk; the ones that follow are joiners of a group without state."""
    there = threading.Event()

    def hold_first(folder: str) -> dict:
        if not os.path.exists(f"{folder}/again"):
            troupe.report("there")
            return train(folder, 2, hold_at=1)
        return train(folder, 2)

    def on_event(event: dict) -> None:
        if event["kind"] == "report" and event["value"] == "there":
            there.set()

    handle = executor.submit(hold_first, (str(tmp_path),), on_event=on_event)
    assert there.wait(60)
    (tmp_path / "again").touch()
    kill_all(handle)
    assert handle.result(120) == [undisturbed] * WORKERS
    assert not of_kind(handle, "resumed")


def test_a_new_run_of_the_same_name_continues(tmp_path: Path, undisturbed: dict) -> None:
    with make("chapters") as first:
        results = first.run(train, (str(tmp_path), 1))
        assert {result["step"] for result in results} == {STEPS}
    with make("chapters") as second:
        handle = second.submit(train, (str(tmp_path), 2))
        results = handle.result(120)
        (resumed,) = of_kind(handle, "resumed")
        assert resumed_from(resumed) == STEPS + 1  # with the commit after the data epoch
        for result in results:  # one commit more than without the break
            assert result == {**undisturbed, "begun": [STEPS], "version": 2 * STEPS + 2}
    with make("another") as third:
        assert third.run(train, (str(tmp_path), 1))[0]["begun"] == [0]


def test_a_cancelled_run_is_continued_from_what_is_on_disk(
    executor: troupe.Executor, tmp_path: Path, undisturbed: dict
) -> None:
    reached = threading.Event()
    handle = executor.submit(
        train, (str(tmp_path), 2, 17),
        on_event=lambda e: reached.set() if e["kind"] == "report" and e["value"]["step"] == 16
        else None,
    )
    assert reached.wait(60)
    # A slow disk makes durable commits rarer; the first is written whatever comes after it.
    until(lambda: bool(list((tmp_path / "durable").glob("commit-*"))), True)
    handle.cancel()
    with pytest.raises(troupe.RunCancelled):
        handle.result(60)
    results = executor.run(train, (str(tmp_path), 2))
    assert all(result == {**results[0]} for result in results)
    assert results[0] == {**undisturbed, "begun": results[0]["begun"]}
    assert 1 <= results[0]["begun"][0] <= 16


def test_a_vanished_directory_is_a_warning_and_training_goes_on(
    executor: troupe.Executor, tmp_path: Path, undisturbed: dict
) -> None:
    def on_event(event: dict) -> None:
        if event["kind"] == "report" and event["value"]["step"] == 3:
            (tmp_path / "commits").rename(tmp_path / "elsewhere")

    handle = executor.submit(train, (str(tmp_path / "commits"), 2), on_event=on_event)
    assert handle.result(120) == [undisturbed] * WORKERS
    warnings = of_kind(handle, "warning")
    assert warnings and all("training goes on" in warning["message"] for warning in warnings)
    assert "No such file or directory" in warnings[-1]["message"]


def test_another_model_fails_the_run_with_what_differs(
    executor: troupe.Executor, tmp_path: Path
) -> None:
    def other(folder: str, inputs: int) -> None:
        import torch

        import troupe.torch as hvd

        hvd.init()
        model = torch.nn.Linear(inputs, 2)
        hvd.elastic.run(lambda state: state.commit())(
            hvd.elastic.TorchState(model, durable=folder))

    executor.run(other, (str(tmp_path), 3))
    with pytest.raises(troupe.WorkerError) as caught:
        executor.run(other, (str(tmp_path), 4))
    assert "model: weight is float32[2, 3] there and float32[2, 4] here" in str(caught.value)
