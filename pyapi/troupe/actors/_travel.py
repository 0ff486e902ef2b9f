"""Refs and handles inside values: who keeps what they refer to, from pickling to unpickling.

What a value refers to is noted while it is pickled, and travels once more in a table in front of
it, so that a receiver can hold it without reading the value. The sender keeps all of it until the
receiver has said that it does (``RefTable`` decides). A ref that is pickled in another way, outside
of calls and values, is kept by its process until that ends.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

from troupe.errors import ObjectLostError, OwnerDiedError, code_of

_log = logging.getLogger("troupe.actors")
_here = threading.local()
NOT_FOUND = 2  # ErrorCode::kNotFound


class RefHolder:
    """What refers to an object or an actor, and notes when it is pickled."""

    __slots__ = ("__weakref__",)

    def _troupe_held(self) -> Any:
        """What counts it; None: nothing does, here."""
        return None


class Found:
    """What one value refers to."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self.items: list[Any] = list(items)
        self.numbers: list[int] = []  # Of refs of this process, once for each pickling.

    @contextmanager
    def noting(self) -> Iterator[None]:
        """What is pickled here is noted."""
        before, _here.found = getattr(_here, "found", None), self
        try:
            yield
        finally:
            _here.found = before


def note(item: Any, number: int = 0) -> bool:
    """It is being pickled; whether somebody heeds that. ``number``: of a ref of this process."""
    found: Optional[Found] = getattr(_here, "found", None)
    if found is None:
        return False
    found.items.append(item)
    if number:
        found.numbers.append(number)
    return True


class Contents:
    """What a value that is kept here refers to, as long as this lives."""

    def __init__(self, refs: References, found: Found) -> None:
        self._refs = refs
        self._found = found

    def __del__(self) -> None:
        self._refs.pickled(self._found.numbers)


class References:
    """What this process counts of refs, and keeps for others.

    Thread: any; ``on_item`` on that of completions.
    """

    def __init__(self, native: Any) -> None:
        self.native = native
        self.address: bytes = native.address
        self._pid = os.getpid()
        self._kept: dict[int, Any] = {}  # By number of an object, or token of a message.
        self._arrived: dict[int, list[Any]] = {}  # Of values that are here, by their numbers.
        self._again: dict[int, list[tuple[bytes, Any]]] = {}  # Who waits, by number of an object.
        self._again_lock = threading.Lock()

    def publish(self, ref: Any, call: Any, known: int) -> int:
        """The number of a ref of this process that is being pickled; ``known``: its last."""
        number: int = self.native.publish(call, known)
        self._kept[number] = ref
        return number

    def replace(self, number: int, call: Any) -> None:
        """What others get of this ref from now on."""
        self.native.replace(number, call)

    def pickled(self, numbers: list[int]) -> None:
        """What was noted of these is kept in another way, or not needed."""
        if numbers and self._pid == os.getpid():
            self.native.pickled(numbers)

    def hold(self, owner: bytes, number: int) -> Any:
        """Counts a ref that has come from ``owner``, as long as what is returned lives."""
        return self.native.hold(owner, number)

    def pin(self, found: Found, to: str) -> tuple[bytes, int]:
        """The table of a message, and the token by which it is ``over``."""
        token = self.native.pin(_held_by(found.items), list(dict.fromkeys(found.numbers)), to)
        self._kept[token] = found.items
        again = Found()
        try:
            with again.noting():
                table = pickle.dumps((self.address, token, found.items), protocol=5)
        finally:
            self.pickled(found.numbers + again.numbers)
        return table, token

    def over(self, token: int, *receiver: Any) -> None:
        """The message of this token has arrived, or never will.

        ``receiver``: the call that it was for, or the actor, if that is known only now.
        """
        if token and self._pid == os.getpid():
            self.native.over(token, *receiver)

    def keep(self, found: Found) -> tuple[bytes, Contents]:
        """The table of a value that is kept here, and what keeps all that it refers to."""
        again = Found()
        with again.noting():
            table = pickle.dumps((self.address, 0, found.items), protocol=5)
        found.numbers += again.numbers
        return table, Contents(self, found)

    def open(self, table: Any, arrived: bool) -> list[Any]:
        """What a value refers to; ``arrived``: its sender waits until it is held here."""
        sender, token, items = pickle.loads(table)
        if arrived:
            self.native.arrived(sender, token, _held_by(items))
        found: list[Any] = items
        return found

    def read(self, outer: Any, items: list[Any]) -> None:
        """The value of a ref of another process was read; ``outer`` keeps these until they count"""
        self.native.opened(outer, _held_by(items))

    def _compute_again(self, number: int, lost: bytes, answer: Any) -> None:
        """Others have found this object lost. One thread works for all who ask meanwhile."""
        with self._again_lock:
            waiting = self._again.setdefault(number, [])
            waiting.append((lost, answer))
            if len(waiting) > 1:
                return
        threading.Thread(target=self._compute_all, args=(number, self._kept.get(number)),
                         daemon=True, name="troupe-again").start()

    def _compute_all(self, number: int, ref: Any) -> None:
        from troupe.actors import _lineage

        done = 0
        while True:
            with self._again_lock:
                if done == len(self._again[number]):
                    del self._again[number]
                    return
                lost, answer = self._again[number][done]
                done += 1
            if ref is None:
                answer.fail(NOT_FOUND, "its owner does not have this ref any more")
            else:
                _lineage.compute_again_for(ref, lost, answer)

    def on_item(self, what: str, key: Any, table: bytes = b"", call: Any = None) -> None:
        """What the runtime tells of refs."""
        if what == "again":
            self._compute_again(key, table, call)
        elif what == "ended":
            for number in key:
                self._kept.pop(number, None)
        elif what == "gone":
            self._arrived.pop(key, None)
        else:
            try:
                items = self.open(table, True)
            except Exception:  # The reader of the value will be told the same.
                _log.debug("what a result refers to cannot be read", exc_info=True)
                return
            if key:
                self._arrived[key] = items


def lost(
    error: RuntimeError, what: str, owner: Any, of_cpp: bool
) -> Optional[ObjectLostError]:
    """That the owner of a ref cannot give its value any more, if the error says that."""
    code = code_of(error)
    if code == "peer_gone" and owner is not None and owner.gone:
        return OwnerDiedError(
            f"{what}: the process that has made this ref, {owner.peer}, has ended, and its value "
            "with it; let a process that lives longer call or put what others need")
    if code == "not_found" and not of_cpp:
        return ObjectLostError(f"{what}: {error}")
    return None


def _held_by(items: list[Any]) -> list[Any]:
    return [held for item in items if (held := item._troupe_held()) is not None]
