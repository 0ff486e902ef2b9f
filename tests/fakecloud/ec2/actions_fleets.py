"""Fleets of type ``instant``: one request, several pools, and an error for each that has failed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.ec2 import allocation, launching, templates
from fakecloud.ec2.allocation import Offer, Plan, Request
from fakecloud.ec2.call import Call, passes, tag_set
from fakecloud.ec2.errors import Ec2Error, missing
from fakecloud.ec2.forms import Form
from fakecloud.ec2.launching import Wanted
from fakecloud.ec2.markup import stamp

FLEETS_MAX = 10_000
CONFIGS_MAX, OVERRIDES_MAX = 50, 300


@dataclass
class Override:
    """A line of the request with the template it belongs to; ``echo``: as replies repeat it."""

    wanted: Wanted
    echo: dict[str, Any]
    offers: list[Offer] = field(default_factory=list)
    refusal: Optional[Ec2Error] = None


@dataclass
class Fleet:
    id: str
    region: str
    created_s: float
    token: str
    target: dict[str, Any]
    instances: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    units: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


def _overrides(call: Call) -> list[Override]:
    found: list[Override] = []
    configs = call.form.parts("LaunchTemplateConfigs")
    if not configs:
        raise missing("LaunchTemplateConfigs")
    if len(configs) > CONFIGS_MAX:
        raise Ec2Error("InvalidFleetConfig", f"A fleet has at most {CONFIGS_MAX} configurations")
    for config in configs:
        spec = config.part("LaunchTemplateSpecification")
        if not spec.tree:
            raise missing(spec.path)
        spec.ignore("LaunchTemplateSpecificationUserData")
        resolved = templates.resolve(call, spec)
        assert resolved is not None
        template, version = resolved
        base = launching.read(call, Form(version.data, "LaunchTemplateData"), template.id,
                              version.number)
        echo = {"launchTemplateId": template.id, "version": str(version.number)}
        overrides = config.parts("Overrides") or [Form({}, config.name("Overrides"))]
        found += [_override(call, one, base, echo) for one in overrides]
    if len(found) > OVERRIDES_MAX:
        raise Ec2Error("InvalidFleetConfig", f"A fleet has at most {OVERRIDES_MAX} overrides")
    return found


def _override(call: Call, form: Form, base: Wanted, template: dict[str, Any]) -> Override:
    if "InstanceRequirements" in form:
        raise Ec2Error("Unsupported", "This cloud knows types by name, not InstanceRequirements")
    type_name = form.text("InstanceType", base.type_name)
    launching.type_named(call, type_name)
    placement = form.part("Placement")
    placement.ignore("Tenancy", "GroupName")
    zone = form.text("AvailabilityZone", placement.text("AvailabilityZone", ""))
    zone = launching.zone_of(call, form, zone) or base.zone
    max_price, weight = launching.price_of(form, "MaxPrice"), form.number("WeightedCapacity", 1.0)
    if weight is None or weight <= 0:
        raise Ec2Error("InvalidFleetConfig", "WeightedCapacity is to be more than 0")
    priority = form.number("Priority", math.inf)
    echo = {"launchTemplateSpecification": template, "overrides": {
        "instanceType": type_name, "maxPrice": form.text("MaxPrice", "") or None,
        "subnetId": form.text("SubnetId", "") or None, "availabilityZone": zone or None,
        "weightedCapacity": weight if "WeightedCapacity" in form else None,
        "priority": priority if "Priority" in form else None}}
    one = Override(base, echo)
    try:
        pools = launching.pools_for(call, type_name, zone)
    except Ec2Error as error:
        one.refusal = Ec2Error("InvalidFleetConfiguration", error.message)
        return one
    bid = base.spec.max_price if max_price is None else max_price
    one.offers = [Offer(pool, 0, 0.0, weight, priority if priority is not None else math.inf, bid)
                  for pool in pools]
    return one


def _request(call: Call, key: str, strategies: tuple[str, ...]) -> tuple[Request, float]:
    """How one market is asked, and the least that is to be had of it."""
    form = call.form.part(key)
    request = Request(0.0, form.choice("AllocationStrategy", strategies, strategies[0]))
    request.single_type = form.flag("SingleInstanceType")
    request.single_zone = form.flag("SingleAvailabilityZone")
    least = form.integer("MinTargetCapacity", 0)
    if least and not (request.single_type or request.single_zone):
        raise Ec2Error("InvalidFleetConfig", f"{key}.MinTargetCapacity needs SingleInstanceType or "
                       "SingleAvailabilityZone")
    request.max_total_price = launching.price_of(form, "MaxTotalPrice")
    if key == "SpotOptions":
        request.pools = form.integer("InstancePoolsToUseCount", 1, 1)
        form.choice("InstanceInterruptionBehavior", ("terminate",), "terminate")
        form.ignore("MaintenanceStrategies")
    else:
        form.ignore("CapacityReservationOptions")
    return request, least


def _targets(call: Call) -> dict[str, Any]:
    form = call.form.part("TargetCapacitySpecification")
    if not form.tree:
        raise missing("TargetCapacitySpecification")
    total = form.integer("TotalTargetCapacity", least=0, most=10_000)
    kind = form.choice("DefaultTargetCapacityType", ("spot", "on-demand"), "on-demand")
    units = form.choice("TargetCapacityUnitType", ("units",), "units")
    spot = form.integer("SpotTargetCapacity", 0, most=10_000)
    on_demand = form.integer("OnDemandTargetCapacity", 0, most=10_000)
    if spot + on_demand > total:
        raise Ec2Error("InvalidTargetCapacitySpecification",
                       "SpotTargetCapacity and OnDemandTargetCapacity are more than "
                       "TotalTargetCapacity")
    rest = total - spot - on_demand
    return {"totalTargetCapacity": total, "defaultTargetCapacityType": kind,
            "onDemandTargetCapacity": on_demand + (rest if kind == "on-demand" else 0),
            "spotTargetCapacity": spot + (rest if kind == "spot" else 0),
            "targetCapacityUnitType": units}


class _Launch:
    """One market's share of a fleet."""

    def __init__(self, call: Call, fleet: Fleet, spot: bool) -> None:
        self.call, self.fleet, self.spot = call, fleet, spot
        self.lifecycle = "spot" if spot else "on-demand"

    def fail(self, override: Override, error: Ec2Error) -> None:
        row = {"launchTemplateAndOverrides": override.echo, "lifecycle": self.lifecycle,
               "errorCode": error.code, "errorMessage": error.message}
        if row in self.fleet.errors:
            return
        self.fleet.errors.append(row)
        self.call.cloud.note("refused", code=error.code, fleet=self.fleet.id,
                             market="spot" if self.spot else "on_demand",
                             **{key[:4]: override.echo["overrides"][name] for key, name in (
                                 ("zone", "availabilityZone"), ("type", "instanceType"))})

    def _price(self, offer: Offer) -> None:
        offer.price = offer.pool.price if self.spot else offer.pool.type.on_demand
        offer.refusal = self.call.cloud.price_refusal(offer.pool, offer.max_price) if (
            self.spot) else None

    def _lack(self, offer: Offer, quota: bool, strategy: str) -> Ec2Error:
        if quota:
            return self.call.cloud.quota_refusal(self.spot)
        if self.spot and strategy not in ("lowest-price", "diversified"):
            return self.unfulfillable()
        return self.call.cloud.no_capacity(offer.pool, self.spot)

    @staticmethod
    def unfulfillable() -> Ec2Error:
        return Ec2Error("UnfulfillableCapacity",
                        "Unable to fulfill capacity due to your request configuration. Please "
                        "adjust your request and try again.")

    def run(self, request: Request, least: float, overrides: list[Override]) -> None:
        cloud, owner = self.call.cloud, {}
        for override in overrides:
            for offer in override.offers:
                owner[offer] = override
                offer.order = len(owner)
                self._price(offer)
        offers = list(owner)
        free = {offer.pool.key: cloud.free(offer.pool, self.spot) for offer in offers}
        plan = allocation.allocate(request, offers, free,
                                   cloud.limits(self.call.region, self.spot))
        short = plan.units < request.units - 1e-9
        if short or request.strategy == "lowest-price":
            self._tell_refusals(overrides)
        for offer, quota in plan.failed.items():
            self.fail(owner[offer], self._lack(offer, quota, request.strategy))
        if plan.units < least or (short and not plan.failed and not self.fleet.errors):
            for override in overrides:
                self.fail(override, self.unfulfillable())
        if plan.units >= least:
            self._launch(plan, owner)

    def _tell_refusals(self, overrides: list[Override]) -> None:
        for override in overrides:
            if override.refusal is not None:
                self.fail(override, override.refusal)
            refused = [one.refusal for one in override.offers if one.refusal is not None]
            if refused and len(refused) == len(override.offers):
                self.fail(override, refused[0])

    def _launch(self, plan: Plan, owner: dict[Offer, Override]) -> None:
        for offer, count in plan.chosen.items():
            override = owner[offer]
            spec = override.wanted.at(offer.pool, spot=self.spot, max_price=offer.max_price if (
                self.spot) else None, fleet=self.fleet.id, tags=self._tags(override))
            made = self.call.cloud.launch(spec, count)
            echo = {**override.echo, "overrides": {
                **override.echo["overrides"], "availabilityZone": offer.pool.zone}}
            self.fleet.instances.append({
                "launchTemplateAndOverrides": echo, "lifecycle": self.lifecycle,
                "instanceIds": [one.id for one in made], "instanceType": offer.pool.type.name})
            for one in made:
                self.fleet.units[one.id] = offer.weight

    def _tags(self, override: Override) -> dict[str, dict[str, str]]:
        own = self.call.tags(Form(self.call.form.tree)).get("instance", {})
        kinds = override.wanted.spec.tags
        return {**kinds, "instance": {**kinds.get("instance", {}), **own}}


