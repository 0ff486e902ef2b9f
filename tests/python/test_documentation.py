"""README.md and docs/*.md: every command and every Python program runs as it is written.

Of C++ and CMake test_integration_listings.py sees to that.

The blocks of a page run one after the other in one folder, empty but for the files that the README
tells to save. A line of HTML before a block says what else holds for it:

    <!-- not run: REASON -->        it cannot be run here
    <!-- with the plugin -->        test_integration_listings.py runs it
    <!-- in a network namespace --> it uses fixed ports; run in a namespace of its own
    <!-- file: NAME -->             it is that file of the repository, or to be saved by that name
    <!-- prints -->                 what the block before prints; "..." stands for any text
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import troupe

from pages import BLOCKS, BUILT, MARKER, PAGES, ROOT, RUN, SHOWN, Block

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.venv_only,
              pytest.mark.timeout(120)]

README_WORDS = 1200
PROGRAMS = [block for block in BLOCKS if block.runs]


def printed_by(block: Block) -> str:
    """What the page says that the block prints; empty if it says nothing."""
    after = BLOCKS.index(block) + 1
    follows = BLOCKS[after] if after < len(BLOCKS) else block
    return follows.text if follows.page == block.page and follows.marker == "prints" else ""


def saved_files() -> dict[str, str]:
    """Files that the README tells to save, by name."""
    names = {block.marker.removeprefix("file: "): block.text for block in BLOCKS
             if block.marker.startswith("file: ") and block.page == PAGES[0]}
    return {name: text for name, text in names.items() if not (ROOT / name).exists()}


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[Path, Path]]:
    """A folder for each page, and one with the commands; short names, for sockets."""
    with tempfile.TemporaryDirectory(prefix="docs-") as name:
        made = {}
        for page in PAGES:
            made[page] = Path(name) / page.stem
            made[page].mkdir()
            for file, text in saved_files().items():
                (made[page] / file).write_text(text)
        commands = Path(name) / "bin"
        commands.mkdir()
        for command, words in (("python", ""), ("troupe", "-m troupe ")):
            (commands / command).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
            (commands / command).chmod(0o755)
        yield made


def environment(folder: Path) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith("TROUPE_")}
    package = os.path.dirname(os.path.dirname(os.path.abspath(troupe.__file__)))
    return {**own, "PATH": f"{folder.parent / 'bin'}{os.pathsep}{own.get('PATH', '')}",
            "PYTHONPATH": package, "HOME": str(folder), "TROUPE_HOME": str(folder / ".troupe")}


def namespace() -> list[str]:
    """Words that run a command in a network namespace of its own; skips where there can be none."""
    words = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    up = [*words, "ip", "link", "set", "lo", "up"]
    if shutil.which("ip") is None or subprocess.run(up, capture_output=True).returncode != 0:
        pytest.skip("no network namespaces here")
    return [*words, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


@pytest.mark.parametrize("block", PROGRAMS, ids=[block.name for block in PROGRAMS])
def test_a_block_runs_as_it_is_written(block: Block, folders: dict[Path, Path]) -> None:
    folder = folders[block.page]
    words = ["bash", "-euo", "pipefail", "-c", block.text]
    if block.language == "python":
        name = block.marker.removeprefix("file: ") if block.marker else f"line{block.line}.py"
        (folder / Path(name).name).write_text(block.text)
        words = [sys.executable, Path(name).name]
    within = namespace() if block.marker == "in a network namespace" else []
    try:
        done = subprocess.run([*within, *words], cwd=folder, env=environment(folder), text=True,
                              capture_output=True, timeout=90)
    finally:
        if within:  # What a block that failed has left.
            subprocess.run([sys.executable, "-m", "troupe", "stop"], cwd=folder,
                           env=environment(folder), capture_output=True, timeout=30)
    assert done.returncode == 0, f"{block.name}:\n{done.stdout}\n{done.stderr}"
    expected = printed_by(block).splitlines()
    for line in expected:
        pattern = ".*".join(re.escape(part) for part in line.split("..."))
        assert re.search(f"^{pattern}$", done.stdout, re.MULTILINE), (
            f"{block.name} does not print {line!r}, but:\n{done.stdout}")


def test_each_block_says_what_it_is() -> None:
    unknown = [f"{b.name}: {b.language or 'no language'}" for b in BLOCKS
               if b.language not in RUN + BUILT + SHOWN]
    assert not unknown, f"name one of {RUN + BUILT + SHOWN} behind the fence of {unknown}"


def test_a_block_that_cannot_be_run_says_why() -> None:
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.startswith("<!--"):
                assert MARKER.fullmatch(line.strip()), f"{page.name}:{number}: unknown {line}"
                assert any(b.page == page and b.line == number + 1 for b in BLOCKS), (
                    f"{page.name}:{number}: no block follows")


def test_files_are_shown_as_they_are() -> None:
    for block in BLOCKS:
        path = ROOT / block.marker.removeprefix("file: ")
        if block.marker.startswith("file: ") and path.exists():
            shown = block.text.strip()
            assert shown in path.read_text(), f"{block.name} is not {path.name}"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: no {target}"


def test_the_messages_that_are_explained_exist() -> None:
    folders = ("pyapi", "runtime", "daemons", "collective_groups", "actors", "scheduler")
    sources = "".join(
        path.read_text() for folder in folders for ending in ("cpp", "h", "py")
        for path in (ROOT / folder).rglob(f"*.{ending}"))
    joined = re.sub(r'"\s*\n\s*f?"', "", sources)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = [text for row in re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
                for text in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 20
    for message in messages:
        for part in (part.strip() for part in message.split("...")):
            assert len(part) < 6 or part in joined, f"nothing says {part!r}"


def test_the_readme_can_be_read_at_once() -> None:
    assert len(PAGES[0].read_text().split()) <= README_WORDS
