"""Executor on real processes: results, errors, Ctrl-C, a killed driver; nothing is left."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import troupe

from conftest import PYAPI
from processes import MARK, Script, assert_nothing_left, marked

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def executor() -> Any:
    """One small cluster for the tests that leave it whole."""
    with troupe.Executor(3, cpus_per_worker=0.1, num_cpus=2, progress="off") as made:
        yield made


@pytest.fixture
def mark(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Marks every process that this test starts."""
    value = f"{os.getpid()}-{request.node.name}"
    monkeypatch.setenv(MARK, value)
    return value


def test_results_by_rank_and_environment(executor: troupe.Executor) -> None:
    def fn(base: int, step: int = 1) -> tuple:
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        horovod = tuple(int(os.environ[f"HOROVOD_{n}"]) for n in names)
        assert horovod == tuple(int(os.environ[f"TROUPE_{n}"]) for n in names)
        torchs = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        assert horovod[:4] == tuple(int(os.environ[n]) for n in torchs)
        assert os.environ["OMP_NUM_THREADS"] == "1"
        store = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        return (base + step * horovod[0], horovod, os.getpid(), store)

    results = executor.run(fn, (100,), {"step": 2})
    assert [r[0] for r in results] == [100, 102, 104]
    assert [r[1] for r in results] == [(i, 3, i, 3, 0, 1) for i in range(3)]
    assert len({r[2] for r in results} | {os.getpid()}) == 4
    ((address, port),) = {r[3] for r in results}
    assert address == "127.0.0.1" and port > 0


def test_a_worker_sees_the_gpus_that_it_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also on a host that was itself given some, and after a death."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-five,6")

    def visible() -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    def visible_after_a_death(folder: str) -> str:
        import troupe.torch as hvd

        @hvd.elastic.run
        def train(state: Any) -> str:
            while hvd.epoch() == 1 or hvd.size() < 3:
                state.step += 1
                state.commit()
                if state.step == 3 and hvd.rank() == 1 and hvd.epoch() == 1:
                    Path(folder, "died").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
                    os._exit(1)
            return os.environ["CUDA_VISIBLE_DEVICES"]

        hvd.init()
        return str(train(hvd.elastic.ObjectState(step=0)))

    options = {"cpus_per_worker": 0.1, "num_cpus": 2, "num_gpus": 3, "progress": "off"}
    with troupe.Executor(3, 3, gpus_per_worker=1, **options) as one_each:
        assert sorted(one_each.run(visible)) == ["4", "6", "GPU-five"]
    with troupe.Executor(2, 3, gpus_per_worker=1, **options) as elastic:
        seen = elastic.run(visible_after_a_death, (str(tmp_path),))
        assert sorted(seen) == ["4", "6", "GPU-five"]
        assert (tmp_path / "died").read_text() in ("4", "GPU-five", "6")
    with troupe.Executor(3, 3, gpus_per_worker=0.5, **options) as halves:
        seen = halves.run(visible)
        assert len(set(seen)) == 2 and set(seen) <= {"4", "GPU-five", "6"}
    # Nothing is taken from who has asked for nothing.
    with troupe.Executor(3, 3, **options) as none:
        assert none.run(visible) == ["4,GPU-five,6"] * 3


def test_collectives(executor: troupe.Executor) -> None:
    def fn() -> list:
        import torch

        import troupe.torch as hvd

        hvd.init()
        r = hvd.rank()
        out = []
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32,
                      torch.int64, torch.uint8):
            x = torch.arange(1000).remainder(7).to(dtype) + r
            out.append(hvd.allreduce(x, op=hvd.Sum).double().sum().item())
            out.append(hvd.allreduce(x, op=hvd.Max).double().sum().item())
        out.append(hvd.allgather(torch.full((r, 2), float(r))).tolist())
        out.append(hvd.broadcast(torch.tensor([float(r)]), 2).item())
        out.append(hvd.allgather_object({"rank": r}))
        big = torch.full((1 << 20,), float(r + 1))
        out.append(float(hvd.allreduce_(big, op=hvd.Sum).min()))
        hvd.barrier()
        return out

    results = executor.run(fn)
    assert results[0] == results[1] == results[2]
    base = sum(i % 7 for i in range(1000))
    assert results[0][:14] == [3 * base + 3000, base + 2000] * 7
    assert results[0][14:] == [[[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]], 2.0,
                               [{"rank": i} for i in range(3)], 6.0]


