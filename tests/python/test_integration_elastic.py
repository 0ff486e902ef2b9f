"""Elastic training on real processes: deaths, joins and drains, with the books balanced."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import troupe

from digits_training import Journal, balance, read_journals

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SAMPLES, BATCH = 240, 8


def train(folder: str, until: dict, victim: int = -1, where: str = "", compress: str = "none",
          in_place: bool = False, hidden: int = 32, in_epoch: int = 1,
          normalize: bool = False) -> dict:
    """Trains until the group has been through ``until["epochs"]`` epochs and a data epoch ends.

    With ``until["shrinks"]`` it must also have made a step with fewer members than before.
    In the first group epoch, at step 5, the member of rank ``victim`` kills itself: before the
    reduction, in backward, or before the commit; with "hang" it waits there for ever. In a later
    ``in_epoch``: in its first step. With ``in_place`` commits are soon held in the live tensors;
    with ``normalize`` a layer has collectives of its own in both passes.
    """
    import torch

    import troupe.torch as hvd

    _hold_in_place(in_place)
    hvd.init()
    torch.manual_seed(3)
    model = _model(hidden, normalize)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.01), compression=_compression(compress))
    state: Any = hvd.elastic.TorchState(
        model, optimizer, sampler=hvd.elastic.ElasticSampler(range(SAMPLES), seed=5),
        epoch=0, step=0, stepped_in=0, largest=0, shrank=not until.get("shrinks"),
        joiners_follow=True)
    data = torch.linspace(-1, 1, SAMPLES * 6).reshape(SAMPLES, 6).sin()
    journal = Journal(folder, f"worker-{os.getpid()}")

    def die(place: str) -> None:
        if (hvd.rank(), hvd.epoch()) == (victim, in_epoch) and (in_epoch > 1 or state.step == 5):
            _fail(folder, place, where, state.step, hvd.size())

    model[2].register_full_backward_hook(lambda *unused: die("backward"))

    def enough() -> bool:  # and a step was made in this view
        view = hvd.epoch() >= until["epochs"] and hvd.size() in until["sizes"]
        return view and state.shrank and state.stepped_in == hvd.epoch() and state.epoch >= 2

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while True:  # also when called again in the middle of a data epoch: first its rest
            for indices in hvd.elastic.batches(state.sampler, BATCH):
                group_epoch, size, step = hvd.epoch(), hvd.size(), state.step
                at = {"data_epoch": state.epoch, "step": step, "group_epoch": group_epoch}
                journal.write(kind="share", rank=hvd.rank(), **at,
                              counted=list(indices) if indices.counted else [])
                die("before")
                optimizer.zero_grad()
                model(data[indices]).pow(2).mean().backward()
                optimizer.step()
                die("after")
                state.step, state.stepped_in = step + 1, group_epoch
                _note_size(state, size)
                version = state.version
                try:
                    state.commit()
                finally:
                    if state.version > version:
                        journal.write(kind="commit", **at, lost_ranks=indices.lost_ranks)
                if hvd.rank() == 0:
                    troupe.report({"step": step, "size": hvd.size()})
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            if enough():
                return

    loop(state)
    assert not in_place or not state._in_place.reason
    return {"step": state.step, "epoch": state.epoch, "hash": _digest(model),
            "normalized": model[1].num_batches_tracked.item() if normalize else None}


def _note_size(state: Any, size: int) -> None:
    state.shrank = state.shrank or size < state.largest
    state.largest = max(size, state.largest)


def _model(hidden: int, normalize: bool) -> Any:
    import torch

    import troupe.torch as hvd

    middle = [hvd.SyncBatchNorm(hidden)] if normalize else []
    return torch.nn.Sequential(
        torch.nn.Linear(6, hidden), *middle, torch.nn.Tanh(), torch.nn.Linear(hidden, 2)
    )


def _digest(model: Any) -> str:
    blob = b"".join(t.numpy().tobytes() for t in model.state_dict().values())
    return hashlib.sha256(blob).hexdigest()


def _hold_in_place(soon: bool) -> None:
    from troupe.torch.elastic import _in_place

    _in_place.LEARN_COMMITS, _in_place.LEAST_BYTES = (2, 1) if soon else (64, 1 << 20)


def _compression(name: str) -> Any:
    import troupe.torch as hvd

    return {
        "none": hvd.Compression.none,
        "powersgd": hvd.Compression.powersgd(1, start_after=3, min_compression_rate=0),
        "topk": hvd.Compression.topk(0.1),
    }[name]


def _fail(folder: str, place: str, where: str, step: int, ranks: int) -> None:
    if place == where:
        if where == "backward":  # the others stand in the same step
            _await_shares(folder, step, ranks)
        os.kill(os.getpid(), signal.SIGKILL)
    if place == "before" and where == "hang":
        threading.Event().wait()


def _await_shares(folder: str, step: int, ranks: int) -> None:
    deadline = time.monotonic() + 30
    while len(_of_step(folder, "share", step)) < ranks:
        assert time.monotonic() < deadline, "a rank does not begin the step"
        threading.Event().wait(0.005)


def _of_step(folder: str, kind: str, step: int) -> list[dict]:
    return [r for r in read_journals(folder) if (r["kind"], r["step"]) == (kind, step)]


@pytest.fixture(scope="module")
def executor() -> Any:
    with troupe.Executor(
        2, 5, workers=3, cpus_per_worker=0.2, num_cpus=2, progress="off",
        preload=["torch", "troupe.torch"],
    ) as made:
        yield made


def check(folder: Path, results: list[dict], size: int) -> None:
    assert len(results) == size and all(r == results[0] for r in results)
    books = balance(read_journals(str(folder)), SAMPLES)
    assert (books.steps_lost, books.samples_missing, books.samples_doubled) == (0, 0, 0)
    assert books.steps == results[0]["step"]


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("where", ["before", "backward", "after"])
def test_a_death_and_its_replacement(
    executor: troupe.Executor, tmp_path: Path, victim: int, where: str
) -> None:
    handle = executor.submit(
        train, (str(tmp_path), {"epochs": 3, "sizes": [3]}), {"victim": victim, "where": where}
    )
    check(tmp_path, handle.result(120), 3)
    sizes = [epoch["size"] for epoch in handle.epochs()]
    assert sizes == [3, 2, 3]
    died = [e for e in handle.events() if e["kind"] == "worker" and e["state"] == "died"]
    assert len(died) == 1 and died[0]["rank"] == victim
    assert f"{died[0]['worker']} died: signal SIGKILL" in handle.epochs()[1]["reason"]
    if where == "backward":  # nobody computed that step twice
        assert sorted(r["rank"] for r in _of_step(str(tmp_path), "share", 5)) == [0, 1, 2]
        assert [r["lost_ranks"] for r in _of_step(str(tmp_path), "commit", 5)] == [[victim]] * 2
        assert handle.recovery() == {
            "steps_replayed": 1, "steps_recomputed": 0, "samples_returned": BATCH}


@pytest.mark.parametrize("where", ["before", "backward", "after"])
def test_a_death_and_its_replacement_with_commits_in_place(
    executor: troupe.Executor, tmp_path: Path, where: str
) -> None:
    handle = executor.submit(
        train, (str(tmp_path), {"epochs": 3, "sizes": [3]}),
        {"victim": 0, "where": where, "in_place": True},
    )
    check(tmp_path, handle.result(120), 3)
    assert [epoch["size"] for epoch in handle.epochs()] == [3, 2, 3]


@pytest.mark.parametrize("compress", ["powersgd", "topk"])
def test_a_death_and_its_replacement_with_compressed_gradients(
    executor: troupe.Executor, tmp_path: Path, compress: str
) -> None:
    handle = executor.submit(
        train, (str(tmp_path), {"epochs": 3, "sizes": [3]}),
        {"victim": 1, "where": "backward", "compress": compress},
    )
    check(tmp_path, handle.result(120), 3)
    assert [epoch["size"] for epoch in handle.epochs()] == [3, 2, 3]


@pytest.mark.parametrize("where", ["before", "backward", "after"])
def test_a_death_and_its_replacement_with_batch_norm_of_all_ranks(
    executor: troupe.Executor, tmp_path: Path, where: str
) -> None:
    """The death ends a collective of the layer's; its running statistics count each step once."""
    handle = executor.submit(
        train, (str(tmp_path), {"epochs": 3, "sizes": [3]}),
        {"victim": 1, "where": where, "normalize": True},
    )
    results = handle.result(120)
    check(tmp_path, results, 3)
    assert results[0]["normalized"] == results[0]["step"]
    assert [epoch["size"] for epoch in handle.epochs()] == [3, 2, 3]


