"""Timelines of collectives, as Horovod writes them: JSON for chrome://tracing and Perfetto.

Rank 0 writes one, with a track for each tensor and on it what happened to the tensor: ``QUEUE``
while it waited for its collective to begin, then the collective until its result was there. Every
write leaves the file valid JSON, so a killed process leaves a file that can be read, in which what
was in flight has no end. When rank 0 dies whoever becomes rank 0 goes on, in the same file if it
sees it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Optional

from troupe.torch import _context

_log = logging.getLogger("troupe.timeline")

_POLL_S = 1e-3
_FOOT = b"\n]\n"
VARIABLE = "HOROVOD_TIMELINE"
Event = dict[str, Any]


class _Flight:
    """A collective that has begun: its tracks and the core's handles."""

    def __init__(self, group: Any, handles: Sequence[int], tracks: Sequence[int]) -> None:
        self.tracks = tracks
        self._group = group
        self._left = list(handles)

    def ended(self) -> bool:
        """Whether its result is there, or it has failed."""
        while self._left:
            try:
                if not self._group.poll(self._left[0]):
                    return False
            except RuntimeError:  # It was waited for, or the epoch is over.
                pass
            self._left.pop(0)
        return True


class Timeline:
    """A file that is written while collectives run, by rank 0.

    **Thread:** any; a thread of its own sees to the ends of collectives.
    """

    def __init__(self, path: str, mark_cycles: bool) -> None:
        self.path = path
        self.mark_cycles = mark_cycles
        self._lock = threading.Condition()
        self._fd = -1
        self._end = 0  # Where the next event goes.
        self._empty = True
        self._epoch = -1
        self._tracks: dict[str, int] = {}
        self._busy: set[int] = set()
        self._ends: dict[int, float] = {}  # When each track was last free.
        self._flights: list[_Flight] = []
        self._base_ns = time.time_ns() - time.perf_counter_ns()
        self._closed = False

    def now(self) -> float:
        """The time in microseconds, on the clock of the file."""
        return (time.perf_counter_ns() + self._base_ns) / 1e3

    def open(self, context: _context.Context, truncate: bool) -> None:
        """Begins to write; ``truncate``: the file is emptied first.

        Raises:
            OSError: it cannot be written.
        """
        with self._lock:
            if self._fd >= 0 or self._closed:
                return
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if truncate else 0)
            self._fd = os.open(self.path, flags, 0o644)
            size = os.fstat(self._fd).st_size
            tail = max(0, size - len(_FOOT))
            if size and os.pread(self._fd, len(_FOOT), tail) == _FOOT:
                self._end, self._empty = tail, tail <= 1
            else:  # Nobody's file, or not one of ours.
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, b"[" + _FOOT, 0)
                self._end, self._empty = 1, True
            name = f"rank {context.rank} on {context.runtime.worker.host}"
            self._write([{"ph": "M", "name": "process_name", "pid": os.getpid(), "tid": 0,
                          "args": {"name": name}}])
        threading.Thread(target=self._follow, name="timeline", daemon=True).start()

    @property
    def opened(self) -> bool:
        """Whether this process writes it."""
        return self._fd >= 0

    def note_epoch(self, context: _context.Context) -> None:
        """The group's view may be another one than before."""
        epoch = int(context.view["epoch"])
        if epoch != self._epoch:
            self._epoch = epoch
            self.instant("EPOCH", epoch=epoch, size=context.size)

    def instant(self, name: str, **more: Any) -> None:
        """Something that takes no time, on all tracks."""
        with self._lock:
            self._write([{"ph": "i", "s": "p", "name": name, "ts": self.now(), "tid": 0,
                          "pid": os.getpid(), "args": more}])

    def began(self, group: Any, names: Sequence[str], what: str, handles: Sequence[int],
              queued: Sequence[Optional[float]], **more: Any) -> None:
        """A collective of these tensors was given to the core, which has these handles for it.

        Args:
            queued: since when each has waited, None if it has not.
        """
        pid = os.getpid()
        events: list[Event] = []
        with self._lock:
            if self._closed:
                return
            # The thread may be late: what was waited for ended before its tensors came again.
            again = {self._tracks[name]: since for name, since in zip(names, queued, strict=True)
                     if name in self._tracks and since is not None}
            self._retire(again)
            now = self.now()
            tracks = [self._track(name, events) for name in names]
            for track, since in zip(tracks, queued, strict=True):
                if since is not None:
                    # A track shows one thing at a time, also if the end before was noticed late.
                    since = max(since, self._ends.get(track, since))
                    events.append({"ph": "X", "name": "QUEUE", "ts": since, "pid": pid,
                                   "tid": track, "dur": max(0.0, now - since)})
                events.append({"ph": "B", "name": what, "ts": now, "pid": pid, "tid": track,
                               "args": more})
            self._write(events)
            self._flights.append(_Flight(group, handles, tracks))
            self._lock.notify()

    def close(self) -> None:
        """Ends what is in flight, and the file."""
        with self._lock:
            self._closed = True
            if self._fd >= 0:
                self._end_tracks([track for f in self._flights for track in f.tracks], {})
                os.close(self._fd)
                self._fd = -1
            self._flights = []
            self._lock.notify()

    def _follow(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._flights or self._closed)
                if self._closed:
                    return
                self._retire()
            time.sleep(_POLL_S)

    def _retire(self, latest: Optional[dict[int, float]] = None) -> None:
        """Ends the tracks of collectives that are over; of some is known by when they were."""
        ended = [flight for flight in self._flights if flight.ended()]
        self._flights = [flight for flight in self._flights if flight not in ended]
        self._end_tracks([track for flight in ended for track in flight.tracks], latest or {})

    def _end_tracks(self, tracks: Sequence[int], latest: dict[int, float]) -> None:
        self._busy.difference_update(tracks)
        pid, now = os.getpid(), self.now()
        ends = {track: min(now, latest.get(track, now)) for track in tracks}
        self._ends.update(ends)
        self._write([{"ph": "E", "ts": end, "pid": pid, "tid": track}
                     for track, end in ends.items()])

    def _track(self, name: str, events: list[Event]) -> int:
        """A track that is free: several of a name if collectives of it overlap."""
        count = 1
        while True:
            label = name if count == 1 else f"{name} ({count})"
            if label not in self._tracks:
                self._tracks[label] = len(self._tracks) + 1
                events.append({"ph": "M", "name": "thread_name", "pid": os.getpid(),
                               "tid": self._tracks[label], "args": {"name": label}})
            track = self._tracks[label]
            if track not in self._busy:
                self._busy.add(track)
                return track
            count += 1

    def _write(self, events: Sequence[Event]) -> None:
        """Appends in one write, which leaves the file whole."""
        if not events or self._fd < 0:
            return
        text = ",\n".join(json.dumps(event) for event in events)
        data = (("\n" if self._empty else ",\n") + text).encode()
        os.pwrite(self._fd, data + _FOOT, self._end)
        self._end += len(data)
        self._empty = False


