"""Handles of actors that are no class of this program: found by their names, or of C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from troupe.actors import _calls, _context, _failures, _options, _session
from troupe.actors._remote import ActorHandle, named, retries
from troupe.errors import ActorNotFoundError


def get_actor(
    name: str, namespace: Optional[str] = None, *, timeout: float = _session.ASK_S
) -> ActorHandle:
    """The living actor of this name, of Python or of C++.

    The handle does not keep it alive, and neither do copies of it: only those that come from the
    one that ``.remote()`` has given do, unless the actor is detached.

    Args:
        namespace: where its name was given; by default the namespace that this runs in.
        timeout: seconds to wait for the head at most.

    Raises:
        ActorNotFoundError (a ValueError): there is none.
        TypeError, ValueError: these are no names.
    """
    _options.check_name("the name of an actor", name)
    if namespace is not None:
        _session.check_namespace(namespace)
    session = _session.current()
    session.check()
    try:
        native = session.actors.lookup(named(name, namespace), timeout)
    except RuntimeError as error:
        if getattr(error, "code", None) == "not_found":
            where = _context.current().namespace if namespace is None else namespace
            within = f" in the namespace {where!r}" if where else ""
            raise ActorNotFoundError(f"no living actor is named {name!r}{within}") from None
        raise _failures.translate(error, f"get_actor({name!r})", _failures.PYTHON) from None
    return ActorHandle(session, native, native.type, None, "")


def cpp_actor(
    program: Sequence[str], type: str, args: Sequence[Any] = (), *, threads: bool = False,
    **options: Any,
) -> ActorHandle:
    """Starts an actor of a C++ program or plugin: one that describes ``type`` with TROUPE_ACTOR.

    Args:
        program: its command line, or a plugin, ``"/path/till.so"``; the path must exist on every
            node.
        type: the class, as TROUPE_ACTOR names it.
        args: of its constructor: bool, int, float, str, bytes, list, dict with str keys, arrays of
            numbers, handles.
        threads: ``max_concurrency`` calls run on as many threads, and may block; else they are
            fibers of one thread.
        options: as of actors of Python; see :func:`troupe.remote`.
    """
    session = _session.current()
    session.check()
    native = _options.actor_options(options, False)
    only = set(options.get("runtime_env") or {}) - {"env_vars"}
    if only:
        raise ValueError(f"runtime_env of C++ actors has env_vars only, not {', '.join(only)}")
    native["name"] = named(native["name"], options.get("namespace"))
    native["counted"] = not native["detached"]
    native["threads"] = bool(threads)
    if isinstance(program, str) and program.endswith(".so"):
        native["plugin"] = program
    else:
        command = [program] if isinstance(program, str) else program
        native["program"] = [str(part) for part in command]
    ref = _calls.native_errors(type, _failures.CPP, lambda: session.actors.spawn(
        type, _calls.pack_plain(list(args), f"{type}()"), native))
    return ActorHandle(session, ref, type, None, _failures.CPP,
                       retries(options.get("max_task_retries")))
