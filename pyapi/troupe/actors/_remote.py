"""``@troupe.remote``: classes as actors, functions as tasks, and the handles of actors."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from troupe import _native
from troupe.actors import (
    _calls,
    _context,
    _environment,
    _failures,
    _options,
    _refs,
    _results,
    _session,
    _shapes,
    _travel,
)
from troupe.actors._coming import ActorHolder, ComingActor
from troupe.actors._refs import ObjectRef
from troupe.actors._streams import RemoteGenerator

if TYPE_CHECKING:
    from troupe.actors import _groups, _tasks

_DESCRIBE_S = 90.0


def remote(*args: Any, **options: Any) -> Any:
    """Makes a class an actor class, or a function a task; with or without options.

        @troupe.remote
        class Counter: ...

        @troupe.remote(num_cpus=2, max_restarts=3)
        class Model: ...

    Options of actors: ``name``, ``namespace``, ``get_if_exists``, ``lifetime="detached"``,
    ``num_cpus`` (0; CPUs are lent to others while all calls of the actor wait), ``num_gpus``,
    ``memory`` (bytes), ``resources``, ``label_selector``, ``scheduling_strategy`` (see
    ``troupe.util.scheduling_strategies``), ``node``, ``node_soft``, ``placement_group`` (see
    :func:`troupe.placement_group`),
    ``placement_group_bundle_index``, ``priority``, ``max_restarts`` (0; -1: always),
    ``max_task_retries`` (0; calls that are sent again to the next incarnation),
    ``max_concurrency`` (1; 1000 with async methods), ``concurrency_groups`` (``{"io": 2}``: calls
    of methods of this group that run at once, beside the others), ``max_pending_calls``,
    ``allow_out_of_order_execution`` (calls do not wait for those before them whose arguments are
    not ready; of threaded and async actors they never do),
    ``start_timeout`` (60 s), ``runtime_env`` (``env_vars``, ``working_dir``, ``py_modules``,
    ``pip``: see docs/actors.md).
    Options of tasks: ``name``, ``num_cpus`` (1), ``num_gpus``, ``memory``, ``resources``,
    ``label_selector``, ``max_retries`` (3; when its process dies), ``retry_exceptions`` (True, or
    exception types that make it run again, too), ``num_returns`` (1), ``timeout``. A task with
    ``scheduling_strategy``, ``node``, ``placement_group``, ``runtime_env`` or ``max_calls`` runs
    in a process of its own, which ends with it.

    An actor class with ``__troupe_save__(self) -> bytes`` and ``__troupe_restore__(self, state)``
    keeps its state over restarts: a result leaves only when the state it is due to is safe.

    Raises:
        TypeError, ValueError: an option is unusable.
    """
    if len(args) == 1 and callable(args[0]) and not options:
        return _make(args[0], {})
    if args:
        raise TypeError("use @troupe.remote, or @troupe.remote(name=value, ...)")
    return functools.partial(_make, options=options)


# Of a method: whether it is a generator, what arguments it takes, its own options.
MethodKind = tuple[bool, Optional[_shapes.Shape], dict[str, Any]]


def method(
    *, num_returns: Any = 1, retry_exceptions: Union[None, bool, Sequence[type]] = None,
    concurrency_group: Optional[str] = None,
) -> Callable[[Any], Any]:
    """Options of one method, given where it is defined: ``@troupe.method(num_returns=2)``.

    Args:
        num_returns: how many values it returns, each with a ref of its own; 0: no ref at all. A
            generator gives its values one by one (``"streaming"``, ``"dynamic"``) unless this is
            a number above 1.
        retry_exceptions: what the method raises and that makes it run again, as often as the
            actor's ``max_task_retries`` says: a list of exception types, or True for any.
        concurrency_group: which of the actor's ``concurrency_groups`` it runs in.

    Raises:
        TypeError, ValueError: an option is unusable.
    """
    _options.check_returns(num_returns)
    _options.check_retry_exceptions(retry_exceptions)
    given = {"num_returns": num_returns, "retry_exceptions": retry_exceptions}
    if concurrency_group is not None:
        given["concurrency_group"] = _options.check_group(concurrency_group)

    def mark(fn: Any) -> Any:
        fn.__troupe_method__ = given
        return fn

    return mark


def _make(code: Any, options: dict[str, Any]) -> Union[ActorClass, _tasks.RemoteFunction]:
    if inspect.isclass(code):
        return ActorClass(code, options)
    if callable(code):
        from troupe.actors import _tasks

        return _tasks.RemoteFunction(code, options)
    raise TypeError(f"@troupe.remote is for classes and functions, not {code!r}")


# ---- actors ----


class ClassCode(_calls.Code):
    """The code of actors."""

    @functools.cached_property
    def seen(self) -> tuple[dict[str, MethodKind], bool]:
        """Its methods, and whether it is async. Not when it is made: a class that refers to itself
        is unpickled before its methods are."""
        return methods_of(self.code), has_async(self.code)


class ActorClass:
    """A class whose instances are actors; made by :func:`troupe.remote`."""

    def __init__(
        self, cls: type, options: dict[str, Any], code: Optional[ClassCode] = None
    ) -> None:
        self._cls = cls
        self._options = options
        self._code = code or ClassCode(cls, f"the class {cls.__name__}")
        _options.actor_options(options, False)
        self.__name__ = cls.__name__
        self.__doc__ = cls.__doc__
        self.__module__ = cls.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self.__name__} is an actor class: use {self.__name__}.remote(...)")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        raise TypeError(f"{self.__name__} is an actor class and cannot be a base; derive from the "
                        "class itself, and make actor classes of both: troupe.remote(Derived)")

    def __reduce__(self) -> tuple:
        return ActorClass, (self._cls, self._options)

    @property
    def wrapped(self) -> type:
        """The class whose instances the actors are."""
        return self._cls

    def options(self, **options: Any) -> ActorClass:
        """The same class with other options; see :func:`troupe.remote`."""
        return ActorClass(self._cls, {**self._options, **options}, self._code)

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Starts an actor; ``args`` go to its constructor. Does not wait for it.

        It ends when its last handle goes, behind the calls that have been made.

        Refs among ``args`` are replaced by their values; it starts when they are ready. Calls wait
        until it is there, and fail with the reason if it cannot be: PlacementError if no node can
        ever offer what it needs, ActorDiedError if its constructor raised.

        Raises:
            TypeError: the constructor does not take these arguments.
            ActorNameTakenError: a living actor has this name.
            SerializationError: the class or an argument cannot be pickled.
        """
        _shapes.check(self._code.shape, self.__name__, args, kwargs)
        return self._spawn(args, kwargs)

    def task_runner(self, fn: Any, about: dict[str, Any]) -> ActorHandle:
        """Starts an actor that is to run ``fn``, a task which can ask for ``about``."""
        return self._spawn((fn,), {}, about)

    def _spawn(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], about: Optional[dict[str, Any]] = None
    ) -> ActorHandle:
        session, native, before, methods = self._prepared(about)
        what = f"{self.__name__}()"

        def spawn() -> Any:
            packed = _calls.Packed(session, what, args, kwargs, *before)
            made = _calls.native_errors(what, _failures.PYTHON, lambda: session.actors.spawn(
                self.__name__, packed.payload, native))
            if packed.holds:  # A restart needs them again.
                session.when_gone(made, packed.let_go)
            return made

        waits = [ref for ref in _calls.awaited(None, args, kwargs) if not ref.ready()]
        try:
            ref = ComingActor(session, what, waits, spawn) if waits else spawn()
        except _calls.DependencyError as error:
            ref = ComingActor(session, what, [], functools.partial(_raise, error))
        return ActorHandle(session, ref, self.__name__, methods, _failures.PYTHON,
                           bool(before[1].get("retries")), bool(before[1].get("ordered")))

    def group(
        self, size: Optional[int] = None, *, min_size: Optional[int] = None,
        max_size: Optional[int] = None, name: str = "", lifetime: Optional[str] = None,
        below_min_timeout: float = 600.0,
    ) -> _groups.GroupMaker:
        """Several actors of this class, as one: ``Trainer.group(size=4).remote(plan)``.

        Args:
            size: members to start with; ``min_size`` if it is left out.
            min_size: that many get their places at once, and are needed; default: ``size``.
            max_size: it can be resized up to this; default: ``size``.
            name: unique among the cluster's groups, for :func:`troupe.get_group`; also that of the
                elastic collective group that its members are in.
            lifetime: ``"detached"``: it outlives its creator.
            below_min_timeout: it ends after so many seconds with fewer than ``min_size`` alive.

        Members are restarted as often as they die, unless ``max_restarts`` says otherwise.

        Raises:
            TypeError, ValueError: the sizes contradict, or an option is not for groups.
        """
        from troupe.actors import _groups

        return _groups.maker(self, self._options, size, min_size, max_size, name, lifetime,
                             below_min_timeout)

    @property
    def restarts_chosen(self) -> bool:
        """Whether ``max_restarts`` was given."""
        return "max_restarts" in self._options

    def packed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], about: Optional[dict[str, Any]] = None
    ) -> tuple[_session.Session, _calls.Packed, dict[str, Any], dict[str, MethodKind]]:
        """The session, the class with these arguments, the native options, the methods.

        Waits for refs among the arguments.
        """
        session, native, before, methods = self._prepared(about)
        refs = _calls.refs_in(args, kwargs)
        if refs:
            _refs.get(refs)
        packed = _calls.Packed(session, f"{self.__name__}()", args, kwargs, *before)
        return session, packed, native, methods

    def _prepared(self, about: Optional[dict[str, Any]]) -> tuple[
            _session.Session, dict[str, Any], tuple[bytes, dict[str, Any]], dict[str, MethodKind]]:
        """The session, the native options, the class and what it is started with, the methods."""
        session = _session.current()
        session.check()
        methods, is_async = self._code.seen
        native = _options.actor_options(self._options, is_async)
        _environment.prepare(session, self._options, native)
        native["runs_tasks"] = about is not None
        native["counted"] = not native["runs_tasks"] and not native["detached"]
        if about is None:
            groups = _options.concurrency_groups(self._options)
            _check_groups(self.__name__, methods, groups)
            about = _context.started_with(
                native, name=native["name"], retries=self._options.get("max_task_retries"),
                ordered=_options.in_order(self._options, native["max_concurrency"] == 1),
                groups=groups, counted=native["counted"],
                concurrency=_options.concurrency_of(self._options, is_async))
        native["name"] = named(native["name"], self._options.get("namespace"))
        return session, native, (self._code.dumped, about), methods


