"""References to results that may not be there yet, and what can be done with them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future as ConcurrentFuture
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union

from troupe import _native
from troupe.actors import _codec, _context, _failures, _lineage, _pulls, _session, _travel
from troupe.errors import (
    GetTimeoutError,
    ObjectLostError,
    TroupeError,
)

if TYPE_CHECKING:
    from troupe.actors._streams import RemoteGenerator

FOREVER_S = 365 * 86400.0  # A call's own deadline comes before.
_CANCEL_S = 30.0  # For the word to reach a ref's owner.
_INTERNAL = 17  # ErrorCode::kInternal
_ID_BYTES = 28

_LEFT = object()  # In place of a value that is not read the quick way.

_id_lock = threading.Lock()


class ObjectRef(_travel.RefHolder):
    """The result of a call, or a value that was put: for ``get``, ``wait``, ``await``, arguments.

    As an argument of its own it is replaced by its value before the call; inside another value it
    stays a ref, which asks the process that it comes from. A ref that has travelled equals the one
    that it was made from.
    """

    __slots__ = ("_call", "_session", "_what", "_language", "_home", "_real", "_files", "_id",
                 "_held", "_owner", "_number", "_contents", "_why", "_lineage")

    def __init__(self, call: Any, session: _session.Session, what: str, language: str) -> None:
        self._call = call
        self._session = session
        self._what = what
        self._language = language
        self._home: Optional[tuple[bytes, int]] = None  # Of one that has come: whose, which.
        self._held: Any = None  # And what counts it.
        self._owner: Any = None  # And its owner, once that was asked.
        self._number = 0  # Of one of this process: what others call it, or have called it.
        self._contents: Any = None  # Of a value that was put: what that refers to.
        self._real: Any = None  # The native call, for one that was sent later.
        self._files = False
        self._id: Optional[bytes] = None  # Made when it is asked for: most refs never are.
        self._why: Optional[Callable[[], str]] = None  # For what no native call knows about.
        self._lineage: Optional[_lineage.Lineage] = None  # Of a task's own result.

    def __repr__(self) -> str:
        state = "ready" if self._call is not None and self._call.ready() else "pending"
        return f"<ObjectRef of {self._what}, {state}>"

    def __reduce__(self) -> tuple:
        self._session.check()
        home = self._home
        if home is None:
            refs = self._session.refs
            self._number = refs.publish(self, self._native(), self._number)
            home = refs.address, self._number
            _travel.note(self, self._number)
        elif not _travel.note(self):
            self._session.keep(self)
        return _ref_from_home, (home, self._what, self._language, self.binary())

    def _troupe_held(self) -> Any:
        return self._held

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, ObjectRef) and self.binary() == other.binary())

    def __hash__(self) -> int:
        return hash(self.binary())

    def binary(self) -> bytes:
        """Its id, which it keeps when it travels; of 28 bytes."""
        if self._id is None:
            with _id_lock:
                if self._id is None:
                    self._id = os.urandom(_ID_BYTES)
        return self._id

    def hex(self) -> str:
        """Its id as 56 hexadecimal digits."""
        return self.binary().hex()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait_in_loop().__await__()

    def future(self) -> ConcurrentFuture[Any]:
        """A ``concurrent.futures.Future`` with the value or the exception."""
        result: ConcurrentFuture[Any] = ConcurrentFuture()

        def settle() -> None:
            try:
                result.set_result(self.value())
            except BaseException as error:
                result.set_exception(error)

        self.on_done(settle)
        return result

    def as_future(self) -> asyncio.Future[Any]:
        """An ``asyncio.Future`` of the running event loop with the value or the exception.

        Raises:
            RuntimeError: no event loop runs here.
        """
        return asyncio.get_running_loop().create_task(self._wait_in_loop())

    def ready(self) -> bool:
        """Whether ``get`` returns or raises at once."""
        ready: bool = self._native().ready()
        return ready

    def why_not(self) -> str:
        """What it waits for, in words; empty if this process does not know."""
        if self._why is not None:
            return self._why()
        if self._home is not None or self._call is None:
            return ""  # Its owner knows.
        why: str = (self._call if self._real is None else self._real).why_not()
        return why

    def on_done(self, fn: Callable[[], None]) -> None:
        """Runs ``fn()`` on a thread of the runtime when it is ready. ``fn`` must not block."""
        self._session.on_done(self._native(), fn)

    @property
    def is_of_task(self) -> bool:
        """Whether a task makes its value, and not a method of an actor."""
        return self._language == _failures.TASK

    def cancel(self, *, force: bool = False, recursive: bool = True) -> None:
        """As :func:`troupe.cancel`."""
        self._session.check()
        if self._home is not None:
            how = ("f" if force else "") + ("r" if recursive else "")
            owner = self._session.actors.refer(self._home[0])
            owner.call("cancel", f"{how}{self._home[1]}".encode(), _CANCEL_S, False)
        if self._real is not None:
            self._real.cancel(force, recursive)
        self._native().cancel(force, recursive)

    async def _wait_in_loop(self) -> Any:
        await self.ready_in_loop()
        try:
            with _pulls.at_once():
                return self.value()
        except _pulls.WaitsError:
            return await asyncio.get_running_loop().run_in_executor(None, self.value)

    async def ready_in_loop(self) -> None:
        """Waits on the running event loop until it is ready."""
        if not self.ready():
            loop = asyncio.get_running_loop()
            event = asyncio.Event()

            def wake() -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)

            self.on_done(wake)
            with _context.waiting():
                await event.wait()

    def _native(self) -> Any:
        """The native call; for a ref of another process it is made at first use."""
        if self._call is None:
            self._session.check()
            assert self._home is not None
            self._owner = self._session.actors.refer(self._home[0])
            self._call = self._owner.call("get", str(self._home[1]).encode(), FOREVER_S, False)
        return self._call

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether it is ready within this time."""
        self._session.check()
        if self.ready():
            return True
        with _context.waiting():
            ready: bool = self._native().wait(timeout_s)
        return ready

    def payload(self) -> bytes:
        """The bytes of its value; only when it is ready.

        Raises:
            What the call ended with, but for exceptions of Python's methods, which are payloads.
        """
        try:
            data: bytes = self._native().result()
        except RuntimeError as error:
            lost = self._home is not None and _travel.lost(
                error, self._what, self._owner, self._language == _failures.CPP)
            problem = lost or _failures.translate(error, self._what, self._language)
            try:
                raise problem from error.__cause__
            finally:  # Its traceback has this frame, and those above hold refs.
                del problem, lost
        return data

    def value(self, stream: bool = False) -> Any:
        """Its value, or raises; only when it is ready. ``stream``: of a generator, its number.

        That of a task which has stayed with its maker, and is lost with it, is computed again.
        """
        while True:
            call = self._call
            try:
                return self._value(stream)
            except ObjectLostError:
                if not _lineage.compute_again(self, call):
                    raise

    def _take(self, call: Any) -> None:
        """Its value is what this call gives, from now on."""
        self._call, self._real = call, None
        if self._number:
            self._session.refs.replace(self._number, call)

    def _value(self, stream: bool) -> Any:
        data = self.payload()
        if not _codec.is_payload(data):
            items = _native.core().unpack_result(data) if data else []
            return items[0] if items else None
        decoded = _codec.take_apart(data)
        if decoded.kind != _codec.ELSEWHERE:
            self._lineage = None
        self.own_files(decoded)
        if decoded.kind == _codec.ERROR:
            raise _codec.decode_error(decoded, self._what, "")
        if decoded.kind == _codec.STREAM and not stream:
            raise TypeError(f"{self._what} has returned a generator; only a method that is a "
                            "generator itself (it contains `yield`) gives values one by one")
        if decoded.table is None or self._held is None:
            return decoded.load(self._session.store)
        refs = self._session.refs
        items = refs.open(decoded.table, False)
        value = decoded.load(self._session.store)
        refs.read(self._held, items)
        return value

    def own_files(self, decoded: _codec.Decoded) -> None:
        """Large buffers of a result are ours from now on, and go with this ref."""
        if decoded.files and decoded.receiver_owns and not self._files:
            self.keep_files([name for name, _ in decoded.files])

    def keep_files(self, names: Sequence[str]) -> None:
        """Unlinks these files when the ref goes."""
        self._files = True
        if names:
            weakref.finalize(self, self._session.release_files, list(names))


