"""HOROVOD_... variables: what has a meaning is taken, Troupe's own win, the rest is ignored."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import troupe
import troupe.torch as hvd
from troupe import _horovod
from troupe._config import build_settings
from troupe.torch import _buckets

from fake_core import run_ranks

MIB = 1 << 20


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Troupe's, as it was afterwards."""
    found = logging.getLogger("troupe")
    level, handlers, propagate = found.level, list(found.handlers), found.propagate
    yield found
    found.setLevel(level)
    found.handlers[:] = handlers
    found.propagate = propagate


def test_times_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build_settings(None, {})
    for name, value in {"ELASTIC_TIMEOUT": "11", "START_TIMEOUT": "12.5",
                        "STALL_CHECK_TIME_SECONDS": "13", "STALL_SHUTDOWN_TIME_SECONDS": "0",
                        "CYCLE_TIME": "nonsense", "OF_WHICH_NOBODY_HAS_HEARD": "?"}.items():
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    made = build_settings(None, {})
    assert (made.elastic_timeout, made.start_timeout) == (11, 12.5)
    assert (made.stall_report_s, made.stall_remove_s) == (13, 0)
    assert made.driver_silence_s == plain.driver_silence_s
    said = build_settings({"start_timeout": 7}, {"elastic_timeout": 8})
    assert (said.elastic_timeout, said.start_timeout, said.stall_report_s) == (8, 7, 13)
    monkeypatch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "0")
    assert build_settings(None, {}).stall_report_s == plain.stall_report_s
    monkeypatch.setenv("HOROVOD_STALL_CHECK_DISABLE", "1")
    quiet = build_settings(None, {})
    assert quiet.stall_report_s > 24 * 3600 and quiet.stall_remove_s == 0


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf"])
def test_what_is_no_time_is_told(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", value)
    with pytest.raises(ValueError, match=f"HOROVOD_ELASTIC_TIMEOUT must be .* not '{value}'"):
        build_settings(None, {})


@pytest.mark.parametrize("given, wanted", [
    ({}, ()),
    ({"HOROVOD_FUSION_THRESHOLD": str(64 * MIB)}, (MIB, 64 * MIB)),
    ({"HOROVOD_FUSION_THRESHOLD": "0"}, (0, 0)),
    ({"HOROVOD_FUSION_THRESHOLD": "100", "TROUPE_BUCKET_BYTES": "200"}, (200, 200)),
    ({"HOROVOD_AUTOTUNE": "1", "HOROVOD_FUSION_THRESHOLD": "100"}, None),
    ({"HOROVOD_AUTOTUNE": "0", "HOROVOD_FUSION_THRESHOLD": "100"}, (100, 100)),
    ({"HOROVOD_AUTOTUNE": "1", "TROUPE_BUCKET_BYTES": "200"}, (200, 200)),
])
def test_how_gradients_are_fused(
    given: dict[str, str], wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert _buckets.bucket_limits(None) == wanted
    assert _buckets.bucket_limits(300) == (300, 300)


def test_fusion_in_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    def buckets(**kwargs: Any) -> int:
        params = [torch.nn.Parameter(torch.zeros(4)) for _ in range(5)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), **kwargs)
        return len(optimizer._reducer.buckets)

    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    assert run_ranks(1, buckets) == [5]
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
    # What keeps errors by bucket is not tuned, and is no error for that.
    assert run_ranks(1, lambda: buckets(compression=hvd.Compression.topk(0.5))) == [5]
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "much")
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "0")
    with pytest.raises(ValueError, match="HOROVOD_FUSION_THRESHOLD must be a number of bytes"):
        run_ranks(1, buckets)


@pytest.mark.parametrize("word, level", [
    ("trace", "DEBUG"), ("DEBUG", "DEBUG"), ("info", "INFO"), ("warning", "WARNING"),
    ("error", "ERROR"), ("fatal", "ERROR")])
def test_the_log_has_the_level_that_was_asked_for(
    word: str, level: str, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger.handlers.clear()
    logger.propagate = False  # As in a worker, whose root logger has no handler.
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", word)
    monkeypatch.setenv("HOROVOD_LOG_HIDE_TIME", "1")
    run_ranks(1, lambda: None)
    assert logging.getLevelName(logger.level) == level
    (handler,) = logger.handlers
    record = logging.LogRecord("troupe.elastic", logging.INFO, "", 0, "said %d", (3,), None)
    assert handler.format(record) == "I [troupe.elastic] said 3"
    run_ranks(1, lambda: None)
    assert logger.handlers == [handler]


def test_levels_and_variables_that_are_unknown(logger: logging.Logger) -> None:
    before = logger.level
    _horovod.apply_logging({"HOROVOD_LOG_LEVEL": "loud"})
    assert logger.level == before
    assert _horovod.worker_environment({"HOROVOD_LOG_LEVEL": "loud", "HOROVOD_RANK": "3"}) == {
        "HOROVOD_LOG_LEVEL": "loud"}
    traced = _horovod.worker_environment({"HOROVOD_LOG_LEVEL": "trace"})
    assert traced["TROUPE_LOG_LEVEL"] == "debug"
    assert "TROUPE_LOG_LEVEL" not in _horovod.worker_environment(
        {"HOROVOD_LOG_LEVEL": "trace", "TROUPE_LOG_LEVEL": "error"})


def test_the_documentation_has_all_that_are_read() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "horovod.md").read_text()
    sources = ((root / "pyapi" / "troupe" / name).read_text()
               for name in ("_horovod.py", "torch/_timeline.py"))
    read = {name.rstrip("_") for text in sources for name in re.findall("HOROVOD_[A-Z_]+", text)}
    assert len(read) > 10 and {name for name in read if name not in page} == set()


@pytest.mark.integration
@pytest.mark.once
@pytest.mark.timeout(120)
def test_what_the_driver_has_set_reaches_its_workers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fn() -> tuple[int, str]:
        import os

        import torch

        import troupe.torch as hvd

        hvd.init()
        params = [torch.nn.Parameter(torch.zeros(4)) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
        state: Any = hvd.elastic.ObjectState(step=0)

        @hvd.elastic.run
        def loop(state: Any) -> None:
            logging.getLogger("troupe.elastic").info("rank %d has begun", hvd.rank())

        loop(state)
        return len(optimizer._reducer.buckets), os.environ["TROUPE_LOG_LEVEL"]

    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "info")
    monkeypatch.delenv("TROUPE_LOG_LEVEL", raising=False)
    with troupe.Executor(2, cpus_per_worker=0.1, num_cpus=2, progress="off") as executor:
        assert executor.run(fn) == [(3, "info")] * 2
    shown = "".join(capfd.readouterr())
    assert "I [troupe.elastic] rank 0 has begun" in shown
