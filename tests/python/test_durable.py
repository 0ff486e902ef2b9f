"""Durable commits: what is written, when, from which memory, and who resumes from it."""

from __future__ import annotations

import shutil
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import troupe.torch as hvd
from troupe.errors import TroupeError
from troupe.torch import _context
from troupe.torch.elastic import (
    DurableCommits,
    ElasticSampler,
    ObjectState,
    StateHandler,
    TorchState,
    batches,
    get_handler_registry,
    set_handler_registry,
)

from fake_commits import Commit, CommitStore
from fake_core import FakeCluster, FakeGroup, Killed, Rank, run_ranks


@pytest.fixture(autouse=True)
def _fresh_stores() -> Iterator[None]:
    CommitStore.hold, CommitStore.open = False, []
    yield
    CommitStore.hold, CommitStore.open = False, []


@pytest.fixture
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def versions(folder: Path, run: str = "local") -> list[int]:
    return sorted(int(path.name[len("commit-"):]) for path in (folder / run).glob("commit-*"))


def make_state(folder: Any, outputs: int = 2, **kwargs: Any) -> tuple[torch.nn.Module, Any]:
    model = torch.nn.Linear(3, outputs)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return model, TorchState(model, optimizer, durable=folder, step=0, **kwargs)


def work(model: torch.nn.Module, state: Any) -> None:
    state.optimizer.zero_grad()
    model(torch.arange(3.0).sin()[None]).pow(2).sum().backward()
    state.optimizer.step()
    state.step += 1


def picture(state: Any) -> list[torch.Tensor]:
    return [t.detach().clone() for h in state._tree_handlers().values()
            for t in h.snapshot.buffers]


def test_a_new_run_continues_where_the_old_one_ended(tmp_path: Path, alone: None) -> None:
    sampler = ElasticSampler(range(20), seed=1)
    model, state = make_state(tmp_path, sampler=sampler)
    taken: list[int] = []

    @hvd.elastic.run
    def train(state: Any, steps: int) -> None:
        for indices in batches(state.sampler, 3):
            work(state.model, state)
            taken.extend(indices)
            state.commit()
            if state.step % steps == 0:
                return

    train(state, 3)
    assert versions(tmp_path) == [2, 3]  # keep=2
    later, resumed = make_state(tmp_path, sampler=ElasticSampler(range(20), seed=1))
    seen = []

    @hvd.elastic.run
    def look(state: Any) -> None:
        seen.extend([state.version, state.step, state.has_state])

    hvd.shutdown()
    hvd.init()
    look(resumed)
    assert seen == [3, 3, True]
    assert all(torch.equal(a, b) for a, b in zip(picture(state), picture(resumed)))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), later.parameters()))
    train(resumed, 100)
    assert sorted(taken) == list(range(20))
    assert sampler.trained_num == 9


def test_a_second_state_of_the_same_epoch_resumes_too(tmp_path: Path, alone: None) -> None:
    first = ObjectState(durable=DurableCommits(tmp_path, run="a"), step=0)

    @hvd.elastic.run
    def train(state: Any) -> int:
        state.step += 1
        state.commit()
        return int(state.step)

    assert train(first) == 1
    assert train(ObjectState(durable=DurableCommits(tmp_path, run="a"), step=0)) == 2
    assert train(ObjectState(durable=DurableCommits(tmp_path, run="b"), step=0)) == 1


def test_a_sync_by_hand_resumes_once(tmp_path: Path, alone: None) -> None:
    ObjectState(durable=tmp_path, step=7).commit()
    state: Any = ObjectState(durable=tmp_path, step=0)
    state.sync()
    assert (state.step, state.version) == (7, 1)
    state.step = 50
    state.sync()
    assert state.step == 50


