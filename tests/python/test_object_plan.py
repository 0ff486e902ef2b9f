"""What becomes of shared buffers, and how they are pulled: decisions, by thousands of seeds.

The plan runs behind the real store, on real files of a few bytes, as several processes would use it
one after the other; pulls run over a simulated link. Invariants: OP-1 to OP-5 of ``_object_plan``.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import troupe
from troupe import _native
from troupe.actors import _object_plan as plan
from troupe.actors import _objects
from troupe.actors._objects import ObjectStore

pytestmark = [pytest.mark.integration, pytest.mark.once]  # The store's folder is the core's.
SEEDS = 1000
EVENTS = 40
LIMIT, SPILL_LIMIT = 400, 300


# ---- the plan alone ----


def file(kind: str, name: str, size: int, used: float) -> plan.File:
    return plan.File(kind, name, size, used)


def test_what_nobody_refers_to_makes_room_first_then_what_was_used_longest_ago() -> None:
    files = [file(plan.OBJECT, "old", 10, 1), file(plan.OBJECT, "new", 10, 9),
             file(plan.COPY, "copy", 10, 5), file(plan.FREE, "late", 10, 8),
             file(plan.FREE, "early", 10, 7)]
    assert plan.room(files, 50, 100) == []
    steps = plan.room(files, 51, 100)
    assert steps is not None
    assert [(what, f.name) for what, f in steps] == [
        (plan.DROP, "early"), (plan.DROP, "late"), (plan.DROP, "copy"), (plan.SPILL, "old"),
        (plan.SPILL, "new")]
    assert plan.room(files, 101, 100) is None


def test_a_file_is_used_again_for_about_as_many_bytes() -> None:
    free = [file(plan.FREE, str(size), size, 0) for size in (9, 10, 15, 20, 21)]
    assert [f.size for f in plan.fitting(free, 10)] == [10, 15, 20]


def test_what_waits_for_too_long_or_is_too_much_goes() -> None:
    files = [file(plan.OBJECT, "o", 1, 0), file(plan.COPY, "c", 1, 0), file(plan.FREE, "f", 1, 0)]
    assert plan.idle(files, plan.FREE_IDLE_S) == []
    assert [f.name for f in plan.idle(files, plan.FREE_IDLE_S + 1)] == ["f"]
    assert {f.name for f in plan.idle(files, plan.COPY_IDLE_S + 1)} == {"c", "f"}
    assert {f.name for f in plan.idle(files, -1)} == {"c", "f"}  # The clock was put back.
    free = [file(plan.FREE, str(i), 20, i) for i in range(4)]
    assert [f.name for f in plan.excess(free, 100)] == ["0", "1"]


# ---- the plan and the store ----


class Broken(Exception):
    """An invariant does not hold; its name comes first."""


class World:
    """A few stores of one folder, what is referred to, and what is mapped."""

    def __init__(self, path: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.stores = [ObjectStore(path, LIMIT, SPILL_LIMIT) for _ in range(3)]
        self.values: dict[str, tuple[ObjectStore, bytes]] = {}
        self.maps: list[tuple[memoryview, bytes]] = []
        self.refused = self.spilled = self.again = 0
        self.next = 0

    def put(self) -> None:
        store = self.random.choice(self.stores)
        self.next += 1
        size = self.random.choice([8, 40, 60, 70, 120, LIMIT - 1, LIMIT + 1])
        value = f"{self.next:08}".encode() * (size // 8 + 1)
        value = value[:size]
        free = {f.name for f in store._files("free")}
        before = store._on_disk()
        try:
            name = store.write(memoryview(value))
        except troupe.ObjectStoreFullError:
            self.refused += 1
            return
        if store._on_disk() > before and size <= LIMIT and free & {
                f.name for f in store._files("free")}:
            raise Broken("OP-4")
        self.spilled += store._on_disk() > before
        self.again += len(free - {f.name for f in store._files("free")})
        self.values[name] = store, value

    def drop(self) -> None:
        if self.values:
            name = self.random.choice(sorted(self.values))
            store, _ = self.values.pop(name)
            if store.discard([name]):
                store.tidy()

    def map(self) -> None:
        if self.values:
            name = self.random.choice(sorted(self.values))
            value = self.values[name][1]
            view = self.random.choice(self.stores).map(name, len(value))
            self.maps.append((view, value))

    def unmap(self) -> None:
        if self.maps:
            self.maps.pop(self.random.randrange(len(self.maps)))

    def step(self) -> None:
        self.random.choice([self.put, self.put, self.drop, self.map, self.unmap])()
        self.check()

    def check(self) -> None:
        if any(bytes(view) != value for view, value in self.maps):
            raise Broken("OP-1")
        reader = self.stores[0]
        for name, (_, value) in self.values.items():
            try:
                there = bytes(reader.map(name, len(value)))
            except (troupe.ObjectLostError, ValueError):
                raise Broken("OP-2") from None
            if there != value:
                raise Broken("OP-2")
        if reader._held_bytes() > LIMIT or reader._on_disk() > SPILL_LIMIT:
            raise Broken("OP-3")

    def end(self) -> None:
        self.maps.clear()
        while self.values:
            self.drop()
        if reader_files(self.stores[0]):
            raise Broken("leak")
        for store in self.stores:
            store.discard_own()


def reader_files(store: ObjectStore) -> list[str]:
    return [name for folder in store._folders() for name in os.listdir(folder)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "POOLED_BYTES_MIN", 32)
    monkeypatch.setattr(_objects, "KEPT_BYTES_MIN", 64)
    monkeypatch.setattr(_objects, "_SCAN_INTERVAL_S", -1.0)  # Others may have taken room since.


def run(path: str, seed: int) -> World:
    world = World(path, seed)
    try:
        for _ in range(EVENTS):
            world.step()
        world.end()
    except Broken as error:
        raise Broken(f"{error}, seed {seed}") from None
    finally:
        for store in world.stores:
            store._shared = None
    return world


def paths() -> Iterator[str]:
    count = 0
    while True:
        count += 1
        yield _native.core().shared_folder_path(f"test {os.getpid()} {count}")


def test_values_live_in_bounds_and_what_is_read_stays() -> None:
    path = next(paths())
    worlds = [run(path, seed) for seed in range(SEEDS)]
    assert not os.path.exists(path)
    for what in ("refused", "spilled", "again"):
        assert sum(getattr(world, what) for world in worlds) > SEEDS, what


def spill_nothing(store: Any, file: plan.File) -> bool:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(store.folder, file.name))
    return True


def keep_spilled(before: Any) -> Any:
    def discard(store: Any, names: Any) -> Any:
        store.spill_folder, kept = "", store.spill_folder
        try:
            return before(store, names)
        finally:
            store.spill_folder = kept
    return discard


def objects_first(files: Any, size: int, limit: int) -> Any:
    steps = plan_room(files, size, limit)
    return steps and sorted(steps, key=lambda step: step[1].kind != plan.OBJECT)


plan_room = plan.room
MUTANTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "what is read is written to again": (
        "OP-1", lambda patch: patch.setattr(_objects, "_unread", lambda fd: True)),
    "what makes room is not written to disk": (
        "OP-2", lambda patch: patch.setattr(ObjectStore, "_spill", spill_nothing)),
    "room is not made": ("OP-3", lambda patch: patch.setattr(
        ObjectStore, "_carry_out", lambda store, steps, size: True)),
    "what is referred to makes room first": (
        "OP-4", lambda patch: patch.setattr(plan, "room", objects_first)),
    "what is on disk is forgotten": ("leak", lambda patch: patch.setattr(
        ObjectStore, "discard", keep_spilled(ObjectStore.discard))),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_invariants_catch(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    invariant, apply = MUTANTS[mutant]
    apply(monkeypatch)
    with pytest.raises(Broken, match=invariant):
        for seed in range(SEEDS):
            run(next(paths()) + f"{seed}", seed)


# ---- pulls ----


class Link:
    """A pull over a link of some rate, whose other end loses some of what it is asked."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.size = self.random.choice([1, plan.CHUNK_BYTES, 3_000_000, 20_000_000])
        self.have = self.random.choice([0, 0, self.random.randrange(self.size)])
        self.rate = self.random.choice([5e7, 1e9, 1e10])  # bytes per second
        self.trip_s = self.random.choice([5e-5, 1e-3, 2e-2])
        self.loss = self.random.choice([0, 0, 0.05])
        self.pull = plan.Pull(self.size, self.have)
        self.now = self.free_at = self.worst = 0.0
        self.on_way: list[tuple[float, int, int, bool]] = []
        self.got: list[tuple[int, int]] = []

    def run(self) -> None:
        while not self.pull.done:
            while (part := self.pull.ask(self.now)) is not None:
                self.free_at = max(self.free_at, self.now) + part[1] / self.rate
                self.worst = max(self.worst, self.free_at - self.now)
                arrives = self.free_at + self.trip_s
                self.on_way.append((arrives, *part, self.random.random() < self.loss))
            if self.pull.asked_bytes > plan.WINDOW_MAX * plan.CHUNK_BYTES or not self.on_way:
                raise Broken("OP-5")
            self.on_way.sort()
            self.now, offset, length, lost = self.on_way.pop(0)
            if lost:
                if not self.pull.lost(offset):
                    return
                continue
            self.got.append((offset, length))
            if not self.pull.came(offset, self.now) or self.pull.came(offset, self.now):
                raise Broken("OP-5")
        at = self.have
        for offset, length in sorted(self.got):
            if offset != at:
                raise Broken("OP-5")
            at += length
        if at != self.size:
            raise Broken("OP-5")