def test_a_worker_that_hangs_is_named_and_replaced(tmp_path: Path) -> None:
    with troupe.Executor(
        2, 5, workers=3, cpus_per_worker=0.2, num_cpus=2, progress="off", stall_report_s=1.0,
        stall_remove_s=3.0, preload=["torch", "troupe.torch"],
    ) as executor:
        handle = executor.submit(
            train, (str(tmp_path), {"epochs": 3, "sizes": [3]}), {"victim": 1, "where": "hang"}
        )
        check(tmp_path, handle.result(120), 3)
    stalls = [event for event in handle.events() if event["kind"] == "stalled"]
    # On a busy machine another rank may be slow for a while, which is told but costs it nothing.
    hung = [stall for stall in stalls if [m["rank"] for m in stall["missing"]] == [1]]
    assert [stall for stall in stalls if stall["removed"]] == hung[-1:]
    assert len(hung) >= 2 and hung[-1]["waiting"] == [0, 2] and hung[-1]["operation"]
    assert hung[-1]["missing"][0]["pid"] > 0


def test_grow_and_drain(executor: troupe.Executor, tmp_path: Path) -> None:
    """Three, then four by resize, then three again by draining rank 0."""
    stepped = {3: threading.Event(), 4: threading.Event()}

    def on_event(event: dict) -> None:
        if event["kind"] == "report" and event["value"]["size"] in stepped:
            stepped[event["value"]["size"]].set()

    handle = executor.submit(
        train, (str(tmp_path), {"epochs": 3, "sizes": [3]}), on_event=on_event
    )
    assert stepped[3].wait(60)
    handle.resize(4)
    assert stepped[4].wait(60)
    handle.resize(3)
    check(tmp_path, handle.result(120), 3)
    assert [epoch["size"] for epoch in handle.epochs()] == [3, 4, 3]
    states = [e["state"] for e in handle.events() if e["kind"] == "worker"]
    assert "died" not in states and states.count("drained") == 1
    sent = {e["epoch"]: e["state_bytes"] for e in handle.epochs()}
    assert sent[2] > 0 and sent[3] == 0  # the joiner received state; leaving costs none


