"""``import horovod.torch as hvd`` for scripts whose import line is to stay as it is.

Nothing here takes the name ``horovod`` by itself: a real Horovod stays what is imported, until its
place is asked for. For unchanged programs the folder of the stand-in is put on the path::

    PYTHONPATH=$(python -m troupe.horovod_compat) python train.py

Within a program :func:`install` does the same.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

__all__ = ["install", "path"]


def path() -> str:
    """The folder that has the stand-in for the package ``horovod``, for PYTHONPATH."""
    return str(Path(__file__).resolve().parent / "site")


def install(replace: bool = False) -> None:
    """Makes ``import horovod.torch`` be ``troupe.torch``, here and in processes started later.

    Args:
        replace: also if a real Horovod is installed, which then cannot be imported any more.

    Raises:
        ImportError: a real Horovod is installed, or was imported already.
    """
    folder = path()
    loaded = sys.modules.get("horovod")
    if loaded is None:
        found = importlib.util.find_spec("horovod")
        origin = "" if found is None else str(found.origin)
    else:
        origin = str(getattr(loaded, "__file__", ""))
    if origin and Path(folder) in Path(origin).resolve().parents:
        return
    if loaded is not None:
        raise ImportError(
            f"horovod was imported from {origin} already; call "
            "troupe.horovod_compat.install() before the first import of it")
    if origin and not replace:
        raise ImportError(
            f"Horovod is installed ({origin}); uninstall it, import troupe.torch as hvd instead, "
            "or call troupe.horovod_compat.install(replace=True)")
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder + (os.pathsep + known if known else "")
