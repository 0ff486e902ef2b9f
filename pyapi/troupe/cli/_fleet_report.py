"""A fleet's life, out of its journal: figures, and one page of HTML that needs nothing else."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from troupe.cli.accounts_command import USES, table_of
from troupe.cli.why_command import Record

WIDTH, ROW = 900, 12
ROWS_MAX = 400  # Bars of nodes; the figures count all.
POINTS_MAX = 2000  # Of a curve.
EVENTS_MAX = 300
COLOURS = {"starting": "#e0b040", "up": "#4a90c4", "noticed": "#d46a3a", "draining": "#9a9a9a"}
USE_COLOURS = dict(zip(USES, ("#3f9a5f", "#c0504d", "#d98b3a", "#e0c060", "#e0b040", "#b8c4cc",
                              "#9a9a9a"), strict=True))
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Fleet</title>
<style>
body {font: 15px/1.5 sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em}
table {border-collapse: collapse} td {padding: .15em .8em; border-top: 1px solid #8884}
svg {width: 100%; font-size: 11px; background: #8881} pre {overflow-x: auto}
.key {display: inline-block; width: .8em; height: .8em; margin: 0 .4em 0 1em}
</style></head><body>
"""


@dataclass
class NodeLife:
    """When a node began each part of its life; seconds since the fleet did."""

    name: str
    pool: str
    parts: list[tuple[float, str]] = field(default_factory=list)
    gone: Optional[float] = None
    why: str = ""

    def enter(self, at: float, part: str) -> None:
        if not self.parts or self.parts[-1][1] != part:
            self.parts.append((at, part))


@dataclass
class Report:
    """All that the page shows."""

    title: str
    length_s: float
    nodes: list[NodeLife]
    members: list[tuple[float, int]]
    accounts: list[tuple[float, dict[str, Any]]]
    losses: list[tuple[float, float]]
    events: list[str]
    ended: str

    def figures(self) -> dict[str, Any]:
        """The same in figures; ``accounts`` is empty before the first node."""
        noticed = [n for n in self.nodes if any(part == "noticed" for _, part in n.parts)]
        up = [n for n in self.nodes if any(part == "up" for _, part in n.parts)]
        sizes = [size for _, size in self.members]
        return {
            "fleet": self.title, "length_s": round(self.length_s, 3), "ended": self.ended,
            "launches": len(self.nodes), "nodes_up": len(up),
            "nodes_with_notice": len(noticed),
            "membership_changes": max(0, len(sizes) - 1),
            "most_members": max(sizes, default=0), "fewest_members": min(sizes, default=0),
            "first_loss": self.losses[0][1] if self.losses else None,
            "last_loss": self.losses[-1][1] if self.losses else None,
            "accounts": self.accounts[-1][1] if self.accounts else {},
        }


def read_losses(path: Path) -> list[tuple[float, float]]:
    """``at`` (seconds since 1970) and ``loss`` of each line of JSON in ``path``; others are passed
    over.

    Raises:
        OSError: it cannot be read.
    """
    losses = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            point = json.loads(line)
            at, loss = float(point["at"]), float(point["loss"])
        except (ValueError, KeyError, TypeError):
            continue
        if math.isfinite(at) and math.isfinite(loss):
            losses.append((at, loss))
    return losses


def report_of(records: Sequence[Record], losses: Iterable[tuple[float, float]]) -> Report:
    """What the records of one life say."""
    begin = records[0].at
    report = Report(title=next((r.text for r in records if r.kind == "start"), "a fleet"),
                    length_s=max(0.0, records[-1].at - begin), nodes=[], members=[], accounts=[],
                    losses=[(at - begin, loss) for at, loss in losses], events=[], ended="")
    nodes: dict[str, NodeLife] = {}
    for record in records:
        at = max(0.0, record.at - begin)
        if record.kind == "account" and isinstance(record.fields.get("figures"), dict):
            report.accounts.append((at, record.fields["figures"]))
        elif record.kind == "group":
            _add_members(report, at, record)
        elif record.kind == "end":
            report.ended = record.text
        elif record.node:
            _add_to_node(nodes.setdefault(record.node, NodeLife(record.node, record.pool)), at,
                         record)
        if record.kind in ("notice", "gone", "failure", "group", "drain"):
            report.events.append(record.line())
    report.nodes = list(nodes.values())
    return report


def html_of(report: Report) -> str:
    """One page, with its plots as SVG."""
    parts = [_HEAD, f"<h1>{_text(report.title)}</h1>\n<p>{_span(report.length_s)}",
             f"; ended: {_text(report.ended)}</p>\n" if report.ended else "; it goes on</p>\n"]
    parts += ["<h2>Nodes</h2>\n", _bars(report), _key(COLOURS)]
    steps = [(at, float(size)) for at, size in report.members]
    if steps:
        parts += ["<h2>Members</h2>\n", _curve(report, steps, "members", stepped=True)]
    if report.losses:
        parts += ["<h2>Loss</h2>\n", _curve(report, report.losses, "loss")]
    if report.accounts:
        parts += ["<h2>What the paid time went to</h2>\n", _shares(report), _key(USE_COLOURS)]
        cost = [(at, float(of["paid_dollars"])) for at, of in report.accounts]
        if cost[-1][1] > 0:
            parts += ["<h2>Cost, dollars</h2>\n", _curve(report, cost, "dollars")]
        table = "\n".join(table_of(report.accounts[-1][1]))
        parts.append(f"<h2>Accounts</h2>\n<pre>{_text(table)}</pre>\n")
    rows = "".join(f"<tr><td>{_text(name.replace('_', ' '))}<td>{_text(str(value))}\n"
                   for name, value in report.figures().items() if name != "accounts")
    parts.append(f"<h2>Figures</h2>\n<table>\n{rows}</table>\n")
    left = len(report.events) - EVENTS_MAX
    told = f"<p>{left} earlier ones are left out.</p>\n" if left > 0 else ""
    lines = "\n".join(report.events[-EVENTS_MAX:])
    parts.append(f"<h2>What happened</h2>\n{told}<pre>{_text(lines)}</pre>\n</body></html>\n")
    return "".join(parts)