def test_a_pull_asks_for_each_byte_within_its_window() -> None:
    for seed in range(2 * SEEDS):
        try:
            Link(seed).run()
        except Broken as error:
            raise Broken(f"{error}, seed {seed}") from None


def test_others_wait_little_behind_a_pull() -> None:
    """The first parts find out how fast the link is; then few of them are in each other's way."""
    for seed in range(SEEDS):
        link = Link(seed)
        link.run()
        part = plan.CHUNK_BYTES / link.rate
        assert link.worst <= plan.DELAY_S + 4 * part, (seed, link.worst, part)


def never_again(pull: Any, offset: int) -> bool:
    pull._asked.pop(offset, None)
    return True


def greedy(pull: Any, now: float) -> Any:
    pull.window = 1000.0
    return pull_ask(pull, now)


def twice(pull: Any, offset: int, now: float) -> bool:
    pull_came(pull, offset, now)
    return True


pull_ask, pull_came = plan.Pull.ask, plan.Pull.came


@pytest.mark.parametrize(("what", "wrong"), [
    ("lost", never_again), ("ask", greedy), ("came", twice)])
def test_the_invariant_of_pulls_catches(
    what: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan.Pull, what, wrong)
    with pytest.raises(Broken, match="OP-5"):
        for seed in range(SEEDS):
            Link(seed).run()


def test_a_part_that_never_comes_ends_the_pull() -> None:
    pull = plan.Pull(10)
    for attempt in range(plan.ASK_AGAIN):
        part = pull.ask(0.0)
        assert part == (0, 10)
        assert pull.lost(0) is (attempt < plan.ASK_AGAIN - 1)
