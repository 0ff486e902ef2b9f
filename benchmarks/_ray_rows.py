"""The rows of ``ray_calls`` about tasks, creation, waiting and large values, for either side.

Each takes a module with Ray's names, and gives figures of one round. Tasks and actors take a
tenth of a CPU, so that either side may start as many processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TASKS = 1000
LARGE_TASKS = 100
LARGE_BYTES = 1_000_000
FORKS, LEAVES = 4, 25
CREATED = 8
WAITED = 1000
OBJECT_BYTES = 1_000_000_000
GROUP = 4
GROUP_CALLS = 200
TEXT = b"x" * 64


class Member:
    """One of a group that is called together; gives back what it is given."""

    def say(self, text: bytes) -> bytes:
        return text


def nothing() -> None:
    """A task that does nothing."""


def megabyte() -> Any:
    """A task with a large result."""
    import numpy as np

    return np.zeros(LARGE_BYTES, dtype=np.uint8)


def seconds(body: Callable[[], Any]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


class Rows:
    """The rows of one side; each gives a figure and its unit.

    Args:
        api: ``ray`` or ``troupe``.
    """

    def __init__(self, api: Any) -> None:
        import numpy as np

        self._api = api
        small = api.remote(num_cpus=0.1)
        self._nothing, self._megabyte = small(nothing), small(megabyte)
        self._member = small(Member)
        leaf = self._nothing

        def fork() -> None:
            api.get([leaf.remote() for _ in range(LEAVES)])

        self._fork = small(fork)
        self._object = np.ones(OBJECT_BYTES, dtype=np.uint8)
        self._group = [self._member.remote() for _ in range(GROUP)]
        api.get([member.say.remote(TEXT) for member in self._group])
        api.get([self._fork.remote() for _ in range(FORKS)])  # Its processes are there.

    def tasks_noop(self) -> tuple[float, str]:
        """Of 1,000 at once."""
        get, task = self._api.get, self._nothing
        took = seconds(lambda: get([task.remote() for _ in range(TASKS)]))
        return TASKS / took, "tasks/s"

    def tasks_nested(self) -> tuple[float, str]:
        """Tasks that start others and wait for them."""
        get, task = self._api.get, self._fork
        took = seconds(lambda: get([task.remote() for _ in range(FORKS)]))
        return FORKS * (LEAVES + 1) / took, "tasks/s"

    def tasks_1mb_result(self) -> tuple[float, str]:
        """An array of 1 MB from each."""
        get, task = self._api.get, self._megabyte
        took = seconds(lambda: get([task.remote() for _ in range(LARGE_TASKS)]))
        return LARGE_TASKS / took, "tasks/s"

    def actor_creation(self) -> tuple[float, str]:
        """Until each of several has answered; they are ended outside of the time."""
        made: list[Any] = []

        def create() -> None:
            made.extend(self._member.remote() for _ in range(CREATED))
            self._api.get([actor.say.remote(TEXT) for actor in made])

        took = seconds(create)
        for actor in made:
            self._api.kill(actor)
        return CREATED / took, "actors/s"

    def wait_1k_refs(self) -> tuple[float, str]:
        """One by one, as they become ready."""
        refs = [self._group[i % GROUP].say.remote(TEXT) for i in range(WAITED)]

        def drain() -> None:
            left = refs
            while left:
                _, left = self._api.wait(left, num_returns=1)

        return seconds(drain), "s"

    def put_get_1gb(self) -> tuple[float, str]:
        """Written once, and read by the process that has written it."""
        def both() -> None:
            value = self._api.get(self._api.put(self._object))
            assert value[-1] == 1

        return OBJECT_BYTES / 1e9 / seconds(both), "GB/s"

    def group_call(self) -> tuple[float, str]:
        """A call of all four members and all of their answers, one after another."""
        def call() -> None:
            for _ in range(GROUP_CALLS):
                self._api.get([member.say.remote(TEXT) for member in self._group])

        return GROUP_CALLS / seconds(call), "calls/s"

    def all(self) -> dict[str, tuple[float, str]]:
        """One figure of each row."""
        names = ("tasks_noop", "tasks_nested", "tasks_1mb_result", "actor_creation",
                 "wait_1k_refs", "put_get_1gb", "group_call")
        return {name: getattr(self, name)() for name in names}
