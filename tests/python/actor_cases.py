"""Actors and tasks that the tests spawn; in a module of its own, for workers to import."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import troupe


class OddError(Exception):
    """Has a constructor of its own, and a field."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")
        self.number = number

    def __reduce__(self) -> tuple:
        return OddError, (str(self).rpartition(" ")[0], self.number)


class LocalError(Exception):
    """Cannot be pickled."""

    def __reduce__(self) -> tuple:
        raise TypeError("not this one")


@troupe.remote
class Counter:
    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        if start < 0:
            raise ValueError("start is negative")
        self.value = start
        self.step = step

    def add(self, by: int | None = None) -> int:
        self.value += self.step if by is None else by
        return self.value

    def pid(self) -> int:
        return os.getpid()

    def env(self, name: str) -> str | None:
        return os.environ.get(name)

    def leave(self, reason: str) -> None:
        troupe.exit_actor(reason)

    def die(self, code: int) -> None:
        os._exit(code)

    def say(self, *lines: str) -> None:
        for line in lines:
            print(line)


@troupe.remote
class Echo:
    """Gives back what it gets, and fails in every way."""

    def same(self, value: Any) -> Any:
        return value

    def both(self, first: Any, second: Any = None, **more: Any) -> tuple:
        return first, second, more

    def kinds(self, *values: Any) -> list[str]:
        return [type(value).__name__ for value in values]

    def odd(self) -> None:
        raise OddError("number", 5)

    def local(self) -> None:
        raise LocalError("stays here")

    def os_error(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def lock(self) -> Any:
        return threading.Lock()

    def not_a_stream(self) -> Any:
        return (i for i in range(3))

    def huge(self, size: int) -> set[bytes]:
        return {bytes(size)}  # A set is no plain value: its bytes are part of the message.

    def deep(self, depth: int) -> int:
        return 0 if depth == 0 else 1 + self.deep(depth - 1)

    def sleep(self, seconds: float) -> str:
        """Until then, or until nobody waits for it; says which."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if troupe.current().cancelled():
                return "cancelled"
            time.sleep(0.01)
        return "slept"

    def wait_for(self, path: str) -> None:
        """Until the file is there."""
        while not Path(path).exists() and not troupe.current().cancelled():
            time.sleep(0.01)

    def write(self, path: str) -> None:
        Path(path).touch()

    def spin(self, path: str) -> None:
        """Uses all of a CPU until the file is there."""
        while not Path(path).exists():
            sum(range(10_000))

    def get_inside(self, box: dict[str, Any]) -> Any:
        return troupe.get(box["ref"])

    def where(self) -> tuple:
        here = troupe.current()
        return here.actor_id, here.actor_name, here.node, here.incarnation, here.remaining()

    def call(self, handle: Any, method: str, *args: Any) -> Any:
        return troupe.get(getattr(handle, method).remote(*args))

    def hire(self, start: int) -> Any:
        return Counter.remote(start)


@troupe.remote
class Chain:
    """Each calls the next: a call goes down all of them."""

    def down(self, depth: int) -> int:
        if depth == 0:
            return 0
        below: int = troupe.get(Chain.remote().down.remote(depth - 1))
        return 1 + below


@troupe.remote
class Arrays:
    def sum(self, array: Any) -> tuple[float, bool]:
        return float(array.sum()), bool(array.flags.writeable)

    def ones(self, count: int) -> Any:
        import numpy

        return numpy.ones(count)

    def tensor(self, tensor: Any) -> Any:
        tensor += 1  # Ours alone.
        return tensor

    def hold(self, array: Any, path: str) -> None:
        """Says that it is there, and never returns."""
        begun = Path(f"{path}.new")
        begun.write_text(str(os.getpid()))
        begun.rename(path)  # Nobody sees it without its text.
        threading.Event().wait()

    def put(self, count: int) -> list[Any]:
        import numpy

        return [troupe.put(numpy.full(count, 7.0))]


@troupe.remote
class Async:
    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.gate = asyncio.Event()
        self.ended: list[str] = []

    async def meet(self, third: str = "") -> int:
        """Returns when the gate is open; how many have been in it at once.

        Whoever is the third in it makes the file ``third``.
        """
        self.running += 1
        self.most = max(self.most, self.running)
        if third and self.running == 3:
            Path(third).touch()
        await self.gate.wait()
        self.running -= 1
        return self.most

    async def count(self) -> int:
        return self.running

    async def open(self) -> None:
        self.gate.set()

    def plain(self) -> int:
        return threading.get_ident()

    async def thread(self) -> int:
        return threading.get_ident()

    async def forever(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append("forever")

    async def ends(self) -> list[str]:
        return self.ended

    async def ask(self, handle: Any, count: int) -> list[int]:
        return list(await asyncio.gather(*[handle.add.remote(1) for _ in range(count)]))

    async def fails(self) -> None:
        await asyncio.sleep(0)
        raise LookupError("async")

    async def numbers(self, count: int) -> AsyncIterator[int]:
        try:
            for i in range(count):
                yield i
        finally:
            self.ended.append("numbers")

    async def read(self, other: Any, count: int) -> list[int]:
        return [await ref async for ref in other.numbers.remote(count)]


@troupe.remote
class Streams:
    def __init__(self) -> None:
        self.made = 0
        self.closed = 0

    def numbers(self, count: int) -> Iterator[int]:
        try:
            for i in range(count):
                self.made = i + 1
                yield i
        finally:
            self.closed += 1

    def fails_at(self, index: int) -> Iterator[int]:
        yield from range(index)
        raise KeyError(f"at {index}")

    def arrays(self, count: int, size: int) -> Iterator[Any]:
        import numpy

        for i in range(count):
            yield numpy.full(size, float(i))

    def dies_at(self, index: int) -> Iterator[int]:
        yield from range(index)
        os._exit(1)

    def state(self) -> tuple[int, int]:
        return self.made, self.closed

    def wait_for_file(self, path: str) -> None:
        deadline = time.monotonic() + 60
        while not Path(path).exists() and time.monotonic() < deadline:
            time.sleep(0.01)


@troupe.remote
class Threads:
    def __init__(self, parties: int) -> None:
        self.barrier = threading.Barrier(parties)

    def meet(self) -> str:
        """Returns when all parties are in it at once."""
        self.barrier.wait(20)
        return threading.current_thread().name


@troupe.remote(max_restarts=5)
class Ledger:
    """Keeps its state over restarts."""

    def __init__(self) -> None:
        self.sum = 0
        self.calls = 0

    def add(self, by: int) -> int:
        self.sum += by
        self.calls += 1
        return self.sum

    def add_and_die(self, by: int, path: str) -> int:
        """Dies after its effect, before anything is said of it; the second time it returns."""
        self.sum += by
        self.calls += 1
        if not Path(path).exists():
            Path(path).touch()
            os._exit(1)
        return self.sum

    def state(self) -> tuple[int, int, int]:
        return self.sum, self.calls, troupe.current().incarnation

    def pid(self) -> int:
        return os.getpid()

    def __troupe_save__(self) -> bytes:
        return pickle.dumps((self.sum, self.calls))

    def __troupe_restore__(self, state: bytes) -> None:
        self.sum, self.calls = pickle.loads(state)


@troupe.remote
def square(x: int) -> int:
    return x * x


@troupe.remote(num_cpus=0.5)
def fail(why: str) -> None:
    raise ValueError(why)


@troupe.remote(num_cpus=0)
def fibonacci(n: int) -> int:
    """Each level waits for tasks of its own."""
    if n < 2:
        return n
    return sum(troupe.get([fibonacci.remote(n - 1), fibonacci.remote(n - 2)]))


@troupe.remote(num_cpus=0.1)
def die_once(path: str) -> int:
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)
    return os.getpid()


@troupe.remote(num_cpus=0.1)
def count_to(count: int) -> Iterator[int]:
    yield from range(count)