def _check_groups(
    actor: str, methods: Mapping[str, MethodKind], groups: Mapping[str, int]
) -> None:
    for name, (_, _, given) in methods.items():
        group = given.get("concurrency_group")
        if group is not None and group not in groups:
            known = ", ".join(groups) or "none"
            raise ValueError(f"{actor}.{name} runs in the concurrency group {group!r}, which is "
                             f"none of the actor's: {known}; name it in concurrency_groups")


def named(name: str, namespace: Optional[str]) -> str:
    """The name that the cluster knows an actor by: that of its namespace in front."""
    if namespace is None:
        namespace = _context.current().namespace
    return f"{namespace}/{name}" if name and namespace else name


def methods_of(cls: type) -> dict[str, MethodKind]:
    """The methods that can be called, by name."""
    found: dict[str, MethodKind] = {}
    for name, value in inspect.getmembers(cls, callable):
        if name.startswith("__") and name.endswith("__") and name != "__call__":
            continue
        stream = inspect.isgeneratorfunction(value) or inspect.isasyncgenfunction(value)
        static = isinstance(inspect.getattr_static(cls, name), (staticmethod, classmethod))
        shape = _shapes.of(value, 0 if static or not inspect.isfunction(value) else 1)
        found[name] = stream, shape, getattr(value, "__troupe_method__", {})
    if "__call__" not in vars(cls):
        found.pop("__call__", None)
    return found