def test_the_writer_never_sees_a_buffer_that_a_later_commit_overwrites(
    tmp_path: Path, alone: None
) -> None:
    model, state = make_state(tmp_path)
    work(model, state)
    state.commit()  # the layout of Adam's state is known from here on
    CommitStore.hold = True
    pictures, sets = {}, set()
    for _ in range(6):
        work(model, state)
        state.commit()
        pictures[state.version] = picture(state)
        sets.add(state._handlers["model"].snapshot.buffers[0].data_ptr())
    store = CommitStore.open[0]
    assert [entry[1] for entry in store._pending] == [2, 7]  # the newest waits, the others gave way
    assert len(sets) == 2 and store.superseded == 4
    assert len(state._commits._held) == 2
    store.release()
    for version in (2, 7):
        commit = Commit(tmp_path / "local" / f"commit-{version:020d}")
        copies = [torch.empty_like(t) for t in pictures[version]]
        order = sorted(state._tree_handlers())  # "model", "optimizer": as in the picture
        assert order == list(state._tree_handlers())
        commit.copy_to([(c.data_ptr(), c.numel() * c.element_size()) for c in copies])
        assert all(torch.equal(a, b) for a, b in zip(copies, pictures[version]))
    state.restore()
    assert state.step == 7
    work(model, state)
    state.commit()
    assert [entry[1] for entry in store._pending] == [8]


def test_a_commit_that_gave_way_is_made_up_for(tmp_path: Path, alone: None) -> None:
    model, state = make_state(DurableCommits(tmp_path, every=2))
    CommitStore.hold = True
    for _ in range(4):
        work(model, state)
        state.commit()
    store = CommitStore.open[0]
    assert [entry[1] for entry in store._pending] == [2, 4]
    work(model, state)
    state.commit()  # not due by itself; it overwrites what commit 4 would have read
    assert [entry[1] for entry in store._pending] == [2, 5]
    store.release()
    assert versions(tmp_path) == [2, 5]


def test_without_a_busy_writer_there_is_one_set_of_buffers(tmp_path: Path, alone: None) -> None:
    model, state = make_state(tmp_path)
    sets = set()
    for _ in range(4):
        work(model, state)
        state.commit()
        sets.add(state._handlers["model"].snapshot.buffers[0].data_ptr())
    assert len(sets) == 1 and not state._handlers["model"].snapshot._spare[0]


