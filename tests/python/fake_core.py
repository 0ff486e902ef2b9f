"""An in-process stand-in for ``troupe._core``: threads are ranks, death is an exception.

It keeps the contract of the group strictly (collectives match by order, name, kind and size;
a member's death aborts the epoch for everyone) so that the Python layers can be tested in
milliseconds, with failures at chosen operations.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Optional

import torch

from fake_errors import CoreError
from fake_operations import DTYPES, Op, memory, perform

DEADLINE_S = 10.0
HANGS_S = 100.0  # A whole training by then, also on a machine that has much else to do.
HOST = (-1, 0)


class Killed(BaseException):
    """Raised inside a rank's thread in place of SIGKILL."""


class Epoch:
    """One view and the collectives in it."""

    def __init__(self, number: int, members: list[FakeGroup], reason: str) -> None:
        self.number = number
        self.members = members
        self.reason = reason
        self.aborted = ""
        self.ops: dict[Any, Op] = {}
        self.boundaries: dict[int, int] = {}
        self.leave_at: Optional[int] = None


class FakeCluster:
    """The head: who is ready, which epoch is active, who is to die.

    Args:
        founders: members that the first epoch waits for.
        before: called as before(member, kind, name) ahead of each operation of a rank; raising
            Killed there kills the rank.
        deliver: called as deliver(op, members) when an operation is complete; a returned set of
            member ids restricts who gets the result, the rest see the epoch end.
        host_of: the host of a member, by its name.
    """

    def __init__(
        self,
        founders: int,
        min_workers: int = 1,
        max_workers: int = 64,
        before: Optional[Callable[[FakeGroup, str, str], None]] = None,
        deliver: Optional[Callable[[Op, list[FakeGroup]], Optional[set[str]]]] = None,
        host_of: Callable[[str], str] = lambda name: "fake",
    ) -> None:
        self.founders = founders
        self.min_workers = min_workers
        self.max_workers = max_workers
        self.before = before
        self.deliver = deliver
        self.host_of = host_of
        self.cond = threading.Condition(threading.RLock())
        self.epoch: Optional[Epoch] = None
        self.history: list[dict[str, Any]] = []
        self.transfers: list[tuple[int, tuple[int, ...], int]] = []
        self.members: list[FakeGroup] = []
        self.listeners: list[Callable[[dict[str, Any]], None]] = []
        self.told: list[tuple[str, str, str]] = []  # (member, kind, message)

    # -- membership -----------------------------------------------------------------------------

    def add(self, name: str) -> FakeGroup:
        with self.cond:
            member = FakeGroup(self, name, joiner=self.epoch is not None)
            self.members.append(member)
            return member

    def live(self) -> list[FakeGroup]:
        return [m for m in self.members if m.alive]

    def remove(self, member: FakeGroup, how: str) -> None:
        """A member is gone: "finished" leaves quietly, "killed" ends the epoch."""
        with self.cond:
            member.alive = False
            member.end = how
            epoch = self.epoch
            if how != "finished" and epoch and member in epoch.members and not epoch.aborted:
                epoch.aborted = f"{member.name} was {how}"
            self._consider()
            self.cond.notify_all()

    def drain(self, member: FakeGroup) -> None:
        with self.cond:
            member.draining = True
            self._request_change()

    def _request_change(self) -> None:
        epoch = self.epoch
        if epoch is not None and not epoch.aborted and epoch.leave_at is None:
            epoch.leave_at = max(epoch.boundaries.values(), default=0) + 1
        self.cond.notify_all()

    def _consider(self) -> None:
        """Forms the next epoch when everyone that matters is ready."""
        live = self.live()
        if self.epoch is None:
            if len([m for m in live if m.offer]) < self.founders:
                return
        else:
            inside = [m for m in self.epoch.members if m.alive]
            if any(m.offer is None for m in inside):
                return
            if not inside and not any(m.offer for m in live):
                return
        chosen = [m for m in live if m.offer and not m.draining]
        if len(chosen) < self.min_workers:
            return
        number = self.epoch.number + 1 if self.epoch else 1
        old = len(self.epoch.members) if self.epoch else 0
        reason = (self.epoch.aborted or "planned") if self.epoch else "start"
        self.epoch = Epoch(number, chosen, reason)
        self._publish(number, reason, old, chosen)
        views = {m.name: self._view(m, chosen, number, reason) for m in chosen}
        for member in live:
            if member in chosen:
                member.active = views[member.name]
            elif member.draining and member.offer:
                member.told_to_leave = True
            member.offer = None if member in chosen else member.offer
        for member in chosen:
            self.epoch.boundaries[id(member)] = 0
        if any(m.offer and not m.draining for m in live if m not in chosen):
            self._request_change()
        self.cond.notify_all()

    def _view(self, me: FakeGroup, chosen: list[FakeGroup], number: int,
              reason: str) -> dict[str, Any]:
        offers = [m.offer or (0, False) for m in chosen]
        newest = max((v for v, has in offers if has), default=None)
        source = 0
        needs = list(range(1, len(chosen)))
        if newest is not None:
            source = next(i for i, (v, has) in enumerate(offers) if has and v == newest)
            needs = [i for i, (v, has) in enumerate(offers) if not has or v != newest]
        rank = chosen.index(me)
        hosts = [self.host_of(m.name) for m in chosen]
        mine = [i for i, host in enumerate(hosts) if host == hosts[rank]]
        return {
            "epoch": number, "rank": rank, "size": len(chosen), "local_rank": mine.index(rank),
            "local_size": len(mine), "cross_rank": 0, "cross_size": 1, "reason": reason,
            "max_size": self.max_workers, "source_rank": source, "needs_state": needs,
            "members": [
                {"id": m.name, "host": "fake", "version": v, "has_state": has}
                for m, (v, has) in zip(chosen, offers)
            ],
        }

    def _publish(self, number: int, reason: str, old: int, chosen: list[FakeGroup]) -> None:
        event = {
            "kind": "epoch", "epoch": number, "reason": reason, "old_size": old,
            "size": len(chosen), "pause_ms": 0.0, "time_s": time.monotonic(), "run": "run",
            "members": [
                {"id": m.name, "rank": i, "host": "fake", "pid": 0,
                 "version": (m.offer or (0, False))[0], "has_state": (m.offer or (0, False))[1]}
                for i, m in enumerate(chosen)
            ],
        }
        self.history.append(event)
        for listener in self.listeners:
            listener(event)


