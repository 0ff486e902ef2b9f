"""The C++ API as a user meets it: installed, found by CMake from outside the tree, built, run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from processes import free_port

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / os.environ.get("PRESET", "release")

pytestmark = [pytest.mark.integration, pytest.mark.once]


SAID = [
    "apples 30, pears 125, together 155",
    "a task: 144",
    "refused: Counter::Add threw: a counter only counts up",
    "after the end: peer_gone",
]


def run(*command: str, **more: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **more}, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CMAKE = "/usr/bin/cmake" if os.access("/usr/bin/cmake", os.X_OK) else "cmake"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed Troupe."""
    path = tmp_path_factory.mktemp("prefix")
    run(CMAKE, "--install", str(BUILD), "--component", "cpp", "--prefix", str(path))
    return path


def built(source: Path, prefix: Path, build: Path) -> Path:
    """The folder of what a project outside of the tree builds."""
    run(CMAKE, "-S", str(source), "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}")
    run(CMAKE, "--build", str(build))
    return build


def test_an_actor_program_builds_outside_the_tree_and_runs(tmp_path: Path, prefix: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "examples" / "counter", source)
    program = str(built(source, prefix, tmp_path / "build") / "counter")
    out = run(program)  # It finds the daemons of the prefix that it was built with.
    assert out.splitlines() == ["on one node: yes", *SAID]
    # The same program on a cluster of two nodes, as the README has it.
    home = {"TROUPE_HOME": str(tmp_path / ".troupe")}
    troupe = (sys.executable, "-m", "troupe")
    port = free_port()
    run(*troupe, "start", "--head", "--host", "127.0.0.1", "--port", str(port), "--name", "first",
        **home)
    try:
        run(*troupe, "start", "--address", f"127.0.0.1:{port}", "--name", "second", **home)
        out = run(program, TROUPE_ADDRESS=f"127.0.0.1:{port}",
                  TROUPE_KEY_FILE=str(tmp_path / ".troupe" / "cluster.key"))
        assert out.splitlines() == ["on one node: no", *SAID]
        # It knows where keys are.
        for where in (home, {"TROUPE_HOME": "", "HOME": str(tmp_path)}):
            out = run(program, TROUPE_ADDRESS=f"127.0.0.1:{port}", **where)
            assert out.splitlines() == ["on one node: no", *SAID]
    finally:
        run(*troupe, "stop", **home)


