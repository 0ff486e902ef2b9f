"""``troupe why``: what it makes of journals, and what it says when there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from troupe.cli import main, why_command


def line(kind: str, at: float = 1.0, life: str = "b", **fields: str) -> str:
    return json.dumps({"at": at, "life": life, "kind": kind, **fields}) + "\n"


JOURNAL = (
    line("start", life="a", text="cluster demo, provider ssh")
    + line("up", life="a", node="old-1", pool="old")
    + line("start", text="cluster demo, provider process")
    + line("decision", text="want 2 workers, have 0")
    + line("launch", node="spot-1", pool="spot", text="cheapest that can serve: $0.3")
    + line("failure", pool="gpu", text="launch failed: no capacity")
    + line("up", node="spot-1", pool="spot")
    + line("group", group="train", text="running, 1 of 1 members, epoch 1: group formed")
    + line("group", group="train", text="running, 2 of 2 members, epoch 2: join of w2")
    + line("drain", node="spot-1", pool="spot", text="its provider takes it back in 120 s")
    + line("launch", node="spot-2", pool="spot", text="cheapest that can serve: $0.2")
    + line("launch", node="spot-9", pool="spot", text="cheapest that can serve: $0.2")
    + line("failure", node="spot-9", pool="spot", text="launch failed: no capacity")
    + line("decision", at=2.0, text="want 2 workers, have 1")
)


@pytest.fixture
def journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = why_command.journals_folder()
    folder.mkdir(parents=True)
    (folder / "demo.jsonl").write_text(JOURNAL)
    return folder


def why(capsys: Any, *words: str) -> tuple[int, str, str]:
    status = main(["why", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_now_is_what_holds_at_the_end(journals: Path, capsys: Any) -> None:
    status, out, _ = why(capsys)
    assert status == 0
    assert "start: cluster demo, provider process" in out
    assert "nodes: spot-1 is draining, spot-2 is launching" in out
    assert "want 2 workers, have 1" in out and "have 0" not in out
    assert "group train: running, 2 of 2 members, epoch 2: join of w2" in out
    assert "epoch 1" not in out
    assert "old-1" not in out


def test_a_cluster_that_has_ended_says_how(journals: Path, capsys: Any) -> None:
    with (journals / "demo.jsonl").open("a") as file:
        file.write(line("gone", node="spot-1") + line("end", text="exit status 0"))
    _, out, _ = why(capsys)
    assert "end: exit status 0" in out
    assert "nodes:" not in out


def test_a_node_a_pool_and_a_run_have_their_lines(journals: Path, capsys: Any) -> None:
    _, out, _ = why(capsys, "spot-1")
    assert [x.split("  ", 1)[1] for x in out.splitlines()] == [
        "launch spot-1 (pool spot): cheapest that can serve: $0.3", "up spot-1",
        "drain spot-1: its provider takes it back in 120 s"]
    _, out, _ = why(capsys, "gpu")
    assert "failure pool gpu: launch failed: no capacity" in out
    _, out, _ = why(capsys, "train")
    assert len(out.splitlines()) == 2
    _, out, err = why(capsys, "spot", "--last", "1")
    assert "spot-9" in out and len(out.splitlines()) == 1
    assert "5 earlier lines are left out" in err


def test_records_can_be_had_as_json_and_of_all_lives(journals: Path, capsys: Any) -> None:
    _, out, _ = why(capsys, "--json")
    assert [json.loads(x)["kind"] for x in out.splitlines()][:2] == ["start", "decision"]
    _, out, _ = why(capsys, "old-1", "--all-lives")
    assert "up old-1" in out


def test_the_file_before_a_full_one_is_read_first(journals: Path, capsys: Any) -> None:
    (journals / "demo.jsonl.1").write_text(line("start") + line("up", node="first-1"))
    _, out, _ = why(capsys, "first-1")
    assert "up first-1" in out


def test_what_is_no_record_is_passed_over(journals: Path, capsys: Any) -> None:
    broken = '{"at": 1, "li\n[1]\n{"at": "x", "life": "b", "kind": "up"}\n\xff\n'
    (journals / "demo.jsonl").write_text(broken + JOURNAL + '{"at": 3.0, "life": "b", "ki')
    status, out, _ = why(capsys, "spot-1")
    assert status == 0 and len(out.splitlines()) == 3


@pytest.mark.parametrize(("words", "expected"), [
    (["spot-22"], "did you mean spot-2?"),
    (["nothing-like-it"], "It knows: gpu, spot, spot-1, spot-2, spot-9, train"),
    (["--fleet", "dmo"], "there are: demo"),
    (["--journal", "/none/at.all"], "No such file"),
    (["--last", "0"], "at least 1"),
])
def test_what_is_not_known_is_told(
    journals: Path, capsys: Any, words: list[str], expected: str
) -> None:
    status, out, err = why(capsys, *words)
    assert (status, out) == (1, "")
    assert expected in err


def test_without_a_journal_the_way_to_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    status, _, err = why(capsys)
    assert status == 1 and "troupe up" in err