def train_to(steps: int, folder: Path, group: FakeGroup, log: list[Any]) -> list[float]:
    hvd.init()
    model = torch.nn.Linear(2, 1)
    torch.nn.init.zeros_(model.weight)
    state: Any = TorchState(model, durable=folder, step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        log.append((group.name, hvd.rank(), state.step, state.version))
        while state.step < steps:
            total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
            with torch.no_grad():
                model.weight.add_(total)
            state.step += 1
            state.commit()

    train(state)
    return list(model.weight.flatten().tolist())


def test_a_group_whose_members_all_died_resumes(tmp_path: Path) -> None:
    """All are killed in step 4; new members, joiners of the same group, go on from commit 3."""
    together = threading.Barrier(2)

    def before(member: FakeGroup, kind: str, name: str) -> None:
        if member.name.startswith("w") and kind == "allreduce" and member.version == 3:
            together.wait(20)
            raise Killed()

    cluster = FakeCluster(2, min_workers=2, before=before)
    log: list[Any] = []

    def main(group: FakeGroup) -> list[float]:
        return train_to(6, tmp_path, group, log)

    first = [Rank(cluster, f"w{i}", main, i) for i in range(2)]
    assert [rank.join().ended for rank in first] == ["killed", "killed"]
    assert versions(tmp_path) == [2, 3]
    second = [Rank(cluster, f"x{i}", main, i) for i in range(2)]
    values = [rank.join().value for rank in second]
    assert [rank.error for rank in second] == [None, None]
    undisturbed = run_ranks(2, lambda: train_to(6, tmp_path / "other", _group(), []))
    assert values == undisturbed
    assert sorted(entry[2:] for entry in log) == [(0, 0), (0, 0), (3, 3), (3, 3)]
    assert [told[1] for told in cluster.told] == ["resumed"]
    assert "resumed from commit 3 in" in cluster.told[0][2]
    # Only one read the disk; the other one got it from that.
    assert len(cluster.transfers) > 3 and cluster.transfers[-1][1][0] == 0


def _group() -> Any:
    return _context.current().group


def test_founders_of_a_new_run_resume_together(tmp_path: Path) -> None:
    log: list[Any] = []
    run_ranks(2, lambda: train_to(3, tmp_path, _group(), log))
    cluster = FakeCluster(3)
    values = run_ranks(3, lambda: train_to(5, tmp_path, _group(), log), cluster)
    assert values[0] == values[1] == values[2]
    assert [entry[2:] for entry in log[2:]] == [(3, 3)] * 3


def test_what_is_on_disk_never_competes_with_a_living_member(tmp_path: Path) -> None:
    """A commit of another past, newer than the group's, must not win against the group."""
    cluster = FakeCluster(1)
    log: list[Any] = []
    late: list[Rank] = []

    def main(group: FakeGroup) -> int:
        hvd.init()
        state: Any = ObjectState(durable=tmp_path / group.name, step=0)

        @hvd.elastic.run
        def train(state: Any) -> int:
            log.append((group.name, state.step))
            while state.step < 6:
                if state.step == 2 and not late:
                    other = CommitStore(str(tmp_path / "late" / "local"), 2)
                    other.save(99, b"of another past", [])
                    late.append(Rank(cluster, "late", main, 1))
                    with cluster.cond:
                        assert cluster.cond.wait_for(lambda: late[0].group.offer, 20)
                state.step += 1
                state.commit()
            return int(state.version)

        return int(train(state))

    founder = Rank(cluster, "w0", main, 0)
    assert (founder.join().error, founder.value) == (None, 6)
    assert (late[0].join().error, late[0].value) == (None, 6)
    assert log[0] == ("w0", 0) and ("late", 3) in log


def test_one_member_per_host_writes_and_the_next_takes_over(tmp_path: Path) -> None:
    def before(member: FakeGroup, kind: str, name: str) -> None:
        if member.name == "w0" and kind == "allreduce" and member.version == 2:
            raise Killed()

    cluster = FakeCluster(2, before=before)
    ranks = [Rank(cluster, f"w{i}", lambda g: train_to(5, tmp_path, g, []), i) for i in range(2)]
    assert ranks[0].join().ended == "killed" and ranks[1].join().error is None
    assert len(CommitStore.open) == 2  # w1 opened its own only when it was its turn
    assert versions(tmp_path) == [4, 5]


def on_hosts(folder: Path, names: list[str], steps: int) -> tuple[list[Any], list[Any]]:
    """Trains members whose names begin with their host; each host has a disk of its own."""
    log: list[Any] = []
    cluster = FakeCluster(len(names), host_of=lambda name: name[0])
    ranks = [Rank(cluster, name, lambda g: train_to(steps, folder / g.name[0], g, log), i)
             for i, name in enumerate(names)]
    for rank in ranks:
        assert rank.join().error is None
    return [rank.value for rank in ranks], log


def test_every_host_has_the_commits_so_one_may_be_lost(tmp_path: Path) -> None:
    on_hosts(tmp_path, ["a0", "b0", "a1", "b1"], 3)
    assert versions(tmp_path / "a") == versions(tmp_path / "b") == [2, 3]
    shutil.rmtree(tmp_path / "a")
    values, log = on_hosts(tmp_path, ["a0", "b0", "a1"], 5)
    assert values[0] == values[1] == values[2]
    assert sorted(log) == [("a0", 0, 3, 3), ("a1", 2, 3, 3), ("b0", 1, 3, 3)]


def test_equal_versions_of_different_pasts_never_meet(tmp_path: Path) -> None:
    """Two hosts have a commit 3 each, from groups of different sizes."""
    on_hosts(tmp_path, ["a0", "a1"], 3)
    on_hosts(tmp_path, ["b0"], 3)
    values, log = on_hosts(tmp_path, ["b0", "a0"], 4)
    assert [entry[2:] for entry in log] == [(3, 3)] * 2
    assert values[0] == values[1] == [3 * 1 + 2] * 2  # on top of rank 0's


def test_with_a_shared_directory_only_rank_0_writes(tmp_path: Path) -> None:
    def fn() -> None:
        settings = DurableCommits(tmp_path, shared=True)
        hvd.elastic.run(lambda state: state.commit())(ObjectState(durable=settings, step=0))

    run_ranks(2, fn, FakeCluster(2, host_of=lambda name: name))
    assert len(CommitStore.open) == 1 and versions(tmp_path) == [1]


def test_another_model_is_an_error_that_says_what_differs(tmp_path: Path, alone: None) -> None:
    model, state = make_state(tmp_path)
    work(model, state)
    state.commit()
    look = hvd.elastic.run(lambda state: None)
    _, other = make_state(tmp_path, outputs=5)
    before = [p.detach().clone() for p in other.model.parameters()]
    with pytest.raises(TroupeError) as caught:
        look(other)
    text = str(caught.value)
    assert "model: weight is float32[2, 3] there and float32[5, 3] here" in text
    assert "bias is float32[2] there and float32[5] here" in text
    assert "commit 1 in" in text and str(tmp_path) in text and "another name" in text
    assert all(torch.equal(a, b) for a, b in zip(before, other.model.parameters()))
    with pytest.raises(TroupeError, match="it holds .*'model'.*, the state has .*'other'"):
        look(TorchState(other=model, durable=tmp_path))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TroupeError, match="it is of a Adam, the state has a SGD"):
        look(TorchState(model, sgd, durable=tmp_path, step=0))


