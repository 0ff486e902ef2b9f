"""What waits for room says why: in the error of who gives up, and by itself on the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import troupe

from processes import until

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(240)]
TELL_AFTER_S = 10.0


@troupe.remote(num_cpus=1)
class Holder:
    def ping(self) -> str:
        return "pong"


@troupe.remote
def double(value: int) -> int:
    return 2 * value


@pytest.fixture
def taken() -> Iterator[Any]:
    """An actor that has the only CPU."""
    troupe.init(num_cpus=1)
    holder = Holder.remote()
    assert troupe.get(holder.ping.remote(), timeout=60) == "pong"
    yield holder
    troupe.shutdown()


def why(ref: Any, word: str) -> str:
    """The error of ``get`` as soon as it has this word."""
    texts: list[str] = []

    def told() -> bool:
        with pytest.raises(troupe.GetTimeoutError) as info:
            troupe.get(ref, timeout=0.05)
        texts.append(str(info.value))
        return word in texts[-1]

    until(told, True)
    return texts[-1]


def test_the_error_of_who_gives_up_waiting_says_why(taken: Any) -> None:
    actor = Holder.options(name="second").remote()
    text = why(actor.ping.remote(), "CPU 1")
    assert "Holder.ping: not ready in time: " in text and " is pending: " in text
    assert text.endswith("; the call goes on")
    task = double.remote(1)
    text = why(task, "CPU 1")
    assert "double: not ready in time: a process for it is pending: " in text
    text = why(double.remote(task), "arguments")
    assert "refs among its arguments, or calls before it, are not ready" in text
    group = troupe.placement_group([{"CPU": 1}])
    text = why(group.ready(), "CPU 1")
    assert f"placement group {group.id}: not ready in time: it is pending: " in text


def test_who_runs_says_so(taken: Any) -> None:
    troupe.kill(taken)

    @troupe.remote(num_cpus=1)
    class Slow:
        def nap(self) -> None:
            import time

            time.sleep(60)

    slow = Slow.remote()
    text = why(slow.nap.remote(), "has not answered")
    assert "Slow" in text
    troupe.kill(slow)


def test_what_waits_for_long_is_told_once(taken: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="troupe.actors")
    actors = [Holder.remote() for _ in range(3)]
    refs = [actor.ping.remote() for actor in actors]
    task = double.remote(1)
    group = troupe.placement_group([{"CPU": 1}])

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records
                if "waited for room" in record.getMessage()]

    until(lambda: "CPU 1" in " ".join(lines()), True, TELL_AFTER_S + 20)
    # Whatever waits behind, with its own words, is told in the same seconds; nothing twice.
    troupe.wait([*refs, task], num_returns=1, timeout=5)
    told = lines()
    assert len(told) == len({line.split(": ", 1)[1] for line in told}), told
    assert len(told) <= 3, told
    assert any("others have waited" in line or "another one have waited" in line for line in told)
    group.remove()
    for holder in (*actors, taken):
        troupe.kill(holder)
    assert troupe.get(task, timeout=60) == 2
