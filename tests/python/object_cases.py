"""Actors for the tests of shared buffers; in a module of its own, for workers to import."""

from __future__ import annotations

import os
import time
from typing import Any

import troupe
from troupe.actors import _pulls, _session


@troupe.remote(num_cpus=0.1)
class Holder:
    """Makes large values, reads those of others, and looks at the files of its host."""

    def identity(self) -> str:
        return store().identity

    def ends(self, array: Any) -> tuple[int, int, int]:
        """First, last, how many; large ones hold their index."""
        return int(array[0]), int(array[-1]), len(array)

    def make(self, count: int) -> Any:
        import numpy

        return numpy.arange(count)

    def numbers(self, count: int) -> list[float]:
        return [float(i) for i in range(count)]

    def put(self, count: int) -> list[Any]:
        return [troupe.put(self.make(count))]

    def read(self, box: list[Any]) -> tuple[int, int, int]:
        return self.ends(troupe.get(box[0], timeout=60))

    def read_error(self, box: list[Any]) -> str:
        try:
            return str(self.read(box))
        except troupe.TroupeError as error:
            return f"{type(error).__name__}: {error}"

    def pulled(self) -> int:
        return _pulls.pulled_bytes

    def files(self, part: str) -> dict[str, int]:
        """The files of its host by name, with their bytes."""
        return files(os.path.join(store().base, part))

    def pid(self) -> int:
        return os.getpid()


@troupe.remote(num_cpus=0.1)
class AsyncHolder:
    """Reads on its event loop."""

    async def ends(self, array: Any) -> tuple[int, int, int]:
        return int(array[0]), int(array[-1]), len(array)

    async def read(self, box: list[Any]) -> tuple[int, int, int]:
        return await self.ends(await box[0])

    async def beat(self, for_s: float) -> float:
        """The longest pause of the loop."""
        import asyncio

        worst, end = 0.0, time.monotonic() + for_s
        while (before := time.monotonic()) < end:
            await asyncio.sleep(0.005)
            worst = max(worst, time.monotonic() - before)
        return worst


@troupe.remote(num_cpus=0.1)
def make(count: int, path: str, offset: Any) -> Any:
    """Notes in a file which process it has run in."""
    import numpy

    return note(numpy.arange(count) + offset[0], path)


@troupe.remote(num_cpus=0.1, num_returns=3)
def make_several(counts: list[int], path: str) -> Any:
    """Likewise, of so many values each."""
    import numpy

    return note([numpy.arange(count) for count in counts], path)


@troupe.remote(num_cpus=0.1)
def double(array: Any, path: str) -> Any:
    """Likewise, of what it is given."""
    return note(array * 2, path)


def note(array: Any, path: str) -> Any:
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    return array


def store() -> Any:
    found = _session.current().store
    assert found is not None
    return found


def files(folder: str) -> dict[str, int]:
    found = {}
    for entry in os.scandir(folder):
        try:
            found[entry.name] = entry.stat().st_size
        except FileNotFoundError:
            continue
    return found
