"""Parts of the actors' Python side alone: payloads, shared files, options, errors, held streams."""

from __future__ import annotations

import asyncio
import os
import pickle
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe import errors
from troupe.actors import _codec, _failures, _held_streams, _objects, _options


@pytest.fixture
def store(tmp_path: Path) -> Iterator[_objects.ObjectStore]:
    made = _objects.ObjectStore(str(tmp_path / "shared"), 8 << 20, 0)
    yield made
    made.discard_own()


def there(store: _objects.ObjectStore) -> list[str]:
    return [f"{name}@{store.identity}" for name in os.listdir(store.folder)]


# ---- payloads ----


@pytest.mark.parametrize("value", [
    None, 5, "text", (1, [2, {"a": b"3"}]), {"nested": {"deep": [1.5] * 100}}, {1, 2}, Path("/a"),
])
def test_values_come_back(value: Any) -> None:
    encoded = _codec.encode(value)
    assert encoded.files == [] and _codec.is_payload(encoded.payload)
    decoded = _codec.take_apart(encoded.payload)
    assert decoded.kind == _codec.VALUE and decoded.load(None) == value


@pytest.mark.integration
@pytest.mark.parametrize("sizes", [[1], [3, 5, 7], [1 << 18], [3, 1 << 20, 0, 1 << 18]])
def test_buffers_inside_and_in_files(store: _objects.ObjectStore, sizes: list[int]) -> None:
    values = [bytearray(os.urandom(size)) for size in sizes]
    wrapped = [pickle.PickleBuffer(value) for value in values]
    encoded = _codec.encode(wrapped, store=store)
    large = [size for size in sizes if size >= _objects.THRESHOLD_BYTES]
    assert len(encoded.files) == len(large) == len(there(store))
    assert len(encoded.payload) < sum(sizes) - sum(large) + 1000
    back = _codec.take_apart(encoded.payload).load(store)
    assert [bytes(buffer) for buffer in back] == [bytes(value) for value in values]
    assert all(memoryview(buffer).readonly for buffer in back)
    store.discard(encoded.files)
    assert there(store) == [] and [bytes(buffer) for buffer in back] == list(map(bytes, values))


@pytest.mark.integration
def test_a_result_belongs_to_its_caller(store: _objects.ObjectStore) -> None:
    buffer = pickle.PickleBuffer(bytearray(1 << 20))
    for owner in (None, store.owner):
        encoded = _codec.encode(buffer, store=store, owner=owner)
        assert _codec.take_apart(encoded.payload).receiver_owns is (owner is not None)


@pytest.mark.parametrize("cut", [0, 3, 11, 13, 30])
def test_a_payload_cut_short_is_an_error(cut: int) -> None:
    payload = _codec.encode([pickle.PickleBuffer(b"x" * 100), "y"]).payload
    with pytest.raises((errors.SerializationError, pickle.UnpicklingError, EOFError)):
        _codec.take_apart(payload[:cut]).load(None)
    with pytest.raises(errors.SerializationError, match="no payload"):
        _codec.take_apart(b"\x93" + payload)


@pytest.mark.integration
def test_a_failed_encoding_leaves_no_files(store: _objects.ObjectStore) -> None:
    buffers = [pickle.PickleBuffer(bytearray(5 << 20)) for _ in range(2)]
    with pytest.raises(errors.ObjectStoreFullError, match="8388608"):
        _codec.encode(buffers, store=store)
    assert there(store) == []


# ---- files ----


@pytest.mark.integration
def test_files_are_private_and_names_are_no_paths(store: _objects.ObjectStore) -> None:
    name = store.write(memoryview(b"abc"))
    path = Path(store.folder) / str(store.here(name))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert bytes(store.map(name, 3)) == b"abc"
    for wrong in ("../x", "/etc/passwd"):
        with pytest.raises(errors.TroupeError, match="no name"):
            store.map(wrong, 1)
    store.discard([name, name])
    with pytest.raises(errors.TroupeError, match="is gone"):
        store.map(name, 3)


@pytest.mark.integration
def test_what_was_discarded_makes_room_and_is_written_to_again(store: _objects.ObjectStore) -> None:
    first = store.write(memoryview(bytes(5 << 20)))
    with pytest.raises(errors.ObjectStoreFullError):
        store.write(memoryview(bytes(5 << 20)))
    inode = os.stat(os.path.join(store.folder, str(store.here(first)))).st_ino
    store.discard([first])
    assert there(store) == []
    second = store.write(memoryview(b"x" * (4 << 20)))
    assert there(store) == [second]
    assert os.stat(os.path.join(store.folder, str(store.here(second)))).st_ino == inode
    assert bytes(store.map(second, 4 << 20)) == b"x" * (4 << 20)
    store.discard([second, second])
    assert there(store) == []


@pytest.mark.integration
def test_what_is_mapped_is_not_written_to_again(store: _objects.ObjectStore) -> None:
    first = store.write(memoryview(b"a" * (2 << 20)))
    mapped = store.map(first, 2 << 20)
    store.discard([first])
    second = store.write(memoryview(b"b" * (2 << 20)))
    assert bytes(mapped) == b"a" * (2 << 20) and bytes(store.map(second, 2 << 20))[:1] == b"b"


