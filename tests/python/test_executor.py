"""Executor and RunHandle on a fake driver: results, errors, arguments, Ctrl-C, fork, sharing."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe import _payload

import fake_core
import fake_driver
from conftest import PYAPI


def rank_of() -> int:
    import troupe.torch as hvd

    hvd.init()
    return hvd.rank()


def test_import_is_light() -> None:
    code = ("import sys, troupe, troupe.cli, troupe.worker\n"
            "assert not {'torch', 'numpy', 'rich', 'yaml'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(PYAPI)})


def test_results_come_by_rank_and_closures_travel() -> None:
    offset = 10
    with troupe.Executor(3) as executor:
        assert executor.run(lambda x, y=0: rank_of() + offset + x + y, (100,), {"y": 1000}) == [
            1110, 1111, 1112]
        assert executor.execute(rank_of) == [0, 1, 2]


def test_handle_reports_status_workers_epochs_and_events() -> None:
    seen: list[dict[str, Any]] = []
    with troupe.Executor(2, name="mine") as executor:
        handle = executor.submit(rank_of, on_event=seen.append)
        assert handle.result(timeout=20) == [0, 1]
        assert handle.done() and handle.status()["state"] == "succeeded"
        assert [w["rank"] for w in handle.workers()] == [0, 1]
        assert [(e["epoch"], e["size"]) for e in handle.epochs()] == [(1, 2)]
        kinds = [e["kind"] for e in handle.events()]
        assert kinds[-1] == "done" and kinds.count("result") == 2
        assert [e["kind"] for e in seen] == kinds
        assert "mine" in repr(handle) and executor.running == []


def test_what_deaths_have_cost_is_summed() -> None:
    with troupe.Executor(1) as executor:
        handle = executor.submit(rank_of)
        handle.result(timeout=20)
        assert set(handle.recovery().values()) == {0}
        for replayed, recomputed, samples in ((1, 0, 32), (0, 2, 0)):
            handle._dispatch({"kind": "recovered", "steps_replayed": replayed, "message": "",
                              "steps_recomputed": recomputed, "samples_returned": samples})
    assert handle.recovery() == {
        "steps_replayed": 1, "steps_recomputed": 2, "samples_returned": 32}


def test_reports_reach_callbacks_in_order_and_bad_callbacks_do_no_harm() -> None:
    def fn() -> None:
        for i in range(5):
            troupe.report({"i": i})

    got: list[Any] = []

    def bad(value: Any) -> None:
        raise RuntimeError("callback")

    with troupe.Executor(1) as executor:
        executor.run(fn, callbacks=[bad, got.append])
    assert got == [{"i": i} for i in range(5)]


def test_report_outside_of_a_worker() -> None:
    with pytest.raises(troupe.NotInWorkerError, match="inside a function"):
        troupe.report(1)


class Custom(Exception):
    def __init__(self, message: str, extra: int) -> None:
        super().__init__(message)
        self.extra = extra

    def __reduce__(self) -> Any:
        return (Custom, (self.args[0], self.extra))


class Unpicklable(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


def test_an_exception_names_rank_host_and_place() -> None:
    def fn() -> None:
        if rank_of() == 1:
            raise Custom("broken", 7)
        import troupe.torch as hvd
        hvd.barrier()

    with troupe.Executor(2) as executor:
        with pytest.raises(troupe.WorkerError, match="broken") as info:
            executor.run(fn)
    error = info.value
    assert (error.rank, error.host, error.worker, error.exc_type) == (1, "fake", "w1", "Custom")
    assert isinstance(error.__cause__, Custom) and error.__cause__.extra == 7
    assert 'raise Custom("broken", 7)' in str(error) and "worker.py" not in error.remote_traceback
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.rank == 1


def test_an_unpicklable_exception_becomes_text() -> None:
    def fn() -> None:
        raise Unpicklable("with a lock")

    with troupe.Executor(1) as executor:
        with pytest.raises(troupe.WorkerError, match="Unpicklable on rank 0.*with a lock") as info:
            executor.run(fn)
    assert info.value.__cause__ is None and "raise Unpicklable" in info.value.remote_traceback


def test_sys_exit_and_unpicklable_result() -> None:
    with troupe.Executor(1) as executor:
        with pytest.raises(troupe.WorkerError, match=r"sys.exit\(3\)"):
            executor.run(lambda: sys.exit(3))
        with pytest.raises(troupe.WorkerError, match="return value.*lock"):
            executor.run(threading.Lock)


def test_a_module_that_is_missing_on_the_worker() -> None:
    module = type(sys)("only_here")
    exec("def fn(): return 1", module.__dict__)
    sys.modules["only_here"] = module
    try:
        with troupe.Executor(1) as executor:
            payload = _payload.dump_task(_payload.Task(module.fn, (), {}, 1.0))
            del sys.modules["only_here"]
            envelope = pickle.loads(payload)
            with pytest.raises(ImportError):
                _payload.load_task(envelope)
            from troupe import worker

            cluster = fake_core.FakeCluster(1)
            ok, result = worker.run_assignment(
                fake_core.FakeWorker(cluster.add("w")), {"payload": payload, "index": 0}, False
            )
            outcome = pickle.loads(result)
            assert not ok and "cannot load fn on fake" in outcome.message
            assert "importable on every worker" in outcome.message
            assert executor.run(lambda: 1) == [1]
    finally:
        sys.modules.pop("only_here", None)


@pytest.mark.parametrize("kind", ["closure", "nested", "default", "argument", "keyword", "partial",
                                  "method", "inside", "attribute"])
def test_what_cannot_be_pickled_is_named(kind: str) -> None:
    lock = threading.Lock()
    table = {"a": [1, lock]}

    class Holder:
        def __init__(self) -> None:
            self.guard = lock

        def call(self) -> None:
            return None

    holder = Holder()

    def inner() -> Any:
        return lock

    def defaults(guard: Any = lock) -> None:
        return None

    fn, args, kwargs, named = {
        "closure": (lambda: lock, (), {}, "captured variable 'lock'"),
        "nested": (lambda: inner(), (), {}, "captured variable 'lock' of .*inner"),
        "default": (defaults, (), {}, "default 0"),
        "argument": (len, (lock,), {}, "argument 0"),
        "keyword": (len, (), {"guard": lock}, "argument 'guard'"),
        "partial": (functools.partial(len, lock), (), {}, "argument 0 of"),
        "method": (holder.call, (), {}, "attribute 'guard'"),
        "inside": (lambda: table, (), {}, r"captured variable 'table'.*\['a'\]\[1\]"),
        "attribute": (lambda: holder, (), {}, "attribute 'guard' of captured variable 'holder'"),
    }[kind]
    with troupe.Executor(1) as executor:
        with pytest.raises(troupe.SerializationError, match=named) as info:
            executor.submit(fn, args, kwargs)
    assert "_thread.lock" in str(info.value)


def test_a_global_that_cannot_be_pickled_is_named() -> None:
    namespace = {"GUARD": threading.Lock(), "__name__": "__main__"}
    exec("def fn():\n    return GUARD", namespace)
    with pytest.raises(troupe.SerializationError, match="global 'GUARD' used by fn"):
        _payload.dump_task(_payload.Task(namespace["fn"], (), {}, 1.0))


@pytest.mark.parametrize("kwargs,error,match", [
    ({"min_workers": 0}, ValueError, "min_workers must be at least 1"),
    ({"min_workers": 2.0}, TypeError, "min_workers must be an int"),
    ({"min_workers": True}, TypeError, "min_workers must be an int"),
    ({"min_workers": 4, "max_workers": 2}, ValueError, r"max_workers \(2\) is less"),
    ({"min_workers": 2, "max_workers": 4, "workers": 5}, ValueError, r"workers \(5\)"),
    ({"resources_per_worker": {"CPU": -1}}, ValueError, "CPU.*at least 0"),
    ({"resources_per_worker": {"CPU": float("nan")}}, ValueError, "finite"),
    ({"resources_per_worker": {1: 1}}, TypeError, "strings"),
    ({"resources_per_worker": [("CPU", 1)]}, TypeError, "dict"),
    ({"cpus_per_worker": "1"}, TypeError, "cpus_per_worker must be a number"),
    ({"gpus_per_worker": -2}, ValueError, "gpus_per_worker"),
    ({"strategy": "random"}, ValueError, "spread, pack"),
    ({"progress": "loud"}, ValueError, "progress"),
    ({"elastic_timeout": 0}, ValueError, "elastic_timeout must be positive"),
    ({"start_timeout": -1}, ValueError, "start_timeout"),
    ({"stall_report_s": 0}, ValueError, "stall_report_s must be positive"),
    ({"stall_remove_s": -1}, ValueError, "stall_remove_s must be a finite number of at least 0"),
    ({"reset_limit": -1}, ValueError, "reset_limit"),
    ({"env": {"A": 1}}, TypeError, r"env\['A'\]"),
    ({"preload": "torch"}, TypeError, "list of module names"),
    ({"address": "somewhere"}, ValueError, "HOST:PORT"),
    ({"log_to_driver": 1}, TypeError, "log_to_driver"),
    ({"config": {"max_worker": 2}}, ValueError, "did you mean 'max_workers'"),
    ({"config": 5}, TypeError, "path to a YAML file"),
    ({"config": "/no/such.yaml"}, FileNotFoundError, "such.yaml"),
])
def test_wrong_arguments(kwargs: dict[str, Any], error: type, match: str) -> None:
    with pytest.raises(error, match=match):
        troupe.Executor(**kwargs)


def test_config_file_and_sizes(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("min_workers: 2\nmax_workers: 6\ncpus_per_worker: 0.5\nenv: {A: b}\n")
    executor = troupe.Executor(config=str(path), workers=3)
    assert executor.settings.sizes() == (2, 3, 6)
    assert executor.settings.resources() == {"CPU": 0.5} and executor.settings.env == {"A": "b"}
    assert troupe.Executor(config={"min_workers": 2}, min_workers=3).settings.sizes() == (3, 3, 3)
    assert troupe.Executor().settings.sizes() == (1, 1, 1)
    assert troupe.Executor(2, 5).settings.sizes() == (2, 5, 5)
    assert troupe.Executor(workers=4).settings.sizes() == (1, 4, 4)
    path.write_text("- a\n- b\n")
    with pytest.raises(ValueError, match="name: value"):
        troupe.Executor(config=path)
    path.write_text("a: [\n")
    with pytest.raises(ValueError, match="not valid YAML"):
        troupe.Executor(config=path)


@pytest.mark.parametrize("call,error,match", [
    (lambda e: e.run(3), TypeError, "fn must be callable, not int"),
    (lambda e: e.run(len, "abc"), TypeError, r"args=\(value,\)"),
    (lambda e: e.run(len, 5), TypeError, "args must be"),
    (lambda e: e.run(len, (), {1: 2}), TypeError, "kwargs"),
    (lambda e: e.run(len, callbacks=[1]), TypeError, "callbacks"),
    (lambda e: e.submit(len, on_event=1), TypeError, "on_event"),
])
def test_wrong_calls(call: Any, error: type, match: str) -> None:
    with pytest.raises(error, match=match):
        call(troupe.Executor())
    assert fake_driver.Driver.instances == [] or fake_driver.Driver.instances[-1].runs is not None


def test_no_room() -> None:
    with troupe.Executor(3, cpus_per_worker=1, num_cpus=2) as executor:
        with pytest.raises(troupe.PlacementError, match="room for 2 .*Ask for less"):
            executor.run(rank_of)
    with troupe.Executor(1, gpus_per_worker=1) as executor:
        with pytest.raises(troupe.PlacementError, match="GPU 1"):
            executor.run(rank_of)
    with troupe.Executor(4, cpus_per_worker=0.1, num_cpus=0.4) as executor:
        assert executor.run(rank_of) == [0, 1, 2, 3]


def test_resize_and_drain() -> None:
    hold = threading.Event()

    def fn() -> None:
        import troupe.torch as hvd
        hvd.init()
        hvd.barrier()

    with troupe.Executor(2, 4, workers=2) as executor:
        handle = executor.submit(fn)
        handle.result(20)
        handle.resize(4)
        with pytest.raises(ValueError, match="out of bounds"):
            handle.resize(5)
        with pytest.raises(ValueError, match="at least 1"):
            handle.resize(0)
        with pytest.raises(troupe.TroupeError, match="no worker w9"):
            handle.drain("w9")
        with pytest.raises(ValueError, match="rank 7"):
            handle.drain(7)
        handle.drain(1, deadline_s=5)
        hold.set()


def blocked() -> None:
    import troupe.torch as hvd

    hvd.init()
    if hvd.rank() == 0:
        hvd.barrier()
    else:
        threading.Event().wait(fake_core.DEADLINE_S)


def test_cancel_and_timeout() -> None:
    with troupe.Executor(2) as executor:
        handle = executor.submit(blocked)
        with pytest.raises(TimeoutError, match="has not ended within 0.05 s"):
            handle.result(0.05)
        handle.cancel()
        with pytest.raises(troupe.RunCancelled, match="on request"):
            handle.result(20)
        handle.cancel()  # harmless now
        assert handle.status()["state"] == "cancelled"


def test_the_names_of_before_are_still_there() -> None:
    with troupe.Executor(1) as executor:
        handle = executor.submit(rank_of)
        assert handle.job_id == handle.run_id
        handle.result(20)
    assert troupe.JobCancelled is troupe.RunCancelled


def test_shutdown_ends_what_runs_and_closes() -> None:
    executor = troupe.Executor(2).start()
    handle = executor.submit(blocked)
    executor.shutdown()
    executor.shutdown()
    with pytest.raises(troupe.RunCancelled):
        handle.result(20)
    with pytest.raises(troupe.TroupeError, match="was shut down"):
        executor.run(rank_of)


def test_executors_share_a_cluster_by_options() -> None:
    fake_driver.Driver.instances.clear()
    first, second = troupe.Executor(1).start(), troupe.Executor(2).start()
    other = troupe.Executor(1, num_cpus=8).start()
    assert len(fake_driver.Driver.instances) == 2
    first.shutdown()
    assert not fake_driver.Driver.instances[0].closed
    assert second.run(rank_of) == [0, 1] and other.run(rank_of) == [0]
    second.shutdown()
    assert fake_driver.Driver.instances[0].closed and not fake_driver.Driver.instances[1].closed
    other.shutdown()


def test_from_other_threads_at_once() -> None:
    results: list[Any] = []
    with troupe.Executor(2) as executor:
        threads = [threading.Thread(target=lambda: results.append(executor.run(rank_of)))
                   for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert results == [[0, 1]] * 4


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Started in the background by a shell, this process would ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_cancels_and_raises() -> None:
    started = threading.Event()

    def on_report(value: Any) -> None:
        started.set()

    def fn() -> None:
        troupe.report(1)
        blocked()

    def interrupt() -> None:
        assert started.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    with troupe.Executor(2) as executor:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            executor.run(fn, callbacks=[on_report])
        assert executor.running == []  # it waited until the run was gone
        assert executor.run(rank_of) == [0, 1]


def test_a_forked_child_gets_a_clear_error() -> None:
    executor = troupe.Executor(1).start()
    handle = executor.submit(rank_of)
    handle.result(20)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        messages = []
        for call in (lambda: executor.run(rank_of), executor.start, handle.result):
            try:
                call()
            except troupe.TroupeError as error:
                messages.append("forked" in str(error))
        executor.shutdown()
        os.write(write, bytes(messages))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"\x01\x01\x01"
    os.waitpid(pid, 0)
    assert not fake_driver.Driver.instances[-1].closed
    assert executor.run(rank_of) == [0]
    executor.shutdown()


def test_a_lost_cluster_ends_the_handle() -> None:
    executor = troupe.Executor(2).start()
    handle = executor.submit(blocked)
    fake_driver.Driver.instances[-1].shutdown()
    with pytest.raises(troupe.TroupeError, match="lost contact"):
        handle.result(20)
    executor.shutdown()


def test_workers_lines_carry_rank_and_host(capsys: pytest.CaptureFixture) -> None:
    from troupe.executor.handle import RunHandle

    events = [
        {"kind": "log", "worker": "w1", "rank": 1, "host": "h", "stream": "stdout", "line": "hi"},
        {"kind": "log", "worker": "w2", "rank": -1, "host": "h", "stream": "stderr", "line": "oh"},
        {"kind": "done", "state": "failed", "reason": "resource_exhausted: no GPU", "worker": "",
         "rank": -1, "host": "", "payload": b""},
    ]

    class Scripted:
        def next_event(self, run: str, timeout: float) -> Any:
            return {"time_s": 0.0, "run": run, **events.pop(0)}

        def status(self, run: str) -> dict[str, Any]:
            return {"state": "failed", "workers": []}

    handle = RunHandle(Scripted(), "j", "n", os.getpid())
    handle.start_pump()
    with pytest.raises(troupe.PlacementError, match="no GPU"):
        handle.result(20)
    captured = capsys.readouterr()
    assert captured.out == "[1 h] hi\n" and captured.err == "[- h] oh\n"


@pytest.mark.parametrize("reason,worker,error", [
    ("below min_workers for 600 s", "", troupe.TroupeError),
    ("killed by signal 9", "w1", troupe.WorkerError),
])
def test_final_errors_without_an_exception(reason: str, worker: str, error: type) -> None:
    from troupe.executor.handle import _final_error

    made = _final_error("n", {"state": "failed", "reason": reason, "worker": worker, "rank": 1,
                              "host": "h", "payload": b""})
    assert type(made) is error and reason in str(made)


def test_executors_that_differ_in_their_patience_share_a_cluster() -> None:
    """Two private clusters on one machine would each hand out all of its CPUs."""
    with troupe.Executor(1, start_timeout=30, progress="off") as one:
        with troupe.Executor(1, start_timeout=40, progress="off") as other:
            assert one._cluster is other._cluster and one._cluster is not None
            with troupe.Executor(1, num_cpus=64, progress="off") as third:
                assert third._cluster is not one._cluster


def test_the_key_of_a_cluster_is_found_by_one_rule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The argument, the environment, the home folder; and none for a cluster of one's own."""
    from troupe._config import build_settings

    def key_of(**given: Any) -> Any:
        return build_settings(None, given).key_file

    monkeypatch.delenv("TROUPE_ADDRESS", raising=False)
    monkeypatch.delenv("TROUPE_KEY_FILE", raising=False)
    monkeypatch.setenv("TROUPE_HOME", str(tmp_path))
    assert key_of(address="host:1") is None
    (tmp_path / "cluster.key").touch()
    assert key_of(address="host:1") == str(tmp_path / "cluster.key")
    assert key_of() is None and key_of(address="ipc:///x") is None
    monkeypatch.setenv("TROUPE_KEY_FILE", "/elsewhere")
    assert key_of(address="host:1") == "/elsewhere"
    assert key_of(address="host:1", key_file="mine") == "mine"
    monkeypatch.setenv("TROUPE_ADDRESS", "host:1")
    assert key_of() == "/elsewhere"
