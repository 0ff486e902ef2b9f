"""``python -m troupe.horovod_compat``: prints what to put on PYTHONPATH."""

from __future__ import annotations

from troupe.horovod_compat import path

if __name__ == "__main__":
    print(path())
