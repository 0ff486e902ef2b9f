"""Writes docs/porting-from-ray.md from docs/porting-from-ray.toml: `python scripts/porting.py`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomllib

DOCS = Path(__file__).resolve().parents[1] / "docs"
DATA, PAGE = DOCS / "porting-from-ray.toml", DOCS / "porting-from-ray.md"


def load() -> dict[str, Any]:
    """The data, as docs/porting-from-ray.toml explains it."""
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


def page(data: Mapping[str, Any]) -> str:
    """The whole page."""
    parts = [data["head"].replace("{version}", data["ray_version"])]
    for module in data["module"]:
        parts.append(f"\n## `{module['ray']}`\n\n")
        if module["import"]:
            parts.append(f"`{module['import']}`\n\n")
        parts.append("| Ray | here | remarks |\n| --- | --- | --- |\n")
        names = sorted(module["names"].items(), key=lambda item: ("here" not in item[1], item[0]))
        parts += [_row(name, about) for name, about in names]
    return "".join(parts)


def _row(name: str, about: Mapping[str, str]) -> str:
    remarks = []
    for key, words in (("takes", "Takes"), ("positional", "By position:"), ("lacks", "Without")):
        if about.get(key):
            listed = ", ".join(f"`{argument}`" for argument in about[key].split())
            remarks.append(f"{words} {listed}.")
    if about.get("note"):
        remarks.append(about["note"])
    here = about.get("here", "")
    private = here.startswith("troupe.actors._")  # Reached another way, which the heading says.
    shown = "yes" if private else f"`{here}`" if here else "no"
    return f"| `{name}` | {shown} | {' '.join(remarks)} |\n"


def main() -> int:
    """Writes the page."""
    PAGE.write_text(page(load()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
