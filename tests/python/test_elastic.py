"""The elastic loop under deaths, joins and drains, on threads as ranks.

What must hold whatever happens: all members end with bit-identical models, every sample of every
data epoch is in exactly one committed step, and no committed step is done again.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any, Optional

import pytest
import torch

import troupe.torch as hvd
from troupe.errors import HostsUpdatedInterrupt, TroupeError
from troupe.torch import _context
from troupe.torch.elastic import ElasticSampler, ObjectState, State, TorchState, batches

from fake_core import FakeCluster, FakeGroup, Killed, Rank
from fake_operations import Op
from test_optimizer import make_model, params_of

SAMPLES, BATCH, EPOCHS = 60, 4, 2
DATA = torch.linspace(-1, 1, SAMPLES * 6, dtype=torch.float64).reshape(SAMPLES, 6).sin()
TARGET = torch.linspace(0, 1, SAMPLES * 3, dtype=torch.float64).reshape(SAMPLES, 3).cos()

Done = tuple[int, int, tuple[int, ...]]  # A step, the group epoch it began in, the ranks it lost.


class Log:
    """What ranks contributed and committed, and how often they computed it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # By (step, group epoch) and rank: the data epoch and the samples.
        self.shares: dict[tuple[int, int], dict[int, Any]] = collections.defaultdict(dict)
        self.commits: dict[int, set[tuple[Done, ...]]] = collections.defaultdict(set)
        self.computed: dict[tuple[str, int], int] = collections.Counter()  # By member and step.

    def share(self, step: int, group_epoch: int, rank: int, name: str, *counted: Any) -> None:
        with self.lock:
            self.shares[step, group_epoch][rank] = counted
            self.computed[name, step] += 1

    def commit(self, version: int, steps: list[Done]) -> None:
        with self.lock:
            self.commits[version].add(tuple(steps))

    def check(self) -> None:
        counted: dict[int, list[int]] = collections.defaultdict(list)
        for version, ways in self.commits.items():
            assert len(ways) == 1, f"version {version} was committed as {ways}"
            for step, group_epoch, lost in min(ways):
                for rank, (data_epoch, indices) in self.shares[step, group_epoch].items():
                    if rank not in lost:
                        counted[data_epoch].extend(indices)
        assert sorted(counted) == list(range(EPOCHS))
        for data_epoch in range(EPOCHS):
            assert sorted(counted[data_epoch]) == list(range(SAMPLES)), data_epoch


def trainer(log: Log, on_step: Optional[Callable[[FakeGroup, int], None]] = None,
            every: int = 1, compress: Optional[Callable[[], Any]] = None,
            ) -> Callable[[FakeGroup], Any]:
    """A training function as a user writes it, with bookkeeping; commits every ``every`` steps."""

    def main(group: FakeGroup) -> Any:
        hvd.init()
        model = make_model(seed=hash(group.name) % 1000)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=0.01),
            compression=compress() if compress else hvd.Compression.none,
        )
        state = TorchState(
            model, optimizer, sampler=ElasticSampler(range(SAMPLES), seed=7), epoch=0, step=0
        )

        @hvd.elastic.run
        def train(state: Any) -> int:
            done: list[Done] = []
            while state.epoch < EPOCHS:
                for indices in batches(state.sampler, BATCH):
                    view = _context.current().view
                    if on_step is not None:
                        on_step(group, state.step)
                    log.share(state.step, view["epoch"], view["rank"], group.name, state.epoch,
                              list(indices) if indices.counted else [])
                    optimizer.zero_grad()
                    torch.nn.functional.mse_loss(model(DATA[indices]), TARGET[indices]).backward()
                    optimizer.step()
                    done.append((state.step, view["epoch"], indices.lost_ranks))
                    state.step += 1
                    last = state.sampler.remaining == 0
                    if state.step % every == 0 or last:
                        version = state.version
                        try:
                            state.commit()
                        finally:
                            if state.version == version + 1:
                                log.commit(state.version, done)
                                done = []
                state.epoch += 1
                state.sampler.set_epoch(state.epoch)
            return state.step

        steps = train(state)
        return steps, params_of(model), optimizer.state_dict()["state"]

    return main


