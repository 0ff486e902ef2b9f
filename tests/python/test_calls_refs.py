"""What refs are: their identity, and the ways to wait for them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import troupe

from call_cases import FlakyError, Keeper, flaky, nap, parts

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for the tests of this module."""
    troupe.init(num_cpus=4)
    yield
    troupe.shutdown()


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def test_a_ref_that_has_travelled_is_the_same() -> None:
    keeper = Keeper.remote()
    first, second = troupe.put(1), parts.remote(2)
    back = soon(keeper.keep.remote([first, second]))
    assert back == [first, second] and back[0] is not first
    assert {first: "a", second: "b"}[back[1]] == "b"
    assert soon(keeper.index.remote([second])) == 1  # Known where it was before, too.
    assert soon(keeper.index.remote([back[0]])) == 0
    copy = pickle.loads(pickle.dumps(first))
    assert copy == first and hash(copy) == hash(first) and soon(copy) == 1
    made, again = soon(keeper.make.remote()), soon(keeper.make.remote())
    assert made != again and soon(made) == soon(again) == ["made"]


def test_ids() -> None:
    ref, other = troupe.put(1), troupe.put(1)
    assert ref.hex() == ref.binary().hex() and len(ref.binary()) == 28
    assert ref.binary() == ref.binary() != other.binary()
    assert ref != other and ref != ref.hex() and ref is not None


def test_futures() -> None:
    ref, fails = parts.remote(2), flaky.remote("/dev/null", [], 1)
    assert ref.future().result(SOON_S) == (0, 1)
    with pytest.raises(FlakyError):
        fails.future().result(SOON_S)

    async def both() -> Any:
        with pytest.raises(FlakyError):
            await fails.as_future()
        return await asyncio.wait_for(ref.as_future(), SOON_S), await ref

    assert asyncio.run(both()) == ((0, 1), (0, 1))
    with pytest.raises(RuntimeError, match="no running event loop"):
        ref.as_future()


def test_wait() -> None:
    ready = troupe.put(1)
    waits = nap.options(timeout=SOON_S).remote(SOON_S)
    assert troupe.wait([waits, ready], fetch_local=False) == ([ready], [waits])
    assert troupe.wait([waits, ready], num_returns=2, timeout=0) == ([ready], [waits])
    assert troupe.wait([waits], timeout=0.01) == ([], [waits])
    troupe.cancel(waits)
    assert troupe.wait([waits, ready], num_returns=2)[1] == []


@pytest.mark.parametrize(("arguments", "kind", "message"), [
    ({"num_returns": 3}, ValueError, "num_returns"),
    ({"num_returns": 0}, ValueError, "num_returns"),
    ({"num_returns": True}, TypeError, "num_returns"),
    ({"num_returns": 1.0}, TypeError, "num_returns"),
    ({"timeout": "1"}, TypeError, "timeout"),
])
def test_waits_that_cannot_be_are_refused(
    arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        troupe.wait([troupe.put(1), troupe.put(2)], **arguments)