def has_async(cls: type) -> bool:
    """Whether a class has ``async def`` methods, so that its actors run an event loop."""
    return any(inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)
               for _, value in inspect.getmembers(cls, callable))


def retries(count: Any) -> bool:
    return count is not None and count != 0


class Target(NamedTuple):
    """What a method that is to be called has of its handle, which need not live as long."""

    session: _session.Session
    native: Any
    name: str
    language: str
    retry: bool
    ordered: bool


class ActorHandle(ActorHolder):
    """Refers to an actor: ``handle.method.remote(...)``. Can be an argument, a result, or a key.

    An actor ends when its last handle goes, unless it is detached. What :func:`get_actor` gives,
    and an actor has of itself, does not count.
    """

    def __init__(
        self, session: _session.Session, native: Any, name: str,
        methods: Optional[Mapping[str, MethodKind]], language: str, retry: bool = False,
        ordered: bool = True, own: bool = False,
    ) -> None:
        """``native``: a native ref, or what waits to have one. ``methods``: None: it is asked.

        ``own``: of the actor of this process: it does not count here, but its copies elsewhere do.
        """
        self._session = session
        self._native = native
        self._name = name
        self._methods = methods
        self._language = language
        self._retry = retry
        self._ordered = ordered
        self._troupe_own = own

    def __getattr__(self, name: str) -> ActorMethod:
        of_all = _calls.OF_ALL.get(name)
        if name.startswith("_troupe") or (
                name.startswith("__") and name != "__call__" and of_all is None):
            raise AttributeError(name)
        if self._methods is None and not self._language:
            self._describe()
        if of_all is not None and self._language == _failures.PYTHON:
            return ActorMethod(self._troupe_target(), of_all, (False, None, {}), {})
        if self._methods is not None and name not in self._methods:
            close = difflib.get_close_matches(name, self._methods, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise AttributeError(f"{self._name} has no method {name!r}{hint}")
        kind: MethodKind = (False, None, {}) if self._methods is None else self._methods[name]
        method = ActorMethod(self._troupe_target(), name, kind, {})
        self.__dict__[name] = method  # The next time it is found without this function.
        return method

    def _troupe_target(self) -> Target:
        return Target(self._session, self._native, self._name, self._language, self._retry,
                      self._ordered)

    def __repr__(self) -> str:
        return f"<ActorHandle of {self._name} {_calls.key(self._native)}>"

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, ActorHandle) and self._native.id == other._native.id)

    def __hash__(self) -> int:
        return hash(self._native.id)

    def __copy__(self) -> ActorHandle:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ActorHandle:
        return self

    def __reduce__(self) -> tuple:
        self._session.check()
        native = self.native_ref()
        if not _travel.note(self._troupe_sent(native)):
            self._session.keep(self, native.id)
        counted = self._troupe_own or native.held is not None
        return _load_handle, (native.address(), self._name, self._methods, self._language,
                              self._retry, self._ordered, counted)

    def _troupe_held(self) -> Any:
        return self.native_ref().held

    def _troupe_sent(self, native: Any) -> ActorHandle:
        """This handle; in its actor's own process one that counts while it is on its way."""
        if not self._troupe_own:
            return self
        return ActorHandle(self._session, self._session.actors.count(native), self._name,
                           self._methods, self._language, self._retry, self._ordered)

    def native_ref(self) -> Any:
        """The native reference, for calls of C++; waits until the actor is started."""
        return self._native.ref() if isinstance(self._native, ComingActor) else self._native

    def _describe(self) -> None:
        """Asks an actor found by name for its methods; one of C++ does not know the question."""
        core = _native.core()
        call = self._native.call(_calls.DESCRIBE, core.pack_arguments([]), _DESCRIBE_S, True)
        ref = ObjectRef(call, self._session, self._name, _failures.CPP)
        try:
            self._methods, self._retry, self._ordered = _refs.get(ref, _DESCRIBE_S)
            self._language = _failures.PYTHON
        except AttributeError:
            self._language = _failures.CPP


