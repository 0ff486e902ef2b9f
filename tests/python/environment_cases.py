"""Actors and tasks of the tests of runtime environments; in a module, for workers to import."""

from __future__ import annotations

import importlib
import os
from typing import Any

import troupe


def around(module: str = "") -> tuple[str, dict[str, str], Any]:
    """The files of the working directory, some variables, and what a module says."""
    names = {name: os.environ[name] for name in ("COLOUR", "SHAPE") if name in os.environ}
    says = importlib.import_module(module).VALUE if module else None
    return ",".join(sorted(os.listdir())), names, says


@troupe.remote(num_cpus=0.01)
def look(module: str = "") -> tuple[str, dict[str, str], Any]:
    return around(module)


@troupe.remote(num_cpus=0.01)
def look_further(module: str = "") -> Any:
    return troupe.get(look.remote(module))


@troupe.remote(num_cpus=0.01, max_restarts=1)
class Looker:
    def look(self, module: str = "") -> tuple[str, dict[str, str], Any]:
        return around(module)

    def hire(self) -> Any:
        return troupe.get(Looker.remote().look.remote("helper"))

    def die(self) -> None:
        os._exit(1)
