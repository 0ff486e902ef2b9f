"""The checkers find what they are for: each test breaks one rule in a small tree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import check_includes
import check_tidy
import pytest
import tree


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """An empty git checkout with the project's rules and one header per folder."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "tests/tools").mkdir(parents=True)
    shutil.copy(tree.ROOT / "tests/tools/rules.toml", tmp_path / "tests/tools/rules.toml")
    put(tmp_path, "runtime/wire.h", "#pragma once\n")
    put(tmp_path, "runtime/internal/fiber.h", "#pragma once\n")
    put(tmp_path, "actors/actor.h", "#pragma once\n")
    put(tmp_path, "daemons/head/b.h", "#pragma once\n")
    put(tmp_path, "include/troupe/troupe.h", '#pragma once\n#include "actors/actor.h"\n')
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def include_problems(root: Path) -> list[str]:
    return check_includes.check(root)[1]


def tidy_problems(root: Path) -> list[str]:
    # Exceptions name files of the real tree, which this one does not have.
    return [p for p in check_tidy.check(root)[1] if "which does not exist" not in p]


def test_a_clean_tree_passes(checkout: Path) -> None:
    put(checkout, "scheduler/a.cpp", '#include <map>\n#include "runtime/wire.h"\n')
    assert include_problems(checkout) == []
    assert tidy_problems(checkout) == []


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("runtime/a.cpp", '#include "actors/actor.h"', "may include no other folder"),
        ("scheduler/a.cpp", '#include "actors/actor.h"', "may include runtime"),
        ("scheduler/a.cpp", '#include "runtime/internal/fiber.h"', "private to runtime/"),
        ("scheduler/a.cpp", '#include "runtime/none.h"', "does not exist"),
        ("scheduler/a.cpp", '#include "a.h"', "named from the repository root"),
        ("scheduler/a.cpp", "#include <runtime/wire.h>", "in quotes"),
        ("scheduler/a.cpp", "#include <yaml-cpp/yaml.h>", "only runtime/config.cpp may"),
        ("scheduler/a.cpp", "#include <tinyxml2.h>", "does not list"),
        ("daemons/a.cpp", "#include <pybind11/pybind11.h>", "only pyapi/* may"),
        ("daemons/a.cpp", '#include "troupe/troupe.h"', "is named <troupe/troupe.h>"),
        ("daemons/a.cpp", "#include <troupe/none.h>", "is not in include/"),
        ("actors/a.cpp", "#include <troupe/troupe.h>", "is made of actors/"),
        ("daemons/client/a.cpp", '#include "daemons/head/b.h"', "client/ may include protocol"),
    ],
)
def test_includes(checkout: Path, name: str, line: str, expected: str) -> None:
    put(checkout, name, f"\n{line}\n")
    (problem,) = include_problems(checkout)
    assert problem.startswith(f"{name}:2: ")
    assert expected in problem


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("runtime/a.h", "\n" * 200, "200 lines, limit"),
        ("runtime/a.cpp", "x" * 101, "101 columns"),
        ("pyapi/a.py", "def f() -> None:\n" + "    f()\n" * 80, "f() has 81 lines"),
        ("pyapi/a.py", "def f(:\n", "not valid Python"),
        ("runtime/a.cpp", "// FIXME later\n", "'FIXME'"),
        ("runtime/a.h", "#define _GUARD_H 1\n", "#define _G"),
        ("runtime/a.cpp", "  int rank__of = 1;\n", "int rank__"),
        ("scheduler/a.cpp", "std::unordered_map<int, int> m;\n", "pure core uses"),
        ("autoscaler/policy.cpp", "auto t = std::chrono::steady_clock::now();\n", "steady_clock"),
    ],
)
def test_tidy(checkout: Path, name: str, text: str, expected: str) -> None:
    put(checkout, name, text)
    (problem,) = tidy_problems(checkout)
    assert problem.startswith(f"{name}:")
    assert expected in problem


def test_a_template_for_temporary_names_is_not_a_mark(checkout: Path) -> None:
    put(checkout, "runtime/a.cpp", 'char name[] = "/tmp/troupe-XXXXXX";\n')
    assert tidy_problems(checkout) == []


def test_a_comment_may_name_what_a_pure_core_must_not_use(checkout: Path) -> None:
    put(checkout, "scheduler/a.cpp", "int a;  // never a std::mutex\n")
    assert tidy_problems(checkout) == []
