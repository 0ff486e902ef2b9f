"""Loaders that read ahead in a thread: order, errors, ends, and how far ahead they read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from troupe.torch.data import AsyncDataLoaderMixin, BaseDataLoader


class Numbers(BaseDataLoader):
    """Batches 0, 1, 2, ...; each is doubled where it is used."""

    def __init__(self, count: int, fail_at: int = -1) -> None:
        self.count, self.fail_at = count, fail_at
        self.read: list[int] = []
        self.readers: set[str] = set()
        self.users: set[str] = set()
        self.closed = 0

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[int]:
        try:
            for number in range(self.count):
                if number == self.fail_at:
                    raise KeyError("a batch that cannot be read")
                self.read.append(number)
                self.readers.add(threading.current_thread().name)
                yield number
        finally:
            self.closed += 1

    def _process_batch(self, batch: int) -> int:
        self.users.add(threading.current_thread().name)
        return 2 * batch


class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
    pass


def threads() -> int:
    return sum(thread.name == "async loader" for thread in threading.enumerate())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(1e-3)


def test_a_loader_that_says_nothing() -> None:
    with pytest.raises(NotImplementedError, match="BaseDataLoader does not define __len__"):
        len(BaseDataLoader())
    with pytest.raises(NotImplementedError, match="_iterate"):
        next(iter(BaseDataLoader()))
    assert list(Numbers(3)) == [0, 2, 4] and len(Numbers(3)) == 3


@pytest.mark.parametrize("size", [0, 1, 3, 64])
def test_batches_come_in_order_pass_after_pass(size: int) -> None:
    loader = AsyncNumbers(size, False, 10)
    for _ in range(3):
        assert list(loader) == [2 * n for n in range(10)]
    here = threading.current_thread().name
    assert loader.users == {here} and len(loader) == 10 and loader.closed == 3
    assert loader.readers == ({here} if size == 0 else {"async loader"})
    assert threads() == 0


def test_it_reads_as_far_ahead_as_it_may() -> None:
    loader = AsyncNumbers(async_loader_queue_size=3, count=100)
    running = iter(loader)
    assert next(running) == 0
    wait_until(lambda: len(loader.read) == 5)  # One is used, three wait, one waits for room.
    time.sleep(0.05)
    assert loader.read == [0, 1, 2, 3, 4]
    running.close()
    assert threads() == 0 and loader.closed == 1


def test_an_error_is_raised_where_the_batches_are_used() -> None:
    loader = AsyncNumbers(4, count=10, fail_at=2)
    seen = []
    with pytest.raises(KeyError, match="cannot be read"):
        for batch in loader:
            seen.append(batch)
    assert seen == [0, 2] and threads() == 0


def test_a_loop_that_is_left_ends_its_thread_and_the_next_begins_anew() -> None:
    loader = AsyncNumbers(2, count=1000)
    for batch in loader:
        if batch == 6:
            break
    with pytest.raises(RuntimeError, match="as when a peer dies"):
        for _ in loader:
            raise RuntimeError("as when a peer dies")
    wait_until(lambda: threads() == 0)
    assert next(iter(loader)) == 0


def test_closing_ends_what_is_under_way() -> None:
    loader = AsyncNumbers(2, count=1000)
    seen = []
    for batch in loader:
        seen.append(batch)
        if len(seen) == 3:
            loader.close_async_loader()
            loader.close_async_loader()
    assert seen == [0, 2, 4] and threads() == 0


@pytest.mark.parametrize("size", [-1, 2.5, True, "many"])
def test_sizes_that_are_none(size: Any) -> None:
    with pytest.raises(ValueError, match="async_loader_queue_size"):
        AsyncNumbers(size, count=1)


def test_what_is_said_when_debugging(caplog: pytest.LogCaptureFixture) -> None:
    assert list(AsyncNumbers(2, True, 2)) == [0, 2]
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "AsyncNumbers: a pass begins, up to 2 batches ahead"
    assert said[-1] == "AsyncNumbers: a pass has ended" and len(said) == 4
