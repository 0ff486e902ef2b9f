"""What a collective of torch.distributed gives back: a ``Work``, and its future.

Who waits for a work runs it to its end in the calling thread. The reducer of
``DistributedDataParallel`` does not wait, but takes a future: then a thread of its own waits, in
the order in which the collectives were issued.
"""

from __future__ import annotations

import copy
import datetime
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
import torch.distributed as dist

# Before 2.7 torch holds the part in C++ of what a method returns, and not the object of Python.
_LETS_GO = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7)
_KEPT = 64  # Works that are done and that C++ may not have let go of.

_BaseWork: Any = getattr(dist, "Work", None) or dist._Work  # Its name before torch 2.


class Work(_BaseWork):
    """A collective in flight.

    Args:
        run: waits up to so many seconds, or as long as it takes if there is no number, and raises
            what went wrong.
        done: whether ``run`` would return at once.
        outputs: tensors that hold the result afterwards.
        completer: runs it to its end for those who do not wait.
        dropped_matters: it is run to its end though nobody waits for it, to let go of its buffers.
    """

    def __init__(
        self, run: Callable[[Optional[float]], None], done: Callable[[], bool],
        outputs: Sequence[torch.Tensor], completer: Completer, dropped_matters: bool = True,
    ) -> None:
        super().__init__()
        self._run: Any = run
        self._done: Any = done
        self._outputs = list(outputs)
        self._completer = completer
        self._dropped_matters = dropped_matters
        self._lock = threading.Lock()
        self._future: Any = None  # What is completed, and what others are given.
        self._given: Any = None
        self._over = threading.Event()
        self._error: Optional[BaseException] = None
        self.receipt: Any = None  # Of what is received: it knows from whom.

    def wait(self, timeout: Any = None) -> bool:
        """Returns when the outputs hold the result.

        Args:
            timeout: a ``datetime.timedelta``; zero or none: that of the group.

        Raises:
            HorovodInternalError: the members of the group have changed.
            CollectiveMismatchError: the ranks call collectives that do not match.
        """
        limit = _seconds(timeout)
        with self._lock:
            taken = self._future is not None
        if taken:
            if not self._over.wait(limit):
                raise RuntimeError(
                    f"a collective was not done after {limit:g} s; do all ranks call it?")
            self._raise()
            return True
        self.complete(limit)
        self._raise()
        return True

    def _raise(self) -> None:
        """Raises what went wrong, each time another exception.

        One that was raised refers to the frames it has passed, and these refer to this work: with
        it they would hold a whole model until the next search for cycles.
        """
        if self._error is None:
            return
        error, self._error = self._error, _bare(self._error)
        try:
            raise error
        finally:
            del error

    def synchronize(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def complete(self, limit: Optional[float] = None) -> None:
        """Runs it to its end once; an error is kept."""
        with self._lock:
            if self._over.is_set():
                return
            try:
                self._run(limit)
            except BaseException as error:
                self._error = _bare(error)
            self._run = self._done = None  # They may hold this work.
            self._over.set()
            future = self._future
        if future is not None:
            future.set_result(self._outputs)

    def is_completed(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        done = self._done
        if done is not None and self._future is None and done():
            self.complete()
        return self._over.is_set()

    def is_success(self) -> bool:
        """Whether it has ended with a result."""
        return self._over.is_set() and self._error is None

    def exception(self) -> Optional[BaseException]:
        """What went wrong; None while nothing has."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The outputs, which hold the result once it is completed."""
        return self._outputs

    def source_rank(self) -> int:
        """Rank in the group from which a message came."""
        return -1 if self.receipt is None else int(self.receipt.came_from)

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:
        """A future of the list of outputs; it has the error if it fails.

        Whoever asks in Python gets one that is done. What it does with it, such as the next
        collective of a communication hook, is then done at once, and so in the same order on all
        ranks; from another thread it would come between any two collectives of this one.
        """
        caller = sys._getframe().f_back  # None in a thread of autograd's.
        if caller is not None and "get_future" in caller.f_code.co_names:
            self.complete()
        with self._lock:
            if self._given is not None:
                return self._given
            future: Any = torch.futures.Future()
            # An error that is raised here is one for those who wait in C++, too.
            given = self._given = future.then(self._deliver)
            self._future = future
            over = self._over.is_set()
        if over:
            future.set_result(self._outputs)
        else:
            self._completer.add(self)
        return given

    def _deliver(self, _: Any) -> list[torch.Tensor]:
        self._raise()
        return self._outputs

    def __del__(self) -> None:
        # Nobody will wait, so that nobody else would let go of the buffers.
        run = getattr(self, "_run", None)
        if run is None or self._future is not None or not self._dropped_matters:
            return
        self._completer.add(Leftover(run))


class Leftover:
    """The rest of a work that was dropped before it was done."""

    def __init__(self, run: Callable[[Optional[float]], None]) -> None:
        self._run = run

    def complete(self) -> None:
        """Runs it to its end; nobody wants to know how it went."""
        try:
            self._run(None)
        except Exception:
            return


class Completer:
    """A thread that runs works to their ends, one after the other. It ends when it is closed."""

    def __init__(self) -> None:
        self._kept: list[Work] = []
        self._works: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.RLock()  # A work may be dropped at any place, in here too.
        self._closed = False

    def keep(self, work: Work) -> Work:
        """The same work, alive for as long as C++ may hold it if torch does not see to that."""
        if _LETS_GO:
            with self._lock:
                self._kept.append(work)
                if len(self._kept) > 2 * _KEPT:
                    older = [w for w in self._kept[:-_KEPT] if not w.is_success()]
                    self._kept = older + self._kept[-_KEPT:]
        return work

    def add(self, work: Any) -> None:
        """Takes a work in, which is completed after those before it."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._serve, name="troupe-works", daemon=True)
                self._thread.start()
            if self._thread is not None:
                self._works.put(work)
                return
        if not isinstance(work, Leftover):
            work.complete()

    def close(self) -> None:
        """Ends the thread when all works that it has are completed."""
        with self._lock:
            thread, self._closed = self._thread, True
            self._thread = None
        if thread is not None:
            self._works.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def _serve(self) -> None:
        while True:
            work = self._works.get()
            if work is None:
                return
            work.complete()
            del work  # Not kept until the next one comes.


def _bare(error: BaseException) -> BaseException:
    """The same error without what it has passed."""
    try:
        fresh = copy.copy(error)
    except Exception:
        fresh = RuntimeError(f"{type(error).__name__}: {error}")
    fresh.__cause__ = fresh.__context__ = None
    return fresh.with_traceback(None)


def _seconds(timeout: Any) -> Optional[float]:
    """Seconds of a timedelta, None for none."""
    if isinstance(timeout, datetime.timedelta):
        return timeout.total_seconds() if timeout > datetime.timedelta(0) else None
    return None
