"""Pools of actors, queues, placement groups and strategies with Ray's names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe.util import (
    ActorPool,
    Queue,
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from troupe.util import scheduling_strategies as strategies
from troupe.util.queue import Empty, Full

from util_cases import Placed, Squarer, fill, group_and_node

pytestmark = [pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def square(actor: Any, value: int) -> Any:
    return actor.square.remote(value)


class TestStrategies:
    def test_an_object_says_what_options_say(self) -> None:
        labels = strategies.NodeLabelSchedulingStrategy(
            {"zone": strategies.In("a", "b"), "gpu": strategies.Exists()},
            soft={"disk": strategies.NotIn("slow"), "old": strategies.DoesNotExist()})
        assert labels.as_options() == {
            "label_selector": ["zone in (a, b)", "gpu"],
            "prefer_labels": ["disk not in (slow)", "!old"]}
        near = strategies.NodeAffinitySchedulingStrategy("n1", soft=True)
        assert near.as_options() == {"node": "n1", "node_soft": True}

    def test_what_cannot_be_is_refused(self) -> None:
        with pytest.raises(ValueError, match="conditions"):
            strategies.NodeLabelSchedulingStrategy()
        with pytest.raises(TypeError, match="zone"):
            strategies.NodeLabelSchedulingStrategy({"zone": "a"})  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="strings"):
            strategies.In(1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="id of a node"):
            strategies.NodeAffinitySchedulingStrategy("")
        with pytest.raises(TypeError, match="PlacementGroup"):
            strategies.PlacementGroupSchedulingStrategy("g")  # type: ignore[arg-type]
        group = troupe.PlacementGroup("pg-1")
        with pytest.raises(ValueError, match="capture"):
            strategies.PlacementGroupSchedulingStrategy(
                group, placement_group_capture_child_tasks=True)
        with pytest.raises(ValueError, match="DEFAULT"):
            Squarer.options(scheduling_strategy="NEAR")
        with pytest.raises(TypeError, match="scheduling_strategy"):
            fill.options(scheduling_strategy=3)
        near = strategies.NodeAffinitySchedulingStrategy("n1")
        with pytest.raises(ValueError, match="different places"):
            Squarer.options(scheduling_strategy=near, node="n2")


@pytest.mark.integration
class TestOnACluster:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def cluster(cls) -> Iterator[None]:
        troupe.init(num_cpus=4, resources={"seat": 2})
        yield
        troupe.shutdown()

    # ---- pools ----

    def test_a_pool_gives_results_in_order_and_as_they_come(self, tmp_path: Path) -> None:
        pool = ActorPool([Squarer.remote(), Squarer.remote()])
        assert list(pool.map(square, range(20))) == [i * i for i in range(20)]
        assert sorted(pool.map_unordered(square, range(20))) == [i * i for i in range(20)]
        late, early = tmp_path / "late", tmp_path / "early"
        early.touch()
        names = pool.map_unordered(lambda a, path: a.wait_for.remote(str(path)), [late, early])
        assert next(names) == "early"
        late.touch()
        assert list(names) == ["late"]
        assert not pool.has_next()
        with pytest.raises(StopIteration):
            pool.get_next()

    def test_a_result_that_is_late_can_be_asked_for_again(self, tmp_path: Path) -> None:
        pool = ActorPool([Squarer.remote()])
        pool.submit(lambda a, path: a.wait_for.remote(str(path)), tmp_path / "go")
        pool.submit(square, 3)
        for get in (pool.get_next, pool.get_next_unordered):
            with pytest.raises(TimeoutError):
                get(timeout=0.05)
        assert not pool.has_free()
        assert pool.pop_idle() is None
        (tmp_path / "go").touch()
        assert pool.get_next(timeout=SOON_S) == "go"
        assert pool.get_next_unordered(timeout=SOON_S) == 9

    def test_errors_and_idle_actors_of_a_pool(self) -> None:
        actor = Squarer.remote()
        pool = ActorPool([actor])
        with pytest.raises(ValueError, match="already"):
            pool.push(actor)
        results = pool.map(square, [-1, 2])
        with pytest.raises(ValueError, match="negative"):
            next(results)
        assert pool.get_next(timeout=SOON_S) == 4  # The pool is as it was.
        with pytest.raises(TypeError, match="ref of a call"):
            pool.submit(lambda a, v: v, 1)
        assert pool.pop_idle() == actor
        with pytest.raises(troupe.TroupeError, match="push"):
            pool.submit(square, 2)
            pool.get_next()
        pool.push(actor)
        assert pool.get_next(timeout=SOON_S) == 4

    # ---- queues ----

    def test_a_queue_keeps_order_and_its_size(self) -> None:
        queue = Queue(maxsize=3)
        assert queue.empty() and not queue.full() and len(queue) == 0
        assert soon(fill.remote(queue, [1, [2], None])) == 3
        assert queue.full()
        with pytest.raises(Full):
            queue.put_nowait(4)
        with pytest.raises(Full):
            queue.put(4, timeout=0.05)
        assert [queue.get(), queue.get(timeout=SOON_S), queue.get_nowait()] == [1, [2], None]
        with pytest.raises(Empty):
            queue.get_nowait()
        with pytest.raises(Empty):
            queue.get(timeout=0.05)
        with pytest.raises(ValueError, match="timeout"):
            queue.get(timeout=-1)

    def test_batches_are_all_or_nothing(self) -> None:
        queue = Queue(maxsize=3)
        queue.put_nowait_batch([1, 2])
        with pytest.raises(Full, match="2 of 3"):
            queue.put_nowait_batch([3, 4])
        with pytest.raises(Empty, match="3 values"):
            queue.get_nowait_batch(3)
        assert queue.get_nowait_batch(2) == [1, 2]
        with pytest.raises(TypeError, match="several"):
            queue.put_nowait_batch("ab")
        with pytest.raises(ValueError, match="at least 0"):
            queue.get_nowait_batch(-1)

    def test_a_reader_waits_for_a_writer_also_on_an_event_loop(self) -> None:
        queue = Queue(maxsize=1)

        async def both() -> list[int]:
            reads = asyncio.gather(*(queue.get_async() for _ in range(5)))
            for i in range(5):
                await queue.put_async(i)
            return sorted(await asyncio.wait_for(reads, SOON_S))

        assert asyncio.run(both()) == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("force", [False, True])
    def test_a_queue_that_is_shut_down_says_so(self, force: bool) -> None:
        queue = Queue()
        actor = queue.actor
        queue.put(1)
        waiting = actor.get.remote(None), actor.get.remote(None)
        queue.shutdown(force=force)
        queue.shutdown()
        with pytest.raises(troupe.ActorDiedError):
            soon(waiting[1])
        with pytest.raises(ValueError, match="shut down"):
            queue.put(2)

    # ---- placement groups ----

    def test_ready_is_a_ref_of_the_group(self) -> None:
        group = placement_group([{"seat": 1}, {"seat": 1}], name="row")
        assert soon(group.ready()) == group
        assert group.bundle_count == 2 and group.bundle_specs == [{"seat": 1.0}] * 2
        table = placement_group_table(group)
        assert table["state"] == "CREATED" and table["name"] == "row"
        assert set(table["bundles_to_node_id"]) == {0, 1}
        waits = placement_group([{"seat": 1}])
        ready = waits.ready()
        assert troupe.wait([ready], timeout=0.1)[0] == []
        assert placement_group_table(waits)["state"] == "PENDING"
        remove_placement_group(group)
        assert soon(ready) == waits
        assert waits.wait(timeout_seconds=SOON_S)
        remove_placement_group(waits)
        assert placement_group_table(waits)["state"] == "REMOVED"
        with pytest.raises(troupe.ActorNotFoundError):
            soon(waits.ready())
        with pytest.raises(TypeError, match="PlacementGroup"):
            remove_placement_group("row")  # type: ignore[arg-type]

    def test_actors_and_tasks_run_in_a_group_and_know_it(self) -> None:
        assert get_current_placement_group() is None
        assert soon(group_and_node.remote())[0] is None
        group = placement_group([{"CPU": 1}, {"CPU": 1}])
        where = strategies.PlacementGroupSchedulingStrategy(group, 1)
        actor = Placed.options(scheduling_strategy=where).remote()
        assert soon(actor.group_and_node.remote())[0] == group.id
        task = group_and_node.options(scheduling_strategy=where)
        assert soon(task.remote())[0] == group.id
        assert soon(group_and_node.options(placement_group=group).remote())[0] == group.id
        beyond = strategies.PlacementGroupSchedulingStrategy(group, 7)
        with pytest.raises(troupe.PlacementError, match="no bundle 7"):
            soon(group_and_node.options(scheduling_strategy=beyond).remote())
        remove_placement_group(group)
        with pytest.raises(troupe.PlacementError, match="no placement group"):
            soon(Placed.options(placement_group=group).remote().group_and_node.remote())

    def test_tasks_and_actors_run_on_the_node_that_they_name(self) -> None:
        node = soon(group_and_node.remote())[1]
        near = strategies.NodeAffinitySchedulingStrategy(node)
        assert soon(group_and_node.options(scheduling_strategy=near).remote())[1] == node
        assert soon(group_and_node.options(scheduling_strategy="SPREAD").remote())[1] == node
        gone = strategies.NodeAffinitySchedulingStrategy("gone")
        with pytest.raises(troupe.PlacementError, match="gone"):
            soon(group_and_node.options(scheduling_strategy=gone).remote())
        soft = strategies.NodeAffinitySchedulingStrategy("gone", soft=True)
        actor = Placed.options(scheduling_strategy=soft).remote()
        assert soon(actor.group_and_node.remote())[1] == node
