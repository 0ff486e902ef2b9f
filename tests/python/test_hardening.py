"""What the built programs and libraries are protected by, as the ELF files say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from troupe._cluster import find_bin_dir

BIN = Path(find_bin_dir())
PROGRAMS = ["troupe-head", "troupe-node", "troupe-local", "troupe-guard", "troupe-worker"]
LIBRARIES = ["lib/libtroupe_c.so", "python/troupe/_core*.so"]

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf"),
    pytest.mark.skipif(not os.access(BIN / "troupe-head", os.X_OK), reason="nothing is built"),
]


def files() -> list[Path]:
    found = [BIN / name for name in PROGRAMS]
    for pattern in LIBRARIES:
        found += [path for path in BIN.parent.glob(pattern) if not path.is_symlink()][:1]
    return found


def readelf(path: Path, *flags: str) -> str:
    return subprocess.run(["readelf", "-W", *flags, str(path)], capture_output=True, text=True,
                          check=True, timeout=60).stdout


@pytest.fixture(scope="module", autouse=True)
def plain_build() -> None:
    """Sanitizers bring checks of their own, and do without these."""
    if "libasan" in readelf(BIN / "troupe-head", "-d") or "libtsan" in readelf(
            BIN / "troupe-head", "-d"):
        pytest.skip("a build with sanitizers")


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_it_is_hardened(path: Path) -> None:
    assert re.search(r"Type:\s+DYN", readelf(path, "-h")), "not position independent"
    segments = readelf(path, "-l")
    assert "GNU_RELRO" in segments
    stack = re.search(r"GNU_STACK.*", segments)
    assert stack is not None and "RWE" not in stack[0], "an executable stack"
    assert "NOW" in readelf(path, "-d"), "the table of addresses stays writable"
    symbols = readelf(path, "--dyn-syms")
    assert "__stack_chk_fail" in symbols
    if path.name != "troupe-guard" and os.environ.get("PRESET") != "coverage":  # Unoptimized.
        assert re.search(r"__(mem\w+|str\w+|\w*printf|read|recv\w*|poll)_chk", symbols)