@pytest.mark.parametrize("victim", [-1, 0, 1, 3])
def test_a_large_state_follows_a_joiner(
    executor: troupe.Executor, tmp_path: Path, victim: int
) -> None:
    """27 MB, beside the training; in that step the source, another, or the joiner may die."""
    stepped = threading.Event()

    def on_event(event: dict) -> None:
        if event["kind"] == "report" and event["value"]["step"] > 12:
            stepped.set()

    handle = executor.submit(
        train, (str(tmp_path), {"epochs": 2 if victim < 0 else 3, "sizes": [3, 4]}),
        {"hidden": 250_000, "victim": victim, "where": "backward", "in_epoch": 2},
        on_event=on_event,
    )
    assert stepped.wait(60)
    handle.resize(4)
    results = handle.result(120)
    check(tmp_path, results, len(results))
    sent = {e["epoch"]: e["state_bytes"] for e in handle.epochs()}
    assert victim >= 0 or sent[2] > 20e6
    shares = [r for r in read_journals(str(tmp_path)) if r["kind"] == "share"]
    step = min(r["step"] for r in shares if r["group_epoch"] == 2)
    counted = {r["rank"]: len(r["counted"]) for r in shares
               if (r["step"], r["group_epoch"]) == (step, 2)}
    # If a data epoch had just ended, what comes next might not have been a step: then all wait.
    (before,) = {r["data_epoch"] for r in shares if r["step"] == step - 1}
    (now,) = {r["data_epoch"] for r in shares if (r["step"], r["group_epoch"]) == (step, 2)}
    assert counted == {0: BATCH, 1: BATCH, 2: BATCH, 3: 0 if now == before else BATCH}


