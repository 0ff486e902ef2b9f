"""``troupe.util.as_completed`` and ``map_unordered``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from life_cases import fail, wait_for

import troupe
from troupe.util import as_completed, map_unordered

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(120)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    troupe.init(num_cpus=4)
    yield
    troupe.shutdown()


def opened(tmp_path: Path, *numbers: int) -> None:
    for number in numbers:
        (tmp_path / str(number)).touch()


class Counted:
    """Items that say how many were taken."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.taken = 0

    def __iter__(self) -> Iterator[str]:
        for number in itertools.count():
            self.taken += 1
            yield str(self.tmp_path / str(number))


def test_what_is_ready_first_comes_first(tmp_path: Path) -> None:
    refs = [wait_for.remote(str(tmp_path / str(i)), i) for i in range(3)]
    values = as_completed(refs, chunk_size=1)
    for number in (2, 0, 1):
        opened(tmp_path, number)
        assert next(values) == number
    assert next(values, None) is None
    assert list(as_completed(refs, yield_obj_refs=True)) == refs
    assert list(as_completed([])) == []


def test_an_error_is_raised_at_its_place(tmp_path: Path) -> None:
    opened(tmp_path, 0)
    ready = wait_for.remote(str(tmp_path / "0"), 0)
    values = as_completed([ready, fail.remote()], chunk_size=2)
    assert next(values) == 0
    with pytest.raises(ValueError, match="no such model"):
        next(values)


def test_items_are_taken_when_there_is_room(tmp_path: Path) -> None:
    items = Counted(tmp_path)
    values = map_unordered(wait_for, items, backpressure_size=2, chunk_size=1)
    opened(tmp_path, 1)
    assert next(values) is None and items.taken == 2
    opened(tmp_path, 0, 2, 3)
    assert [next(values) for _ in range(3)] == [None] * 3
    assert items.taken <= 5
    some = [str(tmp_path / str(i)) for i in range(3)]
    assert list(map_unordered(wait_for, some, backpressure_size=None)) == [None] * 3
    assert all(isinstance(ref, troupe.ObjectRef)
               for ref in map_unordered(wait_for, some, yield_obj_refs=True))


@pytest.mark.parametrize(("options", "kind"), [
    ({"chunk_size": 0}, ValueError), ({"chunk_size": "2"}, TypeError),
    ({"backpressure_size": 3, "chunk_size": 4}, ValueError)])
def test_what_cannot_be_is_refused_at_once(options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        map_unordered(wait_for, [], **options)
    if "backpressure_size" not in options:
        with pytest.raises(kind):
            as_completed([], **options)
