"""Merges the trace files of a run's processes into one that Perfetto shows (``troupe trace``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def read_trace(path: Path) -> list[Event]:
    """The events of one process; what a killed process left half written is not among them."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    events = []
    for line in lines:
        text = line.strip().rstrip(",")
        if text in ("", "[", "]"):
            continue
        try:
            event = json.loads(text)
        except ValueError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def merge_traces(folder: Path) -> tuple[list[Event], int]:
    """All events below ``folder`` on one clock, oldest first, and the number of processes.

    Processes of one boot share a clock. Those of other machines are brought to the clock of the
    first by the time of day, as well as their clocks agree.

    Raises:
        FileNotFoundError: there is no trace in the folder.
    """
    files = sorted(folder.glob("**/*.trace.json"))
    if not files:
        raise FileNotFoundError(
            f"no *.trace.json in {folder}; run the program with TROUPE_TRACE_DIR={folder}"
        )
    offsets: dict[str, float] = {}  # of each boot: time of day minus its clock, in microseconds
    base = None
    events: list[Event] = []
    for file in files:
        own = read_trace(file)
        clock = next((e["args"] for e in own if e.get("name") == "troupe_clock"), None)
        shift = 0.0
        if clock is not None:
            offset = offsets.setdefault(clock["boot"], clock["unix_us"] - clock["ts_us"])
            base = offset if base is None else base
            shift = offset - base
        for event in own:
            if "ts" in event:
                event["ts"] += shift
        events.extend(own)
    events.sort(key=lambda event: event.get("ts", float("-inf")))
    return events, len(files)


def write_merged(folder: Path, out: Path) -> str:
    """Writes the merged trace; one line that says what is in it."""
    events, processes = merge_traces(folder)
    with out.open("w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
    return f"{out}: {len(events)} events of {processes} processes; open it in ui.perfetto.dev"
