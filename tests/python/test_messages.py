"""What people read when something goes wrong, or is too large."""

from __future__ import annotations

import linecache
import sys
import traceback
import types
from collections.abc import Iterator

import pytest

from troupe import _cluster, _payload, _sources
from troupe.actors import _calls
from troupe.errors import SerializationError

CELL = "/tmp/ipykernel_1/cell.py"
CODE = "def train(n):\n    return 1 / n  # of the cell\n"


@pytest.fixture
def cell() -> Iterator[types.FunctionType]:
    """A function as a notebook defines it: its file is in linecache and nowhere else."""
    linecache.cache[CELL] = (len(CODE), None, CODE.splitlines(keepends=True), CELL)
    names: dict = {"__name__": "__main__"}
    exec(compile(CODE, CELL, "exec"), names)
    yield names["train"]
    linecache.cache.pop(CELL, None)


def test_a_traceback_on_a_worker_shows_the_lines_of_a_notebook(cell: types.FunctionType) -> None:
    envelope = _payload.load_envelope(_payload.dump_task(_payload.Task(cell, (0,), {}, 1.0)))
    linecache.cache.pop(CELL)  # The worker knows nothing of it.
    task = _payload.load_task(envelope)
    with pytest.raises(ZeroDivisionError) as caught:
        task.fn(*task.args)
    linecache.checkcache()
    text = "".join(traceback.format_exception(caught.value))
    assert "return 1 / n  # of the cell" in text


def test_a_file_that_is_there_is_not_replaced() -> None:
    _sources.register({__file__: "something else\n"})
    assert linecache.getline(__file__, 1).startswith('"""What people read')


def test_classes_and_helpers_of_main_are_sent_along_within_bounds(
    cell: types.FunctionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "helper_of_the_test", cell, raising=False)
    assert CELL in _sources.collect(print)
    assert _sources.collect(cell, 3) == {}


def test_classes_that_name_one_another_are_gone_through_once(
    cell: types.FunctionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    class Model:
        class Config:
            make = staticmethod(cell)

    class Scale(torch.autograd.Function):  # As tutorials write it; it names its backward's class.
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def, override]
            return x

    Model.again = Scale.model = Model  # type: ignore[attr-defined]
    for made in (Model, Model.Config, Scale):
        made.__module__ = "__main__"
    for name, value in (("Model", Model), ("Scale", Scale)):
        monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)
    assert CELL in _sources.collect(print)


def test_a_traceback_of_an_actor_shows_them_too(cell: types.FunctionType) -> None:
    dumped = _calls.dump_code(cell, "the cell")
    linecache.cache.pop(CELL)
    with pytest.raises(ZeroDivisionError) as caught:
        _calls.load_code(dumped)(0)
    assert "return 1 / n  # of the cell" in "".join(traceback.format_exception(caught.value))


def test_what_makes_a_function_too_large_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_payload, "RUN_BYTES_MAX", 100_000)
    data = bytes(200_000)

    def train(small: int) -> int:
        return len(data) + small

    said = r"196KiB .*variable 'data' of .*train \(a bytes, 195KiB"
    with pytest.raises(SerializationError, match=said):
        _payload.dump_task(_payload.Task(train, (1,), {}, 1.0))
    with pytest.raises(SerializationError, match=r"argument 'batch' \(a bytes"):
        _payload.dump_task(_payload.Task(print, (), {"batch": data}, 1.0))


def test_memory_is_told_in_units() -> None:
    node = {"host": "h", "resources": {"CPU": 2.0, "memory": 25276500000.0}}
    said = _cluster.explain_placement([node], {"memory": float(32 << 30)}, 1)
    assert said is not None and "memory 32GiB each" in said and "h: CPU 2, memory 23.5GiB" in said
