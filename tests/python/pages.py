"""The pages of the documentation, README.md and docs/*.md, as blocks of code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = ("python", "bash")
BUILT = ("cpp", "cmake")
SHOWN = ("text", "yaml", "mermaid")  # For the reader only.
MARKER = re.compile(
    r"<!-- (not run: .+|in a network namespace|with the plugin|file: \S+|prints) -->")


@dataclass
class Block:
    page: Path
    line: int
    language: str
    marker: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def runs(self) -> bool:
        elsewhere = self.marker.startswith(("not run", "with the plugin"))
        return self.language in RUN and not elsewhere


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = page.read_text().splitlines()
    begin = -1
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if begin < 0:
            begin = number
            continue
        marker = MARKER.fullmatch(lines[begin - 1].strip()) if begin else None
        found.append(Block(page, begin + 1, lines[begin][3:].strip(),
                           marker.group(1) if marker else "",
                           "\n".join(lines[begin + 1:number]) + "\n"))
        begin = -1
    assert begin < 0, f"{page.name}:{begin + 1} does not end"
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
