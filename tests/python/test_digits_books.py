"""The digits example: its books find what is wrong, and its training balances under deaths."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from digits_training import FINISH_FILE, balance, load_data, read_journals, train
from fake_core import FakeCluster, FakeGroup, Killed, Rank


def share(step: int, group_epoch: int, counted: list[int], data_epoch: int = 0) -> dict[str, Any]:
    return {"kind": "share", "step": step, "group_epoch": group_epoch, "counted": counted,
            "data_epoch": data_epoch, "rank": 0}


def commit(step: int, group_epoch: int) -> dict[str, Any]:
    return {"kind": "commit", "step": step, "group_epoch": group_epoch, "data_epoch": 0}


@pytest.mark.parametrize("extra,lost,missing,doubled", [
    ([commit(1, 1)], 0, 0, 0),
    ([], 0, 2, 0),  # step 1 was never committed
    ([share(1, 2, [2, 3]), commit(1, 2)], 0, 0, 0),  # died before the commit, done again
    ([commit(1, 1), share(1, 2, [2, 3])], 1, 0, 0),  # committed, and worked on again
    ([commit(1, 1), share(1, 2, [2, 3]), commit(1, 2)], 1, 0, 2),
    ([commit(1, 1), share(2, 1, [3]), commit(2, 1)], 0, 0, 1),
])
def test_books(extra: list[dict[str, Any]], lost: int, missing: int, doubled: int) -> None:
    records = [share(0, 1, [0]), share(0, 1, [1]), commit(0, 1), commit(0, 1),
               share(1, 1, [2, 3]), *extra]
    books = balance(records, 4)
    assert (books.steps_lost, books.samples_missing, books.samples_doubled) == (
        lost, missing, doubled)
    assert sum(books.lost_by_group_epoch.values()) == lost


def of(journal: str, record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "journal": journal}


@pytest.mark.parametrize("survivor_committed,lost", [(False, 0), (True, 1)])
def test_only_a_survivors_commit_decides_a_step(survivor_committed: bool, lost: int) -> None:
    """The dead member committed step 0 and began step 1; step 0 is then done again."""
    records = [of("dead", share(0, 1, [0])), of("dead", commit(0, 1)), of("dead", share(1, 1, [])),
               of("alive", share(0, 1, [1]))]
    if survivor_committed:
        records.append(of("alive", commit(0, 1)))
    records += [of("alive", share(0, 2, [0, 1])), of("alive", commit(0, 2))]
    books = balance(records, 2)
    assert (books.steps_lost, books.samples_missing) == (lost, 0)
    assert books.samples_doubled == 2 * lost


def test_training_balances_and_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks; one dies in mid-epoch, one joins, rank 0 dies."""
    added: list[Rank] = []
    steps: dict[str, int] = {}
    pids = threading.local()
    monkeypatch.setattr(os, "getpid", lambda: getattr(pids, "name", 0))

    def before(member: FakeGroup, kind: str, name: str) -> None:
        if kind != "boundary":
            return
        steps[member.name] = steps.get(member.name, 0) + 1
        if member.name == "w1" and steps["w1"] == 30:
            raise Killed()
        if member.name == "w2" and steps["w2"] == 50:
            added.append(Rank(cluster, "late", main, 4))
        if member.name == "w0" and added and added[0].group.active and steps["w0"] >= 80:
            raise Killed()

    def main(group: FakeGroup) -> Any:
        pids.name = group.name
        return train(str(tmp_path), epochs=16, max_epochs=40, batch_size=16, lr=2e-3)

    (tmp_path / FINISH_FILE).touch()
    cluster = FakeCluster(4, before=before)
    ranks = [Rank(cluster, f"w{i}", main, i) for i in range(4)]
    for rank in ranks:
        rank.join()
    outcomes = [rank.join() for rank in ranks + added]
    assert [r.error for r in outcomes] == [None] * 5
    assert [r.ended for r in outcomes] == ["killed", "killed", "", "", ""]
    values = [r.value for r in outcomes if r.value]
    assert values == [values[0]] * 3 and values[0]["accuracy"] >= 0.97
    books = balance(read_journals(str(tmp_path)), len(load_data()[1]))
    assert (books.steps_lost, books.samples_missing, books.samples_doubled) == (0, 0, 0)
    assert books.steps == values[0]["steps"] and values[0]["epochs"] == 16
    assert [e["size"] for e in cluster.history] == [4, 3, 4, 3]
