"""How runs look: live on a terminal, plain lines when piped, HTML in a notebook.

A view listens to a run's events and owns where the workers' lines go, so that live output and
lines never overwrite each other.
"""

from __future__ import annotations

import html
import importlib.util
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from troupe._payload import show_amount
from troupe.executor._epochs import Epochs

if TYPE_CHECKING:
    from troupe.executor import Executor
    from troupe.executor.handle import RunHandle

_NOTEBOOK_PERIOD_S = 0.25
_SHOWN_EPOCHS = 12
_LAST_LINES = 5  # Of what a worker that died has printed.
EPOCH_COLUMNS = ("epoch", "reason", "workers", "pause ms", "state sent")


class RunModel:
    """What a view shows of a run, kept up to date by its events."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = "starting"
        self.reason = ""
        self.members: list[Mapping[str, Any]] = []
        self.epochs = Epochs()
        self.last_report: Any = None
        self.stall = ""

    def update(self, event: Mapping[str, Any]) -> None:
        """Takes an event in."""
        kind = event["kind"]
        self.epochs.take(event)
        if kind in ("epoch", "parked", "report", "done"):
            self.stall = ""  # whatever was waited for has come, or is waited for no more
        if kind == "epoch":
            self.state, self.reason = "running", ""
            self.members = list(event["members"])
        elif kind == "parked":
            self.state, self.reason = "parked", event["reason"]
        elif kind == "stalled":
            self.stall = format_stall(event)
        elif kind == "report":
            self.last_report = event.get("value")
        elif kind == "done":
            self.state, self.reason = event["state"], event.get("reason", "")

    def headline(self) -> str:
        """One line: name, state, epoch, size, newest report."""
        parts = [self.name, self.state]
        if self.reason:
            parts.append(f"({self.reason})")
        if self.stall:
            parts.append(f"(stalled: {self.stall})")
        if self.epochs:
            parts.append(f"epoch {self.epochs[-1]['epoch']}, {len(self.members)} workers")
        report = format_report(self.last_report)
        if report:
            parts.append(report)
        return "  ".join(parts)


def format_report(value: Any) -> str:
    """A reported object in a few words; dicts of numbers as ``name=value``."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return " ".join(f"{k}={_short(v)}" for k, v in value.items())
    return _short(value)


