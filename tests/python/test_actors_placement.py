"""Placement groups from Python: made, waited for, grown, shrunk, removed: on a real cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

import troupe
from troupe.actors import _session
from troupe.actors._placement import _bundles

from actor_cases import Counter
from processes import until

SOON_S = 60.0


class TestArguments:
    @pytest.mark.parametrize(("bundles", "message"), [
        ([], "at least one"),
        ({"CPU": 1}, "list of dicts"),
        ("CPU", "list of dicts"),
        ([{}], "bundle 0"),
        ([{"CPU": 1}, {"CPU": -1}], "bundle 1: CPU"),
        ([{"CPU": "many"}], "bundle 0: CPU"),
        ([{f"r{i}": 1 for i in range(10_000)}], "bundle 0 may name at most 64 resources"),
    ])
    def test_bundles_that_cannot_be_are_refused(self, bundles: object, message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            troupe.placement_group(bundles)  # type: ignore[arg-type]

    def test_other_arguments_are_checked(self) -> None:
        with pytest.raises(ValueError, match="STRICT_PACK"):
            troupe.placement_group([{"CPU": 1}], strategy="NEARBY")
        with pytest.raises(ValueError, match="detached"):
            troupe.placement_group([{"CPU": 1}], lifetime="long")
        with pytest.raises(TypeError, match="name"):
            troupe.placement_group([{"CPU": 1}], name=3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="as many label selectors"):
            troupe.placement_group([{"CPU": 1}], bundle_label_selector=[])
        with pytest.raises(TypeError, match="PlacementGroup"):
            Counter.options(placement_group=5)

    def test_labels_belong_to_their_bundle(self) -> None:
        made = _bundles([{"CPU": 1}, {"GPU": 2}], [{"zone": "a"}, ["gpu in (a100, h100)"]])
        assert made == [{"resources": {"CPU": 1.0}, "labels": ["zone=a"]},
                        {"resources": {"GPU": 2.0}, "labels": ["gpu in (a100, h100)"]}]


@pytest.mark.integration
@pytest.mark.timeout(180)
class TestCluster:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def cluster(cls) -> Iterator[None]:
        troupe.init(num_cpus=8, resources={"seat": 4})
        yield
        troupe.shutdown()

    def test_actors_are_started_in_it_and_it_grows_and_shrinks(self) -> None:
        group = troupe.placement_group([{"seat": 1}, {"seat": 1}], name="row")
        assert group.wait(SOON_S)
        assert [b["number"] for b in group.bundles] == [0, 1]
        assert all(b["node"] for b in group.bundles)
        seat = Counter.options(resources={"seat": 1}, placement_group=group)
        first = seat.options(placement_group_bundle_index=1).remote(1)
        second = seat.remote(2)
        assert troupe.get([first.add.remote(0), second.add.remote(0)], timeout=SOON_S) == [1, 2]
        third = seat.remote(3)
        waiting = third.add.remote(0)
        assert troupe.wait([waiting], timeout=0.3)[0] == []
        same = troupe.get_placement_group("row")
        assert same == group
        same.resize(add=[{"seat": 1}])
        assert troupe.get(waiting, timeout=SOON_S) == 3
        group.resize(remove=[1])
        with pytest.raises(troupe.ActorDiedError, match="bundle 1"):
            troupe.get(first.add.remote(0), timeout=SOON_S)
        assert [b["number"] for b in group.bundles] == [0, 2]
        troupe.remove_placement_group(group)
        group.remove()
        with pytest.raises(troupe.ActorDiedError):
            troupe.get(second.add.remote(0), timeout=SOON_S)
        with pytest.raises(troupe.ActorNotFoundError):
            troupe.get_placement_group("row")
        with pytest.raises(troupe.ActorNotFoundError, match="removed"):
            group.wait(1)

    def test_who_never_fits_it_has_no_place(self) -> None:
        group = troupe.placement_group([{"seat": 1}, {"seat": 2}])
        assert group.wait(SOON_S)
        seat = Counter.options(placement_group=group)
        for options, why in [
            ({"resources": {"seat": 3}}, "never fits placement group .*seat 3"),
            ({"num_cpus": 1}, "needs CPU 1; bundle 0 has seat 1 in all"),
            ({"resources": {"seat": 2}, "placement_group_bundle_index": 0}, "bundle 0 has seat 1"),
            ({"placement_group_bundle_index": 7}, "has no bundle 7"),
        ]:
            with pytest.raises(troupe.PlacementError, match=why):
                troupe.get(seat.options(**options).remote(0).add.remote(1), timeout=SOON_S)
        holds = seat.options(resources={"seat": 2}).remote(0)
        assert troupe.get(holds.add.remote(1), timeout=SOON_S) == 1
        waits = seat.options(resources={"seat": 2}).remote(0).add.remote(1)
        assert troupe.wait([waits], timeout=0.3)[0] == []
        group.resize(remove=[1])
        with pytest.raises(troupe.PlacementError, match="never fits placement group"):
            troupe.get(waits, timeout=SOON_S)
        group.remove()
        with pytest.raises(troupe.PlacementError, match="there is no placement group"):
            troupe.get(seat.remote(0).add.remote(1), timeout=SOON_S)

    def test_one_that_must_wait_says_why_and_gets_its_room(self) -> None:
        first = troupe.placement_group([{"seat": 3}])
        assert first.wait(SOON_S)
        second = troupe.placement_group([{"seat": 1}, {"seat": 1}])
        assert not second.wait(0.3)
        assert second.state == "pending"
        assert "seat" in second.reason
        first.remove()
        assert second.wait(SOON_S)
        second.remove()

    def test_one_that_can_never_be_is_an_error(self) -> None:
        group = troupe.placement_group([{"unobtainium": 1}])
        with pytest.raises(troupe.PlacementError, match="unobtainium"):
            group.wait(SOON_S)
        group.remove()
        with pytest.raises(troupe.ActorNameTakenError):
            troupe.placement_group([{"seat": 0.1}], name="taken", lifetime="detached")
            troupe.placement_group([{"seat": 0.1}], name="taken")
        troupe.get_placement_group("taken").remove()

    def test_handles_travel_and_it_goes_with_its_creator(self) -> None:
        driver = _session.current().cluster
        assert driver is not None
        program = (
            "import sys, troupe\n"
            "troupe.init(sys.argv[1])\n"
            "group = troupe.placement_group([{'seat': 2}])\n"
            "assert group.wait(30)\n"
            "print(group.id, flush=True)\n"
            "sys.stdin.read()\n"
        )
        other = subprocess.Popen([sys.executable, "-c", program, driver.driver.address],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert other.stdout is not None
            group = troupe.PlacementGroup(other.stdout.readline().strip())
            assert group.state == "placed"
        finally:
            other.communicate("", timeout=SOON_S)

        def state() -> str:
            try:
                return group.state
            except troupe.ActorNotFoundError:
                return "gone"

        until(state, "gone")
