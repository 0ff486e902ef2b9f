"""The cloud's state machine: time and requests go in, what is to be done with processes comes out.

It has no clock, thread, socket or process of its own: a test runs it under any time it likes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from fakecloud.gce import catalog
from fakecloud.gce.errors import OpError, exhausted, over_quota
from fakecloud.gce.instances import Instance, Spec
from fakecloud.gce.operations import Operation
from fakecloud.gce.settings import Settings
from fakecloud.ledger import Entry
from fakecloud.markets import Market, Pool
from fakecloud.orders import BadOrder
from fakecloud.timeline import Effect, Timeline, loopback_address

SYSTEM = "system"
AGAIN_S = 1.0       # A machine that starts once more does not before what ran on it has ended.
FALSE_ALARM_S = 20.0
QUOTA = 100_000.0   # Of a metric that no setting names.
MESSAGES = {"compute.instances.preempted": "Instance was preempted.",
            "compute.instances.hostError": "Instance terminated by Compute Engine.",
            "compute.instances.guestTerminate": "Instance terminated by guest OS shutdown.",
            "compute.instances.automaticRestart":
                "Instance automatically restarted by Compute Engine.",
            "compute.instances.terminateOnHostMaintenance":
                "Instance terminated for host maintenance.",
            "compute.instances.migrateOnHostMaintenance": "Instance migrated during maintenance."}


@dataclass
class Trap:
    """The next operations of a kind go wrong."""

    kind: str
    left: int
    stuck: bool = False
    error: Optional[OpError] = None
    undone: bool = False


class Cloud(Timeline):
    def __init__(self, market: Market, settings: Optional[Settings] = None, seed: int = 0,
                 now_s: float = 0.0) -> None:
        self.settings = settings or Settings()
        super().__init__(market, self.settings.speed, seed, now_s)
        self._ids = random.Random(f"ids of {seed}")
        self.instances: dict[tuple[str, str], Instance] = {}    # By zone and name.
        self.by_id: dict[str, Instance] = {}
        self.gone: dict[str, tuple[float, Instance]] = {}       # Shown until then.
        self.operations: dict[tuple[str, str], Operation] = {}  # By scope and name.
        self.templates: dict[str, dict[str, Any]] = {}
        self.limits: dict[tuple[str, str], float] = {}          # Of a region and metric.
        self.unreachable: set[str] = set()                      # Zones.
        self.traps: list[Trap] = []
        self.console_of: Callable[[str], bytes] = lambda instance: b""  # Who has files sets it.
        self._addresses = itertools.count(1)

    @property
    def project(self) -> str:
        return self.settings.project

    def zones(self) -> list[str]:
        return sorted({pool.zone for pool in self.market.pools.values()})

    def new_number(self) -> str:
        return str(self._ids.randrange(10**18, 9 * 10**18))

    # ---- operations ----

    def operation(self, kind: str, scope: str, target: str, user: str,
                  target_id: str = "", parent: Optional[Operation] = None) -> Operation:
        """``parent``: the bulk insertion that it is a part of."""
        word = self._ids.getrandbits(96)
        begin = "systemevent" if user == SYSTEM else "operation"
        name = (f"{begin}-{int(self.now_s * 1000)}-{word >> 48:012x}-{word >> 24 & 0xffffff:08x}"
                f"-{word & 0xffffff:08x}")
        made = Operation(self.new_number(), name, kind, self.project, scope, target, user,
                         self.now_s, target_id)
        self.operations[scope, name] = made
        if user == SYSTEM:
            made.message = MESSAGES.get(kind, "")
            self.finish(made)
            return made
        trap = next((one for one in self.traps if one.kind in ("*", kind)), None)
        if parent is not None:
            made.group = parent.group
            parent.children[target_id] = made
        elif trap is not None:
            trap.left -= 1
            self.traps = [one for one in self.traps if one.left > 0]
            made.stuck, made.forced, made.undone = trap.stuck, trap.error, trap.undone
        self.at(self.now_s + self.settings.pending_s.draw(self.rng), lambda: self._begin(made))
        return made

    def _begin(self, one: Operation) -> None:
        if one.status == "PENDING":
            one.status, one.start_s = "RUNNING", self.now_s

    def finish(self, one: Operation, errors: Optional[list[OpError]] = None) -> None:
        if one.done or one.stuck:
            return
        one.errors = [one.forced] if one.forced is not None else (errors or [])
        one.status, one.progress, one.end_s = "DONE", 100, self.now_s
        one.start_s = self.now_s if one.start_s is None else one.start_s
        self.note("operation", name=one.name, kind=one.kind, target=one.target,
                  error=one.errors[0].code if one.errors else None)
        self.at(self.now_s + self.settings.kept_s,
                lambda: void(self.operations.pop((one.scope, one.name), None)))

    def finish_soon(self, one: Operation, errors: Optional[list[OpError]] = None) -> None:
        wait_s = self.settings.operation_s.draw(self.rng)
        self.at(self.now_s + wait_s, lambda: self.finish(one, errors))

    # ---- room ----

    def limit(self, region: str, metric: str) -> float:
        return self.limits.get((region, metric), self.settings.quotas.get(metric, QUOTA))

    def used(self, region: str) -> dict[str, float]:
        """By metric, of what is there and not stopped."""
        found: dict[str, float] = {}
        for one in self.instances.values():
            if one.spec.region == region and one.status != "TERMINATED":
                for metric, count in catalog.quotas_of(one.spec.shape, one.spec.spot).items():
                    found[metric] = found.get(metric, 0) + count
        return found

    def quota_room(self, spec: Spec, used: dict[str, float]) -> Optional[OpError]:
        """Why one more is too much, if it is."""
        for metric, count in catalog.quotas_of(spec.shape, spec.spot).items():
            limit = self.limit(spec.region, metric)
            if used.get(metric, 0) + count > limit:
                return over_quota(metric, limit, spec.region)
        return None

    def free(self, pool: Pool, spot: bool) -> int:
        used = sum(1 for one in self.instances.values()
                   if one.holds_place() and one.spec.spot == spot
                   and (one.zone, one.spec.shape.name) == pool.key)
        capacity = pool.capacity if spot else (
            0 if pool.outage else self.settings.on_demand_capacity)
        return max(0, capacity - used)

    def no_room(self, zone: str, type_: str) -> OpError:
        detailed = self.rng.random() < self.settings.details_share
        return exhausted(self.project, zone, type_, detailed)

    # ---- lives ----

    def create(self, spec: Spec, operation: Operation) -> Instance:
        """There is room for it. The operation ends when all that it awaits have started."""
        number = next(self._addresses)
        lag_s = self.settings.lag_s.draw(self.rng)
        one = Instance(self.new_number(), spec, self.now_s, self.now_s + lag_s,
                       loopback_address(number), number, labels=dict(spec.labels),
                       metadata=dict(spec.metadata), tags=spec.tags, group=operation.group)
        self.instances[one.key] = self.by_id[one.id] = one
        self.gone = {id_: gone for id_, gone in self.gone.items() if gone[1].key != one.key}
        self.effects.append(Effect("create", one.id))
        self.note("launched", instance=one.id, name=spec.name, market=one.market, zone=one.zone,
                  type=spec.shape.name, price=self._price(one), group=one.group or None)
        operation.awaiting.add(one.id)
        if operation.group:
            self.operation("insert", f"zones/{one.zone}", spec.path, operation.user, one.id,
                           operation)
        self._provision(one, self.settings.launch_s.draw(self.rng), operation)
        return one

    def _price(self, one: Instance) -> float:
        pool = self.market.pools[one.zone, one.spec.shape.name]
        return pool.price if one.spec.spot else one.spec.shape.on_demand

    def _provision(self, one: Instance, launch_s: float, operation: Operation) -> None:
        one.launch += 1
        launch = one.launch

        def later(share: float, do: Callable[[], None]) -> None:
            self.at(self.now_s + launch_s * share,
                    lambda: do() if one.launch == launch and one.alive else None)

        def stage() -> None:
            one.status = "STAGING"
            if launch > 1:      # Its metadata has ended with what ran before.
                self.effects.append(Effect("create", one.id))

        def refuse() -> None:
            operation.refusals.append(self.no_room(one.zone, one.spec.type_name))
            self.kill(one, "refused", forget=True)

        later(0.5, stage)
        if self.rng.random() < self.settings.late_refusal_share:
            later(0.75, refuse)
        later(1.0, lambda: self._run(one))
        self.at(self.now_s + launch_s, lambda: self._started(one, operation))

    def _started(self, one: Instance, operation: Operation) -> None:
        """Or not: either way, nothing is awaited of it any more."""
        operation.awaiting.discard(one.id)
        if one.id in operation.children:
            refused = operation.refusals[-1:] if one.reason == "refused" else []
            self.finish(operation.children.pop(one.id), refused)
        place = operation.places.get(one.zone)
        if place is not None:
            place.made += one.started_s is not None
            place.failed += one.reason == "refused"
        if not operation.awaiting:
            self._made(operation)

    def _made(self, operation: Operation) -> None:
        if operation.kind != "bulkInsert":
            if operation.undone:
                self.undo(operation)
            return self.finish(operation, operation.refusals[:1])
        made = sum(place.made for place in operation.places.values())
        if operation.undone or made < operation.least:
            return self.roll_back(operation)
        for place in operation.places.values():
            place.status = "DONE"
        self.finish(operation)

    def roll_back(self, operation: Operation) -> None:
        """Fewer than were asked for at the least: those that were made go again."""
        for place in operation.places.values():
            place.status = "ROLLING_BACK"
        wait_s = self.settings.rollback_s.draw(self.rng)

        def end() -> None:
            self.undo(operation)
            for place in operation.places.values():
                place.deleted, place.status = place.made, "DONE"
            few = OpError("VM_MIN_COUNT_NOT_REACHED", f"Requested minimum count of "
                          f"{operation.least} VMs could not be created.", 503)
            self.finish(operation, [few, *operation.refusals[:1]])
        self.at(self.now_s + wait_s, end)

    def undo(self, operation: Operation) -> None:
        for one in list(self.instances.values()):
            if one.group == operation.group and operation.group or one.spec.path == (
                    operation.target):
                self.kill(one, "rolled back", forget=True)

    def _run(self, one: Instance) -> None:
        one.status, one.started_s = "RUNNING", self.now_s
        self.ledger.begin(Entry(one.id, one.market, one.zone, one.spec.shape.name,
                                self._price(one), self.market_s()))
        self.note("running", instance=one.id, name=one.spec.name)
        self.effects.append(Effect("boot", one.id))
        self._plan_trouble(one)

    def start(self, one: Instance, operation: Operation) -> None:
        pool = self.market.pools[one.zone, one.spec.shape.name]
        if self.free(pool, one.spec.spot) < 1:
            return self.finish_soon(operation, [self.no_room(one.zone, one.spec.type_name)])
        one.status, one.doomed, one.preempted, one.reason = "PROVISIONING", False, False, ""
        operation.awaiting.add(one.id)
        self._provision(one, max(AGAIN_S, self.settings.launch_s.draw(self.rng)), operation)

    def end(self, one: Instance, reason: str, forget: bool, operation: Optional[Operation] = None,
            lead_s: Optional[float] = None) -> None:
        """Its processes are told to end, and have until then. ``forget``: it is deleted."""
        if operation is not None:
            one.awaited.append((operation, forget))
        if one.status == "TERMINATED":
            self.at(self.now_s + self.settings.operation_s.draw(self.rng),
                    lambda: self._ended(one, forget))
            return
        if one.status != "STOPPING":
            self._leave(one, reason)
            self.effects.append(Effect("soft", one.id))
        launch = one.launch
        if lead_s is None:
            lead_s = self.settings.shutdown_s.draw(self.rng)
        one.deadline_s = self.now_s + lead_s
        self.at(one.deadline_s,
                lambda: self._ended(one, forget) if one.launch == launch else None)

    def _leave(self, one: Instance, reason: str) -> None:
        one.status, one.reason, one.doomed = "STOPPING", reason, True
        self.ledger.end(one.id, self.market_s(), self.settings.min_billed_s)
        self.note("stopping", instance=one.id, name=one.spec.name, reason=reason)

    def kill(self, one: Instance, reason: str, forget: bool) -> None:
        """At once."""
        if one.status not in ("STOPPING", "TERMINATED"):
            self._leave(one, reason)
        self._ended(one, forget)

    def _ended(self, one: Instance, forget: bool) -> None:
        if self.by_id.get(one.id) is not one:
            return
        if one.status != "TERMINATED":
            one.status, one.stopped_s, one.deadline_s = "TERMINATED", self.now_s, None
            self.note("killed", instance=one.id, name=one.spec.name, reason=one.reason,
                      deleted=forget)
            self.effects.append(Effect("kill", one.id))
        for operation, _ in [each for each in one.awaited if forget or not each[1]]:
            self.finish(operation)
        one.awaited = [each for each in one.awaited if not forget and each[1]]
        if forget:
            del self.by_id[one.id], self.instances[one.key]
            gone_s = self.settings.gone_lag_s.draw(self.rng)
            if gone_s:
                self.gone[one.id] = (self.now_s + gone_s, one)
            self.effects.append(Effect("forget", one.id))

    def event(self, kind: str, one: Instance) -> Operation:
        """What Compute Engine itself does is listed as an operation, too."""
        return self.operation(kind, f"zones/{one.zone}", one.spec.path, SYSTEM, one.id)

    # ---- the market takes back ----

    def changed(self, pool: Pool) -> None:
        self.ledger.reprice(pool.zone, pool.type.name, pool.price, self.market_s())
        pool.note_price(self.now_s)
        held = [one for one in self.instances.values() if one.holds_place() and one.spec.spot
                and (one.zone, one.spec.shape.name) == pool.key]
        over = len(held) - pool.capacity
        for one in self.rng.sample(held, over) if over > 0 else []:
            self.preempt(one, why="capacity")

    def _scaled(self, seconds: float) -> float:
        return self.scaled(seconds) if self.settings.lead_scaled else seconds

    def preempt(self, one: Instance, lead_s: Optional[float] = None, why: str = "order") -> None:
        """Its metadata says so, then SIGTERM comes, and after the lead SIGKILL."""
        if not one.alive:
            return
        if lead_s is None:
            lead_s = self._scaled(self.settings.lead_s.draw(self.rng))
        one.doomed, one.preempted = True, True
        self.note("preempted", instance=one.id, name=one.spec.name, zone=one.zone,
                  type=one.spec.shape.name, lead_s=round(lead_s, 3), why=why)
        self.event("compute.instances.preempted", one)
        forget, launch = one.spec.on_end == "DELETE", one.launch
        if lead_s <= 0:
            return self.kill(one, "preempted", forget)
        ahead_s = self._scaled(one.spec.notice_s or self.settings.acpi_s.draw(self.rng))

        def acpi() -> None:
            if one.alive and one.preempted and one.launch == launch:
                self.end(one, "preempted", forget, lead_s=lead_s)
        if ahead_s <= 0:
            return acpi()
        one.deadline_s = self.now_s + ahead_s + lead_s
        self.at(self.now_s + ahead_s, acpi)

    def alarm(self, one: Instance, seconds: float) -> None:
        """A false one."""
        if not one.alive or one.doomed:
            return
        one.preempted = True
        self.note("false alarm", instance=one.id, seconds=round(seconds, 3))
        self.at(self.now_s + seconds, lambda: None if one.doomed else self.calm(one))

    def calm(self, one: Instance) -> None:
        """What was announced was a false alarm."""
        if one.alive:
            one.preempted, one.doomed, one.deadline_s = False, False, None
            one.maintenance = "NONE"
            self.note("calmed", instance=one.id)

    def maintain(self, one: Instance, lead_s: float, terminate: bool) -> None:
        """Its host is maintained after so many seconds: it is moved, or ends."""
        what = "TERMINATE" if terminate else "MIGRATE"
        event = one.maintenance = f"{what}_ON_HOST_MAINTENANCE"
        launch = one.launch
        self.note("maintenance", instance=one.id, event_is=event, lead_s=lead_s)

        def due() -> None:
            if one.maintenance != event or one.launch != launch or not one.alive:
                return
            one.maintenance = "NONE"
            if not terminate:
                return void(self.event("compute.instances.migrateOnHostMaintenance", one))
            self.event("compute.instances.terminateOnHostMaintenance", one)
            self.end(one, "maintenance", forget=one.spec.spot and one.spec.on_end == "DELETE")
        self.at(self.now_s + lead_s, due)

    def host_error(self, one: Instance) -> None:
        """Its host fails: at once, and without a word."""
        if not one.alive:
            return
        self.event("compute.instances.hostError", one)
        restarts = one.spec.restarts and not one.spec.spot
        self.kill(one, "host error", forget=one.spec.spot and one.spec.on_end == "DELETE")
        if restarts:
            self.start(one, self.event("compute.instances.automaticRestart", one))

    def _plan_trouble(self, one: Instance) -> None:
        launch = one.launch
        for rate, spot, do in (
                (self.settings.false_alarms_per_hour, True,
                 lambda: self.alarm(one, self._scaled(FALSE_ALARM_S))),
                (self.settings.host_errors_per_hour, False, lambda: self.host_error(one))):
            if rate <= 0 or one.spec.spot != spot:
                continue
            wait_s = self.scaled(self.rng.expovariate(rate / 3600.0))

            def happen(do: Callable[[], None] = do) -> None:
                if one.launch == launch and one.alive:
                    do()
                    if one.spec.spot:
                        self._plan_trouble(one)
            self.at(self.now_s + wait_s, happen)

    def outage(self, zone: str, on: bool, lead_s: float) -> None:
        """A zone has nothing any more, on-demand instances included."""
        pools = [pool for pool in self.market.pools.values() if pool.zone == zone]
        if not pools:
            raise BadOrder(f"outage: there is no zone {zone!r}")
        self.note("outage" if on else "outage over", zone=zone)
        for pool in pools:
            pool.outage = on
        for one in list(self.instances.values()) if on else []:
            if one.zone == zone and one.spec.spot:
                self.preempt(one, lead_s, "outage")
            elif one.zone == zone and one.alive:
                self.event("compute.instances.hostError", one)
                self.kill(one, "host error", forget=False)

    # ---- what processes say ----

    def powered_off(self, instance: str) -> None:
        """The instance has shut itself down."""
        one = self.by_id.get(instance)
        if one is not None and one.alive:
            self.event("compute.instances.guestTerminate", one)
            self.end(one, "guest", forget=False)

    def lost(self, instance: str) -> None:
        """Somebody has killed what runs it."""
        one = self.by_id.get(instance)
        if one is not None:
            self.host_error(one)

    # ---- lists ----

    def shown(self) -> list[Instance]:
        """Instances that lists have, which lag behind; by zone and name."""
        self.gone = {id_: gone for id_, gone in self.gone.items() if gone[0] > self.now_s}
        found = [one for one in self.instances.values() if one.visible_s <= self.now_s]
        found += [one for _, one in self.gone.values()]
        return sorted(found, key=lambda one: one.key)


def void(_: object) -> None:
    """Where a value is not wanted."""


