"""A walk through all collectives, one per step, with faults armed on the way; runs inside workers.

Whether a fault has happened where it was meant to is on record: each leaves a file, written right
before, that says in which phase, epoch and size, by which process and when.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import troupe
import troupe.torch as hvd
from troupe.errors import HorovodInternalError
from troupe.torch import _context

from fault_cases import KINDS, Call, fold

MIDDLE_CALLS = 5  # So long the collective goes on in a step that is to be hit in its middle.
_BIG = {"adasum": 400_000, "alltoall": 300_000, "sparse_allreduce": 300_000}
_GATE_S = 5.0


@dataclass
class Fault:
    """Something that befalls one rank, once.

    ``phase``: "before", "middle" or "after" the collective of a step; "noticed", where it fails
    because of another fault; "reset", in the reset callback that follows; "source" or "receiver"
    of a state that is on its way to a joiner, whatever the rank and step. Faults of the same
    ``together`` happen at the same time.
    """

    name: str
    action: str  # "kill" or "stop"
    phase: str
    step: int = -1
    rank: int = -1
    together: str = ""


@dataclass
class Plan:
    """What a walk is to do; every process of it gets the same."""

    folder: str
    steps: int
    workers: int
    faults: list[Fault] = field(default_factory=list)
    rows: int = 500
    big_rows: int = 1_000_000
    state_numbers: int = 4096
    pace_s: float = 0.0
    each: int = 1  # So many steps are of the same kind.

    def kind(self, step: int) -> str:
        return KINDS[step // self.each % len(KINDS)]

    def faulty(self, step: int, *phases: str) -> list[Fault]:
        return [f for f in self.faults if f.step == step and (not phases or f.phase in phases)]

    def call(self, step: int, size: int) -> Call:
        kind = self.kind(step)
        middle = bool(self.faulty(step, "middle"))
        big = min(self.big_rows, _BIG.get(kind, self.big_rows))
        return Call(kind, step, size, big if middle else self.rows)


class Faults:
    """The faults of this process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.folder = Path(plan.folder)
        self._gathered: list[threading.Event] = []  # Set when all that happen together can.
        self.inside = False  # Whether the main thread is where a Striker is to hit it.

    def arrive(self, step: int) -> None:
        """On record: this rank is about to begin a step in which there will be a fault."""
        if self.plan.faulty(step):
            draft = self.folder / f"draft-{os.getpid()}"
            draft.write_text(str(time.monotonic()))
            draft.rename(self._arrival(step, hvd.rank()))

    def _arrival(self, step: int, rank: int) -> Path:
        return self.folder / f"arrived-{hvd.epoch()}-{step}-{rank}"

    def mine(self, phase: str, step: int) -> list[Fault]:
        return [f for f in self.plan.faulty(step, phase)
                if f.rank == hvd.rank() and self.open(f)]

    def open(self, fault: Fault) -> bool:
        return not (self.folder / f"fault-{fault.name}").exists()

    def reach(self, phase: str, step: int) -> None:
        for fault in self.mine(phase, step):
            self.happen(fault)

    def happen(self, fault: Fault) -> None:
        """Waits for those that are to happen together with it; then it is on record, and done."""
        self._strike_now(fault, self._gather(fault))

    def _gather(self, fault: Fault) -> dict[str, Any]:
        """Where this rank is, once all are ready whose faults happen together.

        Taken before it says that it is ready: the first of them ends the epoch of the others.
        """
        if fault.phase == "before":  # the others have left the step before
            there = [self._arrival(fault.step, rank) for rank in range(hvd.size())]
            _wait_until(lambda: all(arrival.exists() for arrival in there))
        place = self._place()
        (self.folder / f"ready-{fault.name}-{place['epoch']}").touch()
        others = [self.folder / f"ready-{f.name}-{place['epoch']}" for f in self.plan.faults
                  if fault.together and f.together == fault.together]
        _wait_until(lambda: all(other.exists() for other in others))
        return place

    def _place(self) -> dict[str, Any]:
        return {"inside": self.inside, "epoch": hvd.epoch(), "size": hvd.size()}

    def _strike_now(self, fault: Fault, place: dict[str, Any]) -> None:
        entry = {**asdict(fault), **place, "pid": os.getpid(), "time_s": time.monotonic()}
        try:
            path = self.folder / f"fault-{fault.name}"
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return  # Another process has met it meanwhile.
        os.write(descriptor, json.dumps(entry).encode())
        os.kill(os.getpid(), signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)

    def await_gathering(self) -> None:
        """Does not run out of calls while faults of this process wait for those of others."""
        for gathered in self._gathered:
            gathered.wait(_GATE_S)
        self._gathered.clear()

    def strike(self, fault: Fault, most_s: float) -> None:
        """Lets it happen in a moment, while the main thread is inside."""
        delay_s = random.Random(fault.name).uniform(0.0001, most_s)
        begun, gathered = threading.Event(), threading.Event()
        self._gathered.append(gathered)

        def run() -> None:
            begun.set()
            _wait_until(lambda: self.inside)
            place = self._gather(fault)
            gathered.set()
            if not fault.together:
                time.sleep(delay_s)
                _wait_until(lambda: self.inside)
                place = self._place()
            self._strike_now(fault, place)

        threading.Thread(target=run, daemon=True).start()
        begun.wait()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _GATE_S
    while not condition():
        if time.monotonic() > deadline:
            return  # The record will show it.
        time.sleep(0.00005)


