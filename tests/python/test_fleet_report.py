"""``troupe report``: figures and a page out of a journal."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from troupe.cli import main

from test_accounts import POOL


def record(at: float, kind: str, **fields: Any) -> str:
    return json.dumps({"at": 100.0 + at, "life": "a", "kind": kind, **fields}) + "\n"


def group(at: float, members: int) -> str:
    return record(at, "group", group="run", text="running",
                  figures={"members": members, "target": 2, "epoch": 1, "steps": 0})


JOURNAL = (
    record(0, "start", text="cluster <demo>")
    + record(1, "launch", node="spot-1", pool="spot", text="cheapest")
    + record(3, "up", node="spot-1", pool="spot")
    + group(4, 1) + group(5, 1) + group(6, 2)
    + record(10, "account", text="", figures=POOL)
    + record(20, "notice", node="spot-1", pool="spot", text="may be taken back: rebalance")
    + record(30, "notice", node="spot-1", pool="spot", text="is taken back in 120 s")
    + record(31, "drain", node="spot-1", pool="spot", text="its provider takes it back")
    + record(31, "launch", node="spot-2", pool="spot", text="cheapest")
    + group(33, 1)
    + record(35, "launch", node="spot-3", pool="spot", text="cheapest")
    + record(36, "failure", node="spot-3", pool="spot", text="launch failed: no capacity")
    + record(40, "gone", node="spot-1", pool="spot")
    + record(60, "account", text="", figures=POOL | {"paid_dollars": 2.0})
    + record(100, "end", text="exit status 0")
)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    file = tmp_path / "demo.jsonl"
    file.write_text(JOURNAL)
    return file


def report(capsys: Any, journal: Path, *words: str) -> tuple[int, str, str]:
    status = main(["report", "--journal", str(journal), *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_figures_are_those_of_the_journal(journal: Path, capsys: Any) -> None:
    losses = journal.with_name("losses")
    losses.write_text('{"at": 110, "loss": 2.5}\nrubbish\n{"at": 120, "loss": "NaN"}\n'
                      '{"at": 150, "loss": 0.5}\n')
    status, out, _ = report(capsys, journal, "--losses", str(losses), "-o", "json")
    assert status == 0
    figures = json.loads(out)
    assert figures["accounts"]["paid_dollars"] == 2.0
    assert {name: figures[name] for name in figures if name != "accounts"} == {
        "fleet": "cluster <demo>", "length_s": 100.0, "ended": "exit status 0",
        "launches": 3, "nodes_up": 1, "nodes_with_notice": 1, "membership_changes": 2,
        "most_members": 2, "fewest_members": 1, "first_loss": 2.5, "last_loss": 0.5}
    _, out, _ = report(capsys, journal)
    assert "launches: 3" in out and "first loss: -" in out and "saved" in out


def test_the_page_is_whole_and_needs_nothing_else(journal: Path, capsys: Any) -> None:
    losses = journal.with_name("losses")
    losses.write_text('{"at": 110, "loss": 2.5}\n{"at": 150, "loss": 0.5}\n')
    page = journal.with_name("page.html")
    status, out, _ = report(capsys, journal, "--losses", str(losses), "-o", "html", str(page))
    assert status == 0 and str(page) in out
    text = page.read_text()
    assert "cluster &lt;demo&gt;" in text and "<demo>" not in text
    for outside in ("http", "src=", "<script", "@import", "url("):
        assert outside not in text
    plots = [ElementTree.fromstring(part[: part.index("</svg>") + 6])
             for part in ("<svg" + rest for rest in text.split("<svg")[1:])]
    labels = [plot.get("aria-label") for plot in plots]
    assert labels == ["nodes over time", "members over time", "loss over time",
                      "shares of the paid time", "dollars over time"]
    widths = [float(bar.get("width", 0)) for bar in plots[0].iter("rect")]
    # starting 2 s, up 27, noticed 1, draining 9; another one starts for 69, one for 1: of 100 s.
    assert widths == pytest.approx([18, 243, 9, 81, 621, 9])


def test_an_empty_life_is_a_page_too(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text(record(0, "start", text="one"))
    page = tmp_path / "page.html"
    assert report(capsys, file, "-o", "html", str(page))[0] == 0
    assert "it goes on" in page.read_text()


@pytest.mark.parametrize("words", [["-o", "pdf"], ["-o", "html"], ["-o", "json", "x"],
                                   ["--losses", "/none"], ["-o", "html", "/none/x"]])
def test_bad_wishes_are_told(journal: Path, capsys: Any, words: list[str]) -> None:
    status, out, err = report(capsys, journal, *words)
    assert (status, out) == (1, "") and err.startswith("troupe: ")
