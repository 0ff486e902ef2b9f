"""Groups of actors: several of one class that are made, called, resized and replaced together."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from troupe import _native
from troupe._config import check_amount, check_count
from troupe.actors import _calls, _codec, _failures, _options, _refs, _session
from troupe.actors._refs import ObjectRef
from troupe.actors._remote import ActorClass, ActorHandle, MethodKind
from troupe.errors import (
    ActorDiedError,
    ActorNameTakenError,
    ActorNotFoundError,
    ActorTaskError,
    DrainedError,
    GetTimeoutError,
    TaskCancelledError,
    code_of,
)

_ASK_S = 30.0
_SLICE_S = 60.0  # Of one look at what has happened.
_DRAIN_S = 30.0
_NO_MEMBER_OPTIONS = ("name", "get_if_exists", "lifetime", "node", "node_soft",
                      "placement_group_bundle_index")


@dataclass(frozen=True)
class GroupMember:
    """A member of a group of actors."""

    number: int
    """Given once in a group."""
    state: str
    """"starting", "alive", "restarting" or "draining"."""
    reason: str
    """Why it is not alive."""
    handle: ActorHandle


@dataclass(frozen=True)
class GroupEvent:
    """What has happened in a group of actors."""

    sequence: int
    """Grows with each event of a group."""
    kind: str
    """"added", "alive", "died" (and is being restarted), "draining", "left" (as it was asked to),
    "lost" (it has ended for good), "resized", "below_min" or "ended"."""
    member: Optional[int]
    """Its number; None: it is about the group."""
    detail: str
    """Why."""


class GroupMaker:
    """``Trainer.group(...)``: ``.remote(...)`` makes the group."""

    def __init__(self, actor_class: ActorClass, spec: dict[str, Any]) -> None:
        self._class = actor_class
        self._spec = spec

    def remote(self, *args: Any, **kwargs: Any) -> ActorGroup:
        """Makes the group; ``args`` go to the constructor of each member. Does not wait for them.

        Raises:
            ActorNameTakenError: there is a group, or a collective group, of this name.
            SerializationError: the class or an argument cannot be pickled.
        """
        session, packed, native, methods = self._class.packed(args, kwargs)
        if not self._class.restarts_chosen:
            native["max_restarts"] = -1
        if packed.holds:  # New members need them.
            session.keep(packed)
        what = f"{self._class.__name__}.group()"
        asked = {**self._spec, "type": self._class.__name__, "arguments": packed.payload,
                 "options": native}
        status = _ask(session, "create", asked, what)
        return ActorGroup(session, status["id"], status["name"], status["type"], methods)


def maker(
    actor_class: ActorClass, options: Mapping[str, Any], size: Optional[int],
    min_size: Optional[int], max_size: Optional[int], name: str, lifetime: Optional[str],
    below_min_timeout: float,
) -> GroupMaker:
    """See :meth:`ActorClass.group`."""
    for option in _NO_MEMBER_OPTIONS:
        if options.get(option) not in (None, "", False):
            raise ValueError(f"{option} is not for members of a group"
                             + ("; group(name=...) names the group" if option == "name" else "")
                             + ('; group(lifetime="detached") keeps it' if option == "lifetime"
                                else ""))
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, not {name!r}")
    if lifetime not in (None, "detached", "non_detached"):
        raise ValueError(f'lifetime must be None or "detached", not {lifetime!r}')
    sizes = {"size": size, "min_size": min_size, "max_size": max_size}
    given = {key: check_count(key, value) for key, value in sizes.items() if value is not None}
    if not given:
        raise TypeError("say how many members: group(size=4), or min_size and max_size, too")
    least = given.get("min_size", min(given.values()))
    start = given.get("size", least)
    most = given.get("max_size", max(least, start))
    if not least <= start <= most:
        raise ValueError(f"need 1 <= min_size <= size <= max_size, got {least}, {start}, {most}")
    return GroupMaker(actor_class, {
        "name": name, "detached": lifetime == "detached", "min_size": least, "size": start,
        "max_size": most, "below_min_s": check_amount("below_min_timeout", below_min_timeout)})


class ActorGroup:
    """A group of actors: ``group.method.remote(...)`` calls all members.

    Members have numbers. One that dies is started again, as the same member; one that is drained
    leaves when it has done what it was called for, and another takes its place. The elastic
    collective group of the group's name has all members:
    ``troupe.collective.get_group_handle(name)`` in their methods. The group ends with the process
    that made it, unless it is detached. Can be an argument or a result.
    """

    def __init__(
        self, session: _session.Session, id: str, name: str, type: str,
        methods: Optional[Mapping[str, MethodKind]],
    ) -> None:
        self._session = session
        self._methods = methods
        self._type = type
        self.id = id
        self.name = name

    def __getattr__(self, name: str) -> GroupMethod:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._methods is not None and name not in self._methods:
            raise AttributeError(f"{self._type} has no method {name!r}")
        return GroupMethod(self, name, {})

    def __repr__(self) -> str:
        return f"<ActorGroup {self.name!r} of {self._type}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorGroup) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple:
        return _load_group, (self.id, self.name, self._type, self._methods)

    def members(self) -> list[GroupMember]:
        """Those that it has now, by number.

        Raises:
            ActorDiedError: the group has ended; the message says why.
        """
        status = self.status()
        self._check_goes_on(status)
        return [self._member(m) for m in status["members"]]

    def status(self) -> dict[str, Any]:
        """``min_size``, ``size``, ``max_size``, ``ended``, ``reason``, ``members``, ``events``.

        Raises:
            ActorNotFoundError (a ValueError): it has ended, five minutes ago or more.
        """
        return self._ask("status", {})

    def wait(self, count: Optional[int] = None, timeout: float = _ASK_S) -> bool:
        """Whether ``count`` members (None: as many as there are to be) are alive within the time.

        Raises:
            ActorDiedError: the group has ended.
        """
        deadline = time.monotonic() + check_amount("timeout", timeout)
        since = 0
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                status = self._ask("watch", {"since": since}, min(left, _SLICE_S))
            except GetTimeoutError:
                if time.monotonic() < deadline:
                    continue
                return False
            self._check_goes_on(status)
            alive = sum(m["state"] == "alive" for m in status["members"])
            if alive >= (status["size"] if count is None else count):
                return True
            since = status["sequence"]

    def resize(self, size: int) -> None:
        """From now on there are to be ``size`` members, within ``min_size`` and ``max_size``.

        Those that are too many, the youngest, leave as drained ones do. Does not wait.
        """
        self._ask("resize", {"size": check_count("size", size)})

    def drain(self, member: int, reason: str = "drained", deadline_s: float = _DRAIN_S) -> None:
        """The member of this number leaves, and another takes its place.

        It leaves the collective group at the next boundary, finishes what it was called for, and
        ends; after ``deadline_s`` by force.
        """
        self._ask("drain", {"member": check_count("member", member, least=0),
                            "reason": str(reason),
                            "limit_s": check_amount("deadline_s", deadline_s)})

    def end(self, reason: str = "ended") -> None:
        """All members end. Ending it again is no error."""
        self._ask("end", {"reason": str(reason)})

    def on_event(self, told: Callable[[GroupEvent], None]) -> Callable[[], None]:
        """Calls ``told`` with every event from now on, in order, on a thread of the runtime.

        It must not block. Returns what ends it.
        """
        follower = _Follower(self, functools.partial(_tell, told))
        follower.ask(self.status()["sequence"])
        return follower.stop

    # -- inside ---------------------------------------------------------------------------------

    def _member(self, m: Mapping[str, Any]) -> GroupMember:
        native = self._session.actors.refer(m["address"])
        handle = ActorHandle(self._session, native, self._type, self._methods,
                             "" if self._methods is None else _failures.PYTHON)
        return GroupMember(m["number"], m["state"], m["reason"], handle)

    def _check_goes_on(self, status: Mapping[str, Any]) -> None:
        if status["ended"]:
            raise ActorDiedError(f"group {self.name!r} has ended: {status['reason']}")

    def _ask(self, verb: str, options: dict[str, Any], limit: float = _ASK_S) -> dict[str, Any]:
        return _ask(self._session, verb, {"group": self.id, **options}, f"group {self.name!r}",
                    limit)


def _load_group(
    id: str, name: str, type: str, methods: Optional[Mapping[str, MethodKind]]
) -> ActorGroup:
    return ActorGroup(_session.current(), id, name, type, methods)


def get_group(name: str) -> ActorGroup:
    """The group of actors of this name.

    Raises:
        ActorNotFoundError (a ValueError): there is none.
    """
    session = _session.current()
    found = _ask(session, "find", {"name": name}, f"get_group({name!r})")
    return ActorGroup(session, found["id"], found["name"], found["type"], None)


def _ask(
    session: _session.Session, verb: str, options: dict[str, Any], what: str,
    limit: float = _ASK_S,
) -> dict[str, Any]:
    session.check()
    try:
        call = session.actors.group(verb, options, limit)
        call.wait(limit + 1.0)
        return dict(_native.core().actor_group_status(call.result()))
    except RuntimeError as error:
        raise _translated(error, what) from None


def _translated(error: RuntimeError, what: str) -> BaseException:
    message = f"{what}: {getattr(error, 'message', None) or error}"
    code = code_of(error)
    if code == "not_found":
        return ActorNotFoundError(message)
    if code == "already_exists":
        return ActorNameTakenError(message)
    if code == "invalid_argument":
        return ValueError(message)
    return _failures.translate(error, what, _failures.PYTHON)


def _tell(told: Callable[[GroupEvent], None], status: Optional[dict[str, Any]],
          error: Optional[BaseException]) -> bool:
    for event in [] if status is None else status["events"]:
        told(GroupEvent(**event))
    return error is None


class _Follower:
    """Tells how a group stands, now and whenever something has happened in it."""

    def __init__(
        self, group: ActorGroup,
        told: Callable[[Optional[dict[str, Any]], Optional[BaseException]], bool],
    ) -> None:
        self._group = group
        self._told = told
        self._stopped = False

    def stop(self) -> None:
        """``told`` is not called any more, but for once that has begun."""
        self._stopped = True

    def ask(self, since: int) -> None:
        """Tells it as soon as there are events after ``since``."""
        session = self._group._session
        call = session.actors.group("watch", {"group": self._group.id, "since": since}, _SLICE_S)
        session.on_done(call, lambda: self._answered(call, since))

    def _answered(self, call: Any, since: int) -> None:
        if self._stopped:
            return
        status: Optional[dict[str, Any]] = None
        error: Optional[BaseException] = None
        try:
            status = dict(_native.core().actor_group_status(call.result()))
        except RuntimeError as problem:
            if code_of(problem) == "deadline_exceeded":
                return self.ask(since)
            error = _translated(problem, f"group {self._group.name!r}")
        more = self._told(status, error)
        if more and status is not None and not status["ended"] and not self._stopped:
            self.ask(status["sequence"])


class GroupMethod:
    """A method of all members: ``.remote`` calls those that are there, ``.run`` who comes, too."""

    __slots__ = ("_group", "_method", "_options")

    def __init__(self, group: ActorGroup, method: str, options: dict[str, Any]) -> None:
        self._group = group
        self._method = method
        self._options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"a method of a group is called by .remote() or .run(): "
                        f"group.{self._method}.run(...)")

    def options(self, **options: Any) -> GroupMethod:
        """The same method with other options: ``timeout`` and ``retries``, as of an actor's."""
        _options.check_names(options, ("timeout", "retries"), "methods of groups")
        _options.timeout_of(options)
        return GroupMethod(self._group, self._method, {**self._options, **options})

    def remote(self, *args: Any, **kwargs: Any) -> list[ObjectRef]:
        """Calls it on each member that the group has now; returns their refs, by number."""
        members = self._group.members()
        return [getattr(m.handle, self._method).options(**self._options).remote(*args, **kwargs)
                for m in members]

    def run(self, *args: Any, **kwargs: Any) -> ObjectRef:
        """Calls it on every present and future member; returns a ref of their results.

        The results, by number of the member, are there when all members that are there have
        returned. A member that dies is called again in its next life. Who joins after one has
        returned is not called any more, and 5 s later those that still wait for the others in a
        collective get CollectiveGroupLeftError. A member that ends with that has no result. What
        else the method raises fails the run, and ends the calls of the others.
        """
        group = self._group
        what = f"{group.name}.{self._method}"
        ref = _refs.later(group._session, what, _failures.PYTHON)
        _Run(group, self._method, args, kwargs, _options.timeout_of(self._options), ref).begin()
        return ref


