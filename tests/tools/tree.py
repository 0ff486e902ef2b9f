"""The files of the checkout and the rules that hold for them, for the checkers of this folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[2]


def load_rules(root: Path) -> dict[str, Any]:
    """The content of tests/tools/rules.toml below `root`."""
    with open(root / "tests/tools/rules.toml", "rb") as file:
        return tomllib.load(file)


def source_files(root: Path, *suffixes: str) -> list[Path]:
    """Files that git tracks or would track, relative to `root`, with one of `suffixes`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout.decode()
    paths = sorted({Path(name) for name in listed.split("\0") if name.endswith(suffixes)})
    return [path for path in paths if (root / path).is_file()]


def finish(name: str, checked: int, problems: list[str]) -> int:
    """Prints the problems and a closing line; returns the exit status."""
    for problem in problems:
        print(problem)
    outcome = f"{len(problems)} problems" if problems else "no problems"
    print(f"{name}: {checked} files, {outcome}", file=sys.stderr)
    return 1 if problems else 0