def create(call: Call) -> dict[str, Any]:
    kind = call.form.text("Type", "maintain")
    if kind != "instant":
        raise Ec2Error("Unsupported", f"This cloud has fleets of type instant, not {kind[:80]}")
    target = _targets(call)
    spot = _request(call, "SpotOptions", allocation.SPOT_STRATEGIES)
    on_demand = _request(call, "OnDemandOptions", allocation.ON_DEMAND_STRATEGIES)
    spot[0].units = float(target["spotTargetCapacity"])
    on_demand[0].units = float(target["onDemandTargetCapacity"])
    overrides = _overrides(call)
    tags = call.tags(call.form).get("fleet", {})
    call.form.ignore("ExcessCapacityTerminationPolicy", "TerminateInstancesWithExpiration",
                     "ValidFrom", "ValidUntil", "ReplaceUnhealthyInstances", "Context")
    call.ready()

    def make() -> Fleet:
        cloud = call.cloud
        fleet = Fleet(cloud.new_id("fleet"), call.region, cloud.now_s, call.token, target,
                      tags=tags)
        for is_spot, (request, least) in ((False, on_demand), (True, spot)):
            if request.units > 0:
                _Launch(call, fleet, is_spot).run(request, least, overrides)
        cloud.fleets[fleet.id] = fleet
        while len(cloud.fleets) > FLEETS_MAX:
            cloud.fleets.pop(next(iter(cloud.fleets)))
        return fleet
    fleet = call.once(make)
    return {"fleetId": fleet.id, "errorSet": fleet.errors, "fleetInstanceSet": fleet.instances}


