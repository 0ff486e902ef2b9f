"""What actors and tasks can ask about themselves, names in namespaces, what the cluster has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import troupe
from troupe.util import list_named_actors

from context_cases import Teller, facts, find, list_names, task_facts
from processes import until

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for the tests of this module, whose driver has a namespace."""
    troupe.init(num_cpus=4, resources={"seat": 2}, namespace="home")
    yield
    troupe.shutdown()


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


# ---- the context ----


def test_a_driver_is_no_actor() -> None:
    told = facts()
    assert told["job"] and told["worker"] and told["node"] == "driver"
    assert told["actor"] is None and told["name"] is None and told["task"] is None
    assert told["resources"] == {} and told["namespace"] == "home" and not told["again"]
    with pytest.raises(troupe.NotInWorkerError, match="current_actor"):
        _ = troupe.get_runtime_context().current_actor


def test_an_actor_knows_itself() -> None:
    actor = Teller.options(name="teller", resources={"seat": 1}).remote()
    first, second = soon(actor.facts.remote()), soon(actor.facts.remote())
    assert first["job"] == facts()["job"] and first["worker"] != facts()["worker"]
    assert first["actor"] == second["actor"] and first["task"] != second["task"]
    assert first["name"] == "teller" and first["namespace"] == "home"
    assert first["task_name"] == first["function"] == "facts"
    assert first["resources"] == {"CPU": 0.5, "seat": 1.0} and first["gpus"] == []
    early = soon(actor.facts_before.remote())
    assert early["actor"] == first["actor"] and early["task"] is None
    troupe.kill(actor)


def test_a_task_knows_itself() -> None:
    told = soon(task_facts.options(name="asked").remote())
    assert told["actor"] is None and told["name"] is None and told["task"]
    assert told["task_name"] == "asked" and told["function"] == "task_facts"
    assert told["resources"] == {"CPU": 0.25} and told["job"] == facts()["job"]
    alone = soon(task_facts.options(max_calls=1).remote())
    assert alone["actor"] is None and alone["function"] == "task_facts"
    assert alone["worker"] != told["worker"]


def test_an_actor_hands_out_itself() -> None:
    actor = Teller.remote()
    same = soon(actor.itself.remote())
    assert same == actor and hash(same) == hash(actor)
    assert soon(same.facts.remote())["actor"] == soon(actor.facts.remote())["actor"]


# ---- names ----


def test_names_are_those_of_their_namespace() -> None:
    here = Teller.options(name="one").remote()
    there = Teller.options(name="one", namespace="away").remote()
    assert troupe.get_actor("one") == here != there
    assert troupe.get_actor("one", "away") == there
    assert troupe.get_actor("one", namespace="home") == here
    with pytest.raises(troupe.ActorNotFoundError, match="'away'"):
        troupe.get_actor("two", "away")
    assert soon(find.remote("one")) == "one"  # Tasks are in the namespace of their driver.
    assert soon(there.spawn.remote())["namespace"] == "home"
    with pytest.raises(troupe.ActorNameTakenError):
        Teller.options(name="one").remote()
    for actor in (here, there):
        troupe.kill(actor)


def test_names_are_listed() -> None:
    here = Teller.options(name="listed").remote()
    there = Teller.options(name="listed", namespace="elsewhere").remote()
    bare = Teller.options(name="listed", namespace="").remote()
    assert "listed" in list_named_actors()
    places = {one["namespace"] for one in list_named_actors(True) if one["name"] == "listed"}
    assert places == {"", "home", "elsewhere"}
    for actor in (here, there, bare):
        troupe.kill(actor)
    assert "listed" not in list_named_actors()
    with pytest.raises(troupe.NotInWorkerError):
        soon(list_names.remote())


@pytest.mark.parametrize(("name", "namespace", "kind", "message"), [
    (None, None, TypeError, "must be a string, not None"),
    (3, None, TypeError, "must be a string, not 3"),
    ("", None, ValueError, "must not be empty"),
    ("one", 4, TypeError, "namespace must be a string"),
    ("one", "a/b", ValueError, "'a/b'"),
])
def test_what_is_no_name_is_refused(
    name: Any, namespace: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        troupe.get_actor(name, namespace)


def test_who_finds_an_actor_by_name_sends_calls_again_as_its_maker_does() -> None:
    made = Teller.options(name="again", max_restarts=1, max_task_retries=2).remote()
    found = troupe.get_actor("again")
    assert soon(found.die_first.remote()) == 7 and found == made
    troupe.kill(found)


# ---- the cluster ----


def test_nodes_and_their_resources() -> None:
    node, = troupe.nodes()
    assert node["Alive"] and node["State"] == "alive"
    assert node["NodeID"] == soon(task_facts.remote())["node"]
    assert node["Resources"]["CPU"] == 4 and node["Resources"]["seat"] == 2
    total = troupe.cluster_resources()
    assert total["CPU"] == 4 and total["seat"] == 2 and total["memory"] > 0
    actor = Teller.options(resources={"seat": 2}).remote()
    soon(actor.facts.remote())
    assert "seat" not in troupe.available_resources()
    assert troupe.available_resources()["CPU"] <= 3.5
    troupe.kill(actor)
    until(lambda: troupe.available_resources().get("seat"), 2.0)


def test_who_is_no_driver_is_told_where_to_ask() -> None:
    actor = Teller.remote()
    with pytest.raises(troupe.NotInWorkerError, match="driver"):
        soon(actor.nodes.remote())
