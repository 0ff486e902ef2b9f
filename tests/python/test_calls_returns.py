"""How many values calls return, how often they run, which arguments they take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe.actors import _session, _shapes

from call_cases import (
    AsyncReturns,
    FlakyError,
    Returns,
    arrays,
    die_until,
    flaky,
    letters,
    parts,
    positional,
)
from processes import until

pytestmark = [pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def takes(a, b, /, c, d=1, *, e, f=2):  # type: ignore[no-untyped-def]
    return a, b, c, d, e, f


def takes_all(a, *rest, **more):  # type: ignore[no-untyped-def]
    return a, rest, more


def takes_one(a):  # type: ignore[no-untyped-def]
    return a


class TestShapes:
    @pytest.mark.parametrize(("fn", "args", "kwargs"), [
        (takes, (1, 2, 3), {"e": 5}),
        (takes, (1, 2), {"c": 3, "e": 5, "f": 6}),
        (takes, (1, 2, 3, 4), {"e": 5}),
        (takes_all, (1, 2, 3), {"x": 1}),
        (takes_all, (), {"a": 1}),
        (takes, (), {}),
        (takes, (1,), {"c": 3, "e": 5}),
        (takes, (1, 2, 3), {}),
        (takes, (1, 2, 3, 4, 5), {"e": 5}),
        (takes, (1, 2, 3), {"e": 5, "c": 4}),
        (takes, (1, 2, 3), {"e": 5, "x": 4}),
        (takes_all, (), {}),
        (takes_all, (1,), {"a": 2}),
        (takes_one, (1, 2), {}),
        (takes_one, (), {}),
        (takes_one, (1,), {"a": 1}),
    ])
    def test_a_call_is_refused_as_python_refuses_it(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        try:
            fn(*args, **kwargs)
            expected = ""
        except TypeError as error:
            expected = str(error).replace(f"{fn.__qualname__}()", f"{fn.__name__}()")
        try:
            _shapes.check(_shapes.of(fn), fn.__name__, args, kwargs)
            told = ""
        except TypeError as error:
            told = str(error)
        assert told == expected

    def test_what_has_no_signature_takes_anything(self) -> None:
        assert _shapes.of(dict.fromkeys) is None or _shapes.of(print) is not None
        _shapes.check(None, "f", (1, 2), {"x": 3})


class TestOptions:
    @pytest.mark.parametrize(("options", "kind", "message"), [
        ({"num_returns": -1}, ValueError, "num_returns"),
        ({"num_returns": True}, TypeError, "num_returns"),
        ({"num_returns": "many"}, TypeError, "num_returns"),
        ({"num_returns": 10**9}, ValueError, "num_returns"),
        ({"retry_exceptions": "all"}, TypeError, "retry_exceptions"),
        ({"retry_exceptions": [3]}, TypeError, "retry_exceptions"),
        ({"name": 3}, TypeError, "name"),
        ({"max_calls": -1}, ValueError, "max_calls"),
    ])
    def test_what_cannot_be_is_refused(
        self, options: dict[str, Any], kind: type[Exception], message: str
    ) -> None:
        with pytest.raises(kind, match=message):
            parts.options(**options)

    def test_of_methods(self) -> None:
        with pytest.raises(TypeError, match="num_returns"):
            troupe.method(num_returns=None)
        with pytest.raises(TypeError, match="retry_exceptions"):
            troupe.method(retry_exceptions=[1])  # type: ignore[list-item]


@pytest.mark.integration
class TestOnACluster:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def cluster(cls) -> Iterator[None]:
        troupe.init(num_cpus=4)
        yield
        troupe.shutdown()

    # ---- how many ----

    def test_several_values_have_a_ref_each(self) -> None:
        first, second, third = parts.options(num_returns=3).remote(3)
        assert soon([third, first, second]) == [2, 0, 1]
        assert soon(parts.options(num_returns=1).remote(2)) == (0, 1)
        assert parts.options(num_returns=0).remote(0) is None
        actor = Returns.remote(0)
        one, two = actor.two.remote("a", parts.remote(2))
        assert soon(one) == "a" and soon(two) == (0, 1)
        assert soon(actor.two.options(num_returns=1).remote(1, 2)) == (1, 2)
        assert actor.count.remote() is None
        assert soon(actor.total.remote()) == 1
        assert soon(positional.remote(first, third=second)) == 3  # As arguments.

    def test_too_few_or_too_many_values_are_an_error_of_each_ref(self) -> None:
        for count, told in ((1, "1"), (3, "over 2")):
            for ref in parts.options(num_returns=2).remote(count):
                with pytest.raises(ValueError, match=f"but {told} values were returned"):
                    soon(ref)
        with pytest.raises(TypeError, match="no sequence"):
            soon(positional.options(num_returns=2).remote(1)[0])
        with pytest.raises(TypeError, match="missing 1 required"):
            positional.options(num_returns=2).remote()

    def test_an_error_and_a_cancellation_reach_each_ref(self) -> None:
        refs = flaky.options(num_returns=2).remote("/nowhere/file", [], 0)
        for ref in refs:
            with pytest.raises(FileNotFoundError):
                soon(ref)
        waits = parts.options(num_returns=2, resources={"gone": 1}, timeout=SOON_S).remote(2)
        troupe.cancel(waits[0])
        for ref in waits:
            with pytest.raises(troupe.TaskCancelledError):
                soon(ref)

    def test_large_values_go_with_their_own_refs(self) -> None:
        pytest.importorskip("numpy")
        store = _session.current_store()
        assert store is not None

        def held() -> int:
            return len(os.listdir(store.folder))

        ones, zeros = arrays.remote()
        assert soon(ones).sum() == 1 << 20 and soon(zeros).sum() == 0
        assert held() == 2
        del ones
        until(held, 1)
        del zeros
        until(held, 0)
        unread = arrays.remote()
        troupe.wait(unread, num_returns=2, timeout=SOON_S)
        del unread
        until(held, 0)

    def test_a_generator_as_several_values_or_one_by_one(self) -> None:
        assert soon(letters.options(num_returns=3).remote(3)) == ["a", "b", "c"]
        for how in ("streaming", "dynamic"):
            assert soon(list(letters.options(num_returns=how).remote(2))) == ["a", "b"]
            with pytest.raises(TypeError, match="for generators"):
                parts.options(num_returns=how).remote(2)
        assert soon(Returns.remote(0).numbers.options(num_returns=2).remote(2)) == [0, 1]
        assert soon(AsyncReturns.remote().numbers.remote()) == [0, 1, 2]

    def test_the_refs_of_a_generator_outlive_it(self) -> None:
        refs = list(letters.remote(3))
        assert troupe.wait(refs, num_returns=3, timeout=SOON_S)[0] == refs
        assert soon(parts.remote(2)) == (0, 1)
        assert soon(refs) == ["a", "b", "c"]

    def test_a_generator_that_cannot_begin_gives_its_error_as_its_only_value(self) -> None:
        refs = list(letters.options(num_cpus=1000).remote(3))
        assert len(refs) == 1
        with pytest.raises(troupe.PlacementError, match="CPU 1000"):
            soon(refs[0])

    # ---- how often ----

    @pytest.mark.parametrize("kinds", [True, [FlakyError], [KeyError, FlakyError]])
    @pytest.mark.parametrize("alone", [False, True])
    def test_a_task_runs_again_with_unspoilt_arguments(
        self, tmp_path: Path, kinds: Any, alone: bool
    ) -> None:
        task = flaky.options(retry_exceptions=kinds, max_retries=2, max_calls=1 if alone else None)
        assert soon(task.remote(str(tmp_path / "enough"), [0], 2)) == (3, [0, 3])
        with pytest.raises(FlakyError, match="attempt 3"):
            soon(task.remote(str(tmp_path / "short"), [0], 3))

    @pytest.mark.parametrize("kinds", [None, False, [KeyError], []])
    def test_a_task_that_raises_something_else_does_not(self, tmp_path: Path, kinds: Any) -> None:
        task = flaky.options(retry_exceptions=kinds)
        with pytest.raises(FlakyError, match="attempt 1"):
            soon(task.remote(str(tmp_path / "file"), [], 1))

    def test_a_method_runs_again_as_often_as_its_actor_says(self) -> None:
        actor = Returns.options(max_task_retries=2).remote(0)
        assert soon(actor.flaky.remote(2)) == 3
        with pytest.raises(KeyError):
            soon(actor.flaky.remote(-1))
        assert soon(actor.total.remote()) == 4
        once = Returns.remote(0)
        with pytest.raises(FlakyError, match="call 1"):
            soon(once.flaky.remote(1))
        assert soon(AsyncReturns.options(max_task_retries=-1).remote().flaky.remote(5)) == 6

    def test_a_task_in_a_process_of_its_own_ends_with_it(self, tmp_path: Path) -> None:
        alone = die_until.options(max_calls=1, max_retries=1)
        pid = soon(alone.remote(str(tmp_path / "one"), 1))
        until(lambda: os.path.exists(f"/proc/{pid}"), False)
        with pytest.raises(troupe.WorkerCrashedError):
            soon(alone.options(max_retries=0).remote(str(tmp_path / "two"), 1))

    # ---- with what ----

    def test_wrong_arguments_fail_where_they_are_given(self) -> None:
        assert soon(positional.remote(1, third=5)) == 8
        with pytest.raises(TypeError, match=r"positional\(\) got an unexpected keyword .*'fourth'"):
            positional.remote(1, fourth=4)
        with pytest.raises(TypeError, match=r"Returns\(\) missing 1 required .*'start'"):
            Returns.remote()
        actor = Returns.remote(1)
        with pytest.raises(TypeError, match=r"two\(\) missing 1 required .*'second'"):
            actor.two.remote(1)
        with pytest.raises(TypeError, match=r"total\(\) takes 0 positional arguments but 1 was"):
            actor.total.remote(1)
        assert soon(actor.twice.remote(2)) == 4
        assert soon(actor.named.remote(2)) == ("Returns", 2)
        with pytest.raises(TypeError, match=r"twice\(\) missing"):
            actor.twice.remote()
