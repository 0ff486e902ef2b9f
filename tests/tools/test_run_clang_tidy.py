"""clang-tidy over small trees: what is read as one, and who is told to have a fault."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import run_clang_tidy
import tree

TOOL = tree.ROOT / ".venv/bin/clang-tidy"
pytestmark = pytest.mark.once

SOUND = "int {name}(int a) { return a; }\n"
MOVED = ("#include <string>\n#include <utility>\nstd::string two() {\n  std::string a = \"a\";\n"
         "  std::string b = std::move(a);\n  return a + b;\n}\n")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with the project's settings and a build folder that knows no source yet."""
    for name in (".clang-tidy", "tests/.clang-tidy", "tests/tools/rules.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree.ROOT / name, tmp_path / name)
    (tmp_path / "build/release").mkdir(parents=True)
    monkeypatch.setattr(tree, "ROOT", tmp_path)
    return tmp_path


def put(root: Path, sources: dict[str, str]) -> None:
    for name, text in sources.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    commands = [{"directory": str(root), "file": str(root / name),
                 "command": f"c++ -std=c++20 -o {name}.o -c {root / name}"} for name in sources]
    (root / "build/release/compile_commands.json").write_text(json.dumps(commands))


def groups(root: Path) -> list[list[str]]:
    build = run_clang_tidy.readable_commands(root / "build/release")
    sources = run_clang_tidy.sources_of(build)
    return [[path.name for path in group]
            for group in run_clang_tidy.in_groups(sources, sorted(sources))]


def check(root: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    # A relative path must do as well as an absolute one.
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "argv", ["run_clang_tidy.py", "--build", "build/release",
                                      "--tool", str(TOOL)])
    return run_clang_tidy.main()


def test_sources_that_define_a_name_twice_are_not_read_as_one(checkout: Path) -> None:
    put(checkout, {
        "runtime/a.cpp": "namespace {\nconstexpr int kLimit = 3;\n}\n",
        "runtime/b.cpp": "namespace {\nconstexpr long kLimit = 4;\n}\nint Own() { return 1; }\n",
        "runtime/c.cpp": "int Other() { return 2; }\n",
        "tests/d_test.cpp": "int Third() { return 3; }\n",
    })
    assert groups(checkout) == [["a.cpp", "c.cpp"], ["b.cpp"], ["d_test.cpp"]]


def test_who_has_a_fault_is_told_and_nobody_else(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(checkout, {"runtime/one.cpp": SOUND.replace("{name}", "one"), "runtime/two.cpp": MOVED,
                   "tests/three.cpp": MOVED.replace("two", "three"),
                   "tests/four.cpp": SOUND.replace("{name}", "four")})
    assert check(checkout, monkeypatch) == 1
    told = capsys.readouterr()
    assert "4 sources, 0 unchanged, 2 with findings" in told.err
    assert told.err.split()[-2:] == ["runtime/two.cpp", "tests/three.cpp"]
    for source, line in (("runtime/two.cpp", 6), ("tests/three.cpp", 6)):
        assert f"{checkout / source}:{line}:10: error: 'a' used after it was moved" in told.out
    put(checkout, {"runtime/one.cpp": SOUND.replace("{name}", "one"),
                   "runtime/two.cpp": SOUND.replace("{name}", "two")})
    assert check(checkout, monkeypatch) == 0
    assert "2 sources, 1 unchanged, no findings" in capsys.readouterr().err


def test_what_can_only_be_read_alone_is_read_alone(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = "  struct Hidden { int a = 0; };\nint {name}() { return Hidden().a; }\n"  # Indented.
    put(checkout, {"runtime/one.cpp": twice.replace("{name}", "one"),
                   "runtime/two.cpp": twice.replace("{name}", "two")})
    assert groups(checkout) == [["one.cpp", "two.cpp"]]
    assert check(checkout, monkeypatch) == 0
    assert "2 sources, 0 unchanged, no findings" in capsys.readouterr().err


def test_sources_of_a_batch_are_sources(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(checkout, {"runtime/one.cpp": SOUND.replace("{name}", "one"), "runtime/two.cpp": MOVED})
    batch = checkout / "build/release/runtime/Unity/unity_mutated_0_cxx.cxx"
    batch.parent.mkdir(parents=True)
    batch.write_text("".join(f'#include "{checkout}/runtime/{name}.cpp"\n\n'
                             for name in ("one", "two")))
    (checkout / "runtime/three.c").write_text("int three(int a) { return a; }\n")
    of_c = batch.with_name("unity_0_c.c")
    of_c.write_text(f'#include "{checkout}/runtime/three.c"\n')
    (checkout / "build/release/compile_commands.json").write_text(json.dumps([
        {"directory": str(checkout), "file": str(batch),
         "command": f"c++ -std=c++20 -Wno-subobject-linkage -o unity_mutated_0.o -c {batch}"},
        {"directory": str(checkout), "file": str(of_c), "command": f"cc -o c.o -c {of_c}"}]))
    assert sorted(groups(checkout)) == [["one.cpp", "two.cpp"], ["three.c"]]
    assert check(checkout, monkeypatch) == 1
    assert "3 sources, 0 unchanged, 1 with findings" in capsys.readouterr().err
