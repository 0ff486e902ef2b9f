"""Tasks: functions that run in pooled processes, or in one of their own where they say which."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Mapping
from typing import Any, Optional

from troupe.actors import (
    _calls,
    _codec,
    _context,
    _failures,
    _lineage,
    _options,
    _results,
    _session,
    _shapes,
)
from troupe.actors._refs import ObjectRef
from troupe.actors._remote import ActorClass, ActorHandle, kill
from troupe.actors._streams import RemoteGenerator
from troupe.errors import PlacementError, TaskCancelledError, TroupeError

# What the pool's processes do not differ in: who asks for it gets a process of its own.
_OWN_PROCESS = ("scheduling_strategy", "node", "node_soft", "placement_group",
                "placement_group_bundle_index", "prefer_labels", "runtime_env", "max_calls")
_GRACE_S = 5.0  # For a task to handle that it was cancelled.
_TASK_ONLY = ("max_retries", "timeout", "num_returns", "retry_exceptions", "max_calls", "name",
              "look_ahead")


class RemoteFunction:
    """A function that runs in a process of the cluster; made by :func:`troupe.remote`."""

    def __init__(
        self, fn: Any, options: dict[str, Any], code: Optional[_calls.Code] = None
    ) -> None:
        self._fn = fn
        self._options = options
        self._native_options = _options.task_options(options)
        self._code = code or _calls.Code(fn, f"the function {self._function_name}")
        self._stream = inspect.isgeneratorfunction(fn)
        functools.update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self._function_name
        raise TypeError(f"{name} is a task: use {name}.remote(...)")

    def __reduce__(self) -> tuple:
        return RemoteFunction, (self._fn, self._options)

    @property
    def wrapped(self) -> Any:
        """The function that runs."""
        return self._fn

    @property
    def _function_name(self) -> str:
        return getattr(self._fn, "__name__", "f")

    def options(self, **options: Any) -> RemoteFunction:
        """The same function with other options; see :func:`troupe.remote`."""
        return RemoteFunction(self._fn, {**self._options, **options}, self._code)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it; returns a ref of the result at once.

        With ``num_returns=n`` a list of n refs, of a generator an iterator. If its process dies it
        runs again, ``max_retries`` times; if it raises only with ``retry_exceptions``.

        Raises:
            TypeError: the function does not take these arguments.
            SerializationError: the function or an argument cannot be pickled.
        """
        _shapes.check(self._code.shape, self._function_name, args, kwargs)
        session = _session.current()
        session.check()
        returns = self._options.get("num_returns", 1)
        if self._stream and (returns == 1 or isinstance(returns, str)):
            return self._generate(args, kwargs)
        if isinstance(returns, str):
            raise TypeError(f"{self._what}: num_returns={returns!r} is for generators")
        if session.runtime_env or session.environment or any(
                self._options.get(name) for name in _OWN_PROCESS):
            ref = self._run_alone(args, kwargs, returns)
        else:
            about = self._about(self._native_options, returns)
            function = self._code.digest, self._code.dumped, about
            ref = _calls.call_task(session, self._what, function, args, kwargs,
                                   self._native_options)
        return _results.split(ref, returns)

    @property
    def _what(self) -> str:
        return self._options.get("name") or self._function_name

    def _about(self, native: Mapping[str, Any], returns: Any) -> dict[str, Any]:
        retry = self._options.get("retry_exceptions")
        if isinstance(retry, (list, tuple)):
            retry = tuple(retry)
        retries = self._options.get("max_retries", 3) if retry else 0
        return _context.started_with(
            native, task=self._what, function=self._function_name, retries=retries,
            returns=None if returns == 1 else (returns,), retry_exceptions=retry)

    def _run_alone(self, args: tuple[Any, ...], kwargs: dict[str, Any], returns: Any) -> ObjectRef:
        options = self._process_options()
        options["max_restarts"] = self._options.get("max_retries", 3)
        about = self._about(_options.actor_options(options, False), returns)
        runner = ActorClass(SoloTask, options).task_runner(self._fn, about)
        timeout = self._native_options["timeout_s"]
        retry = options["max_restarts"] != 0

        def again(payload: bytes) -> Any:
            other = ActorClass(SoloTask, options).task_runner(self._fn, about)
            return other.native_ref().call("run", payload, timeout, retry)

        lineage = _lineage.Lineage(again, options["max_restarts"])
        ref = _calls.call_python(
            runner._session, runner.native_ref(), self._what, "run", args, kwargs, timeout,
            retry, _failures.TASK, returns, lineage=lineage)
        ref.on_done(functools.partial(_end_failed, ref, runner))
        return ref

    def _generate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteGenerator:
        options = self._process_options()
        about = self._about(_options.actor_options(options, False), 1)
        runner = ActorClass(GeneratorRunner, options).task_runner(self._fn, about)
        timeout = self._native_options["timeout_s"]
        made = _calls.call_python(runner._session, runner.native_ref(), self._what, "run", args,
                                  kwargs, timeout, False, _failures.TASK)
        return RemoteGenerator(runner._session, runner.native_ref(), made, self._what, timeout,
                               self._options.get("look_ahead"),
                               functools.partial(_end_generator, runner))

    def _process_options(self) -> dict[str, Any]:
        """Of the actor that runs it in a process of its own."""
        given = {k: v for k, v in self._options.items() if k not in _TASK_ONLY}
        given.setdefault("num_cpus", 1)
        return given


class GeneratorRunner:
    """The actor that runs a task which is a generator."""

    def __init__(self, fn: Any) -> None:
        self._fn = fn

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The values of the function."""
        yield from self._fn(*args, **kwargs)


class SoloTask:
    """The actor that runs one task and ends."""

    def __init__(self, fn: Any) -> None:
        self._fn = fn

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        return self._fn(*args, **kwargs)


def _end_failed(ref: ObjectRef, runner: ActorHandle) -> None:
    """A process that has answered ends by itself; another one may still be on its way."""
    try:
        ref.payload()
    except Exception as error:
        _end(runner, at_once=not isinstance(error, TaskCancelledError))


def _end_generator(runner: ActorHandle, force: bool) -> None:
    _end(runner, at_once=force)


def _end(runner: ActorHandle, at_once: bool) -> None:
    """Ends a process; one whose task may still handle its interruption when it has, or is late.

    What it has made and others refer to lives on, and the process with it.
    """
    if runner._session.pid != os.getpid():
        return
    if at_once:
        return _kill_later(runner)
    packed = _codec.encode(((), {}, None)).payload
    idle = runner.native_ref().call(_calls.RETIRE, packed, _GRACE_S, False)

    def end() -> None:
        try:
            if _codec.take_apart(idle.result()).load(None) is True:
                return
        except (RuntimeError, TroupeError):  # It has ended, or does not answer.
            pass
        _kill_later(runner)

    runner._session.on_done(idle, end)


def _kill_later(runner: ActorHandle) -> None:
    threading.Thread(target=_kill_quietly, args=(runner,), daemon=True,
                     name="troupe-end-task").start()


def _kill_quietly(handle: ActorHandle) -> None:
    try:
        kill(handle)
    except (TroupeError, PlacementError):  # It has ended already, or the runtime has.
        return
