"""What travels as bytes between driver and workers: functions, results, errors, reports.

Functions and closures are pickled by cloudpickle. A failure to pickle names the captured variable,
global, default or argument that is to blame.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import cloudpickle

from troupe import _sources
from troupe.errors import SerializationError, WorkerError

_MAX_BLAME_DEPTH = 4
RUN_BYTES_MAX = (200 << 20) - (2 << 20)  # What the cluster takes, less what goes along.
_PICKLE_ERRORS = (pickle.PicklingError, TypeError, AttributeError, ValueError, RuntimeError,
                  NotImplementedError, OSError, RecursionError)


@dataclass
class Task:
    """What a worker runs, with what it needs to import it as the driver would."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    elastic_timeout_s: float


@dataclass
class Outcome:
    """What a worker's function came to: ``value`` if it returned, the error's fields if not."""

    rank: int
    index: int
    worker: str
    host: str
    value: Optional[bytes] = None
    message: str = ""
    exc_type: str = ""
    traceback: str = ""
    exception: Optional[bytes] = None


def dumps_value(value: Any, what: str) -> bytes:
    """Pickles one value; ``what`` names it in the error."""
    try:
        return cloudpickle.dumps(value)
    except _PICKLE_ERRORS as error:
        raise SerializationError(
            f"{what} (a {type_name(value)}) cannot be pickled: {error}"
        ) from error


def dump_task(task: Task) -> bytes:
    """Pickles a task; an error names the captured variable, global, default or argument."""
    try:
        blob = cloudpickle.dumps((task.fn, task.args, task.kwargs))
    except _PICKLE_ERRORS as error:
        culprit = find_culprit(task.fn, task.args, task.kwargs)
        where = f"{culprit} cannot be pickled" if culprit else "it cannot be pickled"
        raise SerializationError(
            f"cannot send {callable_name(task.fn)} to the workers: {where} ({error}). "
            "Create such objects inside the function, or pass what is needed to create them"
        ) from error
    if len(blob) > RUN_BYTES_MAX:
        raise SerializationError(
            f"cannot send {callable_name(task.fn)} to the workers: with its arguments it takes "
            f"{show_bytes(len(blob))} when pickled, of at most {show_bytes(RUN_BYTES_MAX)}; the "
            f"largest part is {find_largest(task)}. Let each worker load large data itself, or "
            "pass a path to it"
        )
    envelope = {
        "blob": blob,
        "sources": _sources.collect(task.fn),
        "name": callable_name(task.fn),
        "path": [os.path.abspath(entry or os.getcwd()) for entry in sys.path],
        "cwd": os.getcwd(),
        "elastic_timeout_s": task.elastic_timeout_s,
    }
    return pickle.dumps(envelope)


def load_envelope(payload: bytes) -> dict[str, Any]:
    """The envelope of a task, its function still pickled."""
    envelope = pickle.loads(payload)
    if not isinstance(envelope, dict) or "blob" not in envelope:
        raise SerializationError("the assignment holds no task; driver and worker versions differ")
    return envelope


def load_task(envelope: Mapping[str, Any]) -> Task:
    """Unpickles the function, after making the driver's modules importable."""
    for entry in envelope["path"]:
        if entry not in sys.path and os.path.exists(entry):
            sys.path.append(entry)
    if os.path.isdir(envelope["cwd"]):
        os.chdir(envelope["cwd"])
    _sources.register(envelope["sources"])
    fn, args, kwargs = pickle.loads(envelope["blob"])
    return Task(fn, args, kwargs, envelope["elastic_timeout_s"])


def describe_error(
    error: BaseException, outcome: Outcome, callers: tuple[str, ...] = ()
) -> Outcome:
    """Fills the error's fields of ``outcome``; the exception only if it survives pickling.

    Args:
        callers: ends of the names of files; their calls are left out where a traceback begins.
    """
    frames = error.__traceback__
    while (frames is not None and frames.tb_next is not None
           and frames.tb_frame.f_code.co_filename.endswith(callers)):
        frames = frames.tb_next
    text = traceback.format_exception(type(error), error, frames)
    outcome.traceback = "".join(text)
    outcome.exc_type = type(error).__name__
    outcome.message = str(error) or type(error).__name__
    if "invalid device ordinal" in outcome.message:
        outcome.message += ("; a worker sees only the GPUs that it was given "
                            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')}), "
                            "the first as cuda:0: use troupe.torch.device(), not the local rank")
    try:
        blob = cloudpickle.dumps(error)
        pickle.loads(blob)
        outcome.exception = blob
    except Exception:
        outcome.exception = None
    return outcome