def test_problems_become_warnings_and_training_goes_on(tmp_path: Path) -> None:
    cluster = FakeCluster(1)

    def fn() -> int:
        state: Any = ObjectState(durable=tmp_path, step=0)

        @hvd.elastic.run
        def train(state: Any) -> int:
            while state.step < 4:
                state.step += 1
                state.commit()
                if state.step == 2:
                    CommitStore.open[0].problem = "commit 2: cannot write x: no space left"
            return int(state.step)

        return int(train(state))

    assert run_ranks(1, fn, cluster) == [4]
    (told,) = cluster.told
    assert told[1] == "warning" and "no space left; training goes on" in told[2]


def test_a_directory_that_cannot_be_used_is_told_at_the_start(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fake_errors import CoreError

    def refuse(self: Any, directory: str, keep: int) -> None:
        raise CoreError("permission_denied", f"cannot make the directory {directory}")

    monkeypatch.setattr(CommitStore, "__init__", refuse)
    with pytest.raises(TroupeError, match="cannot be used: cannot make the directory .*another"):
        hvd.elastic.run(lambda state: None)(ObjectState(durable=tmp_path, step=0))


def test_what_is_not_a_tree_cannot_be_durable(tmp_path: Path) -> None:
    class Box:
        pass

    class BoxHandler(StateHandler):
        def save(self) -> None:
            pass

    old = get_handler_registry()
    set_handler_registry([*old, (Box, BoxHandler)])
    try:
        TorchState(box=Box())
        with pytest.raises(TypeError, match="box cannot be made durable: derive BoxHandler"):
            TorchState(box=Box(), durable=tmp_path)
    finally:
        set_handler_registry(old)


@pytest.mark.parametrize("wrong, error", [
    ({"directory": 3}, TypeError), ({"directory": ""}, ValueError), ({"every": 0}, ValueError),
    ({"keep": 0}, ValueError), ({"keep": 1.5}, TypeError), ({"run": ""}, ValueError),
    ({"run": 7}, TypeError),
])
def test_arguments_are_checked(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(wrong))):
        DurableCommits(**{"directory": "commits", **wrong})
    with pytest.raises(TypeError, match="durable must be a directory"):
        ObjectState(durable=3)


def test_any_run_name_is_one_folder_below_the_directory(tmp_path: Path) -> None:
    settings = DurableCommits(tmp_path)
    folders = [settings.folder(run) for run in ("a/b", "..", "a b", ".", "\u00e4", "a%2Fb")]
    assert len(set(folders)) == len(folders)
    assert all(Path(folder).parent == tmp_path and Path(folder).name not in ("..", ".")
               for folder in folders)
    assert DurableCommits(tmp_path, run="mine").folder("run") == str(tmp_path / "mine")


def test_the_writer_ends_with_the_state(tmp_path: Path, alone: None) -> None:
    _, state = make_state(tmp_path)
    state.commit()
    assert not CommitStore.open[0].closed
    ended = threading.Event()
    weakref.finalize(state._commits, ended.set)
    state._handlers.clear()
    state._commits = None
    assert ended.is_set() and CommitStore.open[0].closed
