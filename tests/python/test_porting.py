"""docs/porting-from-ray.md: what it says is here is here, and it leaves out no name of Ray's."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import PYAPI

ROOT = Path(__file__).resolve().parents[2]
RAY_PYTHON = ROOT / ".third_party" / "ray" / "bin" / "python"  # `make bench-ray` makes it.
pytestmark = [pytest.mark.once, pytest.mark.venv_only]

# Names that a module of Ray has for its users, with their parameters: its __all__, else the classes
# and functions that it defines.
RAY_NAMES = """
import importlib, inspect, json, sys

def parameters(thing):
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]

found = {}
for name in json.loads(sys.argv[1]):
    try:
        thing = importlib.import_module(name)
    except ImportError:
        module, _, attribute = name.rpartition(".")
        thing = getattr(importlib.import_module(module), attribute)
    defined = [n for n, v in vars(thing).items() if not n.startswith("_") and (
        inspect.isclass(thing) or (inspect.isclass(v) or inspect.isroutine(v))
        and v.__module__ == name)]
    public = getattr(thing, "__all__", None) or defined
    found[name] = {n: parameters(vars(thing).get(n)) for n in public}  # Imports nothing more.
print(json.dumps(found))
"""


def script() -> Any:
    spec = importlib.util.spec_from_file_location("porting", ROOT / "scripts" / "porting.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


DATA = script().load()
ENTRIES = [pytest.param(about, id=f"{module['ray']}.{name}")
           for module in DATA["module"] for name, about in module["names"].items()]


def found(path: str) -> Any:
    """What a dotted path leads to."""
    names = path.split(".")
    for count in range(len(names), 0, -1):
        try:
            thing = importlib.import_module(".".join(names[:count]))
        except ImportError:
            continue
        for name in names[count:]:
            thing = getattr(thing, name)
        return thing
    raise AssertionError(f"nothing of {path} can be imported")


@pytest.mark.parametrize("about", ENTRIES)
def test_a_name_is_here_with_its_arguments_or_says_what_to_do(about: dict[str, str]) -> None:
    assert set(about) <= {"here", "takes", "positional", "lacks", "note"}
    if "here" not in about:
        assert about["note"].endswith(".")
        return
    thing = found(about["here"])
    if not about.keys() & {"takes", "positional", "lacks"}:
        return
    arguments = set(thing if isinstance(thing, tuple) else inspect.signature(thing).parameters)
    assert set(about.get("takes", "").split()) <= arguments
    assert not set(about.get("lacks", "").split()) & arguments
    assert not set(about.get("positional", "").split()) & arguments


def test_one_import_line_is_enough() -> None:
    """As after `import ray`: its modules are there, and nothing heavy is."""
    code = ("import sys, troupe as ray\n"
            "ray.exceptions.RayError, ray.util.ActorPool, ray.actor.exit_actor\n"
            "ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy, ray.util.queue.Queue\n"
            "print([name for name in ('numpy', 'torch') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE,
                          timeout=60, env={**os.environ, "PYTHONPATH": str(PYAPI)})
    assert done.stdout.decode().strip() == "[]"


def test_the_page_is_that_of_the_data() -> None:
    made = script()
    page = made.PAGE.read_text(encoding="utf-8")
    assert page == made.page(DATA), "run `python scripts/porting.py`"


def ray_is_installed() -> bool:
    spec = importlib.util.find_spec("ray")  # examples/ray is a folder without an origin.
    return spec is not None and spec.origin is not None


@pytest.mark.skipif(
    not ray_is_installed() and not RAY_PYTHON.exists(),
    reason="Ray is not installed; `make bench-ray` installs it")
def test_no_name_of_ray_is_left_out() -> None:
    python = str(RAY_PYTHON) if RAY_PYTHON.exists() else sys.executable
    modules = {module["ray"]: module["names"] for module in DATA["module"]
               if " " not in module["ray"]}
    done = subprocess.run([python, "-c", RAY_NAMES, json.dumps(list(modules))], check=True,
                          stdout=subprocess.PIPE, timeout=120)
    for name, public in json.loads(done.stdout).items():
        assert set(public) == set(modules[name]), name
        for each, parameters in public.items():
            about = modules[name][each]
            told = [about[key] for key in ("takes", "positional", "lacks") if key in about]
            if told and parameters:  # Without any it takes what it takes as **options.
                assert set(" ".join(told).split()) == set(parameters), f"{name}.{each}"