def finish(cluster: FakeCluster, ranks: list[Rank], log: Log) -> list[Any]:
    outcomes = [rank.join() for rank in ranks]
    for rank in outcomes:
        if rank.error is not None:
            raise rank.error
    values = [rank.value for rank in outcomes if rank.value is not None]
    assert values
    for steps, params, moments in values[1:]:
        assert steps == values[0][0]
        assert all(torch.equal(a, b) for a, b in zip(params, values[0][1]))
        for index, entry in moments.items():
            assert all(torch.equal(torch.as_tensor(entry[k]),
                                   torch.as_tensor(values[0][2][index][k])) for k in entry)
    log.check()
    return values


def start(cluster: FakeCluster, size: int, main: Callable[[FakeGroup], Any]) -> list[Rank]:
    return [Rank(cluster, f"w{i}", main, i) for i in range(size)]


def kill_at(victim: str, operation: int) -> Callable[[FakeGroup, str, str], None]:
    """Kills ``victim`` ahead of its n-th operation of any kind."""
    counts: dict[str, int] = collections.Counter()

    def before(member: FakeGroup, kind: str, name: str) -> None:
        counts[member.name] += 1
        if member.name == victim and counts[member.name] == operation:
            raise Killed()

    return before


def test_steady_training_moves_no_state_after_the_first_sync() -> None:
    log = Log()
    cluster = FakeCluster(3)
    finish(cluster, start(cluster, 3, trainer(log)), log)
    assert [e["size"] for e in cluster.history] == [3]
    assert {chain for _, chain, _ in cluster.transfers} == {(0, 1, 2)}


@pytest.mark.parametrize("victim", ["w0", "w1", "w2"])
@pytest.mark.parametrize("operation", range(2, 26))
def test_a_death_at_any_operation(victim: str, operation: int) -> None:
    log = Log()
    cluster = FakeCluster(3, before=kill_at(victim, operation))
    ranks = start(cluster, 3, trainer(log))
    finish(cluster, ranks, log)
    assert [r.ended for r in ranks].count("killed") == 1
    assert [e["size"] for e in cluster.history] == [3, 2]
    if cluster.history[1]["members"][0]["version"] > 0 and len(
            {m["version"] for m in cluster.history[1]["members"]}) == 1:
        assert not [t for t in cluster.transfers if t[0] == 2]  # all equal: nothing is sent


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("receivers", [{"w0"}, {"w1"}, {"w2"}, {"w0", "w2"}])
def test_who_has_the_result_rolls_the_others_forward(receivers: set[str], every: int) -> None:
    """The last bucket of step 6 reaches only some; nobody does that step again."""
    log = Log()
    seen = collections.Counter()

    def deliver(op: Op, members: list[FakeGroup]) -> Optional[set[str]]:
        if op.kind == "allreduce" and op.text.startswith("optimizer.0."):
            seen["steps"] += 1
            if seen["steps"] == 6:
                return receivers
        return None

    cluster = FakeCluster(3, deliver=deliver)
    finish(cluster, start(cluster, 3, trainer(log, every=every)), log)
    versions = [m["version"] for m in cluster.history[1]["members"]]
    behind = [rank for rank, v in enumerate(versions) if v < max(versions)]
    # Five steps make a data epoch, whose last step commits too.
    assert max(versions) == {1: 6, 3: 3}[every] and len(behind) == 3 - len(receivers)
    chains = {chain for epoch, chain, _ in cluster.transfers if epoch == 2}
    assert chains == {(versions.index(max(versions)), *behind)}


