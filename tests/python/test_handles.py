"""Actors live as long as somebody refers to them."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from handle_cases import Holder, Saved, Thing, make, make_in, put_in_a_box, use_when

import troupe
from troupe.actors import _session

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0
UNCLAIMED_S = 60.0  # A handle on its way to one that lives and does not take it is kept so long.
MANY = 100  # As many as 1000 take too long; of C++ they are in test_actors_cpp.py.
AT_ONCE = 4


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for the tests of this module."""
    troupe.init(num_cpus=4)
    yield
    troupe.shutdown()


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def until(what: Callable[[], bool], limit_s: float = SOON_S) -> None:
    """Waits for an event that nothing tells of."""
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, "it has not come about in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> None:
    until(lambda: not alive(pid))


def settled() -> None:
    """The head has heard of all that this process holds and has dropped, and acted on it.

    An actor that was made and dropped after the rest is over: its word came behind theirs.
    """
    last = Thing.remote()
    pid = soon(last.pid.remote())
    del last
    gone(pid)


def test_an_actor_ends_with_its_last_handle() -> None:
    thing = Thing.options(max_restarts=-1).remote()
    again = thing
    pid = soon(thing.pid.remote())
    del thing
    settled()
    assert alive(pid)
    del again
    gone(pid)


def test_calls_that_are_pending_run_first(tmp_path: Path) -> None:
    thing = Thing.remote()
    pid = soon(thing.pid.remote())
    refs = [thing.wait_for.remote(str(tmp_path / "go")) for _ in range(3)]
    del thing
    settled()
    assert alive(pid)
    (tmp_path / "go").touch()
    assert soon(refs) == ["done"] * 3
    gone(pid)


def test_a_call_of_what_is_dropped_at_once() -> None:
    pids = soon([Thing.remote().pid.remote() for _ in range(4)])
    assert len(set(pids)) == 4
    for pid in pids:
        gone(pid)


def test_a_method_and_a_generator_hold_it() -> None:
    method = Thing.remote().pid
    pid = soon(method.remote())
    values = Thing.remote().count_to.remote(20)
    settled()
    assert soon(method.remote()) == pid
    assert [soon(ref) for ref in values] == list(range(20))
    del method
    gone(pid)


def test_a_call_whose_argument_is_not_ready_holds_it(tmp_path: Path) -> None:
    holder, other = Holder.remote(), Thing.remote()
    pid = soon(holder.pid.remote())
    later = holder.echo.remote(other.wait_for.remote(str(tmp_path / "go")))
    del holder
    settled()
    assert alive(pid)
    (tmp_path / "go").touch()
    assert soon(later) == "done"
    gone(pid)


def test_copies_in_this_process_are_one() -> None:
    thing = Thing.remote()
    pid = soon(thing.pid.remote())
    for twin in (copy.copy(thing), copy.deepcopy([thing])[0]):
        assert twin == thing
        del twin
    del thing
    gone(pid)


def test_a_handle_in_an_actors_state_keeps_it() -> None:
    holder, thing = Holder.remote(), Thing.remote()
    pid = soon(thing.pid.remote())
    soon(holder.keep.remote([thing, thing]))  # It is unpickled twice there.
    soon(holder.keep.remote(thing))
    del thing
    settled()
    assert soon(holder.pid_of_kept.remote()) == pid
    back = soon(holder.give.remote())
    soon(holder.forget.remote())
    settled()
    assert soon(back.pid.remote()) == pid
    del back
    gone(pid)


def test_what_a_holder_held_ends_behind_it() -> None:
    holder, thing = Holder.remote(), Thing.remote()
    pid = soon(thing.pid.remote())
    soon(holder.keep.remote(thing))
    del thing, holder
    gone(pid)


def test_the_arguments_of_a_constructor_count_until_its_actor_has_ended() -> None:
    thing = Thing.remote()
    pid = soon(thing.pid.remote())
    holder = Holder.options(max_restarts=1, max_task_retries=-1).remote(thing)
    first = soon(holder.pid.remote())
    del thing
    os.kill(first, signal.SIGKILL)
    assert soon(holder.pid_of_kept.remote()) == pid
    assert soon(holder.pid.remote()) != first
    del holder
    gone(pid)