def worker_error(outcome: Outcome) -> WorkerError:
    """The driver's exception for a failed outcome, chained to the original if there is one."""
    where = f"rank {outcome.rank}" if outcome.rank >= 0 else f"worker {outcome.worker}"
    error = WorkerError(
        f"{outcome.exc_type or 'error'} on {where} ({outcome.host}): {outcome.message}",
        worker=outcome.worker,
        rank=outcome.rank,
        host=outcome.host,
        remote_traceback=outcome.traceback,
        exc_type=outcome.exc_type,
    )
    if outcome.exception is not None:
        try:
            error.__cause__ = pickle.loads(outcome.exception)
        except Exception:
            error.__cause__ = None
    return error


def type_name(value: Any) -> str:
    """``module.Type`` of a value, without ``builtins.``."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def callable_name(fn: Any) -> str:
    """A function's name as a user knows it."""
    return getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type_name(fn)


def mentions(fn: Any, module: str) -> bool:
    """Whether the function's own code names a module, or one of its parts or of Troupe's for it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    if code is None:
        return False
    starts = (f"{module}.", f"troupe.{module}")
    return any(n == module or n.startswith(starts) for n in _global_names(code))


def find_culprit(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Optional[str]:
    """Names the first thing reachable from the call that cannot be pickled, None if none is."""
    seen: set[int] = set()
    culprit = _blame(fn, callable_name(fn), seen, 0)
    if culprit:
        return culprit
    for index, value in enumerate(args):
        culprit = _check(value, f"argument {index}", seen, 0)
        if culprit:
            return culprit
    for name, value in kwargs.items():
        culprit = _check(value, f"argument {name!r}", seen, 0)
        if culprit:
            return culprit
    return None


def find_largest(task: Task) -> str:
    """The one thing that makes a call large, with its size: ``captured variable 'data' of f``."""
    parts = list(_parts(task.fn, callable_name(task.fn)))
    parts += [(f"argument {index}", value) for index, value in enumerate(task.args)]
    parts += [(f"argument {name!r}", value) for name, value in task.kwargs.items()]
    sizes = [(_pickled_bytes(value), label, value) for label, value in parts]
    if not sizes:
        return f"{callable_name(task.fn)} itself"
    size, label, value = max(sizes, key=lambda entry: entry[0])
    return f"{label} (a {type_name(value)}, {show_bytes(size)})"


def _pickled_bytes(value: Any) -> int:
    try:
        return len(cloudpickle.dumps(value))
    except Exception:
        return 0


def show_bytes(amount: float) -> str:
    """``400MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.3g}{unit}" if amount < 1000 else f"{amount:.0f}{unit}"
        amount /= 1024
    return f"{amount:.3g}TiB"


def show_amount(name: str, amount: float) -> str:
    """A resource as people read it: ``CPU 2``, ``memory 23.5GiB``."""
    return f"{name} {show_bytes(amount)}" if name == "memory" else f"{name} {amount:g}"


def _check(value: Any, label: str, seen: set[int], depth: int) -> Optional[str]:
    """Label of what is to blame if ``value`` cannot be pickled: itself, or a part of it."""
    if id(value) in seen or depth > _MAX_BLAME_DEPTH or _picklable(value):
        return None
    seen.add(id(value))
    inner = _blame(value, label, seen, depth + 1)
    return inner or f"{label} (a {type_name(value)})"


def _blame(value: Any, label: str, seen: set[int], depth: int) -> Optional[str]:
    for name, part in _parts(value, label):
        culprit = _check(part, name, seen, depth)
        if culprit:
            return culprit
    return None


def _parts(value: Any, label: str) -> Iterator[tuple[str, Any]]:
    """The named things that pickling ``value`` would take along."""
    if isinstance(value, functools.partial):
        yield f"the function of {label}", value.func
        for index, arg in enumerate(value.args):
            yield f"argument {index} of {label}", arg
        for name, arg in value.keywords.items():
            yield f"argument {name!r} of {label}", arg
    elif isinstance(value, types.MethodType):
        yield f"the object that method {label} is bound to", value.__self__
        yield label, value.__func__
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{label}[{key!r}]", item
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            yield f"{label}[{index}]", item
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        for name, item in vars(value).items():
            yield f"attribute {name!r} of {label}", item


def _function_parts(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    name = callable_name(fn)
    for variable, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield f"captured variable {variable!r} of {name}", cell.cell_contents
        except ValueError:  # an empty cell: the variable is not assigned yet
            continue
    for variable in _global_names(fn.__code__):
        if variable in fn.__globals__:
            yield f"global {variable!r} used by {name}", fn.__globals__[variable]
    for index, default in enumerate(fn.__defaults__ or ()):
        yield f"default {index} of {name}", default
    for variable, default in (fn.__kwdefaults__ or {}).items():
        yield f"default of {variable!r} of {name}", default


def _global_names(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.extend(_global_names(constant))
    return list(dict.fromkeys(names))


def _picklable(value: Any) -> bool:
    try:
        cloudpickle.CloudPickler(io.BytesIO()).dump(value)
        return True
    except Exception:
        return False
