"""Pulls between two hosts that are two folders, from a home that this test plays."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

import troupe
from troupe.actors import _object_plan as plan
from troupe.actors import _objects, _pulls, _session
from troupe.actors._objects import ObjectStore

pytestmark = [pytest.mark.integration, pytest.mark.once]
SIZE = 5 * plan.CHUNK_BYTES + 17


class CoreError(RuntimeError):
    """As the core raises it."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Reply:
    """A call that is answered, or never is."""

    def __init__(self, answer: Callable[[], bytes], ready: bool = True) -> None:
        self._answer = answer
        self._ready = ready

    def wait(self, limit_s: float) -> bool:
        return self._ready

    def result(self) -> bytes:
        return self._answer()


class Home:
    """The process that has the buffer; ``spoil`` is asked before each part is given."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.asked: list[int] = []
        self.spoil: Callable[[int], Optional[Exception]] = lambda offset: None
        self.silent = False

    def call(self, method: str, request: bytes, timeout_s: float, retry: bool) -> Reply:
        assert method == "file"
        offset, length, name = request.decode().split()
        self.asked.append(int(offset))

        def answer() -> bytes:
            error = self.spoil(int(offset))
            if error is not None:
                raise error
            fd = self.store.open(name)
            try:
                return os.pread(fd, int(length), int(offset))
            finally:
                os.close(fd)

        return Reply(answer, not self.silent)


class Hosts:
    """A buffer on one host, and the store of another."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there = ObjectStore(str(tmp_path / "there"), 1 << 26)
        self.here = ObjectStore(str(tmp_path / "here"), 1 << 26, 0)
        self.value = os.urandom(SIZE)
        self.name = self.there.write(memoryview(self.value))
        self.home = Home(self.there)
        monkeypatch.setattr(_session, "current", lambda: self)

    @property
    def actors(self) -> Hosts:
        return self

    def refer(self, address: bytes) -> Home:
        assert address == b"home"
        return self.home

    def get(self) -> bytes:
        return bytes(_pulls.map_file(self.here, b"home", self.name, SIZE))

    def copies(self) -> list[str]:
        return os.listdir(os.path.join(self.here.base, "copies"))


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    made = Hosts(tmp_path, monkeypatch)
    yield made
    made.here.discard_own()
    made.there.discard_own()


def test_two_folders_are_two_hosts(hosts: Hosts) -> None:
    assert hosts.here.identity != hosts.there.identity
    assert hosts.here.here(hosts.name) is None and hosts.there.here(hosts.name) is not None
    assert hosts.get() == hosts.value
    assert sorted(set(hosts.home.asked)) == [i * plan.CHUNK_BYTES for i in range(6)]
    assert len(hosts.home.asked) == 6