def test_a_handle_passed_to_a_task_outlives_the_callers(tmp_path: Path) -> None:
    thing = Thing.remote()
    pid = soon(thing.pid.remote())
    ref = use_when.remote(thing, str(tmp_path / "go"))
    del thing
    settled()
    assert alive(pid)
    (tmp_path / "go").touch()
    assert soon(ref) == pid
    gone(pid)


def test_a_handle_in_put_and_in_refs_of_refs() -> None:
    thing = Thing.remote()
    pid = soon(thing.pid.remote())
    box = troupe.put({"thing": thing})
    del thing
    settled()
    assert soon(soon(box)["thing"].pid.remote()) == pid
    deep = put_in_a_box.remote([soon(box)["thing"]])
    troupe.wait([deep])
    del box
    settled()
    inner = soon(soon(soon(deep)[0])[0])[0]
    del deep
    settled()
    assert soon(inner.pid.remote()) == pid
    del inner
    gone(pid)


def test_a_handle_returned_from_a_task() -> None:
    result = make.remote()  # Nobody reads it for a while.
    troupe.wait([result])
    settled()
    thing, maker = soon(result)
    del result
    pid = soon(thing.pid.remote())
    settled()
    assert alive(pid)
    if alive(maker):
        os.kill(maker, signal.SIGKILL)  # It is not its owner.
    assert soon(thing.pid.remote()) == pid
    del thing
    gone(pid)


def test_what_a_task_makes_and_nobody_gets_ends() -> None:
    result = make.remote()
    pid = soon(soon(result)[0].pid.remote())
    del result
    gone(pid)


def test_what_only_another_actor_holds() -> None:
    holder = Holder.remote()
    pid = soon(make_in.remote(holder))
    settled()
    assert soon(holder.pid_of_kept.remote()) == pid
    soon(holder.forget.remote())
    gone(pid)


def test_the_death_of_the_last_holder_ends_it() -> None:
    holder = Holder.remote()
    pid = soon(make_in.remote(holder))
    os.kill(soon(holder.pid.remote()), signal.SIGKILL)
    gone(pid)


def test_a_chain_whose_middle_ends() -> None:
    parent = Holder.remote()
    child = soon(parent.make.remote())
    assert alive(child)
    troupe.kill(parent)
    gone(child)


def test_names_do_not_keep_an_actor_alive_and_detached_ones_need_nobody() -> None:
    thing = Thing.options(name="named").remote()
    pid = soon(thing.pid.remote())
    found = troupe.get_actor("named")
    holder = Holder.remote()
    soon(holder.keep.remote(found))
    assert soon(holder.pid_of_kept.remote()) == pid
    del thing
    gone(pid)
    with pytest.raises(troupe.exceptions.ActorDiedError, match="nobody refers to it any more"):
        soon(found.pid.remote())
    until(lambda: not is_named("named"))
    Thing.options(name="kept", lifetime="detached").remote()
    settled()
    kept = troupe.get_actor("kept")
    pid = soon(kept.pid.remote())
    del kept
    settled()
    assert soon(troupe.get_actor("kept").pid.remote()) == pid
    troupe.kill(troupe.get_actor("kept"))


def is_named(name: str) -> bool:
    try:
        troupe.get_actor(name)
    except ValueError:
        return False
    return True


def test_get_if_exists_gives_a_handle_that_does_not_count() -> None:
    options = {"name": "one", "get_if_exists": True}
    first = Thing.options(**options).remote()
    pid = soon(first.pid.remote())
    second = Thing.options(**options).remote()
    assert second == first
    del first
    gone(pid)
    third = Thing.options(**options).remote()  # Its name is free.
    assert soon(third.pid.remote()) != pid
    del second