def test_nothing_but_prefixed_headers_is_installed_and_each_stands_alone(
    tmp_path: Path, prefix: Path
) -> None:
    headers = [p.relative_to(prefix / "include") for p in (prefix / "include").rglob("*.h")]
    public = sorted(str(p) for p in headers if len(p.parts) == 2)
    there = sorted(f"troupe/{p.name}" for p in (ROOT / "include" / "troupe").glob("*.h"))
    assert public == there and all(p.parts[0] == "troupe" for p in headers)
    assert len(headers) < 80  # Of more than 200 in the tree: what the templates need.
    for number, header in enumerate(public):
        source = tmp_path / f"{number}.cpp"
        source.write_text(f"#include <{header}>\nint main() {{}}\n")
        assert run("c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                   f"-I{prefix / 'include'}", str(source)) == ""


SETTINGS = """
cmake_minimum_required(VERSION 3.22)
project(settings LANGUAGES CXX)
set(before "${CMAKE_CXX_STANDARD}")
find_package(Troupe REQUIRED COMPONENTS training)
if(NOT "${CMAKE_CXX_STANDARD}" STREQUAL "${before}")
  message(FATAL_ERROR "the standard was ${before} and is ${CMAKE_CXX_STANDARD}")
endif()
add_library(old STATIC old.cpp)  # Has nothing to do with Troupe.
"""


def test_what_does_not_link_troupe_is_compiled_as_before(tmp_path: Path, prefix: Path) -> None:
    if not (prefix / "lib" / "cmake" / "Troupe" / "TroupeTorchTargets.cmake").exists():
        pytest.skip("this build has no LibTorch")
    (tmp_path / "CMakeLists.txt").write_text(SETTINGS)
    (tmp_path / "old.cpp").write_text("int old(bool b) { register int n = b; return n; }\n")
    for standard in ("", "14"):  # `register` is gone from C++17 on.
        build = str(tmp_path / f"build{standard}")
        given = [f"-DCMAKE_CXX_STANDARD={standard}"] if standard else []
        run(CMAKE, "-S", str(tmp_path), "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", *given)
        if standard:
            run(CMAKE, "--build", build)


def test_a_program_builds_with_pkg_config(tmp_path: Path, prefix: Path) -> None:
    found = {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "troupe", **found).split()
    program = tmp_path / "counter"
    run("c++", "-std=c++20", str(ROOT / "examples/counter/counter.cpp"), "-o", str(program), *flags)
    out = run(str(program), TROUPE_BIN_DIR=str(prefix / "bin"))
    assert out.splitlines() == ["on one node: yes", *SAID]


C_ONLY = """
cmake_minimum_required(VERSION 3.22)
project(sell LANGUAGES C)
find_package(Troupe REQUIRED COMPONENTS c)
add_executable(sell sell.c)
target_link_libraries(sell PRIVATE Troupe::c)
"""


def test_a_plugin_and_a_driver_in_c_build_outside_the_tree_and_run(
    tmp_path: Path, prefix: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "examples" / "plugin", source)
    build = built(source, prefix, tmp_path / "build")
    plugin = str(build / "till.so")
    out = run(str(build / "sell"), plugin, TROUPE_BIN_DIR=str(prefix / "bin"))
    sold, refused = out.splitlines()
    assert sold == "sold 3, left 7"
    assert refused.startswith("std::invalid_argument: user_error: Till::Sell threw")
    out = run(str(prefix / "bin" / "troupe-worker"), "--plugin", plugin, "--check")
    assert re.fullmatch(re.escape(plugin) + r": Troupe [\d.]+, actors Till; tasks none\n", out)
    # A project that has no C++ finds the C part by itself.
    (source / "CMakeLists.txt").write_text(C_ONLY)
    sell = built(source, prefix, tmp_path / "c") / "sell"
    assert run(str(sell), plugin, TROUPE_BIN_DIR=str(prefix / "bin")).splitlines()[0] == sold


def test_a_group_of_actors_trains_outside_the_tree(tmp_path: Path, prefix: Path) -> None:
    if not (prefix / "lib" / "cmake" / "Troupe" / "TroupeTorchTargets.cmake").exists():
        pytest.skip("this build has no LibTorch")
    source = tmp_path / "source"
    shutil.copytree(ROOT / "examples" / "train", source)
    lines = run(str(built(source, prefix, tmp_path / "build") / "train")).splitlines()
    assert len(lines) == 3 and len(set(lines)) == 1
    assert 0 < float(lines[0].removeprefix("loss ")) < 1


OVERLOADED = """
#include <troupe/troupe.h>
struct Shop {
  int Sell(int n) { return n; }
  int Sell(double price) { return static_cast<int>(price); }
  int Count() { return 0; }
};
TROUPE_ACTOR(Shop, (), Count, Sell);
"""


def test_an_overloaded_method_is_named_in_a_few_lines(tmp_path: Path, prefix: Path) -> None:
    source = tmp_path / "shop.cpp"
    source.write_text(OVERLOADED)
    include = prefix / "include"
    command = ["c++", "-std=c++20", "-fsyntax-only", f"-I{include}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode != 0
    assert "one is overloaded" in done.stderr and "Shop" in done.stderr
    assert len(done.stderr.splitlines()) < 20, done.stderr
    source.write_text(OVERLOADED.replace("  int Sell(double", "  int SellFor(double"))
    assert run(*command) == ""