def _ref_from_home(home: tuple[bytes, int], what: str, language: str, id: bytes) -> ObjectRef:
    session = _session.current()
    ref = ObjectRef(None, session, what, language)
    ref._home = home
    ref._held = session.refs.hold(*home)
    ref._id = id
    return ref


def later(session: _session.Session, what: str, language: str) -> ObjectRef:
    """A ref of a call that cannot be sent yet."""
    return ObjectRef(_native.core().pending_call(), session, what, language)


def settle_later(ref: ObjectRef, send: Callable[[], Any]) -> None:
    """Sends the call of a ref made by ``later``, unless it was cancelled meanwhile."""
    if ref._call.ready():
        return
    ref._why = None
    try:
        ref._real = send()
    except BaseException as error:
        ref._real = failed(ref._session, ref._what, ref._language, error)._call
    ref._call.complete_from(ref._real)


def failed(
    session: _session.Session, what: str, language: str, error: BaseException
) -> ObjectRef:
    """A ref of a call that could not be sent; an argument's error is its error."""
    payload = _codec.encode_error(error.__cause__ or error)
    return ObjectRef(_native.core().completed_call(payload), session, what, language)


# ---- the public functions ----

Waitable = Union[ObjectRef, "RemoteGenerator"]
Refs = Union[Waitable, Sequence[Waitable]]
SomeWaitable = TypeVar("SomeWaitable", bound=Waitable)


