#!/usr/bin/env python3
"""Runs clang-tidy on the sources of compile_commands.json that were not clean or have changed.

A source's stamp is the digest of its text, of every project header it includes (transitively), of
its compile command and of both .clang-tidy. Stamps lie in BUILD/tidy-stamps/.

Most of the time goes into headers, so sources that are compiled alike and define no name twice are
read as one. Where that finds something, or cannot be read, each of them is read by itself: a group
never says that a source has a fault.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import tree

SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\s*<([^>]+)>", re.MULTILINE)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\s*"([^"]+)"', re.MULTILINE)
COMPILED = re.compile(r" -o \S+ -c \S+$")  # How a command ends.
# A source that CMake has written, which includes those of a batch.
BATCH = re.compile(r"/Unity/unity_\w+_c(?:xx\.cxx|\.c)$")
# What only GCC knows: headers that it has precompiled, and warnings.
ONLY_GCC = re.compile(r" -(include \S*cmake_pch\.hxx|Winvalid-pch|fpch-preprocess"
                      r"|Wno-restrict|Wno-stringop-overflow|Wno-subobject-linkage)\b")
TIMEOUT_S = 600
GROUP_MAX = 8
# What a source defines for itself alone stands at the beginning of a line, as all but methods does:
# a type, a function or a constant; and a test is one of its suite.
OWN_NAMES = (
    re.compile(r"^(?:struct|class|enum class|enum|union|using|namespace) (\w+)", re.MULTILINE),
    re.compile(r"^[\w\[].*?(?<![\w:~])(\w+)(?:\(|\{|\[| = |;)", re.MULTILINE),
    re.compile(r"^[A-Z_]+\((\w+, \w+)\)", re.MULTILINE),
    re.compile(r"^#define (\w+)", re.MULTILINE),
)
EVERYBODYS = {"troupe"}  # Namespaces.


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


def read_alone(commands: list[dict[str, str]]) -> list[dict[str, str]]:
    """The commands, with those of a batch's sources in place of the batch's."""
    alone = []
    for entry in commands:
        if not BATCH.search(entry["file"]):
            alone.append(entry)
            continue
        for source in INCLUDE.findall(Path(entry["file"]).read_text()):
            command = COMPILED.sub(f" -o {source}.o -c {source}", entry["command"])
            alone.append(entry | {"file": source, "command": command})
    return alone


def readable_commands(build: Path) -> Path:
    """A folder with the compile commands, without what clang does not know."""
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    text = ONLY_GCC.sub("", (build / "compile_commands.json").read_text())
    (folder / "compile_commands.json").write_text(json.dumps(read_alone(json.loads(text))))
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


def own_names(source: Path) -> set[str]:
    """The names that `source` may define for itself alone, and some that it only uses."""
    text = source.read_text()
    return {name for names in OWN_NAMES for name in names.findall(text)} - EVERYBODYS


def in_groups(sources: dict[Path, str], todo: list[Path]) -> list[list[Path]]:
    """`todo` in groups that can be read as one: compiled alike, of one .clang-tidy."""
    by_kind: dict[tuple[bool, str], list[tuple[list[Path], set[str]]]] = {}
    for path in todo:
        alike = COMPILED.sub("", sources[path])
        groups = by_kind.setdefault((is_test(path), alike), [])
        names = own_names(path)
        for group, taken in groups:
            if len(group) < GROUP_MAX and not names & taken:
                group.append(path)
                taken |= names
                break
        else:
            groups.append(([path], names))
    return [group for groups in by_kind.values() for group, _ in groups]


def is_test(path: Path) -> bool:
    return path.is_relative_to(tree.ROOT / "tests")


def write_groups(build: Path, sources: dict[Path, str], groups: list[list[Path]]) -> list[Path]:
    """One source for each group that includes all of it, and how it is compiled."""
    shutil.rmtree(build / "groups", ignore_errors=True)
    (build / "groups/tests").mkdir(parents=True)
    shutil.copy(tree.ROOT / "tests/.clang-tidy", build / "groups/tests")
    commands = json.loads((build / "compile_commands.json").read_text())
    written = []
    for number, group in enumerate(groups):
        if len(group) == 1:
            written.append(group[0])
            continue
        whole = build / "groups" / ("tests" if is_test(group[0]) else "") / f"{number}.cpp"
        whole.write_text("".join(f'#include "{path}"\n' for path in group))
        command = sources[group[0]].replace(f" -c {group[0]}", f" -c {whole}")
        commands.append({"directory": str(build), "command": command, "file": str(whole)})
        written.append(whole)
    (build / "compile_commands.json").write_text(json.dumps(commands))
    return written


def run_one(tool: str, build: Path, source: Path) -> tuple[int, str]:
    """The exit status of clang-tidy and what it says; of a group also of what that includes."""
    options = []
    if source.is_relative_to(build):
        settings = (tree.ROOT / ".clang-tidy").read_text()
        headers = re.search(r"^HeaderFilterRegex: '(.*)'$", settings, re.MULTILINE)
        assert headers is not None
        options = [f"--header-filter={headers[1]}|^{tree.ROOT}/.*\\.cpp$"]
    try:
        done = subprocess.run(
            [tool, "-p", str(build), "--quiet", *options, str(source)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return 1, f"{source}: clang-tidy did not finish within {TIMEOUT_S} s"
    return done.returncode, done.stdout or done.stderr


def run_group(tool: str, build: Path, whole: Path, group: list[Path]) -> list[tuple[int, str]]:
    """As `run_one`, for each of a group."""
    if len(group) > 1 and run_one(tool, build, whole)[0] == 0:
        return [(0, "")] * len(group)
    return [run_one(tool, build, path) for path in group]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="configured build folder")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tool", default=str(tree.ROOT / ".venv/bin/clang-tidy"))
    parser.add_argument("files", nargs="*", type=Path, help="only these sources (default: all)")
    options = parser.parse_args()
    options.build = options.build.resolve()
    if not (options.build / "compile_commands.json").is_file():
        print(f"{options.build} is not configured; run: make build", file=sys.stderr)
        return 1
    if shutil.which(options.tool) is None:
        print(f"{options.tool} is missing; run: make install-deps", file=sys.stderr)
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
    groups = in_groups(sources, todo)
    wholes = write_groups(commands, sources, groups)
    failed = []
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = pool.map(lambda whole, group: run_group(options.tool, commands, whole, group),
                        wholes, groups)
        number = 0
        for group, told in zip(groups, runs):
            for path, (status, output) in zip(group, told):
                number += 1
                print(f"[{number}/{len(todo)}] {path.relative_to(tree.ROOT)}", file=sys.stderr)
                if status == 0:
                    (stamps / stamp[path]).touch()
                else:
                    failed.append(path)
                    print(output, flush=True)
    outcome = f"{len(failed)} with findings" if failed else "no findings"
    print(
        f"clang-tidy: {len(sources)} sources, {len(sources) - len(todo)} unchanged, {outcome}",
        file=sys.stderr,
    )
    for path in failed:
        print(f"    {path.relative_to(tree.ROOT)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
