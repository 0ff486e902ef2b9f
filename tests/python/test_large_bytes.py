"""Large bytes and texts: they travel as arrays do, out of band, whatever holds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import troupe
from troupe.actors import _codec, _session
from troupe.actors._objects import THRESHOLD_BYTES, ObjectStore

from processes import until

LARGE = THRESHOLD_BYTES + 3


def travelled(value: Any) -> Any:
    return _codec.take_apart(_codec.encode(value).payload).load(None)


def buffers_of(value: Any) -> int:
    return len(_codec.take_apart(_codec.encode(value).payload).buffers)


@pytest.mark.parametrize(("value", "buffers"), [
    (b"x" * LARGE, 1), (bytearray(b"x" * LARGE), 1), ("é" * LARGE, 1), ("a\udc80" * LARGE, 1),
    ([b"x" * LARGE, 1], 1), ((b"x" * LARGE, [bytearray(LARGE)]), 2),
    ({"a": {"b": b"y" * LARGE}, "c": 2}, 1)],
    ids=["bytes", "bytearray", "text", "surrogates", "list", "nested", "dict"])
def test_large_bytes_are_buffers(value: Any, buffers: int) -> None:
    assert buffers_of(value) == buffers
    got = travelled(value)
    assert got == value and type(got) is type(value)


def test_what_a_value_has_twice_it_has_twice_when_it_arrives() -> None:
    once = b"x" * LARGE
    several = [bytearray(LARGE)]
    value = (once, once, several, several)
    assert buffers_of(value) == 2
    got = travelled(value)
    assert got == value and got[0] is got[1] and got[2] is got[3]
    got[2][0][0] = 7
    assert got[3][0][0] == 7 and several[0][0] == 0


def test_a_value_that_holds_itself_is_left_as_it_is() -> None:
    value: list[Any] = [b"x" * LARGE]
    value.append(value)
    got = travelled(value)
    assert got[1] is got and got[0] == value[0]


def test_small_bytes_and_keys_stay_where_they_are() -> None:
    value = {b"k" * LARGE: 1, "small": b"x" * (THRESHOLD_BYTES - 1)}
    assert buffers_of(value) == 0
    assert travelled(value) == value


@pytest.mark.integration
def test_they_lie_in_files_of_the_host(tmp_path: Any) -> None:
    store = ObjectStore(str(tmp_path / "shared"), 1 << 30)
    encoded = _codec.encode((b"x" * LARGE, "y" * LARGE), store=store)
    assert len(encoded.files) == 2 and len(encoded.payload) < 1000
    assert _codec.take_apart(encoded.payload).load(store) == (b"x" * LARGE, "y" * LARGE)
    store.discard_own()


@pytest.mark.integration
def test_so_does_a_large_pickle(tmp_path: Any) -> None:
    store = ObjectStore(str(tmp_path / "shared"), 1 << 30)
    value = {"numbers": [float(i) for i in range(1 << 18)], "more": bytearray(LARGE)}
    encoded = _codec.encode(value, store=store)
    assert len(encoded.files) == 1 and len(encoded.payload) < 1000
    assert _codec.take_apart(encoded.payload).load(store) == value
    store.discard_own()


@pytest.mark.integration
def test_so_do_many_small_arrays(tmp_path: Any) -> None:
    numpy = pytest.importorskip("numpy")
    store = ObjectStore(str(tmp_path / "shared"), 1 << 30)
    value = [numpy.full(10_007, i % 256, dtype=numpy.uint8) for i in range(300)]
    value.insert(7, numpy.arange(LARGE))
    encoded = _codec.encode(value, store=store)
    assert len(encoded.files) == 2 and len(encoded.payload) < 20_000
    got = _codec.take_apart(encoded.payload).load(store)
    assert all(map(numpy.array_equal, got, value)) and len(got) == len(value)
    assert not any(array.flags.writeable for array in got)
    assert all(array.ctypes.data % 16 == 0 for array in got)
    store.discard_own()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    troupe.init(num_cpus=2)
    yield
    troupe.shutdown()


@troupe.remote(num_cpus=0.1)
class Echo:
    """Returns what it gets, and more than a message can carry."""

    def same(self, value: Any) -> Any:
        return value

    def many(self, count: int) -> bytes:
        return b"m" * count


@pytest.mark.integration
def test_arguments_results_and_put_values(cluster: None) -> None:
    echo = Echo.remote()
    for value in (b"x" * (8 << 20), bytearray(1 << 20), "é" * (1 << 20), {"a": [b"x" * LARGE]}):
        assert troupe.get(echo.same.remote(value), timeout=60) == value
        assert troupe.get(echo.same.remote(troupe.put(value)), timeout=60) == value


@pytest.mark.integration
@pytest.mark.once
def test_a_result_larger_than_a_message(cluster: None) -> None:
    echo = Echo.remote()
    size = 300 << 20
    got = troupe.get(echo.many.remote(size), timeout=120)
    assert len(got) == size and got[:1] == got[-1:] == b"m"
    store = _session.current().store
    assert store is not None

    def files() -> int:
        return sum(1 for entry in os.scandir(store.folder) if entry.stat().st_size >= size)

    assert files() <= 1  # It was read; the file may be gone with its ref already.
    del got
    until(files, 0)
