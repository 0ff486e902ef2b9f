"""A training with hooks in each step, which keeps the bits of every commit."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Optional

import torch

import troupe.torch as hvd
from troupe.torch.elastic import ElasticSampler, TorchState, batches

from fake_core import FakeCluster, FakeGroup, Killed, Rank
from test_elastic import DATA, SAMPLES, TARGET
from test_optimizer import make_model, params_of
from test_states import picture

BATCH = 2
Hook = Callable[["Member"], None]


class Log:
    """Every commit's bits by version, and with which version each member has begun."""

    def __init__(self) -> None:
        self.commits: dict[int, Any] = {}
        self.begun: dict[str, list[int]] = collections.defaultdict(list)
        self.held: set[int] = set()
        self.members: dict[str, Member] = {}


class Member:
    """One rank's training, for hooks: ``before`` and ``after`` optimizer.step()."""

    def __init__(self, group: FakeGroup, log: Log, before: Optional[Hook] = None,
                 after: Optional[Hook] = None) -> None:
        hvd.init()
        self.group, self.log, self.before, self.after = group, log, before, after
        self.model = make_model(seed=hash(group.name) % 1000)
        self.optimizer = hvd.DistributedOptimizer(torch.optim.Adam(self.model.parameters(), lr=.01))
        self.state: Any = TorchState(
            self.model, self.optimizer, sampler=ElasticSampler(range(SAMPLES), seed=7), step=0,
            counted=0)
        self.reason = ""
        log.members[group.name] = self

    def bits(self) -> Any:
        state = self.state
        ledger = state.sampler.state_dict()["ledger"]
        return [*picture(self.model, self.optimizer), state.step, state.counted, ledger]

    def run(self) -> Any:
        hvd.elastic.run(lambda state: self.train())(self.state)
        self.reason = self.state._in_place.reason
        return self.state.counted, params_of(self.model), self.reason

    def train(self) -> None:
        state, log = self.state, self.log
        log.begun[self.group.name].append(state.version)
        if state.version:
            assert self.bits() == log.commits[state.version]
        for indices in batches(state.sampler, BATCH):
            self.optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.model(DATA[indices]), TARGET[indices]).backward()
            if self.before is not None:
                self.before(self)
            self.optimizer.step()
            if self.after is not None:
                self.after(self)
            state.step += 1
            state.counted += indices.step_size
            version = state.version
            try:
                state.commit()
            finally:
                if state.version == version + 1:
                    log.commits[state.version] = self.bits()
                    if state.held_in_place:
                        log.held.add(state.version)


def train(cluster: FakeCluster, size: int, log: Log, **hooks: Hook) -> dict[str, str]:
    """Runs the group to its end; why each member copies its commits."""
    ranks = [Rank(cluster, f"w{i}", lambda group: Member(group, log, **hooks).run(), i)
             for i in range(size)]
    for rank in [rank.join() for rank in ranks]:
        if rank.error is not None:
            raise rank.error
    values = {rank.group.name: rank.value for rank in ranks if rank.value is not None}
    first = next(iter(values.values()))
    for counted, params, _ in values.values():
        assert counted == SAMPLES
        assert all(torch.equal(a, b) for a, b in zip(params, first[1]))
    return {name: reason for name, (_, _, reason) in values.items()}


class Once:
    """Does something in a step of a member, the first time it gets there."""

    def __init__(self, step: int, what: Hook, who: str = "") -> None:
        self.step, self.what, self.who = step, what, who
        self.done: set[str] = set()

    def __call__(self, member: Member) -> None:
        name = member.group.name
        if member.state.step == self.step and name not in self.done and self.who in name:
            self.done.add(name)
            self.what(member)


def scale(member: Member) -> None:
    with torch.no_grad():
        next(member.model.parameters()).mul_(0.5)


def scale_unseen(member: Member) -> None:
    next(member.model.parameters()).data.mul_(0.5)


def reduce(member: Member) -> None:
    hvd.allreduce(torch.ones(2), name="by hand")


class KillIn:
    """Kills a member in the first collective whose description holds ``name``, when all others
    have begun it."""

    def __init__(self, name: str, victim: str) -> None:
        self.name, self.victim = name, victim
        self.begun: set[str] = set()

    def __call__(self, member: FakeGroup, kind: str, text: str) -> None:
        cluster = member.cluster
        if self.name not in text:
            return
        with cluster.cond:
            self.begun.add(member.name)
            cluster.cond.notify_all()
            if member.name == self.victim:
                assert cluster.cond.wait_for(
                    lambda: len(self.begun) == len(cluster.epoch.members), 20)
                raise Killed()