class FakeGroup:
    """One member's side; the interface of ``_core.Group``."""

    def __init__(self, cluster: FakeCluster, name: str, joiner: bool) -> None:
        self.cluster = cluster
        self.name = name
        self.joiner = joiner
        self.alive = True
        self.end = ""
        self.draining = False
        self.told_to_leave = False
        self.offer: Optional[tuple[int, bool]] = None
        self.active: Optional[dict[str, Any]] = None
        self.version = 0
        self._epoch: Optional[Epoch] = None
        self._sequence = 0  # Of handles.
        self._team_sequences: dict[int, int] = {}
        self._teams: list[list[str]] = []
        self._handles: dict[int, tuple[Epoch, Op]] = {}
        self._sent: list[int] = []  # Bytes per transfer.

    # -- views ----------------------------------------------------------------------------------

    def ready(self, version: int, has_state: bool, founder: bool = False) -> None:
        with self.cluster.cond:
            if founder and self.cluster.epoch is not None:
                self.joiner = True  # too late to found the group
                return
            if not self.alive:
                raise CoreError("fenced", f"{self.name} was shut out")
            self.offer = (version, has_state)
            self.version = version
            self.active = None
            epoch = self.cluster.epoch
            if epoch is not None and self not in epoch.members:
                self.cluster._request_change()
            self.cluster._consider()

    def wait_active(self, timeout_s: float) -> Optional[dict[str, Any]]:
        with self.cluster.cond:
            self.cluster.cond.wait_for(
                lambda: self.active or self.told_to_leave or not self.alive, timeout_s
            )
            if not self.alive:
                raise CoreError("fenced", f"{self.name} was shut out")
            if self.told_to_leave:
                raise CoreError("drained", "asked to leave")
            if self.active is None:
                return None
            self._epoch = self.cluster.epoch
            self._team_sequences = {}
            return dict(self.active)

    def view(self) -> Optional[dict[str, Any]]:
        return dict(self.active) if self.active else None

    def running(self) -> bool:
        return self.joiner

    def set_version(self, version: int) -> None:
        self.version = version

    def boundary(self) -> bool:
        epoch = self._step("boundary", "")
        with self.cluster.cond:
            self._check(epoch)
            epoch.boundaries[id(self)] += 1
            return epoch.leave_at is not None and epoch.boundaries[id(self)] >= epoch.leave_at

    # -- collectives ----------------------------------------------------------------------------

    def devices(self) -> bool:
        return False

    @staticmethod
    def _check_memory(memory: tuple[int, int]) -> None:
        assert memory == HOST, f"memory {memory} of a device, which this group does not read"

    def allreduce(self, ins: list[tuple[int, int]], outs: list[tuple[int, int]], count: int,
                  dtype: str, op: str, prescale: float, postscale: float, text: str,
                  team: int = 0, memory: tuple[int, int] = HOST,
                  weighted: bool = False) -> int:
        self._check_memory(memory)
        size = torch.tensor([], dtype=DTYPES[dtype]).element_size()
        assert sum(n for _, n in ins) == count * size, "allreduce: the input has another size"
        assert not outs or sum(n for _, n in outs) == count * size
        key = (count, dtype, op, postscale)  # the factor before it is each rank's own
        return self._issue("allreduce", text, key, (ins, outs, prescale), team)

    def reducescatter(self, in_ptr: int, out_ptr: int, counts: list[int], dtype: str, op: str,
                      prescale: float, postscale: float, text: str, team: int = 0,
                      memory: tuple[int, int] = HOST) -> int:
        self._check_memory(memory)
        key = (tuple(counts), dtype, op, prescale, postscale)
        return self._issue("reducescatter", text, key, (in_ptr, out_ptr), team)

    def adasum(self, tensors: list[tuple[int, int]], dtype: str, text: str, team: int = 0) -> int:
        key = (dtype, tuple(n for _, n in tensors))
        return self._issue("adasum", text, key, tensors, team)

    def broadcast(self, ptr: int, nbytes: int, root: int, text: str, team: int = 0,
                  memory: tuple[int, int] = HOST) -> int:
        self._check_memory(memory)
        return self._issue("broadcast", text, (nbytes, root), ptr, team)

    def allgather(self, in_ptr: int, out_ptr: int, nbytes_per_rank: list[int], text: str,
                  team: int = 0, memory: tuple[int, int] = HOST) -> int:
        self._check_memory(memory)
        return self._issue("allgather", text, tuple(nbytes_per_rank), (in_ptr, out_ptr), team)

    def exchange(self, outgoing: list[tuple[int, int, int]], incoming: list[tuple[int, int, int]],
                 text: str, team: int = 0, memory: tuple[int, int] = HOST) -> int:
        self._check_memory(memory)
        return self._issue("exchange", text, (), (outgoing, incoming), team)

    def barrier(self, text: str, team: int = 0) -> int:
        return self._issue("barrier", text, (), None, team)

    def add_team(self, ranks: list[int]) -> int:
        names = [self.cluster.epoch.members[rank].name for rank in ranks]
        self._teams.append(names)
        epoch = self._step("add_team", "")
        op = Op("add_team", ())
        op.done_for.add(id(self))
        self._handles[-len(self._teams)] = (epoch, op)
        return -len(self._teams)

    def team(self, team: int) -> list[int]:
        members = self._epoch.members if self._epoch else []
        if team == 0:
            return list(range(len(members)))
        names = self._teams[team - 1] if team <= len(self._teams) else []
        return [rank for rank, member in enumerate(members) if member.name in names]

    def wait(self, handle: int, timeout_s: float) -> int:
        if handle not in self._handles:
            raise CoreError("invalid_argument", f"no collective {handle} is in flight")
        epoch, op = self._handles.pop(handle)
        with self.cluster.cond:
            if not self.cluster.cond.wait_for(
                lambda: id(self) in op.done_for or op.error or epoch.aborted,
                min(timeout_s, DEADLINE_S),
            ):
                raise CoreError("deadline_exceeded", f"{op.text} is incomplete")
            if id(self) in op.done_for:
                return max(0, -handle)
            if op.error:
                raise op.error
            self._check(epoch)
            raise AssertionError("unreachable")

    def poll(self, handle: int) -> bool:
        if handle not in self._handles:
            raise CoreError("invalid_argument", f"no collective {handle} is in flight")
        epoch, op = self._handles[handle]
        with self.cluster.cond:
            return id(self) in op.done_for or bool(op.error or epoch.aborted)

    def start_transfer(self, sources: list[int], receivers: list[int],
                       buffers: list[tuple[int, int]]) -> int:
        chain = [*sources, *receivers]
        epoch = self._step("transfer", "")
        sizes = tuple(n for _, n in buffers)
        with self.cluster.cond:
            self._check(epoch)
            members = [epoch.members[rank] for rank in chain]
            assert self in members, "transfer called outside of the chain"
            self._transfers = getattr(self, "_transfers", {})
            count = self._transfers.get(epoch.number, 0)
            self._transfers[epoch.number] = count + 1
            op = epoch.ops.setdefault(("transfer", tuple(chain), count), Op("transfer", sizes))
            if op.key != sizes:
                op.error = CoreError("internal", f"transfer sizes differ: {op.key} and {sizes}")
            op.parts[id(self)] = buffers
            if len(op.parts) == len(members) and not op.error:
                for member in members[len(sources):]:
                    for (src, n), (dst, _) in zip(op.parts[id(members[0])], op.parts[id(member)]):
                        memory(dst, n).copy_(memory(src, n))
                op.done_for.update(id(m) for m in members)
                self.cluster.transfers.append((epoch.number, tuple(chain), sum(sizes)))
                self.cluster.cond.notify_all()
            handle = (1 << 32) + len(self._sent)
            self._handles[handle] = (epoch, op)
            self._sent.append(sum(sizes) if self is members[0] else 0)
        return handle

    def finish_transfer(self, handle: int, timeout_s: float) -> int:
        self.wait(handle, timeout_s)
        return self._sent[handle - (1 << 32)]

    # -- inside ---------------------------------------------------------------------------------

    def _step(self, kind: str, name: str) -> Epoch:
        if self.cluster.before is not None:
            self.cluster.before(self, kind, name)
        epoch = self._epoch
        if epoch is None or self.active is None:
            raise CoreError("epoch_changed", f"{self.name} is in no view")
        return epoch

    def _check(self, epoch: Epoch) -> None:
        if epoch.aborted:
            raise CoreError("epoch_changed", epoch.aborted)

    def _issue(self, kind: str, text: str, key: Any, part: Any, team: int) -> int:
        epoch = self._step(kind, text)
        with self.cluster.cond:
            self._check(epoch)
            handle = self._sequence = self._sequence + 1
            place = self._team_sequences[team] = self._team_sequences.get(team, 0) + 1
            members = [epoch.members[rank] for rank in self.team(team)]
            op = epoch.ops.setdefault((team, place), Op(kind, key, text))
            self._handles[handle] = (epoch, op)
            if op.text != text:
                op.error = CoreError(
                    "mismatch", f"the ranks disagree about a collective: {op.text}; {text}"
                )
            elif (op.kind, op.key) != (kind, key):
                op.error = CoreError("internal", f"ranks issue {op.key} and {key} at once")
            op.parts[id(self)] = part
            if len(op.parts) == len(members) and not op.error:
                self._complete(epoch, op, members)
            self.cluster.cond.notify_all()
            return handle

    def _complete(self, epoch: Epoch, op: Op, members: list[FakeGroup]) -> None:
        receivers: Optional[set[str]] = None
        if self.cluster.deliver is not None:
            receivers = self.cluster.deliver(op, members)
        chosen = [m for m in members if receivers is None or m.name in receivers]
        perform(op, members, chosen)
        op.done_for.update(id(m) for m in chosen)
        if receivers is not None:
            epoch.aborted = "a member died while results were under way"