def _load_handle(
    address: bytes, name: str, methods: Optional[dict[str, MethodKind]], language: str, retry: bool,
    ordered: bool, counted: bool = False,
) -> ActorHandle:
    session = _session.current()
    native = session.actors.refer(address, counted)
    return ActorHandle(session, native, name, methods, language, retry, ordered,
                       counted and native.held is None)


def _raise(error: _calls.DependencyError) -> Any:
    raise error.__cause__ or error


class ActorMethod:
    """A method of an actor: ``.remote(...)`` calls it."""

    __slots__ = ("_to", "_method", "_kind", "_options")

    def __init__(
        self, to: Target, name: str, kind: MethodKind, options: dict[str, Any]
    ) -> None:
        self._to = to
        self._method = name
        self._kind = kind
        self._options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"a method of an actor is called by .remote(): "
                        f"{self._to.name}.{self._method}.remote(...)")

    def options(self, **options: Any) -> ActorMethod:
        """The same method with other options.

        Args:
            timeout: seconds until the result must be there, waiting for a restart included; then
                GetTimeoutError. By default a day.
            retries: not 0: if the actor dies while the call is on its way, send it again to its
                next incarnation. Where state is saved it has its effect once even so.
            look_ahead: of a generator: how many values it may be ahead of its reader.
            num_returns: as of :func:`troupe.method`.
            name: what errors call it.
            concurrency_group: as of :func:`troupe.method`.
        """
        _options.check_names(options, _options.METHOD_OPTIONS, "methods")
        _options.timeout_of(options)
        if options.get("concurrency_group") is not None:
            _options.check_group(options["concurrency_group"])
        _options.check_returns(options.get("num_returns", 1))
        return ActorMethod(self._to, self._method, self._kind, {**self._options, **options})

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it; returns a ref of the result at once, or of a generator an iterator of refs.

        Raises:
            TypeError: the method does not take these arguments.
            SerializationError: an argument cannot be pickled; the message says which.
        """
        to, options = self._to, self._options
        stream, shape, given = self._kind
        _shapes.check(shape, self._method, args, kwargs)
        if not (options or given or stream) and to.language == _failures.PYTHON:  # As mostly.
            quick = _calls.call_quick(to.session, to.native, to.name, self._method, args, kwargs,
                                      _options.CALL_TIMEOUT_S, to.retry)
            if quick is not None:
                return quick
            return _calls.call_python(
                to.session, to.native, f"{to.name}.{self._method}", self._method, args, kwargs,
                _options.CALL_TIMEOUT_S, to.retry, ordered=to.ordered)
        what = options.get("name") or f"{to.name}.{self._method}"
        timeout = _options.timeout_of(options) if options else _options.CALL_TIMEOUT_S
        retry = retries(options["retries"]) if "retries" in options else to.retry
        if to.language == _failures.CPP:
            if kwargs:
                raise TypeError(f"{what}: methods of C++ actors have no keyword arguments")
            return _calls.call_cpp(to.session, to.native, what, self._method, args,
                                   timeout, retry)
        returns = options.get("num_returns", given.get("num_returns", 1))
        several = returns if isinstance(returns, int) else 1
        if isinstance(returns, str) and not stream:
            raise TypeError(f"{what}: num_returns={returns!r} is for generators")
        group = options.get("concurrency_group") or given.get("concurrency_group") or ""
        ref = _calls.call_python(
            to.session, to.native, what, _calls.in_group(self._method, group), args,
            kwargs, timeout, retry, returns=several, ordered=to.ordered)
        if not stream or several != 1:
            return _results.split(ref, several)
        return RemoteGenerator(to.session, to.native, ref, what, timeout,
                               options.get("look_ahead"), group=group)


def own_handle(actor_type: str, described: Any) -> ActorHandle:
    """A handle of the actor that this process hosts, described as it describes itself to others."""
    session = _session.current()
    methods, retry, ordered = described
    return ActorHandle(session, session.actors.own(), actor_type, methods, _failures.PYTHON, retry,
                       ordered, bool(_context.about().get("counted")))


def kill(handle: ActorHandle, no_restart: bool = True) -> None:
    """Ends an actor at once, as a crash of its process would.

    Args:
        no_restart: False: ``max_restarts`` decides whether it comes back.
    """
    if not isinstance(handle, ActorHandle):
        raise TypeError(f"kill() takes a handle of an actor, not {handle!r}")
    handle._session.check()
    _calls.native_errors(handle._name, handle._language, lambda: handle._native.kill(
        not no_restart, "killed by troupe.kill()", _session.ASK_S))