def get(refs: Refs, timeout: Optional[float] = None) -> Any:
    """The value of a ref, or the list of values of a list of refs. Waits; Ctrl-C ends the wait.

    Of a generator it is the generator itself, an iterator of refs, when its first value is there.

    Args:
        timeout: seconds to wait at most; ``None``: as long as the calls may take.

    Raises:
        ActorTaskError: the method raised; also an instance of what it raised.
        ActorDiedError, WorkerCrashedError, ActorUnavailableError, TaskCancelledError,
        PlacementError: there will be no result; the message says why.
        GetTimeoutError: it is not there in time; the call goes on.
    """
    if isinstance(refs, ObjectRef):
        return _get_one(refs, _deadline(timeout))
    if not isinstance(refs, (list, tuple)):
        from troupe.actors._streams import RemoteGenerator

        if not isinstance(refs, RemoteGenerator):
            raise TypeError(f"get() takes a ref or a list of refs, not {type(refs).__name__}")
        return _get_one(refs, _deadline(timeout))
    for index, ref in enumerate(refs):
        if type(ref) is not ObjectRef:
            _check_waitable(ref, f"refs[{index}]")
        elif index == 0:
            ref._session.check()
    deadline = _deadline(timeout)
    _await_all(refs, deadline)
    return [_get_one(ref, deadline) if value is _LEFT else value
            for ref, value in zip(refs, _quick_values(refs), strict=True)]


def wait(
    refs: Sequence[SomeWaitable], *, num_returns: int = 1, timeout: Optional[float] = None,
    fetch_local: bool = True,
) -> tuple[list[SomeWaitable], list[SomeWaitable]]:
    """Waits until ``num_returns`` of the refs are ready, or the time is up.

    A generator among them is ready when its next ref is, or when it has none any more.

    Args:
        timeout: seconds; ``None``: as long as the calls may take; 0: do not wait.
        fetch_local: of no effect: a value is here when its ref is ready.

    Returns:
        (at most ``num_returns`` ready refs, the rest), both in the order given.

    Raises:
        TypeError, ValueError: an argument is unusable.
    """
    if not isinstance(refs, (list, tuple)):
        raise TypeError(f"wait() takes a list of refs, not {type(refs).__name__}")
    from troupe.actors._streams import RemoteGenerator

    waitable = (ObjectRef, RemoteGenerator)  # Of a thousand refs, a thousand times: be short.
    for index, ref in enumerate(refs):
        if not isinstance(ref, waitable):
            _check_waitable(ref, f"refs[{index}]")
    if len(set(map(id, refs))) != len(refs):
        raise ValueError("wait() takes each ref once")
    if isinstance(num_returns, bool) or not isinstance(num_returns, int):
        raise TypeError(f"num_returns must be a whole number, not {num_returns!r}")
    if not refs and num_returns == 1:  # As Ray does, so that a loop may end with none left.
        return [], []
    if not 0 < num_returns <= len(refs):
        raise ValueError(f"num_returns must lie between 1 and {len(refs)}, not {num_returns}")
    deadline = _deadline(timeout)
    limit = FOREVER_S if deadline is None else max(0.0, deadline - time.monotonic())
    calls = [ref._native() for ref in refs]
    with _context.waiting():
        _native.core().wait_for_some(calls, num_returns, limit)
    ready = list(itertools.islice((ref for ref in refs if ref.ready()), num_returns))
    chosen = set(map(id, ready))
    return ready, [ref for ref in refs if id(ref) not in chosen]


def put(value: Any) -> ObjectRef:
    """Keeps a value for calls: its large buffers are written once and read by all who get the ref.

    They are freed when the last copy of the ref goes, here or in another process, or this process
    ends.

    Raises:
        SerializationError: it cannot be pickled. ObjectStoreFullError: there is no room.
    """
    session = _session.current()
    session.check()
    if isinstance(value, ObjectRef):
        raise TypeError("put() takes a value, not a ref; the ref can be passed on as it is")
    try:
        encoded = _codec.encode(value, store=session.store, refs=session.refs, to=None)
    except TroupeError:
        raise
    except Exception as error:
        raise _codec.explain(error, "the value", {"the value": value}) from error
    call = _native.core().completed_call(encoded.payload)
    ref = ObjectRef(call, session, "a value", _failures.PYTHON)
    ref.keep_files(encoded.files)
    ref._contents = encoded.contents
    return ref


