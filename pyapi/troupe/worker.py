"""The worker process: ``python -m troupe.worker``, started by the node daemon.

One process runs one assignment. A spare, ``python -m troupe.worker --spare MODULE...``, is started
before there is one: it imports what will be needed, and waits on its standard input for the
variables that say who it is. With ``TROUPE_FORK_SERVER`` it becomes no worker: those of its kind
are forks of it (``_fork_server``).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import pickle
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from troupe import (
    _fork_server,
    _forks,
    _metric_report,
    _native,
    _payload,
    _runtime,
    _torchrun,
)
from troupe.errors import DrainedError, SerializationError

_log = logging.getLogger("troupe.worker")
_WAIT_SLICE_S = 5.0
# Calls of these stand before those of the user's function in a traceback.
_OWN_FILES = tuple(f"troupe/{name}.py" for name in (
    "worker", "_torchrun", "torch/distributed/_restarts", "torch/elastic/loop",
    "cli/run_commands"))
# What torch 2 imports at the first use of an optimizer, in parts of at most about 0.3 s; an older
# torch has no torch._dynamo and imports nothing late.
_TORCH_LATE_MODULES = ("sympy", "torch.fx.experimental.symbolic_shapes", "torch.distributed.fsdp",
                       "torch._dynamo")


def main() -> int:
    """Serves one assignment; returns the exit status of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
    if sys.argv[1:2] == ["--spare"]:
        if not await_variables(sys.argv[2:]):
            return 0
        del sys.argv[1:]  # For the user's code it is a worker like others.
    worker = _native.core().Worker()
    _metric_report.enter_worker(worker)
    assignment = _await_assignment(worker)
    if assignment is None:
        return 0
    if assignment.get("kind") == "actor":
        from troupe.actors import _host

        return _host.serve(worker)
    ok, payload = run_assignment(worker, assignment)
    sys.stdout.flush()
    sys.stderr.flush()
    _metric_report.flush()
    worker.finish(ok, payload)
    return 0


def _await_assignment(worker: Any) -> Optional[Mapping[str, Any]]:
    """Waits for work and imports the modules that it names; None when asked to exit."""
    while not worker.should_exit():
        assignment: Optional[Mapping[str, Any]] = worker.wait_assignment(_WAIT_SLICE_S)
        if assignment is None:
            continue
        os.environ.update({str(k): str(v) for k, v in (assignment.get("env") or {}).items()})
        _share_threads()
        preload(assignment.get("preload") or ())
        return assignment
    return None


def await_variables(modules: Sequence[str]) -> bool:
    """Prepares for work, and waits for the variables of its process; False if none come.

    When all modules are there it goes on to what would be imported in the first step, one at a
    time, and looks for the variables in between.
    """
    _native.core()
    _share_threads()
    for name in ("troupe.actors._host", "troupe.collective", *modules):
        with contextlib.suppress(Exception):  # Whoever needs it is told then.
            importlib.import_module(name)
    if _fork_server.wanted():
        if not _fork_server.serve(late_modules(), preload):
            return False
    else:
        late = late_modules()
        while late and not select.select([0], [], [], 0)[0]:
            preload([late.pop(0)])
    given = sys.stdin.buffer.read()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    pairs = (entry.partition(b"=") for entry in given.split(b"\0") if entry)
    os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs})
    return bool(given)


def _share_threads() -> None:
    """One thread per CPU that this worker was given, unless somebody has said otherwise.

    Before torch and its like are imported, since they look at it only then.
    """
    cpus = float(os.environ.get("TROUPE_WORKER_CPUS") or 0)
    if cpus > 0:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, int(cpus))))


def late_modules() -> list[str]:
    """Modules that torch, if it is imported, would import in the middle of a first step."""
    if "torch" not in sys.modules or importlib.util.find_spec("torch._dynamo") is None:
        return []
    return [name for name in _TORCH_LATE_MODULES if name not in sys.modules]


def preload(modules: Any) -> None:
    """Imports modules ahead of their use; one that is missing only costs its head start."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            _log.warning("cannot preload %s: %s", name, error)


def run_assignment(
    worker: Any, assignment: Mapping[str, Any], own_process: bool = True
) -> tuple[bool, bytes]:
    """Runs the assigned function; returns (ok, pickled Outcome). Empty bytes: drained."""
    outcome = _payload.Outcome(
        rank=-1, index=int(assignment.get("index", 0)), worker=worker.id, host=worker.host
    )
    try:
        value = _call(worker, assignment, own_process)
    except DrainedError as error:
        _log.info("drained: %s", error)
        return True, b""
    except SystemExit as error:
        _fill_rank(outcome, worker)
        refusal = RuntimeError(
            f"the function called sys.exit({error.code!r}); a worker's function must return, "
            "or raise an exception to fail the run"
        ).with_traceback(error.__traceback__)
        return False, pickle.dumps(_payload.describe_error(refusal, outcome, _OWN_FILES))
    except BaseException as error:
        _fill_rank(outcome, worker)
        return False, pickle.dumps(_payload.describe_error(error, outcome, _OWN_FILES))
    _fill_rank(outcome, worker)
    try:
        outcome.value = _payload.dumps_value(value, "the function's return value")
    except SerializationError as error:
        return False, pickle.dumps(_payload.describe_error(error, outcome))
    return True, pickle.dumps(outcome)


def _call(worker: Any, assignment: Mapping[str, Any], own_process: bool) -> Any:
    envelope = _payload.load_envelope(assignment["payload"])
    runtime = _runtime.WorkerRuntime(
        worker, assignment, envelope["elastic_timeout_s"], own_process=own_process
    )
    _runtime.bind(runtime, thread_only=not own_process)
    try:
        task = _payload.load_task(envelope)
    except Exception as error:
        raise load_failure(error, envelope["name"], worker.host) from error
    runtime.first_view()
    pid = os.getpid()
    tasks = [task]
    del task

    def attempt() -> Any:
        # What the one before has changed in its arguments is not there.
        task = tasks.pop() if tasks else _payload.load_task(envelope)
        return task.fn(*task.args, **task.kwargs)

    try:
        value = _torchrun.call(runtime, attempt)
    except BaseException as error:
        _forks.end_child(pid, error)
        raise
    _forks.end_child(pid)
    return value


def load_failure(error: Exception, name: str, host: str) -> Exception:
    """An error of unpickling, told as what it is: something cannot be imported here."""
    kind = ImportError if isinstance(error, ImportError) else RuntimeError
    return kind(
        f"cannot load {name} on {host}: {type(error).__name__}: {error}. Modules that the function "
        "uses must be importable on every worker; install them there or define it in the script"
    )


def _fill_rank(outcome: _payload.Outcome, worker: Any) -> None:
    try:
        view = worker.group.view()
    except RuntimeError:
        view = None
    if view is not None:
        outcome.rank = int(view["rank"])


if __name__ == "__main__":
    sys.exit(main())