def test_a_joiner_receives_state_and_the_others_do_not() -> None:
    log = Log()
    cluster = FakeCluster(2)
    later: list[Rank] = []

    def on_step(group: FakeGroup, step: int) -> None:
        if group.name == "w0" and step == 3 and not later:
            later.append(Rank(cluster, "late", main, 2))
            with cluster.cond:  # it is ready before this step ends
                assert cluster.cond.wait_for(lambda: later[0].group.offer, 20)

    main = trainer(log, on_step)
    ranks = start(cluster, 2, main)
    for rank in ranks:
        rank.join()
    finish(cluster, ranks + later, log)
    assert [e["size"] for e in cluster.history] == [2, 3]
    assert cluster.history[1]["members"][2]["id"] == "late"
    assert {chain for epoch, chain, _ in cluster.transfers if epoch == 2} == {(0, 2)}


@pytest.mark.parametrize("leaver", ["w0", "w1", "w2"])
def test_a_drained_member_ends_cleanly(leaver: str) -> None:
    log = Log()
    cluster = FakeCluster(3)

    def on_step(group: FakeGroup, step: int) -> None:
        if group.name == leaver and step == 2:
            cluster.drain(group)

    ranks = start(cluster, 3, trainer(log, on_step))
    finish(cluster, ranks, log)
    assert [r.ended for r in ranks] == ["drained" if f"w{i}" == leaver else "" for i in range(3)]
    assert [e["reason"] for e in cluster.history] == ["start", "planned"]
    assert not [t for t in cluster.transfers if t[0] == 2]


@pytest.mark.parametrize("victim,operation", [("w1", 12), ("w0", 14), ("w2", 9)])
def test_a_replacement_and_a_second_death(victim: str, operation: int) -> None:
    """One dies, a new one joins, then the oldest dies; the joiner carries the state on."""
    log = Log()
    first = kill_at(victim, operation)
    added: list[Rank] = []

    def before(member: FakeGroup, kind: str, name: str) -> None:
        first(member, kind, name)
        epoch = cluster.epoch
        if epoch is None or epoch.number < 3 or kind != "boundary" or len(epoch.members) != 3:
            return
        if member is epoch.members[0] and epoch.boundaries[id(member)] == 1:
            raise Killed()

    cluster = FakeCluster(3, before=before)

    def on_step(group: FakeGroup, step: int) -> None:
        epoch = cluster.epoch
        if epoch is not None and epoch.number == 2 and not added:
            with cluster.cond:
                if not added:
                    added.append(Rank(cluster, "late", main, 3))
                assert cluster.cond.wait_for(lambda: added[0].group.offer, 20)

    main = trainer(log, on_step)
    ranks = start(cluster, 3, main)
    for rank in ranks:
        rank.join()
    finish(cluster, ranks + added, log)
    assert [e["size"] for e in cluster.history][:3] == [3, 2, 3]
    assert cluster.history[-1]["size"] == 2 and added[0].value is not None


@pytest.mark.parametrize("who", ["source", "receiver", "bystander"])
def test_a_death_while_state_is_sent(who: str) -> None:
    log = Log()
    added: list[Rank] = []
    hit: list[str] = []

    def before(member: FakeGroup, kind: str, name: str) -> None:
        epoch = cluster.epoch
        if epoch is None or epoch.number != 2 or hit:
            return
        mine = {"source": "w0", "receiver": "late", "bystander": "w1"}[who]
        if member.name == mine and (kind == "transfer" or who == "bystander"):
            hit.append(mine)
            raise Killed()

    cluster = FakeCluster(3, before=before)

    def on_step(group: FakeGroup, step: int) -> None:
        if group.name == "w2" and step == 3 and not added:
            added.append(Rank(cluster, "late", main, 3))
            with cluster.cond:
                assert cluster.cond.wait_for(lambda: added[0].group.offer, 20)

    main = trainer(log, on_step)
    ranks = start(cluster, 3, main)
    for rank in ranks:
        rank.join()
    finish(cluster, ranks + added, log)
    assert hit and [e["size"] for e in cluster.history] == [3, 4, 3]