def cancel(
    ref: Waitable, *, force: bool = False, recursive: bool = True
) -> None:
    """Gives a call up: ``get`` raises TaskCancelledError at once.

    One that waits does not run any more. In a task that runs a ``KeyboardInterrupt`` is raised,
    which its code may handle; an ``async`` method is cancelled at its next ``await``. Another
    method of an actor that runs is left alone, since its actor lives on: it can ask
    ``troupe.current().cancelled()``. What is over stays as it is.

    Args:
        ref: of the call; or a generator, which gives TaskCancelledError as its last.
        force: ends the process of a task, for one that does not heed the interruption.
        recursive: give up the calls that it has made itself, too, and theirs.

    Raises:
        TypeError: this is no ref. ValueError: ``force`` is for tasks, not for methods of actors.
    """
    _check_waitable(ref, "cancel()'s argument")
    if force and not ref.is_of_task and not ref.ready():
        raise ValueError(f"force=True is for tasks, and {ref!r} is of a method of an actor; "
                         "troupe.kill(actor) ends it with its actor")
    ref.cancel(force=force, recursive=recursive)


def resolve(
    args: Iterable[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[ObjectRef], list[Any]]:
    """Ready refs among the arguments replaced by their payloads; the refs; what those refer to.

    Raises:
        What a ref's call ended with.
    """
    refs: list[ObjectRef] = []
    beside: list[Any] = []

    def one(value: Any) -> Any:
        if not isinstance(value, ObjectRef):
            return value
        refs.append(value)
        data = value.payload()
        if not _codec.is_payload(data):
            return value.value()
        decoded = _codec.take_apart(data)
        if decoded.kind == _codec.ERROR:
            raise _codec.decode_error(decoded, value._what, "")
        if decoded.kind == _codec.ELSEWHERE:
            return _codec.Awaited(value)
        value.own_files(decoded)
        if decoded.table is not None:
            beside.extend(value._session.refs.open(decoded.table, False))
        data = _codec.rehomed(_codec.unpinned(data), value._session.store)
        return _codec.Resolved(data)

    return tuple(map(one, args)), {k: one(v) for k, v in kwargs.items()}, refs, beside


def when_all(refs: Sequence[ObjectRef], fn: Callable[[], None]) -> None:
    """Runs ``fn`` when all are ready."""
    left = len(refs)
    lock = threading.Lock()

    def one_more() -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            fn()

    for ref in refs:
        ref.on_done(one_more)


def _deadline(timeout: Optional[float]) -> Optional[float]:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")
    return time.monotonic() + max(0.0, timeout)


def get_until(ref: ObjectRef, deadline: Optional[float]) -> Any:
    """The value of a ref; ``deadline`` by ``time.monotonic()``."""
    return _get_one(ref, deadline)


def _get_one(ref: Waitable, deadline: Optional[float]) -> Any:
    if deadline is None and type(ref) is ObjectRef and ref.ready():
        ref._session.check()
        return ref.value()
    left = FOREVER_S if deadline is None else max(0.0, deadline - time.monotonic())
    if not ref.wait_ready(left):
        why = ref.why_not() if isinstance(ref, ObjectRef) else ""
        raise GetTimeoutError(
            f"{ref._what}: not ready in time{': ' if why else ''}{why}; the call goes on")
    if not isinstance(ref, ObjectRef):
        return ref
    with _pulls.until(deadline) if deadline is not None else contextlib.nullcontext():
        return ref.value()


def _quick_values(refs: Sequence[Waitable]) -> list[Any]:
    """The values of those that are ready, and small and plain; ``_LEFT`` of all others."""
    calls = [ref._call if isinstance(ref, ObjectRef) else None for ref in refs]
    values: list[Any] = _native.core().quick_values(calls, _LEFT)
    for ref, value in zip(refs, values, strict=True):
        if value is not _LEFT and isinstance(ref, ObjectRef) and ref._lineage is not None:
            ref._lineage = None  # It is here, and cannot be lost any more.
    return values


def _await_all(refs: Sequence[Waitable], deadline: Optional[float]) -> None:
    """Until all of them are ready, one has failed, or the time is up: one wait in place of many."""
    calls = [ref._native() for ref in refs if isinstance(ref, ObjectRef)]
    if len(calls) < 2:
        return
    left = FOREVER_S if deadline is None else max(0.0, deadline - time.monotonic())
    with _context.waiting():
        _native.core().wait_for_some(calls, len(calls), left, True)


def _check_waitable(ref: Any, what: str) -> Waitable:
    from troupe.actors._streams import RemoteGenerator

    if not isinstance(ref, (ObjectRef, RemoteGenerator)):
        raise TypeError(f"{what} must be a ref, the result of .remote() or put(), not {ref!r}")
    return ref
