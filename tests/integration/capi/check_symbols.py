#!/usr/bin/env python3
"""Checks that a shared library exports exactly the functions that a header of C declares.

Usage: check_symbols.py LIBRARY HEADER
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def declared(header: Path) -> set[str]:
    """Functions that are declared to be exported; macros that users expand do not count."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    text = re.sub(r"^#.*?(?<!\\)$", "", text, flags=re.DOTALL | re.MULTILINE)
    return set(re.findall(r"TROUPE_C_EXPORT[^;(]*?(\w+)\(", text))


def exported(library: Path) -> set[str]:
    """Symbols of the library that others can see."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout
    return {line.split()[0].split("@")[0] for line in listed.splitlines()}


def main() -> int:
    library, header = Path(sys.argv[1]), Path(sys.argv[2])
    wanted, found = declared(header), exported(library)
    for name in sorted(wanted - found):
        print(f"{library.name} lacks {name}, which {header.name} declares")
    for name in sorted(found - wanted):
        print(f"{library.name} exports {name}, which {header.name} does not declare")
    print(f"{len(found)} symbols")
    return 0 if wanted == found and wanted else 1


if __name__ == "__main__":
    sys.exit(main())
