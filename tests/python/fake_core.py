"""An in-process stand-in for ``troupe._core``: threads are ranks, death is an exception.

It keeps the contract of the group strictly (collectives match by order, name, kind and size;
a member's death aborts the epoch for everyone) so that the Python layers can be tested in
milliseconds, with failures at chosen operations.
"""

from __future__ import annotations

import ctypes
import pickle
import queue
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any, Optional

import fake_commits
import torch

DEADLINE_S = 10.0
HOST = (-1, 0)
_DTYPES = {
    "uint8": torch.uint8, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32,
    "int64": torch.int64, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "float32": torch.float32, "float64": torch.float64, "bool": torch.bool,
}


class CoreError(RuntimeError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message


class Killed(BaseException):
    """Raised inside a rank's thread in place of SIGKILL."""


def memory(ptr: int, nbytes: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(ptr), dtype=dtype)


class SampleLedger:
    """Strict reference of the ledger's contract, sample by sample."""

    forgetful = False  # a mutant: what a commit gives back is lost

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.begin_epoch(0)

    def begin_epoch(self, data_epoch: int) -> None:
        self.data_epoch = data_epoch
        self._pool = list(range(self.samples))
        self._lease: Optional[tuple[int, list[int]]] = None
        self.next_step = 0

    @property
    def committed(self) -> int:
        return self.samples - len(self._pool)

    def remaining(self) -> int:
        return len(self._pool)

    def pool(self) -> list[tuple[int, int]]:
        return _ranges(self._pool)

    def lease(self, step: int, sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
        if step < self.next_step:
            raise CoreError("invalid_argument", f"step {step} was already committed")
        if sum(sizes) > len(self._pool):
            raise CoreError("invalid_argument", f"lease of {sum(sizes)} of {len(self._pool)}")
        shares, begin = [], 0
        for size in sizes:
            shares.append(_ranges(self._pool[begin:begin + size]))
            begin += size
        self._lease = (step, self._pool[:begin])
        return shares

    def commit(self, step: int, returned: Sequence[tuple[int, int]] = ()) -> None:
        if self._lease is None or self._lease[0] != step:
            raise CoreError("invalid_argument", f"step {step} is not leased")
        back = [i for begin, end in returned for i in range(begin, end)]
        if len(set(back)) < len(back) or not set(back) <= set(self._lease[1]):
            raise CoreError("invalid_argument", f"step {step} did not lease {returned}")
        self._pool = sorted(({*self._pool} - {*self._lease[1]}) | ({*back} - {
            *(back if self.forgetful else ())}))
        self._lease = None
        self.next_step = step + 1

    def void(self, step: int) -> None:
        self._lease = None

    def state(self) -> bytes:
        return pickle.dumps((self.samples, self.data_epoch, self._pool, self.next_step))

    def load(self, state: bytes) -> None:
        samples, self.data_epoch, self._pool, self.next_step = pickle.loads(state)
        if samples != self.samples:
            raise CoreError("invalid_argument", "the state is of another data set")
        self._lease = None


def _ranges(positions: Sequence[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return ranges


class Op:
    def __init__(self, kind: str, key: tuple[Any, ...], text: str = "") -> None:
        self.kind = kind
        self.key = key
        self.text = text
        self.parts: dict[int, Any] = {}
        self.done_for: set[int] = set()
        self.error: Optional[CoreError] = None


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
            "size": len(chosen), "pause_ms": 0.0, "time_s": time.monotonic(), "job": "job",
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
        size = torch.tensor([], dtype=_DTYPES[dtype]).element_size()
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
        epoch, op = self._handles[handle]
        with self.cluster.cond:
            return id(self) in op.done_for or bool(op.error or epoch.aborted)

    def transfer(self, sources: list[int], receivers: list[int], buffers: list[tuple[int, int]],
                 timeout_s: float) -> int:
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
            if not self.cluster.cond.wait_for(
                lambda: id(self) in op.done_for or op.error or epoch.aborted,
                min(timeout_s, DEADLINE_S),
            ):
                raise CoreError("deadline_exceeded", "transfer is incomplete")
            if id(self) not in op.done_for:
                if op.error:
                    raise op.error
                self._check(epoch)
        return sum(sizes) if self is members[0] else 0

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
        if op.kind == "allreduce":
            _reduce(op, members, chosen)
        elif op.kind == "reducescatter":
            _reduce_scatter(op, members, chosen)
        elif op.kind == "adasum":
            _adasum(op, members, chosen)
        elif op.kind == "broadcast":
            nbytes, root = op.key
            if nbytes:
                source = memory(op.parts[id(members[root])], nbytes).clone()
                for member in chosen:
                    memory(op.parts[id(member)], nbytes).copy_(source)
        elif op.kind == "allgather":
            blocks = [
                memory(op.parts[id(m)][0], n) for m, n in zip(members, op.key) if n
            ]
            for member in chosen if blocks else []:
                memory(op.parts[id(member)][1], sum(op.key)).copy_(torch.cat(blocks))
        elif op.kind == "exchange":
            _exchange(op, members, chosen)
        op.done_for.update(id(m) for m in chosen)
        if receivers is not None:
            epoch.aborted = "a member died while results were under way"


def _combine(
    parts: list[torch.Tensor], how: str, pre: Sequence[float], post: float
) -> torch.Tensor:
    dtype = parts[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    stack = torch.stack([p.to(wide) * f if f != 1.0 else p.to(wide) for p, f in zip(parts, pre)])
    if how in ("sum", "average"):
        result = stack.any(0) if dtype == torch.bool else stack.sum(0)
        if how == "average":
            result = result / len(parts)
    elif how == "min":
        result = stack.min(0).values
    elif how == "max":
        result = stack.max(0).values
    else:
        result = stack.prod(0)
    if post != 1.0:
        result = result * post
    return result.to(dtype)


def _joined(buffers: list[tuple[int, int]], dtype: torch.dtype) -> torch.Tensor:
    pieces = [memory(ptr, n, dtype) for ptr, n in buffers if n]
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=dtype)


def _spread(flat: torch.Tensor, buffers: list[tuple[int, int]]) -> None:
    begin = 0
    for ptr, n in buffers:
        if n == 0:
            continue
        target = memory(ptr, n, flat.dtype)
        target.copy_(flat[begin:begin + target.numel()])
        begin += target.numel()


def _reduce(op: Op, members: list[FakeGroup], chosen: list[FakeGroup]) -> None:
    _, dtype_name, how, post = op.key
    dtype = _DTYPES[dtype_name]
    inputs = [_joined(op.parts[id(m)][0], dtype) for m in members]
    result = _combine(inputs, how, [op.parts[id(m)][2] for m in members], post)
    for member in chosen:
        _spread(result, op.parts[id(member)][1])


def _reduce_scatter(op: Op, members: list[FakeGroup], chosen: list[FakeGroup]) -> None:
    counts, dtype_name, how, pre, post = op.key
    dtype = _DTYPES[dtype_name]
    size = torch.tensor([], dtype=dtype).element_size()
    inputs = [_joined([(op.parts[id(m)][0], sum(counts) * size)], dtype) for m in members]
    blocks = _combine(inputs, how, [pre] * len(inputs), post).split(list(counts))
    for position, member in enumerate(members):
        if member in chosen:
            _spread(blocks[position], [(op.parts[id(member)][1], counts[position] * size)])


def _adasum(op: Op, members: list[FakeGroup], chosen: list[FakeGroup]) -> None:
    """Folds the ranks beyond a power of two, then combines neighbours, neighbours of pairs, ..."""
    dtype_name, sizes = op.key
    dtype = _DTYPES[dtype_name]
    for index, n in enumerate(sizes):
        values = [memory(op.parts[id(m)][index][0], n, dtype).double() for m in members]
        power = 1 << (len(values).bit_length() - 1)
        for extra in range(power, len(values)):
            values[extra - power] = _adasum_pair(values[extra - power], values[extra])
        values = values[:power]
        while len(values) > 1:
            values = [_adasum_pair(a, b) for a, b in zip(values[::2], values[1::2])]
        for member in chosen:
            memory(op.parts[id(member)][index][0], n, dtype).copy_(values[0].to(dtype))


def _adasum_pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    ab, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - ab / (2 * aa) if aa else 1) * a + (1 - ab / (2 * bb) if bb else 1) * b


def _exchange(op: Op, members: list[FakeGroup], chosen: list[FakeGroup]) -> None:
    for position, member in enumerate(members):
        for peer, ptr, n in op.parts[id(member)][1] if member in chosen else []:
            blocks = [b for b in op.parts[id(members[peer])][0] if b[0] == position and b[2] == n]
            assert len(blocks) == 1, f"nobody sends {n} bytes from {peer} to {position}"
            if n:
                memory(ptr, n).copy_(memory(blocks[0][1], n))


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


class Driver:
    """The interface of ``_core.Driver``: every worker is a thread that runs the worker's code."""

    instances: list[Driver] = []

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self.address = address or "fake"
        self.options = options
        self.jobs: dict[str, dict[str, Any]] = {}
        self.closed = False
        Driver.instances.append(self)

    def cluster(self) -> dict[str, Any]:
        total = {"CPU": self.options.get("num_cpus") or 64.0}
        return {"nodes": [{"id": "n0", "host": "fake", "pid": 0, "alive": True,
                           "resources": total, "used": {}}]}

    def submit(self, spec: dict[str, Any]) -> str:
        job_id = f"job{len(self.jobs)}"
        cluster = FakeCluster(spec["workers"], spec["min_workers"], spec["max_workers"])
        job = {"spec": spec, "cluster": cluster, "events": queue.Queue(), "state": "running",
               "ended": 0, "workers": []}
        cluster.listeners.append(job["events"].put)
        self.jobs[job_id] = job
        for index in range(spec["workers"]):
            threading.Thread(
                target=self._work, args=(job_id, job, cluster.add(f"w{index}"), index), daemon=True
            ).start()
        return job_id

    def _emit(self, job: dict[str, Any], **event: Any) -> None:
        job["events"].put({"time_s": time.monotonic(), "job": "job", **event})

    def _work(self, job_id: str, job: dict[str, Any], group: FakeGroup, index: int) -> None:
        from troupe import worker as worker_module

        spec = job["spec"]
        reports = lambda payload: self._emit(  # noqa: E731
            job, kind="report", worker=group.name, rank=index, epoch=1, payload=payload)
        worker = FakeWorker(group, reports)
        assignment = {"job": job_id, "name": spec["name"], "payload": spec["payload"], "env": {},
                      "preload": [], "min_workers": spec["min_workers"],
                      "max_workers": spec["max_workers"], "index": index}
        ok, payload = worker_module.run_assignment(worker, assignment, own_process=False)
        rank = (group.view() or {}).get("rank", -1)
        with group.cluster.cond:
            job["ended"] += 1
            if job["state"] != "running":
                return
            if not ok:
                job["state"] = "failed"
                self._emit(job, kind="done", state="failed", reason="a worker failed",
                           worker=group.name, rank=rank, host="fake", payload=payload)
                return
            self._emit(job, kind="result", worker=group.name, rank=rank, payload=payload)
            if job["ended"] == spec["workers"]:
                job["state"] = "succeeded"
                self._emit(job, kind="done", state="succeeded", reason="", worker="", rank=-1,
                           host="", payload=b"")

    def next_event(self, job_id: str, timeout_s: float) -> Optional[dict[str, Any]]:
        if self.closed:
            raise CoreError("unavailable", "the driver is shut down")
        try:
            return self.jobs[job_id]["events"].get(timeout=timeout_s)
        except queue.Empty:
            return None

    def status(self, job_id: str) -> dict[str, Any]:
        job = self.jobs[job_id]
        spec = job["spec"]
        workers = [{"id": m.name, "rank": (m.view() or {}).get("rank", -1), "pid": 0,
                    "host": "fake", "state": "active", "version": m.version}
                   for m in job["cluster"].members]
        return {"state": job["state"], "reason": "", "epoch": 1, "target": spec["workers"],
                "min_workers": spec["min_workers"], "max_workers": spec["max_workers"],
                "workers": workers}

    def cancel(self, job_id: str) -> None:
        job = self.jobs[job_id]
        with job["cluster"].cond:
            if job["state"] == "running":
                job["state"] = "cancelled"
                self._emit(job, kind="done", state="cancelled", reason="on request", worker="",
                           rank=-1, host="", payload=b"")

    def resize(self, job_id: str, workers: int) -> None:
        spec = self.jobs[job_id]["spec"]
        if not spec["min_workers"] <= workers <= spec["max_workers"]:
            raise CoreError("invalid_argument", f"{workers} workers are out of bounds")

    def drain(self, job_id: str, worker_id: str, deadline_s: float) -> None:
        if worker_id not in [m.name for m in self.jobs[job_id]["cluster"].members]:
            raise CoreError("not_found", f"no worker {worker_id}")
        self._emit(self.jobs[job_id], kind="worker", worker=worker_id, rank=-1, host="fake", pid=0,
                   state="drained", detail="on request")

    def shutdown(self) -> None:
        self.closed = True


def build_module() -> types.ModuleType:
    """A module to stand in for ``troupe._core``."""
    module = types.ModuleType("troupe._core")
    module.CoreError = CoreError  # type: ignore[attr-defined]
    module.SampleLedger = SampleLedger  # type: ignore[attr-defined]
    module.CommitStore = fake_commits.CommitStore  # type: ignore[attr-defined]
    module.Driver = Driver  # type: ignore[attr-defined]
    module.xxh64 = lambda ptr, nbytes: hash(ctypes.string_at(ptr, nbytes))  # type: ignore
    module.xxh64_of = lambda pieces: hash(  # type: ignore[attr-defined]
        tuple(ctypes.string_at(ptr, nbytes) for ptr, nbytes in pieces))
    module.trace_enter = lambda track, name: None  # type: ignore[attr-defined]
    module.version = lambda: "fake"  # type: ignore[attr-defined]
    return module


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
        except BaseException as error:
            self.error = error
        finally:
            self._cluster.remove(self.group, "finished" if how == "drained" else how)
            _context._thread.context = None

    def join(self) -> Rank:
        self._thread.join(2 * DEADLINE_S)
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
