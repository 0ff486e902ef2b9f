"""Concurrency groups: how many calls of each run at once, and beside which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from group_turn_cases import Async, Threaded

import troupe

from processes import until

pytestmark = [pytest.mark.once, pytest.mark.timeout(120)]
SOON_S = 30.0


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


class Declared:
    @troupe.method(concurrency_group="io")
    def read(self) -> None:
        """Of a group that its class is not given."""


@pytest.mark.parametrize(("groups", "kind", "message"), [
    (["io"], TypeError, "counts by name"),
    ({"io": 0}, ValueError, "io"),
    ({"io": True}, TypeError, "io"),
    ({"": 1}, ValueError, "empty"),
    ({3: 1}, TypeError, "string"),
    ({"a:b": 1}, ValueError, "':'"),
    ({f"g{i}": 1 for i in range(65)}, ValueError, "64"),
])
def test_what_cannot_be_is_refused(groups: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        troupe.remote(concurrency_groups=groups)(Declared)


def test_a_method_of_no_known_group_is_refused() -> None:
    with pytest.raises(TypeError, match="string"):
        troupe.method(concurrency_group=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        troupe.method(concurrency_group="")


@pytest.mark.integration
class TestOnACluster:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def cluster(cls) -> Iterator[None]:
        troupe.init(num_cpus=2)
        yield
        troupe.shutdown()

    def test_each_group_has_its_own_threads(self) -> None:
        actor = Threaded.remote()
        refs = [actor.compute.remote() for _ in range(5)] + [actor.other.remote() for _ in range(5)]
        # The others are full, and do not keep those of this group waiting.
        until(lambda: soon(actor.counts.remote()), {"compute": 1, "other": 1})
        refs += [actor.other.options(concurrency_group="io").remote()]
        until(lambda: soon(actor.counts.remote()), {"compute": 1, "other": 2})
        soon(actor.open.remote())
        names = soon(refs)
        assert {name.rpartition("_")[0] for name in names[:5]} == {"troupe-call-compute"}
        assert names[-1].startswith("troupe-call-io")
        assert soon(actor.seen.remote()) == {"compute": 1, "other": 2}

    def test_a_flood_of_one_group_does_not_hold_another_back(self) -> None:
        actor = Threaded.remote()
        refs = [actor.compute.remote() for _ in range(500)]
        until(lambda: soon(actor.counts.remote()), {"compute": 1})
        soon(actor.open.remote())
        assert len(soon(refs)) == 500

    def test_the_values_of_a_generator_are_made_in_its_group(self) -> None:
        actor = Threaded.remote()
        for ref in actor.values.remote():
            assert soon(ref).startswith("troupe-call-compute")

    def test_groups_of_an_async_actor(self) -> None:
        actor = Async.remote()
        refs = [actor.read.remote() for _ in range(5)]
        until(lambda: soon(actor.state.remote()), (2, 2))
        troupe.cancel(refs[-1])  # It waits for its turn.
        soon(actor.open.remote())
        soon(refs[:-1])
        assert soon(actor.state.remote()) == (0, 2)

    @pytest.mark.parametrize("kind", [Threaded, Async])
    def test_a_group_that_there_is_not(self, kind: Any) -> None:
        actor = kind.remote()
        with pytest.raises(ValueError, match="'disk'.*io"):
            soon(actor.open.options(concurrency_group="disk").remote())
        soon(actor.open.remote())

    def test_an_actor_whose_methods_name_none_of_its_groups(self) -> None:
        with pytest.raises(ValueError, match="Declared.read.*'io'.*none of the actor's: disk"):
            troupe.remote(concurrency_groups={"disk": 1})(Declared).remote()
