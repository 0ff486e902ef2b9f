"""The rows of ``ray_calls`` that Monarch has, in its own environment: ``scripts/build_monarch.sh``.

A mesh of four processes with an actor each. Prints JSON lines as ``ray_calls`` does.
"""

from __future__ import annotations

import time

from _ray_rows import GROUP, GROUP_CALLS
from monarch.actor import Actor, endpoint, this_host
from ray_calls import ASYNC_CALLS, IN_FLIGHT, ROUNDS, SYNC_CALLS, TEXT, report


class Member(Actor):
    """Gives back what it is given."""

    @endpoint
    def say(self, text: bytes) -> bytes:
        return text


def main() -> None:
    """Runs all rows."""
    start = time.perf_counter()
    mesh = this_host().spawn_procs(per_host={"ranks": GROUP}).spawn("members", Member)
    mesh.say.call(TEXT).get()
    report("monarch_start", [time.perf_counter() - start], "s")
    one = mesh.slice(ranks=0)
    sync: list[float] = []
    in_flight: list[float] = []
    group: list[float] = []
    for _ in range(ROUNDS):
        for _ in range(SYNC_CALLS):
            start = time.perf_counter()
            one.say.call_one(TEXT).get()
            sync.append((time.perf_counter() - start) * 1e6)
        start = time.perf_counter()
        for first in range(0, ASYNC_CALLS, IN_FLIGHT):
            count = min(IN_FLIGHT, ASYNC_CALLS - first)
            for future in [one.say.call_one(TEXT) for _ in range(count)]:
                future.get()
        in_flight.append(ASYNC_CALLS / (time.perf_counter() - start))
        start = time.perf_counter()
        for _ in range(GROUP_CALLS):
            mesh.say.call(TEXT).get()
        group.append(GROUP_CALLS / (time.perf_counter() - start))
    report("monarch_call_sync", sync, "us")
    report("monarch_call_async", in_flight, "calls/s")
    report("monarch_group_call", group, "calls/s")


if __name__ == "__main__":
    main()