class WatchedState(hvd.elastic.TorchState):
    """A state whose transfers can be hit."""

    def __init__(self, faults: Faults, **values: Any) -> None:
        super().__init__(**values)
        self._faults = faults

    def sync(self) -> None:
        faults, view = self._faults, _context.current().view
        needs = [rank for rank in view["needs_state"] if rank != view["source_rank"]]
        role = "receiver" if hvd.rank() in needs else ""
        role = "source" if needs and hvd.rank() == view["source_rank"] else role
        if role and int(view["epoch"]) > 1:
            for fault in faults.plan.faults:
                if fault.phase == role and faults.open(fault):
                    faults.strike(fault, 0.01)
        faults.inside = True
        try:
            super().sync()
        finally:
            faults.inside = False


def digest(weights: torch.Tensor, done: list[Any]) -> str:
    return hashlib.sha256(weights.numpy().tobytes() + repr(done).encode()).hexdigest()


def beginning(numbers: int) -> torch.Tensor:
    return torch.arange(numbers, dtype=torch.float64)


def walk(plan: Plan) -> dict[str, Any]:
    """Does all steps, each once; what state this member ends with."""
    hvd.init()
    torch.set_num_threads(1)
    faults = Faults(plan)
    model = torch.nn.Module()
    model.weights = torch.nn.Parameter(beginning(plan.state_numbers), requires_grad=False)
    state: Any = WatchedState(faults, model=model, step=0, done=[])
    state.register_reset_callbacks([lambda: faults.reach("reset", state.step)])

    def check_equal() -> str:
        mine = digest(model.weights, state.done)
        everybodys = hvd.allgather_object(mine)
        assert everybodys == [mine] * hvd.size(), (state.step, hvd.rank(), everybodys)
        return mine

    @hvd.elastic.run
    def loop(state: Any) -> str:
        check_equal()
        while state.step < plan.steps:
            _await_everybody(plan, faults, state)
            call = plan.call(state.step, hvd.size())
            _one_step(plan, faults, call)
            with torch.no_grad():
                fold(model.weights, call)
            state.done = [*state.done, (state.step, hvd.size())]
            state.step += 1
            state.commit()
            if hvd.rank() == 0:
                troupe.report({"step": state.step})
            time.sleep(plan.pace_s)
        return check_equal()

    return {"digest": loop(state), "done": state.done, "pid": os.getpid()}


def _await_everybody(plan: Plan, faults: Faults, state: Any) -> None:
    """Faults befall whole groups, and whole groups end; between them any size will do."""
    due = any(faults.open(fault) for fault in plan.faulty(state.step))
    if due or state.step == plan.steps - 1:
        while hvd.size() < plan.workers:
            state.check_host_updates()
            time.sleep(0.005)


def _one_step(plan: Plan, faults: Faults, call: Call) -> None:
    run, wanted = call.prepare(hvd.rank(), faults.folder)
    faults.arrive(call.step)
    for fault in faults.mine("middle", call.step):
        faults.strike(fault, 0.0009)
    faults.reach("before", call.step)
    faults.inside = True
    try:
        results = [run()]
        if plan.faulty(call.step, "middle"):
            faults.await_gathering()
            results += [run() for _ in range(MIDDLE_CALLS - 1)]
    except HorovodInternalError:
        faults.inside = False
        faults.reach("noticed", call.step)
        raise
    finally:
        faults.inside = False
    faults.reach("after", call.step)
    for got in results:
        call.check(got, wanted)