@pytest.mark.integration
def test_a_mapping_counts_however_it_is_kept(store: _objects.ObjectStore) -> None:
    """In a forked child whose descriptors are closed, after its parent has let go of its own."""
    name = store.write(memoryview(b"a" * (2 << 20)))
    mapped = store.map(name, 2 << 20)
    ours, theirs = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(ours[0], 0)
        os.dup2(theirs[1], 1)
        os.closerange(2, 1000)
        os.read(0, 1)
        os.write(1, bytes(mapped[:2]))
        os._exit(0)
    del mapped
    store.discard([name])
    store.write(memoryview(b"b" * (2 << 20)))
    os.write(ours[1], b"x")
    assert os.read(theirs[0], 2) == b"aa"
    os.waitpid(pid, 0)
    for fd in (*ours, *theirs):
        os.close(fd)


@pytest.mark.integration
def test_what_a_process_that_has_ended_owned_is_swept(store: _objects.ObjectStore) -> None:
    code = ("import sys\nfrom troupe.actors._objects import ObjectStore\n"
            "store = ObjectStore(sys.argv[1], 1 << 20)\n"
            "print(store.write(memoryview(b'a')), store.write(memoryview(b'b'), sys.argv[2]))\n"
            "import os, signal; sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)")
    package = Path(troupe.__file__).absolute().parents[1]
    done = subprocess.run([sys.executable, "-c", code, store.base, store.owner], text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(package)})
    theirs, ours = done.stdout.split()
    assert sorted(there(store)) == sorted([theirs, ours])
    other = _objects.ObjectStore(store.base, 1 << 20)
    other.sweep()
    assert there(store) == [ours]
    other.discard_own()
    store.discard_own()
    assert not os.path.exists(store.base)


# ---- errors ----


class Strange(Exception):
    def __new__(cls, one: int, two: int) -> Strange:
        return super().__new__(cls, one, two)

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


