"""What a spare worker imports while it waits, and for whom."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

import pytest

from troupe import _payload, worker

from conftest import PYAPI


class Waiting:
    """A native worker that is handed what the test says, and keeps the limits of the waits."""

    def __init__(self, *assignments: Optional[dict[str, Any]]) -> None:
        self.assignments = list(assignments)
        self.limits: list[float] = []

    def should_exit(self) -> bool:
        return not self.assignments

    def wait_assignment(self, timeout_s: float) -> Optional[dict[str, Any]]:
        self.limits.append(timeout_s)
        return self.assignments.pop(0)


SPARE = {"payload": b"", "preload": []}
WORK = {"payload": b"work", "preload": []}


def test_a_spare_looks_for_work_between_late_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("late_a", "late_b"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(worker, "late_modules", lambda: ["late_a", "late_b"])
    waiting = Waiting(SPARE, None, WORK)
    assert worker._await_assignment(waiting) is WORK
    assert "late_a" in sys.modules and "late_b" not in sys.modules
    assert waiting.limits == [worker._WAIT_SLICE_S, 0.0, 0.0]


def test_when_all_is_imported_a_spare_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "late_modules", lambda: ["json"])
    waiting = Waiting(SPARE, None, None, WORK)
    assert worker._await_assignment(waiting) is WORK
    assert waiting.limits == [worker._WAIT_SLICE_S, 0.0, worker._WAIT_SLICE_S,
                              worker._WAIT_SLICE_S]


def test_work_that_is_not_for_a_spare_imports_nothing_late(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "late_modules", lambda: pytest.fail("asked"))
    assert worker._await_assignment(Waiting(WORK)) is WORK


def test_without_torch_nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert worker.late_modules() == []


def test_the_first_step_finds_everything_imported() -> None:
    code = (
        "import sys, importlib, torch\n"
        "from troupe.worker import late_modules, preload\n"
        "late = late_modules()\n"
        "assert bool(late) == (int(torch.__version__.split('.')[0]) >= 2), late\n"
        "preload(late)\n"
        "before = set(sys.modules)\n"
        "p = torch.nn.Linear(2, 2)\n"
        "o = torch.optim.Adam(p.parameters())\n"
        "p(torch.ones(1, 2)).sum().backward()\n"
        "o.step()\n"
        "after = {n for n in set(sys.modules) - before if n.startswith(('torch._', 'sympy'))}\n"
        "assert len(after) < 5, sorted(after)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True,
                   env={"PYTHONPATH": str(PYAPI), "PATH": "/usr/bin"})


def test_torch_is_found_in_the_code_of_the_function() -> None:
    def plain() -> int:
        return len([str(i) for i in range(3)])

    def direct() -> Any:
        import torch

        return torch.ones(1)

    def part() -> Any:
        from torch.nn import Linear

        return Linear(1, 1)

    def ours() -> Any:
        import troupe.torch as hvd

        return hvd.init()

    def nested() -> Any:
        def inner() -> Any:
            import torch

            return torch

        return inner()

    class Callable:
        def __call__(self) -> None: ...

        def method(self) -> Any:
            import torch

            return torch

    assert not _payload.mentions(plain, "torch")
    assert not _payload.mentions(Callable(), "torch")
    for fn in (direct, part, ours, nested, functools.partial(direct), Callable().method):
        assert _payload.mentions(fn, "torch"), fn