def test_a_handle_of_itself_does_not_keep_it_but_copies_elsewhere_do() -> None:
    thing = Thing.remote()
    pid = soon(thing.pid.remote())
    soon(thing.me.remote())
    del thing
    gone(pid)
    thing, holder = Thing.remote(), Holder.remote()
    pid = soon(thing.pid.remote())
    thing.tell.remote(holder)
    del thing
    settled()
    assert soon(holder.pid_of_kept.remote()) == pid
    soon(holder.forget.remote())
    gone(pid)
    own = soon(Thing.remote().me.remote())  # What its last call returns is in time.
    pid = soon(own.pid.remote())
    settled()
    assert alive(pid)
    del own
    gone(pid)


def test_an_actor_that_is_started_again_finds_its_handles() -> None:
    saved = Saved.remote()
    pid = soon(saved.make.remote())
    first = soon(saved.pids.remote())[0]
    os.kill(first, signal.SIGKILL)
    second = soon(saved.pids.remote())
    assert second[0] != first and second[1] == pid
    time_of_settling = Thing.remote()  # What the first life held counts no more when this ends.
    other = Holder.remote()
    soon(other.keep.remote(time_of_settling))
    pid_of_settling = soon(time_of_settling.pid.remote())
    del time_of_settling
    os.kill(soon(other.pid.remote()), signal.SIGKILL)
    gone(pid_of_settling)
    assert soon(saved.pids.remote()) == second


def test_max_restarts_do_not_bring_back_what_nobody_refers_to(tmp_path: Path) -> None:
    thing = Thing.options(max_restarts=-1).remote()
    pid = soon(thing.pid.remote())
    ref = thing.wait_for.remote(str(tmp_path / "never"), str(tmp_path / "begun"))
    until((tmp_path / "begun").exists)
    troupe.cancel(ref)  # Its caller does not wait, but it runs.
    del thing, ref
    settled()
    os.kill(pid, signal.SIGKILL)
    gone(pid)
    until(lambda: not living())


def living() -> list[dict[str, Any]]:
    """Actors that are not dead; other tests leave none."""
    cluster = _session.current().cluster
    assert cluster is not None
    return [one for one in cluster.driver.state()["actors"] if one["state"] != "dead"]


def nothing_held() -> bool:
    """Whether this process has no handle; other tests leave none."""
    gc.collect()
    held: int = _session.current().refs.native.counts[1]
    return held == 0


def test_a_handle_that_is_on_its_way_to_one_that_dies_is_let_go_soon() -> None:
    pids = []
    for _ in range(5):  # It dies before, as, or after it has taken it.
        holder, thing = Holder.remote(), Thing.remote()
        pids.append(soon(thing.pid.remote()))
        maker = soon(holder.pid.remote())
        kept = holder.keep.remote(thing)
        del thing
        os.kill(maker, signal.SIGKILL)
        with contextlib.suppress(troupe.TroupeError):
            soon(kept)
        del holder, kept
    started = time.monotonic()
    for pid in pids:
        gone(pid)
    assert time.monotonic() - started < UNCLAIMED_S / 2, "they were kept as for one that is slow"


def test_an_error_that_was_caught_keeps_nothing() -> None:
    gc.collect()
    gc.disable()
    try:
        holder, thing = Holder.remote(), Thing.remote()
        pid = soon(holder.pid.remote())
        troupe.kill(thing)
        with pytest.raises(troupe.exceptions.ActorDiedError):
            soon(thing.pid.remote())
        del holder, thing
        gone(pid)
    finally:
        gc.enable()


def test_forks_count_nothing() -> None:
    thing = Thing.remote()
    pid = soon(thing.pid.remote())
    child = os.fork()
    if child == 0:
        del thing
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    settled()
    assert soon(thing.pid.remote()) == pid
    del thing
    gone(pid)


def test_actors_that_are_made_and_dropped_again_and_again_leave_no_process() -> None:
    pids: set[int] = set()
    for _ in range(MANY // AT_ONCE):
        some = [Thing.remote() for _ in range(AT_ONCE)]
        pids.update(soon([one.pid.remote() for one in some]))
        del some
    assert len(pids) > MANY // 2
    until(lambda: not any(map(alive, pids)), 2 * SOON_S)
    until(nothing_held)