def test_mismatch_is_an_error(executor: troupe.Executor) -> None:
    def fn() -> None:
        import torch

        import troupe.torch as hvd

        hvd.init()
        hvd.allreduce(torch.ones(3 + hvd.rank()))

    sides = r"disagree.*rank 0: allreduce float32\[3\].*rank 2: allreduce float32\[5\]"
    with pytest.raises(troupe.WorkerError, match=sides):
        executor.run(fn)


def test_an_exception_names_rank_host_and_place(executor: troupe.Executor) -> None:
    def fn() -> None:
        if os.environ["TROUPE_RANK"] == "1":
            raise LookupError("nothing here")
        threading.Event().wait(60)

    with pytest.raises(troupe.WorkerError, match="LookupError on rank 1 .*nothing here") as info:
        executor.run(fn)
    error = info.value
    assert error.rank == 1 and error.host and isinstance(error.__cause__, LookupError)
    assert 'raise LookupError("nothing here")' in error.remote_traceback


def test_unpicklable_results_and_sys_exit(executor: troupe.Executor) -> None:
    with pytest.raises(troupe.WorkerError, match="return value"):
        executor.run(threading.Lock)

    def leave() -> None:
        raise SystemExit(5)

    with pytest.raises(troupe.WorkerError, match=r"sys.exit\(5\)"):
        executor.run(leave)


def test_a_module_that_workers_lack(executor: troupe.Executor) -> None:
    import sys

    module = type(sys)("module_of_the_driver_only")
    exec("def fn(): return 1", module.__dict__)
    sys.modules[module.__name__] = module
    try:
        with pytest.raises(troupe.WorkerError, match="importable on every worker") as info:
            executor.run(module.fn)
        assert info.value.exc_type in ("ModuleNotFoundError", "ImportError")
    finally:
        del sys.modules[module.__name__]


def test_reports_and_logs(executor: troupe.Executor, capfd: pytest.CaptureFixture) -> None:
    def fn() -> None:
        import sys

        print("to stdout")
        print("to stderr", file=sys.stderr)
        for i in range(3):
            troupe.report((int(os.environ["TROUPE_RANK"]), i))

    got: list[Any] = []
    executor.run(fn, callbacks=[got.append])
    for rank in range(3):
        assert [i for r, i in got if r == rank] == [0, 1, 2]
    captured = capfd.readouterr()
    for rank in range(3):
        assert any(line.startswith(f"[{rank} ") and line.endswith("] to stdout")
                   for line in captured.out.splitlines())
        assert any(line.startswith(f"[{rank} ") and line.endswith("] to stderr")
                   for line in captured.err.splitlines())


def test_impossible_resources(executor: troupe.Executor) -> None:
    with troupe.Executor(1, cpus_per_worker=64, num_cpus=2, progress="off") as other:
        with pytest.raises(troupe.PlacementError, match="CPU 64"):
            other.run(os.getpid)


def test_a_full_disk_for_logs_stops_nothing(tmp_path: Path) -> None:
    for name in ("local.log", "head.log", "head.out", "node.log", "node.out", "redis.log"):
        (tmp_path / name).symlink_to("/dev/full")  # every write there fails with ENOSPC
    with troupe.Executor(2, cpus_per_worker=0.1, num_cpus=2, progress="off",
                         log_dir=str(tmp_path)) as executor:
        assert executor.run(lambda: 5) == [5, 5]


