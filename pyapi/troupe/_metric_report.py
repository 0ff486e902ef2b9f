"""What user code of this process has counted, and the thread that tells the head of it.

The head hears values since the process began, of those series only that it does not have yet, so a
word that is lost, repeated or late does no harm. Without a cluster values stay here until there is
one. A forked child counts from zero.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

_log = logging.getLogger("troupe.metrics")
SERIES_MAX = 1_000  # Of one process.
SERIES_BYTES_MAX = 4_096  # Names, description and tags of one.
_BEAT_S = 1.0
_KEEP_ALIVE_S = 3.0  # A word that says only that this process is still there.
_SETTLE_S = 0.05  # Between words at the end of short pieces of work.

Tags = tuple[tuple[str, str], ...]
Key = tuple[str, Tags]
Values = tuple[float, ...]


class Family(NamedTuple):
    """What all series of a name have in common."""

    kind: str  # "counter", "gauge" or "histogram".
    description: str
    boundaries: tuple[float, ...] = ()


class Taken(NamedTuple):
    """The head's last answer."""

    log: str
    life: int
    number: int
    wanted: bool
    ended: bool
    refused: int
    reason: str


class Registry:
    """All series of this process.

    Thread: any. Owns: the values; who counts adds to a list of them under ``lock``.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._families: dict[str, Family] = {}
        self._series: dict[Key, list[float]] = {}
        self._warned = False

    def declare(self, name: str, family: Family) -> None:
        """Makes a metric known.

        Raises:
            ValueError: this process has one of this name of another kind or with other boundaries.
        """
        with self.lock:
            known = self._families.setdefault(name, family)
        if (known.kind, known.boundaries) != (family.kind, family.boundaries):
            raise ValueError(
                f"there is a metric {name} in this process, a {known.kind}"
                f"{f' with boundaries {list(known.boundaries)}' if known.boundaries else ''}; "
                "give one of them another name")

    def series(self, name: str, tags: Tags) -> Optional[list[float]]:
        """The values of a series; None, and one warning, if there are too many. With the lock."""
        key = (name, tags)
        values = self._series.get(key)
        if values is not None:
            return values
        family = self._families[name]
        size = len(name.encode()) + len(family.description.encode())
        size += sum(len(part.encode()) for pair in tags for part in pair)
        if len(self._series) >= SERIES_MAX or size > SERIES_BYTES_MAX:
            if not self._warned:
                self._warned = True
                _log.warning(
                    "metric %s: a series with %d bytes of names and tags is not counted: a process "
                    "has at most %d series of %d bytes; use tags with fewer and shorter values",
                    name, size, SERIES_MAX, SERIES_BYTES_MAX)
            return None
        count = len(family.boundaries) + 2 if family.kind == "histogram" else 1
        return self._series.setdefault(key, [0.0] * count)

    def values(self) -> dict[Key, Values]:
        """A copy of all that there is."""
        with self.lock:
            return {key: tuple(values) for key, values in self._series.items()}

    def family(self, name: str) -> Family:
        """Of a metric that was declared."""
        return self._families[name]

    def forget(self) -> None:
        """Zero everywhere, in a forked child: its parent tells what is its own."""
        self.lock = threading.Lock()
        for values in self._series.values():
            values[:] = [0.0] * len(values)


class Report:
    """What the head lacks of a registry. Pure: no thread, no clock, no socket."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._life = 0
        self._number = 0
        self._log: Optional[str] = None
        self._base: dict[Key, Values] = {}  # What earlier lives have told.
        self._known: dict[Key, Values] = {}  # What the head has acknowledged.
        self._sent: dict[int, dict[Key, Values]] = {}  # And will have, by the number of a word.
        self._wanted = True
        self._refused = 0

    def hear(self, taken: Taken) -> Optional[str]:
        """Takes an answer; why the head has refused a series since the last one, if it has."""
        if self._log is not None and taken.log != self._log:  # It has nothing of what was told.
            self._base, self._known, self._sent = {}, {}, {}
            self._refused = 0
        self._log = taken.log
        if taken.life != self._life:
            return None
        self._wanted = taken.wanted
        known = self._sent.get(taken.number)
        if known is not None:
            self._known = known
            self._sent = {n: sent for n, sent in self._sent.items() if n > taken.number}
        if taken.ended:
            self._life += 1
            self._base, self._known, self._sent = self._known, {}, {}
        refused, self._refused = self._refused, taken.refused
        return taken.reason if taken.refused > refused else None

    def next(self) -> tuple[int, int, list[tuple[Any, ...]]]:
        """The next word: (life, number, series)."""
        self._number += 1
        if not self._wanted:
            return self._life, self._number, []
        now = self._registry.values()
        if len(self._sent) > 60:  # A head that is away; a later answer is as good.
            self._sent = dict(list(self._sent.items())[-1:])
        self._sent[self._number] = now
        return self._life, self._number, [
            self._row(key, values) for key, values in now.items()
            if self._known.get(key) != values]

    def has_news(self) -> bool:
        """Whether there is something that no word has told."""
        if not self._wanted:
            return False
        last = self._sent[max(self._sent)] if self._sent else self._known
        return self._registry.values() != last or bool(self._sent)

    def _row(self, key: Key, values: Values) -> tuple[Any, ...]:
        name, tags = key
        family = self._registry.family(name)
        base = self._base.get(key)
        if base is not None and family.kind != "gauge":
            values = tuple(now - before for now, before in zip(values, base, strict=True))
        return (family.kind, name, family.description, dict(tags), list(family.boundaries),
                list(values))


