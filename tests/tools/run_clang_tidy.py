#!/usr/bin/env python3
"""Runs clang-tidy on the sources of compile_commands.json that were not clean or have changed.

A source's stamp is the digest of its text, of every project header it includes (transitively), of
its compile command and of both .clang-tidy. Stamps lie in BUILD/tidy-stamps/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import tree

SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\s*<([^>]+)>", re.MULTILINE)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\s*"([^"]+)"', re.MULTILINE)
# What only GCC knows: headers that it has precompiled, and warnings.
ONLY_GCC = re.compile(r" -(include \S*cmake_pch\.hxx|Winvalid-pch|fpch-preprocess"
                      r"|Wno-restrict|Wno-stringop-overflow)\b")
TIMEOUT_S = 600


@cache
def included(path: Path) -> frozenset[Path]:
    """`path` and every project header that it includes, transitively."""
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        text = current.read_text()
        named = [*INCLUDE.findall(text), *(f"include/{h}" for h in SYSTEM_INCLUDE.findall(text)
                                           if h.startswith("troupe/"))]
        waiting += [tree.ROOT / header for header in named if (tree.ROOT / header).is_file()]
    return frozenset(seen)


def stamp_of(source: Path, command: str) -> str:
    digest = hashlib.sha256(command.encode())
    for settings in (".clang-tidy", "tests/.clang-tidy"):
        digest.update((tree.ROOT / settings).read_bytes())
    for path in sorted(included(source)):
        digest.update(path.as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def sources_of(build: Path) -> dict[Path, str]:
    """Source -> compile command, for the sources of this checkout that are not generated."""
    commands = json.loads((build / "compile_commands.json").read_text())
    found = {}
    for entry in commands:
        path = Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(tree.ROOT) and not path.is_relative_to(tree.ROOT / "build"):
            found[path] = entry["command"]
    return found


def readable_commands(build: Path) -> Path:
    """A folder with the compile commands, without what clang does not know."""
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    text = (build / "compile_commands.json").read_text()
    (folder / "compile_commands.json").write_text(ONLY_GCC.sub("", text))
    return folder


def unreadable(source: Path) -> bool:
    """Whether clang cannot read the headers of a package that the source includes."""
    rules = tree.load_rules(tree.ROOT)
    prefixes = tuple(
        prefix
        for package in rules["clang_tidy"]["unreadable_packages"]
        for prefix in rules["packages"][package]["headers"]
    )
    return any(
        header.startswith(prefixes)
        for path in included(source)
        for header in SYSTEM_INCLUDE.findall(path.read_text())
    )


def run_one(tool: str, build: Path, source: Path) -> tuple[Path, int, str]:
    try:
        done = subprocess.run(
            [tool, "-p", str(build), "--quiet", str(source)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return source, 1, f"{source}: clang-tidy did not finish within {TIMEOUT_S} s"
    return source, done.returncode, done.stdout or done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="configured build folder")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tool", default="clang-tidy-14")
    parser.add_argument("files", nargs="*", type=Path, help="only these sources (default: all)")
    options = parser.parse_args()
    if not (options.build / "compile_commands.json").is_file():
        print(f"{options.build} is not configured; run: make build", file=sys.stderr)
        return 1

    stamps = options.build / "tidy-stamps"
    stamps.mkdir(exist_ok=True)
    commands = readable_commands(options.build)
    sources = sources_of(commands)
    if options.files:
        sources = {path.resolve(): sources[path.resolve()] for path in options.files}
    sources = {path: command for path, command in sources.items() if not unreadable(path)}
    stamp = {path: stamp_of(path, command) for path, command in sources.items()}
    todo = [path for path in sorted(sources) if not (stamps / stamp[path]).exists()]
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = pool.map(lambda path: run_one(options.tool, commands, path), todo)
        for number, (path, status, output) in enumerate(runs, 1):
            print(f"[{number}/{len(todo)}] {path.relative_to(tree.ROOT)}", file=sys.stderr)
            if status == 0:
                (stamps / stamp[path]).touch()
            else:
                failed += 1
                print(output)
    outcome = f"{failed} with findings" if failed else "no findings"
    print(
        f"clang-tidy: {len(sources)} sources, {len(sources) - len(todo)} unchanged, {outcome}",
        file=sys.stderr,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