def _add_members(report: Report, at: float, record: Record) -> None:
    figures = record.fields.get("figures")
    size = figures.get("members") if isinstance(figures, dict) else None
    if isinstance(size, int) and (not report.members or report.members[-1][1] != size):
        report.members.append((at, size))


def _add_to_node(node: NodeLife, at: float, record: Record) -> None:
    node.pool = node.pool or record.pool
    if record.kind == "launch":
        node.enter(at, "starting")
    elif record.kind == "up":
        node.enter(at, "up")
    elif record.kind == "notice" and not record.text.startswith(("may be", "stays")):
        node.enter(at, "noticed")
        node.why = record.text
    elif record.kind in ("drain", "terminate"):
        node.enter(at, "draining")
        node.why = node.why or record.text
    elif record.kind == "gone" or record.never_was:
        node.gone = at
        node.why = node.why or record.text


def _text(text: str) -> str:
    return html.escape(text)


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _x(report: Report, at: float) -> float:
    return round(WIDTH * min(1.0, max(0.0, at / (report.length_s or 1.0))), 2)


def _svg(height: float, label: str, body: str) -> str:
    return (f'<svg viewBox="-60 -8 {WIDTH + 70} {height + 30}" role="img" '
            f'aria-label="{_text(label)}">\n{body}</svg>\n')


def _times(report: Report, height: float) -> str:
    anchors = ("start", "middle", "middle", "middle", "end")
    return "".join(
        f'<text x="{WIDTH * i / 4}" y="{height + 14}" text-anchor="{anchor}">'
        f"{_span(report.length_s * i / 4)}</text>\n" for i, anchor in enumerate(anchors))


def _bars(report: Report) -> str:
    shown = report.nodes[-ROWS_MAX:]
    body = []
    for row, node in enumerate(shown):
        ends = [at for at, _ in node.parts[1:]]
        ends.append(report.length_s if node.gone is None else node.gone)
        title = f"{node.name} ({node.pool})" + (f": {node.why}" if node.why else "")
        bars = "".join(
            f'<rect x="{_x(report, at)}" y="{row * ROW}" height="{ROW - 2}" '
            f'width="{max(0.5, _x(report, end) - _x(report, at)):.2f}" fill="{COLOURS[part]}"/>'
            for (at, part), end in zip(node.parts, ends, strict=True))
        body.append(f"<g>{bars}<title>{_text(title)}</title></g>\n")
        if len(shown) <= 60:
            body.append(f'<text x="-4" y="{row * ROW + 9}" text-anchor="end">'
                        f"{_text(node.name[:10])}</text>\n")
    height = max(1, len(shown)) * ROW
    return _svg(height, "nodes over time", "".join(body) + _times(report, height))


def _curve(report: Report, points: Sequence[tuple[float, float]], label: str,
           stepped: bool = False) -> str:
    height = 180.0
    every = math.ceil(len(points) / POINTS_MAX)
    kept = [*points[::every], points[-1]]
    top = max(value for _, value in kept) or 1.0
    bottom = min(0.0, *(value for _, value in kept))
    spread = (top - bottom) or 1.0

    def y(value: float) -> float:
        return round(height * (top - value) / spread, 2)

    path = f"M{_x(report, kept[0][0])},{y(kept[0][1])}"
    for at, value in kept[1:]:
        path += f"H{_x(report, at)}V{y(value)}" if stepped else f"L{_x(report, at)},{y(value)}"
    if stepped:
        path += f"H{WIDTH}"
    marks = "".join(
        f'<text x="-4" y="{y(bottom + spread * i / 4) + 4}" text-anchor="end">'
        f"{bottom + spread * i / 4:.3g}</text>\n" for i in range(5))
    line = f'<path d="{path}" fill="none" stroke="#4a90c4" stroke-width="1.5"/>\n'
    return _svg(height, f"{label} over time", line + marks + _times(report, height))


def _shares(report: Report) -> str:
    """Of the paid time so far, by class, one on the other."""
    height = 180.0
    every = math.ceil(len(report.accounts) / POINTS_MAX)
    kept = [a for a in report.accounts[::every] if a[1]["paid_worker_s"] > 0]
    below = [0.0] * len(kept)
    body = []

    def edge(values: Sequence[float]) -> list[str]:
        return [f"{_x(report, at)},{height * (1 - value):.2f}"
                for value, (at, _) in zip(values, kept, strict=True)]

    for use in USES:
        above = [low + of["worker_s"][use] / of["paid_worker_s"]
                 for low, (_, of) in zip(below, kept, strict=True)]
        outline = " L".join([*edge(above), *reversed(edge(below))])
        if kept:
            body.append(f'<path fill="{USE_COLOURS[use]}" d="M{outline}Z">'
                        f"<title>{use}</title></path>\n")
        below = above
    marks = "".join(f'<text x="-4" y="{height * (1 - i / 4) + 4}" text-anchor="end">{25 * i} %'
                    "</text>\n" for i in range(5))
    return _svg(height, "shares of the paid time", "".join(body) + marks + _times(report, height))


def _key(colours: dict[str, str]) -> str:
    return "<p>" + "".join(f'<span class="key" style="background:{colour}"></span>{name}'
                           for name, colour in colours.items()) + "</p>\n"