class Reporter:
    """The thread that tells, from the first value on.

    Args:
        find: gives what can tell the head, with ``tell_metrics`` and ``metrics_taken``; None while
            this process is in no cluster.
    """

    def __init__(self, registry: Registry, find: Callable[[], Any]) -> None:
        self._registry = registry
        self._find = find
        self._lock = threading.Lock()
        self._report = Report(registry)
        self._channel: Any = None
        self._told_at = 0.0
        self._settled_at = 0.0
        self._reasons: set[str] = set()
        self._stop = threading.Event()
        self._started = False

    @property
    def started(self) -> bool:
        """Whether anything was counted."""
        return self._started

    def start(self) -> None:
        """Begins to tell; the first call counts."""
        with self._lock:
            if self._started:
                return
            self._started = True
            threading.Thread(target=self._run, name="troupe-metrics", daemon=True).start()

    def flush(self) -> None:
        """Tells now what was not told."""
        if self._started:
            with self._lock:
                self._tell(keep_alive=False)

    def settle(self) -> None:
        """The same where work ends, and not too often."""
        if not self._started:
            return
        now = time.monotonic()
        if now - self._settled_at >= _SETTLE_S:
            self._settled_at = now
            self.flush()

    def _run(self) -> None:
        while not self._stop.wait(_BEAT_S):
            with self._lock:
                self._tell(keep_alive=True)

    def _tell(self, keep_alive: bool) -> None:
        channel = self._find()
        if channel is None:
            self._channel = None
            return
        if channel is not self._channel:  # Another cluster: it has nothing of this process.
            self._channel = channel
            self._report = Report(self._registry)
        with contextlib.suppress(RuntimeError):  # It is being shut down.
            answer = channel.metrics_taken()
            if answer is not None:
                self._warn(self._report.hear(Taken(*answer)))
            due = keep_alive and time.monotonic() - self._told_at >= _KEEP_ALIVE_S
            if due or self._report.has_news():
                channel.tell_metrics(*self._report.next())
                self._told_at = time.monotonic()

    def _warn(self, reason: Optional[str]) -> None:
        if reason and reason not in self._reasons and len(self._reasons) < 20:
            self._reasons.add(reason)
            _log.warning("the head does not take all metrics of this process: %s", reason)


_worker: Any = None


def enter_worker(worker: Any) -> None:
    """Makes a worker's native end the one that tells."""
    global _worker
    _worker = worker


def _find_channel() -> Any:
    if _worker is not None:
        return _worker
    from troupe import _cluster

    return _cluster.any_driver()


registry = Registry()
reporter = Reporter(registry, _find_channel)


def _forget_in_child() -> None:
    global reporter, _worker
    _worker = None
    registry.forget()
    reporter = Reporter(registry, _find_channel)


os.register_at_fork(after_in_child=_forget_in_child)


def flush() -> None:
    """Tells the head now what this process has counted."""
    reporter.flush()


def settle() -> None:
    """As :func:`flush`, at the end of a task; not after each of many short ones."""
    reporter.settle()


def final_tags(
    keys: Sequence[str], default: Mapping[str, str], tags: Optional[Mapping[str, str]]
) -> Tags:
    """The tags of a value, in the order of ``keys``.

    Raises:
        ValueError: a key is not one of the metric's, or has no value. TypeError: a value is no
            string.
    """
    given = {**default, **tags} if tags else default
    if len(given) != len(keys) or any(key not in given for key in keys):
        unknown = sorted(set(map(str, given)) - set(keys))
        if unknown:
            raise ValueError(f"the metric has no tag {', '.join(unknown)}; "
                             f"its tag_keys are {', '.join(keys) or 'none'}")
        missing = [key for key in keys if key not in given]
        raise ValueError(f"no value for the tag {', '.join(missing)}: give it in tags or in "
                         "set_default_tags()")
    for value in given.values():
        if not isinstance(value, str):
            raise TypeError(f"the value of a tag is a string, not {value!r}")
    return tuple((key, given[key]) for key in keys)
