"""The listings of C++ and CMake in README.md and docs: each is compiled as it is written, and run.

tests/listings is a project outside of the tree; its files say where which listing belongs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pages import BLOCKS, BUILT, ROOT, Block
from processes import free_port
from test_integration_cpp_package import CMAKE, prefix, run

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.venv_only,
              pytest.mark.timeout(400)]

__all__ = ["prefix"]  # The fixture of an installed Troupe.
PLACE = re.compile(r"^\s*(?://|#) @listing (\S+) (\d+)\n", re.MULTILINE)
LANGUAGE = {".cpp": "cpp", ".cmake": "cmake"}
FILES = sorted((ROOT / "tests" / "listings").iterdir())


def listing(page: str, language: str, number: int) -> Block:
    """The block of that number, from 1, of those in this language on the page."""
    found = [b for b in BLOCKS if b.page == ROOT / page and b.language == language]
    return found[number - 1]


def places() -> Iterator[tuple[Path, str, int]]:
    for path in FILES:
        for page, number in PLACE.findall(path.read_text()):
            yield path, page, int(number)


def test_each_listing_is_built_once() -> None:
    built = Counter(listing(page, LANGUAGE[path.suffix], number).name
                    for path, page, number in places())
    assert built == Counter(b.name for b in BLOCKS if b.language in BUILT)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, prefix: Path) -> Path:
    """What the listings build, with the plugin where their /opt/shop is."""
    source, build = tmp_path_factory.mktemp("listings"), tmp_path_factory.mktemp("built")
    for path in FILES:
        language = LANGUAGE[path.suffix]
        whole = PLACE.sub(lambda at, of=language: listing(at[1], of, int(at[2])).text,
                          path.read_text())
        (source / path.name).write_text(whole.replace("/opt/shop", str(build)))
    (source / "listings.cmake").rename(source / "CMakeLists.txt")
    shutil.copy(ROOT / "examples" / "plugin" / "sell.c", source)
    parts = [(ROOT / "tests" / "integration" / "capi" / name).read_text()
             for name in ("packing.h", "tally.h", "packing.c", "tally.c", "tally_plugin.c")]
    whole = re.sub(r'#include "tests.*\n|#pragma once\n', "", "".join(parts))
    (source / "tally.c").write_text(whole)  # One source, as the listing has it.
    run(CMAKE, "-S", str(source), "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}")
    done = subprocess.run([CMAKE, "--build", str(build)], capture_output=True, text=True,
                          timeout=350)
    assert done.returncode == 0, done.stdout + done.stderr
    return build


def test_a_group_trains(build: Path) -> None:
    if not (build / "group").exists():
        pytest.skip("this build has no LibTorch")
    run(str(build / "group"))


def test_a_plugin_is_used(build: Path, prefix: Path) -> None:
    assert run(str(build / "shop")) == "7 left, then 9; 144\n"
    plugin = str(build / "tally.so")
    worker = str(prefix / "bin" / "troupe-worker")
    assert "tally" in run(worker, "--plugin", plugin, "--check").lower()
    (block,) = (b for b in BLOCKS if b.marker == "with the plugin")
    program = ("import troupe\n" + block.text.replace("/opt/shop", str(build)) +
               "print(troupe.get(till.Sell.remote(3)))\n")
    assert run(sys.executable, "-c", program) == "7\n"


MODEL = """
import subprocess, sys, troupe

troupe.init(address=sys.argv[1])

@troupe.remote
class Model:
    def loss(self, values):
        return sum(values) / 2

model = Model.options(name="model").remote()
troupe.get(model.loss.remote([0]))
subprocess.run(sys.argv[2:], check=True)
"""


def test_a_driver_has_a_group_and_an_actor_of_python(build: Path, tmp_path: Path) -> None:
    home = {"TROUPE_HOME": str(tmp_path / "home")}
    address = f"127.0.0.1:{free_port()}"
    command = (sys.executable, "-m", "troupe")
    run(*command, "start", "--head", "--host", "127.0.0.1", "--port", address.partition(":")[2],
        "--num-cpus", "16", **home)
    try:
        said = run(sys.executable, "-c", MODEL, address, str(build / "fleet"),
                   TROUPE_ADDRESS=address, **home)
    finally:
        run(*command, "stop", **home)
    # The run begins once min_size members are there, and has the results of who entered it.
    assert re.fullmatch(r"[2-6] members, loss 1.5\n", said)