def _fulfilled(call: Call, fleet: Fleet, spot: Optional[bool] = None) -> float:
    alive = (call.cloud.instances.get(one) for one in fleet.units)
    return sum(fleet.units[one.id] for one in alive
               if one is not None and one.alive and spot in (None, one.spec.spot))


def describe(call: Call) -> dict[str, Any]:
    ids = call.form.texts("FleetId")
    filters = call.filters(("fleet-state", "type", "activity-status", "tag:", "tag-key"))
    mine = {one.id: one for one in call.cloud.fleets.values() if one.region == call.region}
    for id_ in ids:
        if id_ not in mine:
            raise Ec2Error("InvalidFleetId.NotFound", f"The fleet ID '{id_[:80]}' does not exist")
    found = [one for one in mine.values() if (not ids or one.id in ids) and passes(filters, {
        "fleet-state": "active", "type": "instant", "activity-status": "fulfilled"}, one.tags)]
    page, token = call.page(found, 1000, 1000, 1)
    call.ready()
    rows = [{"fleetId": one.id, "fleetState": "active", "type": "instant",
             "createTime": stamp(one.created_s + call.cloud.shift_s), "clientToken": one.token,
             "activityStatus": "fulfilled" if not one.errors else "error",
             "fulfilledCapacity": _fulfilled(call, one),
             "fulfilledOnDemandCapacity": _fulfilled(call, one, False),
             "targetCapacitySpecification": one.target, "tagSet": tag_set(one.tags),
             "errorSet": one.errors, "fleetInstanceSet": one.instances} for one in page]
    return {"fleetSet": rows, "nextToken": token}


def describe_instances(call: Call) -> dict[str, Any]:
    id_ = call.form.text("FleetId")
    filters = call.filters(("instance-type",))
    fleet = call.cloud.fleets.get(id_)
    if fleet is None or fleet.region != call.region:
        raise Ec2Error("InvalidFleetId.NotFound", f"The fleet ID '{id_[:80]}' does not exist")
    found = [one for one in call.seen() if one.id in fleet.units and one.alive and passes(
        filters, {"instance-type": one.spec.type.name}, one.tags)]
    page, token = call.page(found, 1000, 1000, 1)
    call.ready()
    return {"activeInstanceSet": [
        {"instanceId": one.id, "instanceType": one.spec.type.name,
         "spotInstanceRequestId": one.spot_request or None, "instanceHealth": "healthy"}
        for one in page], "fleetId": fleet.id, "nextToken": token}