class FakeWorker:
    """The interface of ``_core.Worker`` for a rank that is a thread."""

    def __init__(self, group: FakeGroup, report: Callable[[bytes], None] = lambda b: None) -> None:
        self.id = group.name
        self.host = "fake"
        self.group = group
        self._report = report

    def should_exit(self) -> bool:
        return False

    def report(self, payload: bytes) -> None:
        self._report(payload)

    def tell(self, kind: str, message: str) -> None:
        with self.group.cluster.cond:
            self.group.cluster.told.append((self.group.name, kind, message))


class Rank:
    """A rank's thread: its outcome is ``value``, ``error`` or ``ended`` ("drained", "killed")."""

    def __init__(self, cluster: FakeCluster, name: str, fn: Callable[..., Any], index: int) -> None:
        self.group = cluster.add(name)
        self.value: Any = None
        self.error: Optional[BaseException] = None
        self.ended = ""
        self._cluster = cluster
        self._fn = fn
        self._index = index
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        from troupe import _runtime
        from troupe.errors import DrainedError
        from troupe.torch import _context

        assignment = {"index": self._index, "min_workers": self._cluster.min_workers,
                      "max_workers": self._cluster.max_workers}
        runtime = _runtime.WorkerRuntime(FakeWorker(self.group), assignment, DEADLINE_S, False)
        _runtime.bind(runtime, thread_only=True)
        how = "killed"
        try:
            self.value = self._fn(self.group)
            how = "finished"
        except DrainedError:
            how = self.ended = "drained"
        except Killed:
            self.ended = "killed"
            # While this exception keeps what others may read: a process's memory goes at once too,
            # but nobody reads it from there.
            self._cluster.remove(self.group, how)
        except BaseException as error:
            self.error = error
        finally:
            self._cluster.remove(self.group, "finished" if how == "drained" else how)
            _context._thread.context = None

    def join(self) -> Rank:
        self._thread.join(HANGS_S)
        assert not self._thread.is_alive(), f"rank {self.group.name} hangs"
        return self


def run_ranks(
    size: int, fn: Callable[..., Any], cluster: Optional[FakeCluster] = None
) -> list[Any]:
    """Runs ``fn(group)`` on ``size`` ranks that called init(); their values, first error raised."""
    import troupe.torch as hvd

    def main(group: FakeGroup) -> Any:
        hvd.init()
        return fn()

    cluster = cluster or FakeCluster(size)
    ranks = [Rank(cluster, f"w{i}", main, i) for i in range(size)]
    for rank in ranks:
        rank.join()
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
    return [rank.value for rank in ranks]
