#!/usr/bin/env python3
"""Checks #include lines against the folder graph and the adapter files of rules.toml.

1. A folder includes only the folders that the graph allows.
2. `<folder>/internal/` is included from that folder, and from tests and benchmarks, only.
3. A third-party header is included only by its adapter files, never by a public header.
4. Project headers are named from the repository root, with quotes, and exist; public ones, of
   include/, as their users name them: <troupe/...>.
"""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import tree

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
# Headers of the C++ standard library have no dot; those of C and of Linux are named here.
SYSTEM = re.compile(
    r"^([a-z_0-9]+|(sys|linux|net|netinet|arpa|asm|bits)/.*|"
    r"(assert|dirent|dlfcn|errno|fcntl|fnmatch|grp|ifaddrs|limits|malloc|netdb|poll|pthread|pwd|sched|"
    r"semaphore|signal|spawn|stdarg|stddef|stdint|stdio|stdlib|string|syscall|sysexits|termios|"
    r"time|unistd|wait)\.h|"
    r"immintrin\.h|x86intrin\.h|cxxabi\.h|sanitizer/.*)$"
)


def package_of(header: str, rules: dict[str, Any]) -> str | None:
    for name, package in rules["packages"].items():
        if any(header.startswith(prefix) for prefix in package["headers"]):
            return str(name)
    return None


def problem_of_public(
    path: Path, quote: str, header: str, root: Path, rules: dict[str, Any]
) -> str | None:
    """Why `path` may not include the public `header`, or None if it may."""
    if not (root / "include" / header).is_file():
        return f"includes {header}, which is not in include/"
    if quote != "<":
        return f'includes "{header}"; a public header is named <{header}>'
    if path.parts[0] not in rules["folders"]["free"]:
        return f"includes <{header}>, but what is public is made of {path.parts[0]}/"
    return None


def problem_of(
    path: Path, quote: str, header: str, root: Path, rules: dict[str, Any]
) -> str | None:
    """Why `path` may not include `header`, or None if it may."""
    folder = path.parts[0]
    if header.startswith("troupe/"):
        return problem_of_public(path, quote, header, root, rules)
    graph = rules["folders"]["may_include"]
    free = rules["folders"]["free"]
    target = header.split("/")[0]
    if target in graph or target in free:
        if not (root / header).is_file():
            return f"includes {header}, which does not exist (names start at the repository root)"
        if quote == "<":
            return f"includes <{header}> of this project; write it in quotes"
        if target != folder and folder not in free and target not in graph.get(folder, []):
            allowed = ", ".join(graph.get(folder, [])) or "no other folder"
            return f"includes {header}, but {folder}/ may include {allowed}"
        beside = rules.get("subfolders", {}).get(folder, {}) if target == folder else {}
        own, other = path.parts[1], header.split("/")[1]
        if own in beside and other != own and other not in beside[own]:
            allowed = ", ".join(beside[own]) or "no other folder of it"
            return f"includes {header}, but {folder}/{own}/ may include {allowed}"
        if "/internal/" in header and folder not in (target, "tests", "benchmarks"):
            return f"includes {header}, which is private to {target}/"
        return None
    if quote == '"':
        return f'includes "{header}"; project headers are named from the repository root'
    package = package_of(header, rules)
    if package is None:
        if SYSTEM.match(header) or folder in ("tests", "benchmarks"):
            return None
        return f"includes <{header}> of a package that rules.toml does not list"
    if folder in ("tests", "benchmarks") and package != "pybind11":
        return None
    allowed_files = rules["packages"][package]["files"]
    if not any(fnmatch(path.as_posix(), pattern) for pattern in allowed_files):
        return f"includes <{header}>; only {', '.join(allowed_files)} may"
    if path.suffix == ".h" and "internal" not in path.parts and folder not in free:
        return f"is a public header and includes <{header}>; move it behind an adapter source"
    return None


def check(root: Path) -> tuple[int, list[str]]:
    """The number of files read and one line per problem, `path:line: text`."""
    rules = tree.load_rules(root)
    problems = []
    files = tree.source_files(root, ".h", ".cpp", ".cc")
    for path in files:
        text = (root / path).read_text()
        for match in INCLUDE.finditer(text):
            problem = problem_of(path, match[1], match[2], root, rules)
            if problem:
                line = text.count("\n", 0, match.start()) + 1
                problems.append(f"{path}:{line}: {problem}")
    return len(files), problems


if __name__ == "__main__":
    sys.exit(tree.finish("include directions", *check(tree.ROOT)))