def format_stall(event: Mapping[str, Any]) -> str:
    """A "stalled" event in one line: who waits, in what, for whom, and for how long."""
    waiting = ", ".join(str(rank) for rank in event["waiting"])
    missing = ", ".join(f"{m['rank']} ({m['id']}, {m['host']})" for m in event["missing"])
    if not missing:
        return str(event["message"])
    text = (f"rank {waiting} waited {event['seconds']:.1f} s in {event['operation']} "
            f"for rank {missing}")
    return text + ", which is ended now" if event["removed"] else text


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def format_bytes(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def epoch_row(epoch: Mapping[str, Any]) -> list[str]:
    """An epoch as the cells of :data:`EPOCH_COLUMNS`."""
    return [
        str(epoch["epoch"]),
        str(epoch["reason"]),
        f"{epoch['old_size']} -> {epoch['size']}",
        f"{epoch['pause_ms']:.1f}",
        format_bytes(epoch.get("state_bytes", 0)),
    ]


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in plain text."""
    cells = [list(columns), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    cells.insert(1, ["-" * width for width in widths])
    padded = [[c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in cells]
    return "\n".join("  ".join(row).rstrip() for row in padded)


# -- views --------------------------------------------------------------------------------------


def attach(handle: RunHandle, mode: str) -> None:
    """Shows a run's progress; ``mode`` as in :class:`troupe.Executor`."""
    if mode == "auto":
        if in_notebook():
            mode = "notebook"
        else:
            mode = "rich" if sys.stderr.isatty() else "plain"
    if mode == "off":
        return
    view: PlainView
    if mode == "notebook":
        view = NotebookView(handle)
    elif mode == "rich" and importlib.util.find_spec("rich") is not None:
        view = RichView(handle)
    else:
        view = PlainView(handle)
    handle.add_listener(view.on_event)
    handle.set_writer(view.write)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class PlainView:
    """A line on stderr for each change of members; the workers' lines as they come."""

    def __init__(self, handle: RunHandle) -> None:
        self.model = RunModel(handle.name)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Shows an event."""
        self.model.update(event)
        line = self.describe(event)
        if line:
            self.say(line)

    def say(self, line: str) -> None:
        """Prints a line of the view itself."""
        print(f"troupe: {line}", file=sys.stderr, flush=True)

    def write(self, stream: str, line: str) -> None:
        """Prints a worker's line."""
        print(line, file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)

    def describe(self, event: Mapping[str, Any]) -> str:
        """What to say about an event; empty for most."""
        kind = event["kind"]
        if kind == "epoch":
            return (f"{self.model.name}: epoch {event['epoch']} ({event['reason']}): "
                    f"{event['old_size']} -> {event['size']} workers, "
                    f"paused {event['pause_ms']:.1f} ms")
        if kind == "parked":
            return f"{self.model.name}: waiting: {event['reason']}"
        if kind == "stalled":
            return f"{self.model.name}: warning: {format_stall(event)}"
        if kind in ("warning", "unreachable", "resumed", "recovered"):
            prefix = "warning: " if kind in ("warning", "unreachable") else ""
            return f"{self.model.name}: {prefix}{event['message']}"
        if kind == "worker" and event["state"] in ("died", "failed"):
            detail = f": {event['detail']}" if event.get("detail") else ""
            last = event.get("last_lines", ())[-_LAST_LINES:]
            return f"{self.model.name}: worker {event['worker']} (rank {event['rank']}, " \
                   f"{event['host']}) {event['state']}{detail}" \
                   + "".join(f"\n    {line}" for line in last)
        if kind == "done" and event["state"] != "succeeded":
            return f"{self.model.name}: {event['state']}: {event.get('reason', '')}"
        return ""


class RichView(PlainView):
    """A live line on a terminal; falls back to lines while another run is live."""

    def __init__(self, handle: RunHandle) -> None:
        super().__init__(handle)
        from rich.console import Console
        from rich.errors import LiveError
        from rich.live import Live
        from rich.text import Text

        self._text = Text
        self._console = Console(stderr=True)
        self._live: Optional[Live] = Live(
            Text(self.model.headline()), console=self._console, transient=True,
            refresh_per_second=8,
        )
        try:
            self._live.start()
        except LiveError:
            self._live = None

    def on_event(self, event: Mapping[str, Any]) -> None:
        super().on_event(event)
        if self._live is not None:
            self._live.update(self._text(self.model.headline()))
            if event["kind"] == "done":
                self._live.stop()
                self._live = None

    def say(self, line: str) -> None:
        style = "yellow" if ": warning: " in line else "cyan"
        self._console.print(self._text(f"troupe: {line}", style=style))

    def write(self, stream: str, line: str) -> None:
        if self._live is not None and self._console.is_terminal and sys.stdout.isatty():
            self._console.print(self._text(line))
        else:
            super().write(stream, line)


class NotebookView(PlainView):
    """An HTML view below the cell that is updated in place; the workers' lines as they come."""

    def __init__(self, handle: RunHandle) -> None:
        super().__init__(handle)
        from IPython.display import HTML, display

        self._html = HTML
        self._shown = display(HTML(model_html(self.model)), display_id=True)
        self._next_s = 0.0

    def on_event(self, event: Mapping[str, Any]) -> None:
        self.model.update(event)
        now = time.monotonic()
        if event["kind"] in ("epoch", "done", "parked", "stalled") or now >= self._next_s:
            self._next_s = now + _NOTEBOOK_PERIOD_S
            if self._shown is not None:
                self._shown.update(self._html(model_html(self.model)))


# -- HTML ---------------------------------------------------------------------------------------


def html_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in HTML, everything escaped."""
    head = "".join(f"<th>{html.escape(str(c))}</th>" for c in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def model_html(model: RunModel) -> str:
    """A run's headline, members and newest epochs."""
    parts = [f"<b>{html.escape(model.headline())}</b>"]
    if model.members and model.state == "running":
        rows = [(m["rank"], m["host"], m.get("pid", ""), m["version"]) for m in model.members]
        parts.append(html_table(("rank", "host", "pid", "commits"), rows))
    if model.epochs:
        parts.append(html_table(EPOCH_COLUMNS, map(epoch_row, list(model.epochs)[-_SHOWN_EPOCHS:])))
    return "<div>" + "".join(parts) + "</div>"


def run_html(handle: RunHandle) -> str:
    """A run as HTML, from the events so far."""
    model = RunModel(handle.name)
    for event in handle.events():
        model.update(event)
    return model_html(model)


def executor_html(executor: Executor) -> str:
    """An executor as HTML: its sizes, resources and running handles."""
    settings = executor.settings
    least, start, most = settings.sizes()
    resources = ", ".join(show_amount(name, n) for name, n in settings.resources().items())
    rows = [
        ("workers", f"{start} (min {least}, max {most})"),
        ("per worker", resources or "nothing"),
        ("cluster", settings.address or "embedded"),
        ("running", ", ".join(handle.name for handle in executor.running) or "nothing"),
    ]
    return f"<div><b>{html.escape(repr(executor))}</b>{html_table(('', ''), rows)}</div>"