@pytest.mark.parametrize("original", [
    ValueError("bad"), KeyError("k"), OSError(2, "none", "/f"), RecursionError("deep"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"), StopIteration(3), Strange(1, 2),
    errors.ActorDiedError("gone", actor="a"), errors.CollectiveTimeoutError("late"),
])
def test_an_error_is_ours_and_if_it_can_be_its_own(original: Exception) -> None:
    decoded = _codec.take_apart(_codec.encode_error(original))
    assert decoded.kind == _codec.ERROR
    error = _codec.decode_error(decoded, "Actor.method", "node")
    again = pickle.loads(pickle.dumps(error))
    for one in (error, again):
        assert isinstance(one, errors.ActorTaskError) and one.actor == "Actor.method"
        assert type(one.__cause__) is type(original) and one.exc_type == type(original).__name__
        if not isinstance(original, Strange):
            assert isinstance(one, type(original))
    if type(original) is OSError:
        assert (error.errno, error.filename) == (2, "/f")


def test_errors_of_the_core_have_types() -> None:
    def error(code: str, **more: str) -> RuntimeError:
        made = RuntimeError("why")
        made.__dict__.update(code=code, message="why", **more)
        return made

    expected = {
        ("peer_gone", _failures.PYTHON): errors.ActorDiedError,
        ("peer_gone", _failures.TASK): errors.WorkerCrashedError,
        ("user_error", _failures.PYTHON): errors.ActorDiedError,
        ("user_error", _failures.CPP): errors.ActorTaskError,
        ("deadline_exceeded", _failures.CPP): TimeoutError,
        ("resource_exhausted", _failures.PYTHON): errors.PlacementError,
        ("invalid_argument", _failures.PYTHON): ValueError, ("corrupt", _failures.CPP): TypeError,
        ("not_found", _failures.CPP): AttributeError,
        ("internal", _failures.CPP): errors.TroupeError,
        ("not_found", _failures.PLACEMENT): errors.ActorNotFoundError,
        ("backpressure", _failures.CPP): errors.PendingCallsLimitExceededError,
    }
    for (code, language), kind in expected.items():
        translated = _failures.translate(error(code, node="n"), "A.f", language)
        assert isinstance(translated, kind) and isinstance(translated, errors.TroupeError)
        assert "A.f: why" in str(translated)
    forgotten = _failures.translate(error("not_found", node="n"), "A.f", _failures.PYTHON)
    assert type(forgotten) is errors.TroupeError
    plain = RuntimeError("not of the core")
    assert _failures.translate(plain, "A.f", _failures.CPP) is plain


# ---- options ----


def test_options_become_those_of_the_core() -> None:
    native = _options.actor_options(
        {"num_cpus": 2, "num_gpus": 0, "memory": 5, "resources": {"w": 1}, "lifetime": "detached",
         "label_selector": {"zone": "a"}, "scheduling_strategy": "SPREAD", "max_restarts": -1,
         "max_pending_calls": 7, "runtime_env": {"env_vars": {"A": 1}}}, False)
    assert native["resources"] == {"CPU": 2.0, "memory": 5.0, "w": 1.0} and native["detached"]
    assert native["labels"] == ["zone=a"] and native["strategy"] == "spread"
    assert (native["max_restarts"], native["mailbox_depth"]) == (-1, 7)
    assert native["overflow"] == "refuse" and native["env"] == {"A": "1"}
    assert _options.actor_options({}, True)["max_concurrency"] == 1000
    assert _options.actor_options({}, False)["max_concurrency"] == 1
    assert _options.task_options({})["resources"] == {"CPU": 1.0}
    with pytest.raises(TypeError, match="env_vars"):
        _options.task_options({"runtime_env": {"conda": "x"}})


# ---- generators in an actor ----


def test_values_are_given_in_order_whoever_asks_first() -> None:
    streams = _held_streams.HeldStreams(lambda fn, *args: fn(*args))
    number = streams.add(i for i in range(2))
    given: dict[int, Any] = {}

    def ask(index: int) -> None:
        given[index] = streams.next(number, index, 20)

    threads = [threading.Thread(target=ask, args=(index,)) for index in (3, 2, 1)]
    for thread in threads:
        thread.start()
    ask(0)
    for thread in threads:
        thread.join(20)
    assert given == {0: (True, 0), 1: (True, 1), 2: (False, None), 3: (False, None)}
    assert streams.next(number, 4, 20) == (False, None)
    with pytest.raises(errors.TroupeError, match="not held here any more"):
        streams.next(number + 1, 0, 20)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_value_whose_turn_does_not_come_is_an_error_in_time(is_async: bool) -> None:
    async def later() -> Any:
        yield 0

    streams = _held_streams.HeldStreams(lambda fn, *args: fn(*args))
    number = streams.add(later() if is_async else (i for i in range(2)))
    with pytest.raises(errors.TroupeError, match="was not given in time"):
        asked = streams.next(number, 1, 0.01)  # Nobody asks for the first.
        asyncio.run(asyncio.wait_for(asked, 20))


def test_a_call_behind_one_that_never_runs_does_not_wait() -> None:
    streams = _held_streams.HeldStreams(lambda fn, *args: fn(*args))
    first, second = (streams.add(iter_of(9)) for _ in range(2))
    for index in (0, 1, 2, 3):
        streams.arrived(first, index)
    streams.dropped(first, 2)
    assert [streams.next(first, i, 20) for i in (0, 1)] == [(True, 0), (True, 1)]
    for index in (2, 3):
        with pytest.raises(errors.TroupeError, match="lost on its way"):
            streams.next(first, index, 20)
    streams.arrived(second, 0)
    streams.arrived(second, 2)  # The call for the second value never gets here.
    assert streams.next(second, 0, 20) == (True, 0)
    for index in (2, 0):  # Nor does one wait whose turn has been.
        with pytest.raises(errors.TroupeError, match="lost on its way"):
            streams.next(second, index, 20)


def test_a_call_that_waits_is_told_when_one_before_it_is_dropped() -> None:
    streams = _held_streams.HeldStreams(lambda fn, *args: fn(*args))
    number = streams.add(iter_of(9))
    streams.arrived(number, 0)
    streams.arrived(number, 1)
    problems: list[BaseException] = []

    def ask() -> None:
        try:
            streams.next(number, 1, 60)
        except errors.TroupeError as error:
            problems.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    streams.dropped(number, 0)
    thread.join(20)
    assert "lost on its way" in str(problems[0])


def test_an_async_call_is_told_when_one_before_it_is_cancelled() -> None:
    async def values() -> Any:
        yield 0
        yield 1

    async def ask() -> None:
        streams = _held_streams.HeldStreams(lambda fn, *args: fn(*args))
        number = streams.add(values())
        for index in (0, 1, 2):
            streams.arrived(number, index)
        waiting = [asyncio.create_task(streams.next(number, index, 60)) for index in (1, 2)]
        await asyncio.sleep(0)
        streams.dropped(number, 0)
        for task in waiting:
            with pytest.raises(errors.TroupeError, match="lost on its way"):
                await asyncio.wait_for(task, 20)
        other = streams.add(values())
        waiting = [asyncio.create_task(streams.next(other, index, 60)) for index in (1, 2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        with pytest.raises(errors.TroupeError, match="lost on its way"):
            await asyncio.wait_for(waiting[1], 20)

    asyncio.run(ask())


def iter_of(count: int) -> Any:
    return (i for i in range(count))


def test_too_many_held_generators_end_the_oldest() -> None:
    streams = _held_streams.HeldStreams(lambda fn, *args: fn(*args))
    closed = []

    def generator(i: int) -> Any:
        try:
            yield i
            yield i
        finally:
            closed.append(i)

    first = streams.add(generator(0))
    assert streams.next(first, 0, 1) == (True, 0)
    for i in range(1, _held_streams.STREAMS_MAX + 1):
        streams.add(generator(i))
    assert closed == [0]
    with pytest.raises(errors.TroupeError, match="1000 others"):  # No quiet end in mid-stream.
        streams.next(first, 1, 1)
