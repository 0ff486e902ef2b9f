"""The cloud's state machine: time and requests go in, what is to be done with processes comes out.

It has no clock, thread, socket or process of its own: a test runs it under any time it likes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from fakecloud.ec2 import catalog
from fakecloud.ec2.errors import BadMarket, Ec2Error
from fakecloud.ec2.guards import Once, Throttle
from fakecloud.ec2.instances import Instance, LaunchSpec, Notice
from fakecloud.ec2.settings import Settings
from fakecloud.ec2.sigv4 import Key
from fakecloud.ledger import Entry
from fakecloud.markets import Market, Pool
from fakecloud.timeline import Effect, Timeline, loopback_address

INSTANCES_MAX = 20_000      # That are listed at a time.
FALSE_ALARM_S = 120.0       # For so long one is shown.
DEFAULT_KEY = Key("AKIAFAKECLOUD0000001", "fakecloud/not/a/secret/key/0000000000000")


@dataclass
class Budget:
    """What quotas leave."""

    vcpus: int
    instances: int

    def fits(self, pool: Pool) -> int:
        return max(0, min(self.instances, self.vcpus // pool.type.vcpus))

    def take(self, pool: Pool, count: int) -> None:
        self.vcpus -= count * pool.type.vcpus
        self.instances -= count


class Cloud(Timeline):
    def __init__(self, market: Market, settings: Optional[Settings] = None, seed: int = 0,
                 now_s: float = 0.0, keys: Optional[list[Key]] = None) -> None:
        self.settings = settings or Settings()
        super().__init__(market, self.settings.speed, seed, now_s)
        self._ids = random.Random(f"ids of {seed}")
        self.keys = {key.id: key for key in keys or [Key(**vars(DEFAULT_KEY))]}
        self.denied: set[str] = set()
        self.refusals: list[tuple[str, str, str, int]] = []  # Action, code, message, how often.
        self.throttle, self.once = Throttle(), Once()
        self.instances: dict[str, Instance] = {}
        self.templates: dict[str, Any] = {}
        self.fleets: dict[str, Any] = {}
        self.console_of: Callable[[str], bytes] = lambda instance: b""  # Who has files sets it.
        self._addresses = itertools.count(1)

    def new_id(self, kind: str) -> str:
        return f"{kind}-{self._ids.getrandbits(68):017x}"

    # ---- room ----

    def _alive(self, region: str, spot: bool) -> list[Instance]:
        return [one for one in self.instances.values()
                if one.alive and one.spec.spot == spot and one.region == region]

    def free(self, pool: Pool, spot: bool) -> int:
        used = sum(1 for one in self.instances.values()
                   if one.holds_place() and one.spec.spot == spot
                   and (one.zone, one.spec.type.name) == pool.key)
        capacity = pool.capacity if spot else (
            0 if pool.outage else self.settings.on_demand_capacity)
        return max(0, capacity - used)

    def limits(self, region: str, spot: bool) -> Budget:
        """What the quotas of a region leave."""
        alive = self._alive(region, spot)
        vcpus = self.settings.spot_vcpus if spot else self.settings.on_demand_vcpus
        instances = INSTANCES_MAX - len(self.instances)
        if spot:
            instances = min(instances, self.settings.spot_instances - len(alive))
        return Budget(vcpus - sum(one.spec.type.vcpus for one in alive), instances)

    def price_refusal(self, pool: Pool, max_price: Optional[float]) -> Optional[Ec2Error]:
        """Of a spot request that offers too little."""
        if max_price is None or max_price >= pool.price:
            return None
        return Ec2Error("SpotMaxPriceTooLow",
                        f"Your Spot request price of {max_price:g} is lower than the minimum "
                        f"required Spot request fulfillment price of {pool.price:g}.")

    def quota_refusal(self, spot: bool) -> Ec2Error:
        if spot:
            return Ec2Error("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
        return Ec2Error(
            "VcpuLimitExceeded",
            "You have requested more vCPU capacity than your current vCPU limit of "
            f"{self.settings.on_demand_vcpus} allows for the instance bucket that the specified "
            "instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request "
            "to request an adjustment to this limit.")

    def room(self, pool: Pool, spot: bool, max_price: Optional[float]) -> tuple[int, Ec2Error]:
        """How many may be launched here, and why not more."""
        dear = self.price_refusal(pool, max_price) if spot else None
        if dear is not None:
            return 0, dear
        quota = self.limits(catalog.region_of(pool.zone), spot).fits(pool)
        free = self.free(pool, spot)
        if quota < free:
            return quota, self.quota_refusal(spot)
        return free, self.no_capacity(pool, spot)

    def no_capacity(self, pool: Pool, spot: bool) -> Ec2Error:
        if spot:
            return Ec2Error("InsufficientInstanceCapacity",
                            "There is no Spot capacity available that matches your request.")
        others = [zone for zone in self.market.zones(catalog.region_of(pool.zone))
                  if zone != pool.zone and (zone, pool.type.name) in self.market.pools]
        advice = f" or choosing {', '.join(others)}" if others else ""
        return Ec2Error(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient {pool.type.name} capacity in the Availability "
            f"Zone you requested ({pool.zone}). Our system will be working on provisioning "
            f"additional capacity. You can currently get {pool.type.name} capacity by not "
            f"specifying an Availability Zone in your request{advice}.")

    # ---- lives ----

    def launch(self, spec: LaunchSpec, count: int) -> list[Instance]:
        """There is room for them."""
        reservation = self.new_id("r")
        return [self._launch_one(spec, reservation, index) for index in range(count)]

    def _launch_one(self, spec: LaunchSpec, reservation: str, index: int) -> Instance:
        number = next(self._addresses)
        address = loopback_address(number)
        lag_s = self.settings.lag_s.draw(self.rng)
        one = Instance(self.new_id("i"), reservation, index, spec, self.now_s, self.now_s + lag_s,
                       address, number, self.new_id("sir")[:12] if spec.spot else "",
                       tags=dict(spec.tags.get("instance", {})))
        if spec.template:
            one.tags["aws:ec2launchtemplate:id"] = spec.template
            one.tags["aws:ec2launchtemplate:version"] = str(spec.template_version)
        if spec.fleet:
            one.tags["aws:ec2:fleet-id"] = spec.fleet
        self.instances[one.id] = one
        self.effects.append(Effect("create", one.id))
        pool = self.market.pools[spec.zone, spec.type.name]
        self.note("launched", instance=one.id, market=one.market, zone=one.zone,
                  type=spec.type.name, fleet=spec.fleet or None, price=pool.price if spec.spot
                  else spec.type.on_demand)
        launch_s = self.settings.launch_s.draw(self.rng)
        if self.rng.random() < self.settings.late_refusal_share:
            self.at(self.now_s + launch_s / 2,
                    lambda: self.kill(one, "Server.InsufficientInstanceCapacity"))
        self.at(self.now_s + launch_s, lambda: self._run(one))
        return one

    def _run(self, one: Instance) -> None:
        if one.state != "pending":
            return
        one.state, one.began_s = "running", self.now_s
        pool = self.market.pools[one.zone, one.spec.type.name]
        price = pool.price if one.spec.spot else one.spec.type.on_demand
        self.ledger.begin(Entry(one.id, one.market, one.zone, one.spec.type.name, price,
                                self.market_s()))
        self.note("running", instance=one.id)
        self.effects.append(Effect("boot", one.id))
        self._plan_false_alarm(one)

    def terminate(self, one: Instance, reason: str = "Client.UserInitiatedShutdown",
                  to: str = "terminated") -> None:
        """As its user wants it: processes have ``shutdown_s`` to end."""
        if one.state == "stopped" and to == "terminated":
            one.leave("terminated", reason, self.now_s)
            return self._forget_later(one)
        if not one.alive:
            return
        one.leave("shutting-down" if to == "terminated" else "stopping", reason,
                  self.now_s + self.shift_s)
        one.notice = None
        self.ledger.end(one.id, self.market_s(), self.settings.min_billed_s)
        self.note("shutting-down", instance=one.id, reason=reason)
        self.effects.append(Effect("soft", one.id))
        self.at(self.now_s + self.settings.shutdown_s.draw(self.rng), lambda: self._ended(one, to))

    def kill(self, one: Instance, reason: str) -> None:
        """At once."""
        if not one.alive:
            return
        one.leave("terminated", reason, self.now_s + self.shift_s)
        one.notice = None
        self.ledger.end(one.id, self.market_s(), self.settings.min_billed_s)
        self._ended(one, "terminated")

    def _ended(self, one: Instance, state: str) -> None:
        one.state = state
        self.note("killed", instance=one.id, state=state, reason=one.reason)
        self.effects.append(Effect("kill", one.id))
        if state == "terminated":
            self._forget_later(one)

    def _forget_later(self, one: Instance) -> None:
        def forget() -> None:
            self.instances.pop(one.id, None)
            self.effects.append(Effect("forget", one.id))
        self.at(self.now_s + self.settings.listed_s, forget)

    # ---- the market takes back ----

    def changed(self, pool: Pool) -> None:
        """Its capacity or price is another one now."""
        self.ledger.reprice(pool.zone, pool.type.name, pool.price, self.market_s())
        pool.note_price(self.now_s)
        held = [one for one in self.instances.values() if one.holds_place() and one.spec.spot
                and (one.zone, one.spec.type.name) == pool.key]
        outbid = [one for one in held
                  if one.spec.max_price is not None and one.spec.max_price < pool.price]
        held = [one for one in held if one not in outbid]
        over = len(held) - pool.capacity
        chosen = self.rng.sample(held, over) if over > 0 else []
        for one in outbid:
            self.interrupt(one, why="price")
        for one in chosen:
            self.interrupt(one, why="capacity")

    def _scaled(self, seconds: float) -> float:
        return self.scaled(seconds) if self.settings.lead_scaled else seconds

    def interrupt(self, one: Instance, lead_s: Optional[float] = None, why: str = "order") -> None:
        """With a lead of so many seconds, or of one that is drawn, and then perhaps a rebalance
        recommendation before it."""
        if not one.alive:
            return
        one.doomed = True
        if lead_s is None:
            lead_s = self._scaled(self.settings.lead_s.draw(self.rng))
            if self.rng.random() < self.settings.rebalance_share:
                ahead_s = self._scaled(self.settings.rebalance_ahead_s.draw(self.rng))
                self.recommend(one)
                self.at(self.now_s + ahead_s, lambda: self._notify(one, lead_s, why))
                return
        self._notify(one, lead_s, why)

    def _notify(self, one: Instance, lead_s: float, why: str) -> None:
        if not one.alive or not one.doomed:
            return
        self.note("interrupted", instance=one.id, zone=one.zone, type=one.spec.type.name,
                  lead_s=round(lead_s, 3), why=why)
        if lead_s <= 0:
            return self.kill(one, "Server.SpotInstanceTermination")
        notice = one.notice = Notice(self.now_s + lead_s)
        self.effects.append(Effect("notice", one.id, notice.deadline_s))

        def end() -> None:
            if one.notice is notice:
                self.kill(one, "Server.SpotInstanceTermination")
        self.at(notice.deadline_s, end)

    def recommend(self, one: Instance) -> None:
        if one.alive:
            one.rebalance = True
            self.note("rebalance", instance=one.id)
            self.effects.append(Effect("rebalance", one.id))

    def calm(self, one: Instance) -> None:
        """What was announced was a false alarm. Until the market changes again, the instance may
        be one more than there is room for."""
        if one.alive:
            one.notice, one.doomed, one.rebalance = None, False, False
            self.note("calmed", instance=one.id)
            self.effects.append(Effect("calm", one.id))

    def _plan_false_alarm(self, one: Instance) -> None:
        rate = self.settings.false_alarms_per_hour * self.clock.speed / 3600.0
        if rate <= 0 or not one.spec.spot:
            return

        def alarm() -> None:
            if not one.alive:
                return
            if not one.doomed:
                self.recommend(one)
                self.at(self.now_s + self._scaled(FALSE_ALARM_S),
                        lambda: None if one.doomed else self.calm(one))
            self._plan_false_alarm(one)
        self.at(self.now_s + self.rng.expovariate(rate), alarm)

    def outage(self, zone: str, on: bool, lead_s: float) -> None:
        """A zone has nothing any more, on-demand instances included."""
        pools = [pool for pool in self.market.pools.values() if pool.zone == zone]
        if not pools:
            raise BadMarket(f"there is no zone {zone!r}")
        self.note("outage" if on else "outage over", zone=zone)
        for pool in pools:
            pool.outage = on
        if not on:
            return
        for one in list(self.instances.values()):
            if one.zone == zone and one.spec.spot:
                self.interrupt(one, lead_s, "outage")
            elif one.zone == zone:
                self.kill(one, "Server.InternalError")

    # ---- what processes say ----

    def powered_off(self, instance: str) -> None:
        """The instance has shut itself down."""
        one = self.instances.get(instance)
        if one is not None and one.alive:
            ends = one.spec.spot or one.spec.terminate_on_shutdown
            self.terminate(one, "Client.InstanceInitiatedShutdown",
                           "terminated" if ends else "stopped")

    def lost(self, instance: str) -> None:
        """Somebody has killed what runs it."""
        one = self.instances.get(instance)
        if one is not None:
            self.kill(one, "Server.InternalError")