def test_all_but_one_die() -> None:
    log = Log()
    counts: dict[str, int] = collections.Counter()

    def before(member: FakeGroup, kind: str, name: str) -> None:
        counts[member.name] += 1
        if counts[member.name] == {"w0": 11, "w1": 19, "w2": 27}.get(member.name):
            raise Killed()

    cluster = FakeCluster(4, before=before)
    ranks = start(cluster, 4, trainer(log))
    finish(cluster, ranks, log)
    assert [r.ended for r in ranks] == ["killed"] * 3 + [""]
    assert cluster.history[-1]["size"] == 1


def test_a_death_in_the_last_barrier_redoes_nothing() -> None:
    log = Log()

    def before(member: FakeGroup, kind: str, name: str) -> None:
        if member.name == "w1" and name == "end of elastic.run":
            raise Killed()

    cluster = FakeCluster(3, before=before)
    finish(cluster, start(cluster, 3, trainer(log)), log)
    assert [e["size"] for e in cluster.history] == [3, 2]


def test_collectives_of_a_joiner_before_run_are_an_error() -> None:
    cluster = FakeCluster(1)
    release = threading.Event()

    def founder(group: FakeGroup) -> None:
        hvd.init()
        release.wait(20)

    def joiner(group: FakeGroup) -> tuple[int, int]:
        hvd.init()
        for call in (
            lambda: hvd.allreduce(torch.ones(1)), lambda: hvd.broadcast_object(1), hvd.barrier
        ):
            with pytest.raises(TroupeError, match="elastic.run"):
                call()
        return hvd.rank(), hvd.size()

    first = Rank(cluster, "w0", founder, 0)
    with cluster.cond:
        assert cluster.cond.wait_for(lambda: cluster.epoch is not None, 20)
    late = Rank(cluster, "late", joiner, 1).join()
    release.set()
    assert first.join().error is None and late.error is None and late.value == (1, 2)


def test_reset_callbacks_run_after_the_view_and_before_sync() -> None:
    cluster = FakeCluster(2)
    trace: list[tuple[str, int, float]] = []

    def main(group: FakeGroup) -> list[float]:
        hvd.init()
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1 * hvd.size()))
        state = TorchState(optimizer=optimizer, step=0)

        def on_reset() -> None:
            for param_group in optimizer.param_groups:
                param_group["lr"] = 0.1 * hvd.size()
            trace.append((group.name, hvd.size(), 0.0))

        state.register_reset_callbacks([on_reset])
        rates = []

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.step < 6:
                rates.append(round(optimizer.param_groups[0]["lr"], 3))
                if group.name == "w1" and state.step == 2:
                    raise Killed()
                hvd.allreduce(torch.ones(1))
                state.step += 1
                state.commit()

        train(state)
        return rates

    ranks = start(cluster, 2, main)
    rates = ranks[0].join().value
    assert rates[:2] == [0.2] * 2 and rates[-4:] == [0.1] * 4 and len(rates) <= 7
    assert trace == [("w0", 1, 0.0)] and ranks[1].join().ended == "killed"


def test_joiner_that_fails_over_before_its_first_commit_keeps_what_it_received() -> None:
    """The state received by sync is the state gone back to, not the joiner's own first one."""
    cluster = FakeCluster(1)
    later: list[Rank] = []

    def main(group: FakeGroup) -> float:
        hvd.init()
        model = torch.nn.Linear(2, 2)
        with torch.no_grad():
            model.weight.fill_(1.0 if group.name == "w0" else -5.0)
        state = TorchState(model, step=0)

        @hvd.elastic.run
        def train(state: Any) -> float:
            while state.step < 5:
                if group.name == "w0":
                    if state.step == 2 and not later:
                        later.append(Rank(cluster, "late", main, 1))
                        with cluster.cond:
                            assert cluster.cond.wait_for(lambda: later[0].group.offer, 20)
                    if hvd.size() == 2:
                        raise Killed()
                hvd.allreduce(torch.ones(1))
                state.step += 1
                state.commit()
            return float(model.weight.detach().sum())

        return train(state)

    assert start(cluster, 1, main)[0].join().ended == "killed"
    assert later[0].join().value == 4.0 and later[0].error is None


