"""A worker process that hosts an actor, or runs tasks: makes the instance and answers its calls.

Methods run on the main thread; with ``max_concurrency`` or ``concurrency_groups`` on that many
threads; if there are ``async`` methods on one event loop of the main thread.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import itertools
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Optional

from troupe import _forks, _metric_report, _native
from troupe.actors import _calls, _codec, _context, _environment_setup, _pulls, _session
from troupe.actors._held_streams import HeldStreams
from troupe.actors._imported import imported
from troupe.actors._interrupts import Interrupts, TaskInterrupt
from troupe.actors._remote import MethodKind, has_async, methods_of
from troupe.actors._results import call_whole, encoded_result, fail_cancelled, first
from troupe.actors._task_runner import TaskRunner
from troupe.actors._tasks import SoloTask
from troupe.actors._turns import Turns
from troupe.errors import RuntimeEnvSetupError, TaskCancelledError

_log = logging.getLogger("troupe.actors")
_TURN_S = 5.0
_RELEASED_CHECK_S = 0.2
_NOTHING = _codec.encode(None).payload


class UnknownMethodError(AttributeError):
    """A call names a method that the actor does not have."""


def serve(worker: Any) -> int:
    """Hosts the actor of a worker's assignment until it is let go; the process's exit status."""
    actors = worker.actors()
    session = _session.enter_worker(actors)
    info = actors.assigned()
    where = _context.Place(
        info["actor"], info["type"], actors.node, info["incarnation"], actors.loan)
    try:
        with _context.counted(_context.Running(None, where)):
            if _environment_setup.enter(session):
                _calls.keep_directory()
            instance = _make(info, session, where)
            host = ActorHost(actors, session, instance, where, info["max_concurrency"])
            host.start()
    except BaseException as error:
        problem = error if isinstance(error, RuntimeEnvSetupError) else error.__cause__ or error
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        actors.fail(f"{info['type']}() raised {type(problem).__name__}: {problem}",
                    type(problem).__name__, text)
        return 1
    host.run()
    sys.stdout.flush()
    sys.stderr.flush()
    _metric_report.flush()
    session.stop()
    return 0


def _make(info: dict[str, Any], session: _session.Session, where: _context.Place) -> Any:
    if info["type"] == _native.core().TASK_RUNNER:
        where.is_task = True
        return TaskRunner()
    if not _codec.is_payload(info["arguments"]):  # Of a driver of C++, by its name.
        return imported(info["type"])(*_native.core().unpack_arguments(info["arguments"]))
    decoded = _codec.take_apart(info["arguments"])
    held = [] if decoded.table is None else session.refs.open(decoded.table, decoded.pinned)
    dumped, about, args, kwargs, _ = decoded.load(session.store)
    where.about = about
    _context.tell(about)
    where.is_task = "task" in about
    instance = _calls.load_code(dumped)(*args, **kwargs)
    held.clear()
    return instance


class ActorHost:
    """Answers the calls of one actor."""

    def __init__(
        self, actors: Any, session: _session.Session, instance: Any, where: _context.Place,
        concurrency: int,
    ) -> None:
        self._actors = actors
        self._session = session
        self._pid = os.getpid()
        self._instance = instance
        self._where = where
        self._is_async = has_async(type(instance))
        self._methods = methods_of(type(instance))
        where.described = self._describe()
        groups = where.about.get("groups", {})
        self._turns = Turns(
            self._methods, groups, where.about["concurrency"] if groups else concurrency)
        self._streams = HeldStreams(self._run_users)
        self._found: dict[str, Callable[..., Any]] = {
            _calls.DESCRIBE: self._describe, _calls.NEXT: self._next,
            _calls.CLOSE: self._streams.close, _calls.READY: lambda: True,
            _calls.CALL: self._call_with, _calls.TERMINATE: self._terminate,
            _calls.RETIRE: self._retire}
        # Of a task, which runs alone, and on the main thread: it can be ended when it is cancelled.
        self._interrupts = Interrupts() if where.is_task else None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._left = False  # By exit_actor: no call begins any more.
        # Answers what is quick without Python's steps around each call.
        self._quick = _native.core().QuickHost(
            _context.RUNNING, self._running, self._quick_failed, self._quick_reply, where.loan)
        # A process that was started for one task ends with it, and says so.
        self._leaves = "its task is over" if isinstance(instance, SoloTask) else ""

    def start(self) -> None:
        """Takes calls from now on, after restoring what was saved."""
        saves = hasattr(self._instance, "__troupe_save__")
        if saves != hasattr(self._instance, "__troupe_restore__"):
            raise TypeError(f"{type(self._instance).__name__} needs both __troupe_save__ and "
                            "__troupe_restore__, or neither")
        signal = self._interrupts.install() if self._interrupts is not None else 0
        self._actors.host(saves, self._restore, self._is_async, signal)

    def run(self) -> None:
        """Answers calls until the process is let go."""
        if self._is_async:
            asyncio.run(self._run_loop())
        elif self._turns.one_by_one:
            self._run_queue(self.answer, lambda: None if self._left else self._quick)
        else:
            with self._turns.threads() as begin:
                self._run_queue(lambda request: self._begin(request, begin))

    def _begin(self, request: Any, begin: Callable[[Any, Callable[[Any], None]], None]) -> None:
        try:
            begin(request, self.answer)
        except ValueError as error:  # There is no such group.
            self._fail(request, error)

    def _run_queue(
        self, answer: Callable[[Any], Any], quick: Callable[[], Any] = lambda: None
    ) -> None:
        while not self._actors.released:
            item = self._actors.next(_TURN_S, quick())
            if item is not None:
                self._expect_value(item[0])
                answer(item[0])

    # ---- threads ----

    def answer(self, request: Any) -> None:
        """Runs one call on this thread."""
        if request.saves:
            self._save(request)
            return
        if self._left:
            request.fail("peer_gone", "the actor has ended before this call ran")
            return
        left = request.remaining
        if request.cancelled or (left is not None and left <= 0):
            self._drop(request)  # It has waited behind others; nobody wants it any more.
            return
        with _context.counted(self._running(request)):
            self._answer(request)

    def _answer(self, request: Any) -> None:
        try:
            self._run(request)
        except TaskInterrupt as error:
            _forks.end_child(self._pid, error)
            self._end_interrupted(request)
        except BaseException as error:
            self._failed(request, error)

    def _failed(self, request: Any, error: BaseException, frames: int = 2) -> None:
        """A call has raised; ``frames``: of its traceback are not the user's."""
        _forks.end_child(self._pid, error)
        if isinstance(error, (_context.ExitActor, SystemExit)):
            self._leave(request, error)
        else:
            self._fail(request, error, frames)

    def _quick_failed(self, request: Any, error: BaseException) -> None:
        self._failed(request, error, 0)

    def _quick_reply(self, request: Any, value: Any, owner: Optional[str]) -> None:
        """Answers with what only Python can send."""
        try:
            _forks.end_child(self._pid)
            self._reply(request, value, owner)
        except BaseException as error:
            self._failed(request, error)

    def _leave(self, request: Any, leaving: BaseException) -> None:
        """Ends the process: for good, or after ``sys.exit`` with another status than 0 as a crash.

        Its caller is told either way that there will be no result.
        """
        if isinstance(leaving, SystemExit) and leaving.code not in (None, 0):
            _forks.end_process(leaving)
        self._left = True
        atexit.unregister(_session.shutdown)
        _forks.run_exit_handlers()  # Now: the process may be ended as soon as this is known.
        self._flush()
        request.leave(leaving.reason if isinstance(leaving, _context.ExitActor)
                      else f"{request.method} called sys.exit()")

    def _end_interrupted(self, request: Any) -> None:
        """Its caller has been told already: this says that it is over."""
        if self._leaves:
            error = TaskCancelledError("it was cancelled while it ran")
            self._answer_with(request, _codec.encode_error(error))
        else:
            fail_cancelled(request)

    def _run(self, request: Any) -> None:
        held = self._refers_to(request)
        again = 0
        while True:
            name, args, kwargs, owner, returns = self._read(request)  # Unspoilt by a first attempt.
            method = self._find(name)
            try:
                if self._interrupts is None or request.method in _calls.OWN:
                    value = method(*args, **kwargs)
                else:
                    value = self._interrupts.run(
                        request, call_whole, method, args, kwargs, returns)
                break
            except Exception as error:
                _forks.end_child(self._pid, error)
                again += 1
                if not self._retries(request, method, error, again) or request.cancelled:
                    raise
        _forks.end_child(self._pid)
        self._reply(request, value, owner, returns=returns)
        held.clear()

    def _run_users(self, fn: Any, *args: Any) -> Any:
        """Calls what a user has written, for the call that runs here."""
        if self._interrupts is None:
            return fn(*args)
        return self._interrupts.run(_context.request(), fn, *args)

    def _retries(self, request: Any, method: Any, error: Exception, again: int) -> bool:
        """Whether a call that has raised is to run for the ``again``-th time once more."""
        if request.method in _calls.OWN:
            return False
        about = _context.about()
        if self._where.is_task:
            kinds = about.get("retry_exceptions")
        else:
            kinds = getattr(method, "__troupe_method__", {}).get("retry_exceptions")
        most = about.get("retries", 0)
        if not kinds or (most != -1 and again > most):
            return False
        return kinds is True or isinstance(error, tuple(kinds))

    # ---- the event loop ----

    async def _run_loop(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._actors.fd, self._take_all, loop)
        self._take_all(loop)
        while not self._actors.released:
            await asyncio.sleep(_RELEASED_CHECK_S)
        loop.remove_reader(self._actors.fd)

    def _take_all(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            item = self._actors.poll()
            if item is None:
                return
            request, cancelled = item
            if cancelled:
                if request.key in self._tasks:
                    self._tasks[request.key].cancel()
                    request.cancel_children()  # Now: it is to hear of its own end first.
            elif request.saves:
                self._save(request)
            else:
                self._expect_value(request)
                self._start_task(loop, request)

    def _start_task(self, loop: asyncio.AbstractEventLoop, request: Any) -> None:
        task = loop.create_task(self._answer_async(request))
        self._tasks[request.key] = task
        timer = None
        if request.remaining is not None:  # Then nobody waits for it any more.
            timer = loop.call_later(max(0.0, request.remaining), task.cancel)

        def over(_: Any) -> None:
            self._tasks.pop(request.key, None)
            if timer is not None:
                timer.cancel()
            if task.cancelled():  # Before its first step.
                self._drop(request)

        task.add_done_callback(over)

    async def _answer_async(self, request: Any) -> None:
        try:
            async with self._turns.turn(request):
                with _context.counted(self._running(request)):  # A task has a context of its own.
                    await self._answer_in_loop(request)
        except asyncio.CancelledError:  # Before its turn.
            self._drop(request)
        except ValueError as error:  # There is no such group.
            self._fail(request, error)

    async def _answer_in_loop(self, request: Any) -> None:
        held: list[Any] = []
        try:
            held = self._refers_to(request)
            again = 0
            while True:
                name, args, kwargs, owner, returns = await self._read_in_loop(request)
                method = self._find(name)
                try:
                    value = method(*args, **kwargs)
                    if inspect.isawaitable(value):
                        value = await value
                    break
                except Exception as error:
                    _forks.end_child(self._pid, error)
                    again += 1
                    if not self._retries(request, method, error, again):
                        raise
            _forks.end_child(self._pid)
            if returns != 1 and inspect.isasyncgen(value):
                value = await first(value, returns + 1)
            self._reply(request, value, owner, returns=returns)
            held.clear()
        except asyncio.CancelledError:
            _forks.end_child(self._pid)
            fail_cancelled(request)
        except BaseException as error:
            self._failed(request, error)

    # ---- one call ----

    def _running(self, request: Any) -> _context.Running:
        return _context.Running(request, self._where)

    def _refers_to(self, request: Any) -> list[Any]:
        """What the arguments refer to, to be held while the call runs, however often."""
        data = request.arguments
        if not _codec.refers(data):
            return []
        decoded = _codec.take_apart(data)
        return self._session.refs.open(decoded.table, decoded.pinned)

    def _read(self, request: Any) -> tuple[str, Any, Any, Optional[str], int]:
        """Name, arguments, to whom the files of the result belong, how many results there are."""
        data = request.arguments
        if not _codec.is_payload(data):
            name = request.method
            if isinstance(self._instance, TaskRunner):  # "module:name"; it has no groups.
                name = f"{request.group}:{name}"
            return name, _native.core().unpack_arguments(data), {}, None, 1
        values = _codec.take_apart(data).load(self._session.store)
        if isinstance(self._instance, TaskRunner):
            *function, args, kwargs, owner = values
            returns = function[2].get("returns", (1,))[0]
            return request.method, (*function, args, kwargs), {}, owner, returns
        args, kwargs, owner, *returns = values
        return request.method, args, kwargs, owner, returns[0] if returns else 1

    async def _read_in_loop(self, request: Any) -> tuple[str, Any, Any, Optional[str], int]:
        try:
            with _pulls.at_once():
                return self._read(request)
        except _pulls.WaitsError:
            return await asyncio.get_running_loop().run_in_executor(None, self._read, request)

    def _find(self, name: str) -> Callable[..., Any]:
        known = self._found.get(name)
        if known is not None:
            return known
        if isinstance(self._instance, TaskRunner) and ":" in name:
            return imported(name)
        kind = type(self._instance)
        # The class comes first: an attribute of the instance may have the name of a method.
        method = inspect.getattr_static(kind, name, None)
        if hasattr(method, "__get__"):
            method = method.__get__(self._instance, kind)
        if not callable(method):
            method = getattr(self._instance, name, None)
        dunder = name.startswith("__") and name.endswith("__") and name != "__call__"
        if dunder or not callable(method):
            raise UnknownMethodError(f"{kind.__name__} has no method {name!r}")
        if name in self._methods:
            self._found[name] = method
            stream, _, given = self._methods[name]
            if inspect.isroutine(method) and not (stream or given or self._where.is_task):
                self._quick.add(name, method)
        found: Callable[..., Any] = method
        return found

    def _describe(self) -> tuple[dict[str, MethodKind], bool, bool]:
        """Its methods, whether calls are sent again to its next incarnation and keep their order"""
        about = self._where.about
        return self._methods, bool(about.get("retries")), bool(about.get("ordered"))

    def _call_with(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a function gives that is called with the instance."""
        return fn(self._instance, *args, **kwargs)

    def _retire(self) -> bool:
        """Ends it as soon as others need nothing of it; whether they do now."""
        needed: bool = self._actors.needed
        if needed:
            self._left = True
            self._actors.leave_when_unneeded("its task is over")
        return needed

    def _terminate(self) -> None:
        raise _context.ExitActor("it was asked to end")

    def _next(self, stream: int, index: int) -> Any:
        remaining = _context.current().remaining()
        return self._streams.next(stream, index, remaining)

    def _value_asked(self, request: Any) -> Optional[tuple[int, int]]:
        """Of a call for a value: the number of the generator, and which value."""
        if request.method != _calls.NEXT:
            return None
        try:
            stream, index = self._read(request)[1]
        except Exception:  # It fails when it runs, and its caller is told.
            return None
        return stream, index

    def _expect_value(self, request: Any) -> None:
        asked = self._value_asked(request)
        if asked is not None:
            self._streams.arrived(*asked)

    def _drop(self, request: Any) -> None:
        """Answers a call that does not run."""
        asked = self._value_asked(request)
        if asked is not None:
            self._streams.dropped(*asked)
        fail_cancelled(request)

    def _reply(
        self, request: Any, value: Any, owner: Optional[str], returns: int = 1
    ) -> None:
        left = request.remaining
        if left is not None and left <= 0:
            fail_cancelled(request)  # So that it does not depend on whose clock is ahead.
            return
        if not _codec.is_payload(request.arguments):
            payload = self._plain(request, value)
        elif request.method == _calls.NEXT:
            there, item = value
            payload = (self._encode(request, item, owner) if there
                       else _codec.encode(None, kind=_codec.END).payload)
        elif value is None and returns == 1:
            payload = _NOTHING
        elif returns != 1:
            payload = self._several(request, value, owner, returns)
        elif inspect.isgenerator(value) or inspect.isasyncgen(value):
            payload = _codec.encode(self._streams.add(value), kind=_codec.STREAM).payload
        else:
            payload = self._encode(request, value, owner)
        self._answer_with(request, payload)

    def _answer_with(self, request: Any, payload: bytes) -> None:
        if self._leaves:
            self._flush()
            self._left = True
            if self._actors.needed:  # What the task has made and others refer to lives on.
                request.reply(payload)
                self._actors.leave_when_unneeded(self._leaves)
            else:
                request.exit(payload, self._leaves)
        else:
            if self._where.is_task:  # Its process may be ended at once.
                _metric_report.settle()
            request.reply(payload)

    def _flush(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        _metric_report.flush()

    def _several(
        self, request: Any, value: Any, owner: Optional[str], returns: int
    ) -> bytes:
        """A payload of the payloads of so many values."""
        if returns == 0 or value is None:
            values: list[Any] = [] if returns == 0 else [value]
        else:
            try:
                values = list(itertools.islice(value, returns + 1))  # It may never end.
            except TypeError:
                raise TypeError(f"num_returns={returns}, but a {type(value).__name__} was "
                                f"returned, which is no sequence of {returns} values") from None
        if len(values) != returns:
            count = f"over {returns}" if len(values) > returns else len(values)
            raise ValueError(f"num_returns={returns}, but {count} values were returned")
        parts = [self._encode(request, item, owner) for item in values]
        return _codec.encode(parts, kind=_codec.SEVERAL).payload

    def _plain(self, request: Any, value: Any) -> bytes:
        """A result for a caller of C++."""
        values = [] if value is None else [value]
        packed: bytes = _native.core().pack_result(values)
        return packed

    def _encode(self, request: Any, value: Any, owner: Optional[str]) -> bytes:
        return encoded_result(self._session, request, value, owner)

    def _fail(self, request: Any, error: BaseException, frames: int = 2) -> None:
        if _codec.is_payload(request.arguments):
            self._answer_with(request, _codec.encode_error(error, skip_frames=frames))
            return
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        unknown = isinstance(error, UnknownMethodError)
        request.fail("not_found" if unknown else "user_error", f"{type(error).__name__}: {error}",
                     type(error).__name__, text)

    # ---- state ----

    def _save(self, request: Any) -> None:
        try:
            state = self._instance.__troupe_save__()
            if not isinstance(state, bytes):
                raise TypeError(f"__troupe_save__ must return bytes, not {type(state).__name__}")
            request.reply(state)
        except BaseException as error:
            request.fail("user_error", f"__troupe_save__ raised {type(error).__name__}: {error}")

    def _restore(self, state: bytes) -> str:
        """Restores what was saved; what went wrong, or nothing."""
        try:
            self._instance.__troupe_restore__(state)
            return ""
        except BaseException as error:
            _log.exception("__troupe_restore__ raised")
            return f"__troupe_restore__ raised {type(error).__name__}: {error}"