def test_an_unwritable_log_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    executor = troupe.Executor(1, progress="off", log_dir=str(tmp_path / "file" / "logs"))
    with pytest.raises(troupe.TroupeError, match=r"cannot write logs into .*file/logs: Not a dir"):
        executor.start()


def test_a_second_executor_and_other_threads(executor: troupe.Executor) -> None:
    results: dict[str, Any] = {}

    def use(name: str, chosen: troupe.Executor) -> None:
        results[name] = chosen.run(lambda: os.environ["TROUPE_RANK"])

    with troupe.Executor(2, cpus_per_worker=0.1, num_cpus=2, progress="off") as second:
        threads = [threading.Thread(target=use, args=("a", executor)),
                   threading.Thread(target=use, args=("b", second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert results == {"a": ["0", "1", "2"], "b": ["0", "1"]}
    assert executor.run(lambda: 1) == [1, 1, 1]


def test_cancel_ends_the_workers(executor: troupe.Executor) -> None:
    pids: list[int] = []
    all_there = threading.Event()

    def on_event(event: dict) -> None:
        if event["kind"] == "report":
            pids.append(event["value"])
            if len(pids) == 3:
                all_there.set()

    def fn() -> None:
        troupe.report(os.getpid())
        threading.Event().wait(120)

    from processes import wait_gone

    handle = executor.submit(fn, on_event=on_event)
    assert all_there.wait(60)
    handle.cancel()
    with pytest.raises(troupe.RunCancelled):
        handle.result(30)
    assert not wait_gone(pids, 20)


DRIVER = """
import os, threading, sys
import troupe

def fn():
    troupe.report(os.getpid())
    threading.Event().wait(120)

def seen(value):
    counts.append(value)
    if len(counts) == 2:
        print("RUNNING", *counts, flush=True)

counts = []
try:
    print("STARTING", flush=True)
    executor = troupe.Executor(2, cpus_per_worker=0.1, num_cpus=2, progress="off").start()
    print("STARTED", flush=True)
    executor.run(fn, callbacks=[seen])
except KeyboardInterrupt:
    print("INTERRUPTED", flush=True)
    sys.exit(130)
"""


@pytest.mark.parametrize("phase", ["STARTING", "STARTED", "RUNNING"])
def test_ctrl_c_in_any_phase(phase: str, tmp_path: Path, mark: str) -> None:
    with Script(tmp_path / "driver.py", DRIVER, mark, str(PYAPI)) as driver:
        driver.read_until(phase)
        driver.kill(signal.SIGINT)
        assert driver.wait(60) == 130, driver.lines
        assert "INTERRUPTED" in driver.lines
    assert_nothing_left(mark)


def test_a_killed_driver_leaves_nothing(tmp_path: Path, mark: str) -> None:
    with Script(tmp_path / "driver.py", DRIVER, mark, str(PYAPI)) as driver:
        workers = [int(p) for p in driver.read_until("RUNNING").split()[1:]]
        before = marked(mark)
        assert set(workers) <= set(before) and len(before) >= 5  # redis, head and node too
        driver.kill(signal.SIGKILL)
        driver.process.wait(20)
    assert_nothing_left(mark, 30)


def test_a_normal_end_leaves_nothing(tmp_path: Path, mark: str) -> None:
    code = ("import troupe\n"
            "e = troupe.Executor(2, cpus_per_worker=0.1, num_cpus=2, progress='off')\n"
            "print(e.run(lambda: 7), flush=True)\n")  # no shutdown: atexit does it
    with Script(tmp_path / "driver.py", code, mark, str(PYAPI)) as driver:
        assert driver.wait(60) == 0, driver.lines
        assert "[7, 7]" in driver.lines
    assert_nothing_left(mark)


def test_a_forked_child_does_no_harm(executor: troupe.Executor) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        ok = b"0"
        try:
            executor.run(os.getpid)
        except troupe.TroupeError as error:
            ok = b"1" if "forked" in str(error) else b"0"
        os.write(write, ok)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"1"
    os.waitpid(pid, 0)
    assert executor.run(lambda: 1) == [1, 1, 1]