class _Run:
    """A method that runs on all members of a group."""

    def __init__(
        self, group: ActorGroup, method: str, args: tuple[Any, ...], kwargs: dict[str, Any],
        timeout_s: float, ref: ObjectRef,
    ) -> None:
        self._group = group
        self._method = method
        self._args = args
        self._kwargs = kwargs
        self._deadline = time.monotonic() + timeout_s
        self._ref = ref
        self._follower = _Follower(group, self._on_status)
        self._lock = threading.RLock()
        self._calls: dict[int, ObjectRef] = {}
        self._returned: set[int] = set()
        self._left: set[int] = set()
        self._stayed = 0  # Have returned, and were not told to leave: nobody else begins.
        self._there: set[int] = set()
        self._over = False

    def begin(self) -> None:
        """Its calls begin as soon as it is known who is there."""
        self._ask("run", 0)
        self._ref.on_done(self._on_cancelled)
        self._follower.ask(0)

    def _ask(self, verb: str, member: int) -> Any:
        return self._group._session.actors.group(
            verb, {"group": self._group.id, "member": member}, _ASK_S)

    def _note(self, number: int) -> None:
        """Whether it had only to leave, and who else is there now, the head knows."""
        call = self._ask("returned", number)
        self._group._session.on_done(call, lambda: self._on_noted(number, call))

    def _on_noted(self, number: int, call: Any) -> None:
        status: Optional[dict[str, Any]] = None
        error: Optional[BaseException] = None
        try:
            status = dict(_native.core().actor_group_status(call.result()))
        except RuntimeError as problem:
            if code_of(problem) == "deadline_exceeded" and time.monotonic() < self._deadline:
                return self._note(number)
            error = _translated(problem, f"group {self._group.name!r}")
        with self._lock:
            self._returned.add(number)
            self._stayed += status is not None and any(
                m["number"] == number and m["state"] != "draining" for m in status["members"])
        self._on_status(status, error)

    def _on_status(
        self, status: Optional[dict[str, Any]], error: Optional[BaseException]
    ) -> bool:
        if status is None:
            assert error is not None
            self._finish(error)
            return False
        with self._lock:
            if self._over:
                return False
            if not status["ended"]:
                # Who has not begun when enough have returned is not waited for.
                self._there = {
                    m["number"] for m in status["members"]
                    if self._stayed < status["min_size"] or m["state"] != "starting"}
            for m in status["members"]:
                if m["number"] in self._calls or self._stayed or m["state"] == "draining":
                    continue
                self._call(m)
        self._check()
        if status["ended"]:
            self._finish(ActorDiedError(
                f"group {self._group.name!r} has ended: {status['reason']}"))
        return not self._over

    def _call(self, m: Mapping[str, Any]) -> None:
        left = max(0.0, self._deadline - time.monotonic())
        what = f"{self._group.name}[{m['number']}].{self._method}"
        native = self._group._session.actors.refer(m["address"])
        try:
            call = _calls.call_python(self._group._session, native, what, self._method,
                                      self._args, self._kwargs, left, True)
        except Exception as error:  # The arguments cannot be sent.
            self._finish(error)
            return
        self._calls[m["number"]] = call
        call.on_done(functools.partial(self._on_result, m["number"]))

    def _on_result(self, number: int) -> None:
        try:
            self._calls[number].value()
        except DrainedError:  # It was told to leave, and has no result.
            with self._lock:
                self._left.add(number)
        except BaseException as error:
            # Who has ended for good is no member any more: the next status says so.
            if not isinstance(error, ActorDiedError) or isinstance(error, ActorTaskError):
                self._finish(error)
            return
        else:
            self._note(number)
            return
        self._check()

    def _check(self) -> None:
        with self._lock:
            waited_for = self._there & self._calls.keys() - self._returned - self._left
            if waited_for or not self._returned:
                return
            results = [self._calls[number] for number in sorted(self._returned)]
        self._finish(None, results)

    def _on_cancelled(self) -> None:
        self._finish(TaskCancelledError(f"{self._group.name}.{self._method}: it was cancelled"))

    def _finish(
        self, error: Optional[BaseException], results: Optional[list[ObjectRef]] = None
    ) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
            calls = list(self._calls.values())
        self._follower.stop()
        for call in calls:
            if not call.ready():
                call.cancel()

        def send() -> Any:
            if error is not None:
                raise error
            values = [call.value() for call in results or []]
            encoded = _codec.encode(values, store=self._group._session.store)
            done = ObjectRef(_native.core().completed_call(encoded.payload), self._group._session,
                             self._ref._what, _failures.PYTHON)
            self._ref.keep_files(encoded.files)
            return done._call

        _refs.settle_later(self._ref, send)
