"""Sending calls to actors and tasks: arguments that wait, buffers that must live, order."""

from __future__ import annotations

import collections
import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Optional

import cloudpickle

from troupe import _native, _sources
from troupe.actors import _codec, _context, _failures, _lineage, _refs, _session, _shapes
from troupe.actors._coming import ActorHolder, ComingActor
from troupe.actors._refs import ObjectRef
from troupe.errors import TroupeError

_SOURCE_BYTES_MAX = 256 << 10  # A class or function travels to every process that needs it.
DESCRIBE, NEXT, CLOSE = "__troupe_describe__", "__troupe_next__", "__troupe_close__"
READY, CALL, TERMINATE = "__troupe_ready__", "__troupe_call__", "__troupe_terminate__"
RETIRE = "__troupe_retire__"
OWN = (DESCRIBE, NEXT, CLOSE, READY, RETIRE)  # What the worker answers itself.
OF_ALL = {  # What every actor of Python has beside its own methods, by the names for it.
    READY: READY, "__ray_ready__": READY, CALL: CALL, "__ray_call__": CALL,
    TERMINATE: TERMINATE, "__ray_terminate__": TERMINATE}


class DependencyError(Exception):
    """An argument is a ref whose call has failed: ``__cause__`` is its error."""


class Outboxes:
    """Calls whose arguments are not ready, and those behind them, by actor; order is kept."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: dict[str, collections.deque[tuple[list[ObjectRef], Callable[[], None]]]] = {}

    @property
    def busy(self) -> bool:
        """Whether calls to any actor wait."""
        return bool(self._waiting)

    def holds(self, native: Any) -> bool:
        """Whether calls to this actor wait, so that another has to wait behind them."""
        return bool(self._waiting) and key(native) in self._waiting

    def send(self, key: str, refs: list[ObjectRef], send: Callable[[], None]) -> None:
        """Runs ``send`` when these refs are ready and all calls before it are sent."""
        with self._lock:
            self._waiting.setdefault(key, collections.deque()).append((refs, send))
            if not refs:
                self._flush(key)
        if refs:
            _refs.when_all(refs, lambda: self._flush(key))

    def _flush(self, key: str) -> None:
        with self._lock:
            waiting = self._waiting.get(key)
            while waiting and all(ref.ready() for ref in waiting[0][0]):
                waiting[0][1]()  # Still in its place, so that nobody overtakes it.
                waiting.popleft()
            if waiting is not None and not waiting:
                del self._waiting[key]


_outboxes = Outboxes()


def refs_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[ObjectRef]:
    """The refs among the arguments themselves."""
    found = [value for value in args if isinstance(value, ObjectRef)]
    if kwargs:
        found += [value for value in kwargs.values() if isinstance(value, ObjectRef)]
    return found


class Packed:
    """Arguments as bytes, with what must live until the call is over."""

    def __init__(
        self, session: _session.Session, what: str, args: tuple[Any, ...], kwargs: dict[str, Any],
        *before: Any, returns: Any = 1,
    ) -> None:
        refs: list[ObjectRef] = []
        beside: list[Any] = []
        if (args or kwargs) and refs_in(args, kwargs):
            try:
                args, kwargs, refs, beside = _refs.resolve(args, kwargs)
            except Exception as error:
                raise DependencyError(f"an argument of {what}") from error
        owner = session.store.owner_here if session.store is not None else None
        try:
            values = (*before, args, kwargs, owner)
            if returns != 1:
                values = (*values, returns)
            encoded = _codec.encode(
                values, store=session.store, refs=session.refs, beside=beside)
        except TroupeError:
            raise
        except Exception as error:
            named = {f"argument {i}": value for i, value in enumerate(args)}
            named.update((f"argument {k!r}", v) for k, v in kwargs.items())
            raise _codec.explain(error, f"the arguments of {what}", named) from error
        self.payload = encoded.payload
        self._session = session
        self._files = encoded.files
        self._refs = refs
        self._token = encoded.token

    @property
    def holds(self) -> bool:
        """Whether there is something that must live on."""
        return bool(self._files or self._refs or self._token)

    def keep_until(self, call: Any, lineage: Optional[_lineage.Lineage] = None) -> None:
        """Lets buffers and refs go when the call is complete, and cannot be made again."""
        if lineage is not None:
            lineage.keep(self)
        if not self.holds:
            return

        def over() -> None:
            if lineage is None or not lineage.stays(call):
                self.let_go(call)

        self._session.on_done(call, over)

    def let_go(self, *receiver: Any) -> None:
        """Nobody needs it any more but ``receiver``, a call or an actor that has got it."""
        self.payload = b""
        self._refs.clear()
        token, self._token = self._token, 0
        self._session.refs.over(token, *receiver)
        files, self._files = self._files, []
        if self._session.store is not None:
            self._session.store.discard(files)

    def let_go_soon(self) -> None:
        """The same from where the cycle collector runs, in which any lock may be held."""
        if self.holds:
            self._session.on_done(_native.core().completed_call(b""), self.let_go)


def call_quick(
    session: _session.Session, native: Any, name: str, method: str, args: tuple[Any, ...],
    kwargs: dict[str, Any], timeout_s: float, retry: bool,
) -> Optional[ObjectRef]:
    """Calls a method with a few small plain values, as most do; None: it is not such a call."""
    if _outboxes.busy or type(native) is ComingActor:
        return None
    store = session.store
    call = _native.core().quick_call(native, method, args, kwargs,
                                     None if store is None else store.owner_here,
                                     timeout_s, retry)
    if call is None:
        return None
    request = _context.request()
    if request is not None:
        request.add_child(call)
    return ObjectRef(call, session, f"{name}.{method}", _failures.PYTHON)


def call_python(
    session: _session.Session, native: Any, what: str, method: str, args: tuple[Any, ...],
    kwargs: dict[str, Any], timeout_s: float, retry: bool, language: str = _failures.PYTHON,
    returns: Any = 1, ordered: bool = True, lineage: Optional[_lineage.Lineage] = None,
) -> ObjectRef:
    """Calls a method of a Python actor; ``ordered``: behind the calls before it that wait."""

    def send() -> Any:
        packed = Packed(session, what, args, kwargs, returns=returns)
        call = native.call(method, packed.payload, timeout_s, retry)
        packed.keep_until(call, lineage)
        return call

    ref = _now_or_later(session, native if ordered else None, what, language,
                        awaited(native, args, kwargs), send)
    ref._lineage = lineage
    return ref


def in_group(method: str, group: str) -> str:
    """How a call names a method that is to run in a concurrency group; "": in that of the method"""
    return f"{group}:{method}" if group else method


def key(native: Any) -> str:
    """Which order calls through this handle keep."""
    name: str = native.key if isinstance(native, ComingActor) else native.id
    return name


def awaited(native: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[ObjectRef]:
    """What must be ready before a call is sent: refs, and actors that are not started yet."""
    if not args and not kwargs:
        return [native.started] if isinstance(native, ComingActor) else []
    refs = refs_in(args, kwargs)
    actors = [native, *(value._native for value in (*args, *kwargs.values())
                        if isinstance(value, ActorHolder))]
    return refs + [actor.started for actor in actors if isinstance(actor, ComingActor)]


def call_cpp(
    session: _session.Session, native: Any, what: str, method: str, args: tuple[Any, ...],
    timeout_s: float, retry: bool,
) -> ObjectRef:
    """Calls a method of a C++ actor with plain values."""

    def send() -> Any:
        try:
            values = [a.value() if isinstance(a, ObjectRef) else a for a in args]
        except Exception as error:
            raise DependencyError(f"an argument of {what}") from error
        return native.call(method, pack_plain(values, what), timeout_s, retry)

    return _now_or_later(session, native, what, _failures.CPP, awaited(native, args, {}), send)


def call_task(
    session: _session.Session, what: str, function: tuple[Any, ...], args: tuple[Any, ...],
    kwargs: dict[str, Any], options: dict[str, Any],
) -> ObjectRef:
    """Runs a function in a process of the pool."""
    options.setdefault("code", function[0])
    lineage = _lineage.Lineage(
        lambda payload: session.actors.submit("run", payload, options), options["max_retries"])

    def send() -> Any:
        packed = Packed(session, what, args, kwargs, *function)
        call = session.actors.submit("run", packed.payload, options)
        packed.keep_until(call, lineage)
        return call

    ref = _now_or_later(session, None, what, _failures.TASK, awaited(None, args, kwargs), send)
    ref._lineage = lineage
    return ref


def _arguments_missing() -> str:
    return "refs among its arguments, or calls before it, are not ready"


def _now_or_later(
    session: _session.Session, to: Any, what: str, language: str,
    refs: list[ObjectRef], send: Callable[[], Any],
) -> ObjectRef:
    """Sends a call, or keeps it until its arguments are ready.

    ``to``: the native ref of the actor that it must not overtake others to; None: of none.
    """
    session.check()
    send = _context.child_of_this(send)
    waiting = [ref for ref in refs if not ref.ready()] if refs else refs
    if waiting or (to is not None and _outboxes.holds(to)):
        result = _refs.later(session, what, language)
        result._why = _arguments_missing

        def settle() -> None:
            _refs.settle_later(result, send)

        if to is None:
            _refs.when_all(waiting, settle)
        else:
            _outboxes.send(key(to), waiting, settle)
        return result
    try:
        return ObjectRef(send(), session, what, language)
    except DependencyError as error:
        return _refs.failed(session, what, language, error)


def pack_plain(values: list[Any], what: str) -> bytes:
    """Arguments of a C++ actor; handles of actors as their native refs."""
    from troupe.actors._remote import ActorHandle

    def plain(value: Any) -> Any:
        if isinstance(value, ActorHandle):
            ref = value.native_ref()
            value._session.keep(value, ref.id)  # C++ does not count what it has.
            return ref
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return value

    try:
        packed: bytes = _native.core().pack_arguments([plain(value) for value in values])
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from None
    return packed


def dump_code(code: Any, what: str) -> bytes:
    """A class or a function as bytes, with what is needed to import what it uses.

    Raises:
        SerializationError: it cannot be pickled; names the captured variable that is to blame.
    """
    try:
        blob = cloudpickle.dumps(code)
    except Exception as error:
        values = {what: code}
        raise _codec.explain(error, what, values) from error
    path = [os.path.abspath(entry or os.getcwd()) for entry in sys.path]
    return cloudpickle.dumps((path, _cwd(), blob, _sources.collect(code, _SOURCE_BYTES_MAX)))


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # It was removed.
        return "/"


class Code:
    """A class or a function as it is sent: the same however often it is used, with any options.

    It is dumped at its first use.
    """

    def __init__(self, code: Any, what: str) -> None:
        self.code = code
        self.shape = _shapes.of(code)
        self._what = what

    @functools.cached_property
    def dumped(self) -> bytes:
        """See ``dump_code``."""
        return dump_code(self.code, self._what)

    @functools.cached_property
    def digest(self) -> str:
        """By which processes know that they have it."""
        return hashlib.sha256(self.dumped).hexdigest()


_directory_kept = False


def keep_directory() -> None:
    """This process has a working directory of its own, in which code is loaded from now on."""
    global _directory_kept
    _directory_kept = True


def load_code(dumped: bytes) -> Any:
    """What ``dump_code`` was given, with the sender's modules importable."""
    path, cwd, blob, sources = cloudpickle.loads(dumped)
    for entry in path:
        if entry not in sys.path and os.path.exists(entry):
            sys.path.append(entry)
    if os.path.isdir(cwd) and not _directory_kept:
        os.chdir(cwd)
    _sources.register(sources)
    return cloudpickle.loads(blob)


def native_errors(what: str, language: str, fn: Callable[[], Any]) -> Any:
    """Calls the native core; its errors are raised as what users know."""
    try:
        return fn()
    except RuntimeError as error:
        translated: Optional[BaseException] = _failures.translate(error, what, language)
        if translated is error:
            raise
        assert translated is not None
        raise translated from None
