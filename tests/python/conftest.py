"""Unit tests run on a fake core; tests marked ``integration`` need the built one."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
if importlib.util.find_spec("troupe") is None:  # neither built nor installed: the sources
    sys.path.insert(0, str(HERE.parents[1] / "pyapi"))
for folder in (str(HERE), str(HERE.parent), str(EXAMPLES)):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import troupe  # noqa: E402 - the lines above say which

# Whatever holds the package under test; not resolved, since a build tree links to the sources.
PYAPI = Path(os.path.abspath(troupe.__file__)).parents[1]


def _core_problem() -> str:
    """Why the real core cannot be used, empty if it can."""
    try:
        importlib.import_module("troupe._core")
        return ""
    except ImportError as error:
        return str(error)


_PROBLEM = _core_problem()


def need_hosts(reason: str) -> None:
    """Leaves the test out if there is a reason why hosts cannot be made here.

    ``make test`` is not to be green without its faults: there it fails, unless that was asked for.
    """
    if not reason:
        return
    if os.environ.get("TROUPE_REQUIRE_CORE") == "1" and os.environ.get("TROUPE_SKIP_HOSTS") != "1":
        pytest.fail(f"{reason}; TROUPE_SKIP_HOSTS=1 leaves out what needs hosts")
    pytest.skip(reason)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Without the core, integration tests are deselected, unless TROUPE_REQUIRE_CORE=1."""
    if not _PROBLEM or os.environ.get("TROUPE_REQUIRE_CORE") == "1":
        return
    kept = [item for item in items if item.get_closest_marker("integration") is None]
    dropped = [item for item in items if item not in kept]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        config.troupe_dropped = len(dropped)
        items[:] = kept


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    dropped = getattr(config, "troupe_dropped", 0)
    if dropped:
        terminalreporter.write_line(
            f"{dropped} integration tests deselected: troupe._core cannot be imported ({_PROBLEM})"
        )


@pytest.fixture(autouse=True, scope="session")
def _journals_of_tests(tmp_path_factory: Any) -> Iterator[None]:
    """What `troupe up` keeps does not come into the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def mark(request: Any) -> Iterator[str]:
    """Of the processes that a test starts: none of them is left when it is over."""
    from processes import assert_nothing_left

    name = f"{os.getpid()}-{request.node.name}"
    yield name
    assert_nothing_left(name)


@pytest.fixture(autouse=True)
def _core_for_test(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unit tests get the fake core in place of the real one."""
    if request.node.get_closest_marker("integration") is not None:
        yield
        return
    from troupe import _cluster

    import fake_driver

    module = fake_driver.build_module()
    monkeypatch.setitem(sys.modules, "troupe._core", module)
    monkeypatch.setattr(troupe, "_core", module, raising=False)
    # Ranks are threads here. torch lets a collection look into the tensors of another thread that
    # is in backward without the GIL, and crashes; a real rank is a process with one such thread.
    gc.disable()
    yield
    gc.enable()
    _cluster.shutdown_all()
