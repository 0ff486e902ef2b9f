#!/usr/bin/env python3
"""Checks what no compiler does: lengths, unfinished work, and that pure cores stay pure.

Limits and patterns, with the exceptions and their reasons, are in rules.toml. The length of
C++ functions is clang-tidy's part (readability-function-size).
"""

from __future__ import annotations

import ast
import re
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import tree

TEXT_SUFFIXES = (".h", ".cpp", ".cc", ".py", ".sh", ".cmake", ".txt", ".toml", ".md", ".yaml")


def length_problems(path: Path, lines: list[str], rules: dict[str, Any]) -> list[str]:
    limits = rules["limits"]
    problems = []
    limit = limits.get(path.suffix)
    if limit and len(lines) > limit and path.as_posix() not in rules["long_files"]:
        problems.append(
            f"{path}:1: {len(lines)} lines, limit {limit}; split it or say why in rules.toml"
        )
    columns = limits["columns"].get(path.suffix)
    if columns:
        problems += [
            f"{path}:{number}: {len(line)} columns, limit {columns}"
            for number, line in enumerate(lines, 1)
            if len(line) > columns and "http" not in line
        ]
    return problems


def python_problems(path: Path, text: str, rules: dict[str, Any]) -> list[str]:
    limit = rules["limits"]["python_function"]
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        return [f"{path}:{error.lineno}: not valid Python: {error.msg}"]
    return [
        f"{path}:{node.lineno}: {node.name}() has {length} lines, limit {limit}"
        for node in ast.walk(module)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > limit
    ]


def banned_problems(path: Path, lines: list[str], rules: dict[str, Any]) -> list[str]:
    banned = rules["banned"]
    if path.as_posix() in banned["exempt"]:
        return []
    of_cpp = banned["cpp_patterns"] if path.suffix in (".h", ".cpp") else []
    patterns = [re.compile(pattern) for pattern in [*banned["patterns"], *of_cpp]]
    return [
        f"{path}:{number}: contains {match[0]!r}"
        for number, line in enumerate(lines, 1)
        for pattern in patterns
        if (match := pattern.search(line))
    ]


def purity_problems(path: Path, lines: list[str], rules: dict[str, Any]) -> list[str]:
    if not any(fnmatch(path.as_posix(), pattern) for pattern in rules["pure"]["files"]):
        return []
    patterns = [re.compile(pattern) for pattern in rules["pure"]["patterns"]]
    return [
        f"{path}:{number}: a pure core uses {match[0]!r}"
        for number, line in enumerate(lines, 1)
        for pattern in patterns
        if (match := pattern.search(line.split("//")[0]))
    ]


def check(root: Path) -> tuple[int, list[str]]:
    """The number of files read and one line per problem, `path:line: text`."""
    rules = tree.load_rules(root)
    problems = []
    files = tree.source_files(root, *TEXT_SUFFIXES)
    for path in files:
        text = (root / path).read_text()
        lines = text.splitlines()
        problems += length_problems(path, lines, rules)
        problems += banned_problems(path, lines, rules)
        if path.suffix == ".py":
            problems += python_problems(path, text, rules)
        if path.suffix in (".h", ".cpp"):
            problems += purity_problems(path, lines, rules)
    problems += [
        f"tests/tools/rules.toml: [long_files] names {name}, which does not exist"
        for name in rules["long_files"]
        if not (root / name).is_file()
    ]
    return len(files), problems


if __name__ == "__main__":
    sys.exit(tree.finish("tidy", *check(tree.ROOT)))