_active: Optional[Timeline] = None
_looked = False  # For the variable.


def of(context: _context.Context) -> Optional[Timeline]:
    """The timeline that this rank is to write to, if there is one."""
    if not _looked:
        _from_environment(context)
    timeline = _active
    if timeline is None or context.provisional or context.rank != 0:
        return None
    if not timeline.opened:
        try:
            timeline.open(context, truncate=False)
        except OSError as error:
            _give_up(error)
            return None
    timeline.note_epoch(context)
    return timeline


def show(context: _context.Context, names: Sequence[str], what: str, handles: Sequence[int],
         queued: Sequence[Optional[float]], **more: Any) -> None:
    """As :meth:`Timeline.began`, if this rank writes a timeline."""
    timeline = of(context)
    if timeline is not None:
        timeline.began(context.group, names, what, handles, queued, **more)


def _from_environment(context: _context.Context) -> None:
    global _active, _looked
    _looked = True
    path = os.environ.get(VARIABLE) or "DYNAMIC"
    if path.upper() == "DYNAMIC":
        return
    _active = Timeline(path, os.environ.get(f"{VARIABLE}_MARK_CYCLES") == "1")
    try:
        if not context.provisional and context.rank == 0:
            _active.open(context, truncate=True)
    except OSError as error:
        _give_up(error)


def _give_up(error: OSError) -> None:
    global _active
    _active = None
    _log.warning("no timeline is written: %s; set %s to a file that can be written", error,
                 VARIABLE)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to record collectives; all ranks call it, and rank 0 writes the file.

    Args:
        file_path: where rank 0 writes; what is there is overwritten.
        mark_cycles: also marks where the reduction of each step begins.

    Raises:
        ValueError: not initialised, or a timeline is being recorded.
        OSError: rank 0 cannot write the file.
    """
    global _active, _looked
    context = _context.current()
    _looked = True
    timeline = Timeline(os.fspath(file_path), mark_cycles)
    if _active is not None and (_active.opened or context.rank != 0):
        raise ValueError(
            f"a timeline is being recorded in {_active.path}; call stop_timeline() first")
    if not context.provisional and context.rank == 0:
        timeline.open(context, truncate=True)
    _active = timeline


def stop_timeline() -> None:
    """Ends the recording; harmless if there is none.

    Raises:
        ValueError: not initialised.
    """
    global _active, _looked
    _context.current()
    _looked = True
    timeline, _active = _active, None
    if timeline is not None:
        timeline.close()