def test_the_copy_stays_for_the_next_and_goes_when_it_is_idle(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hosts.get() == hosts.get() == hosts.value
    assert len(hosts.home.asked) == 6 and len(hosts.copies()) == 1
    hosts.here.tidy()
    assert len(hosts.copies()) == 1
    monkeypatch.setattr(plan, "COPY_IDLE_S", -1.0)
    view = _pulls.map_file(hosts.here, b"home", hosts.name, SIZE)
    hosts.here.tidy()
    assert len(hosts.copies()) == 1  # It is mapped.
    del view
    hosts.here.tidy()
    assert hosts.copies() == []


def test_many_threads_pull_it_once(hosts: Hosts) -> None:
    got: list[bytes] = []
    first = threading.Event()

    def slowly(offset: int) -> None:
        first.set()
        time.sleep(0.001)  # So that the others come meanwhile; it does not matter whether they do.

    hosts.home.spoil = slowly
    threads = [threading.Thread(target=lambda: got.append(hosts.get())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == [hosts.value] * 8 and len(hosts.home.asked) == 6


def test_a_pull_goes_on_where_another_has_ended(hosts: Hosts) -> None:
    def interrupted(offset: int) -> Optional[Exception]:
        if offset == 3 * plan.CHUNK_BYTES:
            raise KeyboardInterrupt
        return None

    hosts.home.spoil = interrupted
    with pytest.raises(KeyboardInterrupt):
        hosts.get()
    assert [name.endswith(".part") for name in hosts.copies()] == [True]
    hosts.home.spoil = lambda offset: None
    hosts.home.asked.clear()
    assert hosts.get() == hosts.value
    assert min(hosts.home.asked) == 3 * plan.CHUNK_BYTES
    assert [name.endswith(".part") for name in hosts.copies()] == [False]


def test_lost_parts_are_asked_for_again_in_order(hosts: Hosts) -> None:
    failures = {0: 1, 2 * plan.CHUNK_BYTES: plan.ASK_AGAIN - 1}

    def lossy(offset: int) -> Optional[Exception]:
        # A part that comes late must not be written behind a gap: who goes on would trust it.
        part = [n for n in hosts.copies() if n.endswith(".part")][0]
        assert os.stat(os.path.join(hosts.here.base, "copies", part)).st_size == offset
        if failures.get(offset, 0) > 0:
            failures[offset] -= 1
            return CoreError("deadline_exceeded")
        return None

    hosts.home.spoil = lossy
    assert hosts.get() == hosts.value
    failures[0] = 0
    assert not any(failures.values())


@pytest.mark.parametrize(("code", "error", "text"), [
    ("not_found", troupe.ObjectLostError, "does not have it any more"),
    ("peer_gone", troupe.OwnerDiedError, "has ended while it was read"),
    ("deadline_exceeded", troupe.ObjectLostError, "cannot give it")])
def test_an_end_is_typed_and_leaves_no_part(
    hosts: Hosts, code: str, error: type[Exception], text: str
) -> None:
    hosts.home.spoil = lambda offset: CoreError(code) if offset else None
    with pytest.raises(error, match=text) as raised:
        hosts.get()
    assert hosts.name in str(raised.value) and hosts.copies() == []


def test_a_silent_home_is_given_up(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pulls, "SILENCE_S", 0.01)
    hosts.home.silent = True
    with pytest.raises(troupe.ObjectLostError, match="has not answered"):
        hosts.get()
    assert hosts.copies() == []


def test_who_waits_for_another_gives_up_when_that_stands_still(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pulls, "SILENCE_S", 0.05)
    identity = hosts.there.identity
    path = os.path.join(hosts.here.base, "copies", f"{identity}.{hosts.there.here(hosts.name)}")
    fd = os.open(f"{path}.part", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(troupe.ObjectLostError, match="has not gone on"):
            hosts.get()
        with pytest.raises(troupe.GetTimeoutError), _pulls.until(time.monotonic()):
            hosts.get()
    finally:
        os.close(fd)
    assert hosts.get() == hosts.value


def test_what_a_killed_process_left_half_on_disk_is_in_nobodys_way(hosts: Hosts) -> None:
    store = hosts.there
    for left in (f".123-dead.{store.here(hosts.name)}", f".{store.owner}.x"):
        with open(os.path.join(store.spill_folder, left), "wb") as file:
            file.write(b"half")
    store.limit_bytes = SIZE + 1000
    store._kept.close_idle(0.0)
    store._scanned = 0.0
    store.write(memoryview(b"m" * 2000))
    assert sorted(os.listdir(store.spill_folder)) == sorted(
        [f".{store.owner}.x", str(store.here(hosts.name))])


def test_a_deadline_ends_a_pull_and_keeps_what_has_come(hosts: Hosts) -> None:
    def silent_later(offset: int) -> None:
        hosts.home.silent = offset >= plan.CHUNK_BYTES

    hosts.home.spoil = silent_later
    with pytest.raises(troupe.GetTimeoutError), _pulls.until(time.monotonic() + 0.3):
        hosts.get()
    (part,) = hosts.copies()
    assert os.stat(os.path.join(hosts.here.base, "copies", part)).st_size > 0
    hosts.home.silent = False
    hosts.home.spoil = lambda offset: None
    assert hosts.get() == hosts.value


def test_who_must_not_wait_does_not_begin(hosts: Hosts) -> None:
    with pytest.raises(_pulls.WaitsError), _pulls.at_once():
        hosts.get()
    assert hosts.home.asked == []
    name = hosts.here.write(memoryview(b"x" * 100))
    with _pulls.at_once():
        assert bytes(_pulls.map_file(hosts.here, b"", name, 100)) == b"x" * 100


def test_what_does_not_fit_here_is_refused(hosts: Hosts) -> None:
    hosts.here.limit_bytes = SIZE - 1
    with pytest.raises(troupe.ObjectStoreFullError, match="object_store_memory"):
        hosts.get()
    assert hosts.copies() == []


def test_copies_make_room_before_values_do(hosts: Hosts) -> None:
    assert hosts.get() == hosts.value
    hosts.here.limit_bytes = SIZE + 1000
    hosts.here._scanned = 0.0
    kept = hosts.here.write(memoryview(b"k" * 2000))
    assert hosts.copies() == [] and bytes(hosts.here.map(kept, 2000)) == b"k" * 2000


def test_a_spilled_buffer_is_given_too(hosts: Hosts) -> None:
    hosts.there.limit_bytes = SIZE + 1000
    hosts.there._kept.close_idle(0.0)
    hosts.there._scanned = 0.0
    more = hosts.there.write(memoryview(b"m" * 2000))
    assert os.listdir(hosts.there.folder) == [str(hosts.there.here(more))]
    assert hosts.get() == hosts.value
    hosts.there.discard([hosts.name])
    assert os.listdir(hosts.there.spill_folder) == []


def test_a_full_disk_says_so(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: Any, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_objects.os, "pwrite", full)
    with pytest.raises(troupe.ObjectStoreFullError, match="No space left"):
        hosts.get()
    with pytest.raises(troupe.ObjectStoreFullError, match="No space left"):
        hosts.here.write(memoryview(b"x" * 1000))
    assert hosts.copies() == [] and os.listdir(os.path.join(hosts.here.base, "fresh")) == []
