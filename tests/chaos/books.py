"""The books of a long run, kept while it goes on: how far it is, and whether a step stood still."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from digits_training import Books, balance


class RunningBooks:
    """Reads what the journals gained; remembers the longest time without a newly committed step."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.folder, self.samples = folder, samples
        self.records: list[dict[str, Any]] = []
        self.steps = 0
        self._read: dict[Path, int] = {}
        self._last = time.monotonic()

    def advance(self) -> float:
        """Seconds since the last newly committed step, after reading what is new."""
        before = self.steps
        for path in self.folder.glob("*.jsonl"):
            with path.open("rb") as journal:
                journal.seek(self._read.get(path, 0))
                lines = journal.read()
            whole = lines.rfind(b"\n") + 1  # A line that is being written is read next time.
            self._read[path] = self._read.get(path, 0) + whole
            for line in lines[:whole].splitlines():
                record = {**json.loads(line), "journal": path.name}
                self.records.append(record)
                if record["kind"] == "commit":
                    self.steps = max(self.steps, record["step"] + 1)
        now = time.monotonic()
        if self.steps > before:
            self._last = now
        return now - self._last

    def close(self) -> Books:
        """All of it, balanced."""
        self.advance()
        return balance(self.records, self.samples)
