"""What a spare worker imports while it waits, and for whom."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Optional

import pytest

from troupe import _payload, worker

from conftest import PYAPI


class Spare:
    """A spare in this process: its standard input is a pipe that the test writes to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, late: list[str]) -> None:
        for name in ("early", *late):
            (tmp_path / f"{name}.py").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(worker, "late_modules", lambda: list(late))
        monkeypatch.setattr(worker, "preload", self._preload)
        self.imported: list[str] = []
        self.give_after = ""
        read, self._write = os.pipe()
        self._saved = os.dup(0)
        os.dup2(read, 0)
        os.close(read)
        monkeypatch.setattr(sys, "stdin", os.fdopen(os.dup(0)))

    def _preload(self, modules: list[str]) -> None:
        self.imported += modules
        if self.give_after in modules:
            self.give()

    def give(self) -> None:
        os.write(self._write, b"TROUPE_TEST_NAME=p1\0")
        os.close(self._write)

    def end(self) -> None:
        os.dup2(self._saved, 0)
        os.close(self._saved)


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Spare]:
    monkeypatch.setenv("TROUPE_TEST_NAME", "")
    made = Spare(monkeypatch, tmp_path, ["late_a", "late_b"])
    yield made
    made.end()


def test_a_spare_looks_for_work_between_late_modules(spare: Spare) -> None:
    spare.give_after = "late_a"
    assert worker.await_variables(["early", "there_is_no_such_module"])
    assert "early" in sys.modules
    assert spare.imported == ["late_a"]
    assert os.environ["TROUPE_TEST_NAME"] == "p1"


def test_work_that_is_there_already_is_not_kept_waiting(spare: Spare) -> None:
    spare.give()
    assert worker.await_variables([])
    assert spare.imported == []


def test_when_all_is_imported_a_spare_waits(spare: Spare) -> None:
    spare.give_after = "late_b"
    assert worker.await_variables([])
    assert spare.imported == ["late_a", "late_b"]


def test_a_worker_imports_what_its_work_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "late_modules", lambda: pytest.fail("asked"))
    work = {"payload": b"work", "preload": ["wave"], "env": {"TROUPE_TEST_NAME": "mine"}}

    class Waiting:
        assignments: ClassVar[list[Optional[dict[str, Any]]]] = [None, work]

        def should_exit(self) -> bool:
            return not self.assignments

        def wait_assignment(self, timeout_s: float) -> Optional[dict[str, Any]]:
            return self.assignments.pop(0)

    monkeypatch.setenv("TROUPE_TEST_NAME", "")
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    assert worker._await_assignment(Waiting()) is work
    assert "wave" in sys.modules and os.environ["TROUPE_TEST_NAME"] == "mine"
    assert worker._await_assignment(Waiting()) is None


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