def test_drain_by_rank(executor: troupe.Executor, tmp_path: Path) -> None:
    stepped = threading.Event()

    def on_event(event: dict) -> None:
        if event["kind"] == "report":
            stepped.set()

    handle = executor.submit(
        train, (str(tmp_path), {"epochs": 2, "sizes": [2, 3]}), on_event=on_event
    )
    assert stepped.wait(60)
    (oldest,) = [w for w in handle.workers() if w["rank"] == 0]
    handle.drain(0, deadline_s=30)
    results = handle.result(120)
    members = [m["id"] for m in handle.epochs()[-1]["members"]]
    check(tmp_path, results, len(members))
    assert oldest["id"] not in members
    drained = [e["worker"] for e in handle.events()
               if e["kind"] == "worker" and e["state"] == "drained"]
    assert drained == [oldest["id"]]


def test_user_errors_fail_the_run_under_elastic_too(executor: troupe.Executor) -> None:
    def fn() -> None:
        import troupe.torch as hvd

        hvd.init()

        @hvd.elastic.run
        def loop(state: Any) -> None:
            if hvd.rank() == 2:
                raise ZeroDivisionError("mine")
            hvd.barrier()

        loop(hvd.elastic.ObjectState(step=0))

    with pytest.raises(troupe.WorkerError, match="ZeroDivisionError on rank 2"):
        executor.run(fn)


class _Slow:
    """Unpickles at once in the first worker, in others only when the first one trains."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return _first_or_late, (self.folder,)


def _first_or_late(folder: Path) -> Path:
    try:
        (folder / "first").touch(exist_ok=False)
    except FileExistsError:
        _await_steps(folder, 3)
    return folder


def _await_steps(folder: Path, steps: int) -> None:
    deadline = time.monotonic() + 30
    while len(list(folder.glob("step-*"))) < steps:
        assert time.monotonic() < deadline, "the first worker stands still"
        threading.Event().wait(0.01)


def test_a_founder_that_comes_late_does_not_stall_the_group(tmp_path: Path) -> None:
    folder = _Slow(tmp_path)

    def grow() -> list[int]:
        import troupe.torch as hvd

        hvd.init()
        seen = len(list(folder.glob("step-*")))
        if seen:  # The late one builds its model, while the first goes on.
            _await_steps(folder, seen + 5)
        state = hvd.elastic.ObjectState(step=0, sizes=[])

        @hvd.elastic.run
        def loop(state: Any) -> list[int]:
            while hvd.size() < 2 or state.sizes.count(2) < 3:
                state.sizes = [*state.sizes, hvd.size()]
                state.step += 1
                (folder / f"step-{state.step}").touch()
                state.commit()
                threading.Event().wait(0.02)  # a step's work
            return state.sizes

        return loop(state)

    with troupe.Executor(min_workers=1, max_workers=2, cpus_per_worker=0.1, num_cpus=2,
                         start_timeout=1, progress="off") as executor:
        results = executor.run(grow)
    assert results[0][0] == 1 and results[0][-1] == 2
