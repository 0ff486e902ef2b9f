"""Data loaders that read ahead in a thread, as ``horovod.data`` has them.

A loader derives from :class:`BaseDataLoader` and says how it iterates; mixing
:class:`AsyncDataLoaderMixin` in front of it has a thread do that, up to a number of batches ahead::

    class Loader(BaseDataLoader):
        def __len__(self): return 100
        def _iterate(self): yield from read_batches()

    class AsyncLoader(AsyncDataLoaderMixin, Loader): ...

    for batch in AsyncLoader(async_loader_queue_size=8): ...

What a thread reads ahead of a sampler's ``elastic.batches(...)`` would count as trained on, so
there a ``torch.utils.data.DataLoader`` with workers is what reads ahead (docs/training.md).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_log = logging.getLogger("troupe.data")
_DRAIN_S = 0.05
_CLOSE_S = 30.0

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]


class BaseDataLoader:
    """What a loader has to say: its length, and how it iterates."""

    def __len__(self) -> int:
        """The number of batches."""
        raise NotImplementedError(f"{type(self).__name__} does not define __len__()")

    def _iterate(self) -> Iterable[Any]:
        """The batches of one pass over the data."""
        raise NotImplementedError(f"{type(self).__name__} does not define _iterate()")

    def _process_batch(self, batch: Any) -> Any:
        """What becomes of a batch where it is used, such as a copy to a device."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Has a thread read batches ahead; in front of a :class:`BaseDataLoader` among the bases.

    Each pass has a thread of its own, which ends with it: when all was read, when the loop over it
    is left, or with :meth:`close_async_loader`. ``_process_batch`` runs in the loop's thread.

    Args:
        async_loader_queue_size: how many batches may wait; 0: nothing is read ahead.
        debug_data_loader: log when passes begin and end, and how many batches waited.
        *args, **kwargs: the loader's own.

    Raises:
        ValueError: the queue size is no int of at least 0.
    """

    _iterate: Callable[[], Iterable[Any]]
    _process_batch: Callable[[Any], Any]

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False,
        *args: Any, **kwargs: Any,
    ) -> None:
        size = async_loader_queue_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ValueError(
                f"async_loader_queue_size must be a number of batches, or 0, not {size!r}")
        self.async_loader_queue_size = size
        self.debug_data_loader = debug_data_loader
        self._passes: list[_Pass] = []
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size == 0:
            for batch in self._iterate():
                yield self._process_batch(batch)
            return
        running = _Pass(self._iterate, self.async_loader_queue_size)
        self._passes.append(running)
        self._debug("a pass begins, up to %d batches ahead", self.async_loader_queue_size)
        try:
            for batch in running:
                self._debug("a batch is taken, %d wait", running.waiting)
                yield self._process_batch(batch)
        finally:
            running.close()
            self._passes.remove(running)
            self._debug("a pass has ended")

    def close_async_loader(self) -> None:
        """Ends the threads, whatever they have read; loops over the loader end. Idempotent."""
        for running in list(self._passes):
            running.close()

    def _debug(self, text: str, *arguments: Any) -> None:
        if self.debug_data_loader:
            _log.warning(f"{type(self).__name__}: {text}", *arguments)


class _Pass:
    """One pass over a loader, read ahead by a thread."""

    def __init__(self, iterate: Callable[[], Iterable[Any]], size: int) -> None:
        self._iterate = iterate
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(size)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="async loader", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many batches have been read and not been taken, about."""
        return self._queue.qsize()

    def __iter__(self) -> Iterator[Any]:
        while not self._closed.is_set():
            what, value = self._queue.get()
            if what == "error":
                raise value
            if what == "end":
                return
            yield value

    def close(self) -> None:
        """Ends the thread, which may be at work on one more batch, and whoever waits for it."""
        self._closed.set()
        deadline = time.monotonic() + _CLOSE_S
        while self._thread.is_alive():
            if time.monotonic() > deadline:
                _log.warning("a loader's thread has been reading one batch for %g s, and is left "
                             "behind; give _iterate() a time limit of its own", _CLOSE_S)
                break
            with contextlib.suppress(queue.Empty):  # It may wait for room.
                self._queue.get(timeout=_DRAIN_S)
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(("end", None))

    def _read(self) -> None:
        try:
            batches = iter(self._iterate())
            try:
                for batch in batches:
                    if self._closed.is_set():
                        return
                    self._queue.put(("batch", batch))
            finally:
                getattr(batches, "close", lambda: None)()
        except BaseException as error:  # Where the batches are used it is raised.
            self._queue.put(("error", error))
        else:
            self._queue.put(("end", None))