def test_check_host_updates_keeps_uncommitted_progress() -> None:
    cluster = FakeCluster(2)

    def main(group: FakeGroup) -> list[int]:
        hvd.init()
        state = ObjectState(step=0)
        starts: list[int] = []

        @hvd.elastic.run
        def train(state: Any) -> None:
            starts.append(state.step)
            while state.step < 8:
                if group.name == "w1" and state.step == 3:
                    cluster.drain(group)
                hvd.allreduce(torch.ones(1))
                state.step += 1
                state.check_host_updates()

        train(state)
        return starts

    ranks = start(cluster, 2, main)
    kept = ranks[0].join()
    assert kept.error is None and kept.value[0] == 0 and kept.value[1] in (4, 5)
    assert ranks[1].join().ended == "drained"


def test_user_errors_leave_the_loop() -> None:
    cluster = FakeCluster(1)

    def main(group: FakeGroup) -> None:
        hvd.init()

        @hvd.elastic.run
        def train(state: Any) -> None:
            raise KeyError("mine")

        train(ObjectState(step=0))

    assert isinstance(start(cluster, 1, main)[0].join().error, KeyError)


def test_states_that_differ_are_an_error() -> None:
    cluster = FakeCluster(2)

    def main(group: FakeGroup) -> None:
        hvd.init()
        state = ObjectState(**({"a": 1} if group.name == "w0" else {"b": 1}))
        hvd.elastic.run(lambda state: None)(state)

    ranks = start(cluster, 2, main)
    assert any("states differ" in str(rank.join().error) for rank in ranks)


def test_explicit_sync_broadcasts_rank_zero() -> None:
    cluster = FakeCluster(2)

    def main(group: FakeGroup) -> int:
        hvd.init()

        @hvd.elastic.run
        def train(state: Any) -> int:
            state.value = 10 + hvd.rank()
            state.sync()
            return state.value

        return train(ObjectState(value=0))

    assert [rank.join().value for rank in start(cluster, 2, main)] == [10, 10]


def test_custom_state_subclass_with_collectives() -> None:
    class Mine(State):
        def __init__(self, value: int) -> None:
            super().__init__(hvd.broadcast_object, hvd.rank)
            self.value = self.saved = value

        def save(self) -> None:
            self.saved = self.value

        def restore(self) -> None:
            self.value = self.saved

        def sync(self) -> None:
            self.value = self._bcast_object(self.value, 0)
            self.save()

    cluster = FakeCluster(2)

    def main(group: FakeGroup) -> int:
        hvd.init()
        return hvd.elastic.run(lambda state: state.value)(Mine(hvd.rank() + 5))

    assert [rank.join().value for rank in start(cluster, 2, main)] == [5, 5]


def test_interrupt_carries_skip_sync() -> None:
    assert HostsUpdatedInterrupt().skip_sync is False
    assert HostsUpdatedInterrupt(True).skip_sync is True


@pytest.mark.parametrize("round_", range(12))
def test_random_lives(round_: int) -> None:
    """Deaths, joins and drains at random steps; a failure names the round."""
    import random

    rng = random.Random(round_)
    log = Log()
    fates = {f"w{i}": (rng.choice(["kill", "drain", "stay"]), rng.randrange(1, 12))
             for i in range(4)}
    fates["w3"] = ("stay", 0)
    join_at = {rng.randrange(1, 12): f"j{n}" for n in range(2)}
    joined: list[Rank] = []

    def on_step(group: FakeGroup, step: int) -> None:
        if group.name == "w3" and step in join_at:
            name = join_at.pop(step)
            joined.append(Rank(cluster, name, main, 9))
            with cluster.cond:
                assert cluster.cond.wait_for(lambda: joined[-1].group.offer, 20)
        fate, when = fates.get(group.name, ("stay", 0))
        if step == when and fate == "kill":
            raise Killed()
        if step == when and fate == "drain":
            cluster.drain(group)

    cluster = FakeCluster(4)
    main = trainer(log, on_step)
    ranks = start(cluster, 4, main)
    for rank in ranks:
        rank.join()
    finish(cluster, ranks + joined, log)
