"""One instance, or many at a time: checked first, then begun."""

from __future__ import annotations

import re
from typing import Any

from fakecloud.gce import catalog, placement, schema
from fakecloud.gce.cloud import Cloud
from fakecloud.gce.errors import (
    NotOffered,
    OpError,
    bad_request,
    exists,
    invalid,
    not_found,
    required,
)
from fakecloud.gce.instances import Instance, Spec
from fakecloud.gce.operations import Operation, Place
from fakecloud.gce.placement import Offer, Wish
from fakecloud.gce.specs import Draft, check_name, link, merge

COUNT_MAX = 5_000
SHAPES = ("ANY", "ANY_SINGLE_ZONE", "BALANCED")


def template_of(cloud: Cloud, text: str) -> tuple[dict[str, Any], str]:
    """Its properties and its path; nothing if there is none to be asked for."""
    if not text:
        return {}, ""
    project, rest = link(text, cloud.project)
    name = rest.removeprefix("global/instanceTemplates/")
    if project != cloud.project or name not in cloud.templates:
        raise not_found(f"projects/{project}/global/instanceTemplates/{name}")
    properties: dict[str, Any] = cloud.templates[name]["properties"]
    return properties, f"projects/{project}/global/instanceTemplates/{name}"


def insert(cloud: Cloud, zone: str, body: Any, query: dict[str, str], user: str) -> Operation:
    body = schema.check("Instance", body)
    properties, template = template_of(cloud, query.get("sourceInstanceTemplate", ""))
    name = check_name(body.get("name"), "resource.name")
    body = merge(body, properties)
    type_ = body.get("machineType") or ""
    if not type_:
        raise required("resource.machineType")
    of = re.search(r"zones/([^/]+)/machineTypes/", type_)
    if not properties and not of:
        raise invalid("resource.machineType", type_, "The URL is malformed.")
    if of and of.group(1) != zone:
        raise invalid("resource.machineType", type_, "The zone of the machine type does not match "
                      "the instance's.")
    spec = Draft(cloud, body, "resource", template).spec(name, zone, type_)
    if spec_exists(cloud, spec):
        raise exists(spec.path)
    operation = cloud.operation("insert", f"zones/{zone}", spec.path, user)
    refusal = cloud.quota_room(spec, cloud.used(spec.region))
    pool = cloud.market.pools[zone, spec.shape.name]
    if refusal is None and cloud.free(pool, spec.spot) < 1:
        refusal = cloud.no_room(zone, spec.type_name)
    if refusal is not None:
        refuse(cloud, operation, [refusal])
        return operation
    one = cloud.create(spec, operation)
    operation.target_id = one.id
    return operation


def spec_exists(cloud: Cloud, spec: Spec) -> bool:
    return (spec.zone, spec.name) in cloud.instances


def refuse(cloud: Cloud, operation: Operation, errors: list[OpError]) -> None:
    wait_s = cloud.settings.refuse_s.draw(cloud.rng)

    def end() -> None:
        for place in operation.places.values():
            place.status = "DONE"
        cloud.finish(operation, errors)
    cloud.at(cloud.now_s + wait_s, end)


# ---- many ----

def _numbered(pattern: str, count: int, taken: set[str]) -> list[str]:
    hashes = re.findall("#+", pattern)
    if len(hashes) != 1 or not re.fullmatch(r"[a-z][-a-z0-9]*#+[-a-z0-9]*", pattern):
        raise invalid("resource.namePattern", pattern, "A name pattern has one row of '#'.")
    width, names, number = len(hashes[0]), list[str](), 0
    while len(names) < count:
        number += 1
        if number >= 10 ** width:
            raise invalid("resource.namePattern", pattern, "There are too few names of this "
                          "pattern that are free.")
        name = pattern.replace(hashes[0], f"{number:0{width}d}")
        if name not in taken:
            names.append(check_name(name, "resource.namePattern"))
    return names


def names_of(cloud: Cloud, body: dict[str, Any], count: int, zones: list[str]) -> list[str]:
    each = body.get("perInstanceProperties") or {}
    taken = {name for zone, name in cloud.instances if zone in zones}
    if each:
        names = [check_name((one or {}).get("name") or key, "resource.perInstanceProperties")
                 for key, one in each.items()]
        if len(names) != count or body.get("namePattern"):
            raise bad_request("The number of names in perInstanceProperties must match the count, "
                              "and there must be no namePattern.")
        for name in names:
            if name in taken:
                zone = next(one for one in zones if (one, name) in cloud.instances)
                raise exists(f"projects/{cloud.project}/zones/{zone}/instances/{name}")
        return names
    if not body.get("namePattern"):
        raise required("resource.namePattern")
    return _numbered(body["namePattern"], count, taken)


def counts_of(body: dict[str, Any]) -> tuple[int, int]:
    count = int(body.get("count") or 0)
    least = int(body["minCount"]) if body.get("minCount") is not None else count
    if not 1 <= count <= COUNT_MAX:
        raise invalid("resource.count", count, f"Expected 1 to {COUNT_MAX}.")
    if not 1 <= least <= count:
        raise invalid("resource.minCount", least, "Expected 1 to the count.")
    return count, least


def types_of(body: dict[str, Any], properties: dict[str, Any]) -> list[tuple[int, str]]:
    """With their rank: those of the flexibility policy, or the one there is."""
    selections = (body.get("instanceFlexibilityPolicy") or {}).get("instanceSelections") or {}
    found = [(int((one or {}).get("rank") or 0), type_) for one in selections.values()
             for type_ in (one or {}).get("machineTypes") or []]
    if found:
        return sorted(set(found))
    type_ = properties.get("machineType") or ""
    if not type_:
        raise required("resource.instanceProperties.machineType")
    if "/" in type_:
        raise invalid("resource.instanceProperties.machineType", type_, "Expected a name, not a "
                      "URL.")
    return [(0, type_)]


def _zones_of(cloud: Cloud, region: str, body: dict[str, Any]) -> tuple[list[str], Wish]:
    policy, where = body.get("locationPolicy") or {}, "resource.locationPolicy"
    shape = policy.get("targetShape") or "ANY_SINGLE_ZONE"
    if shape not in SHAPES:
        raise invalid(f"{where}.targetShape", shape, f"Expected one of {', '.join(SHAPES)}.")
    own = [zone for zone in cloud.zones() if catalog.region_of(zone) == region]
    allowed, denied = set[str](), set[str]()
    most: dict[str, int] = {}
    for key, one in (policy.get("locations") or {}).items():
        zone, one = key.removeprefix("zones/"), one or {}
        if zone not in own or not key.startswith("zones/"):
            raise invalid(f"{where}.locations", key, "The location does not exist in the region.")
        preference = one.get("preference") or "ALLOW"
        if preference not in ("ALLOW", "DENY", "PREFERENCE_UNSPECIFIED"):
            raise invalid(f"{where}.locations.preference", preference, "Expected ALLOW or DENY.")
        (denied if preference == "DENY" else allowed).add(zone)
        if (one.get("constraints") or {}).get("maxCount"):
            most[zone] = int(one["constraints"]["maxCount"])
    zones = [zone for zone in own if zone not in denied and (not allowed or zone in allowed)]
    if not zones:
        raise invalid(f"{where}.locations", "", "No zone is left.")
    return zones, Wish(0, shape, most)


def bulk_insert(cloud: Cloud, scope: str, body: Any, user: str) -> Operation:
    """``scope``: of a zone or a region."""
    body = schema.check("BulkInsertInstanceResource", body)
    count, least = counts_of(body)
    properties, template = template_of(cloud, body.get("sourceInstanceTemplate") or "")
    properties = merge(body.get("instanceProperties") or {}, properties)
    if scope.startswith("zones/"):
        if body.get("locationPolicy"):
            raise invalid("resource.locationPolicy", "", "It is allowed in regional requests only.")
        zones, wish = [scope.removeprefix("zones/")], Wish(0)
    else:
        zones, wish = _zones_of(cloud, scope.removeprefix("regions/"), body)
    wish.count = count
    names = names_of(cloud, body, count, zones)
    draft = Draft(cloud, properties, "resource.instanceProperties", template)
    offers, specs = _offers(draft, zones, types_of(body, properties))
    operation = cloud.operation("bulkInsert", scope, f"projects/{cloud.project}/{scope}", user)
    operation.group, operation.least = cloud.new_number(), least
    _begin(cloud, operation, names, placement.place(offers, wish), specs, zones)
    return operation


def _offers(draft: Draft, zones: list[str],
            types: list[tuple[int, str]]) -> tuple[list[Offer], dict[tuple[str, str], Spec]]:
    """What there is, and what an instance there would be."""
    cloud, offers, specs = draft.cloud, list[Offer](), dict[tuple[str, str], Spec]()
    first: list[NotOffered] = []
    for rank, type_ in types:
        for zone in zones:
            try:
                spec = draft.spec("a", zone, type_)
            except NotOffered as error:
                first.append(error)
                continue
            pool = cloud.market.pools[zone, spec.shape.name]
            offers.append(Offer(zone, spec.shape, cloud.free(pool, spec.spot), rank))
            specs[zone, spec.shape.name] = spec
    if not offers:
        raise first[0]
    return offers, specs


def _begin(cloud: Cloud, operation: Operation, names: list[str], chosen: list[Offer],
           specs: dict[tuple[str, str], Spec], zones: list[str]) -> None:
    any_spec = next(iter(specs.values()))
    used, made = cloud.used(any_spec.region), list[Instance]()
    for name, offer in zip(names, chosen):
        spec = Spec(**{**vars(specs[offer.zone, offer.type.name]), "name": name})
        refusal = cloud.quota_room(spec, used)
        if refusal is not None:
            operation.refusals.append(refusal)
            break
        for metric, amount in catalog.quotas_of(spec.shape, spec.spot).items():
            used[metric] = used.get(metric, 0) + amount
        place = operation.places.setdefault(spec.zone, Place())
        place.target += 1
        made.append(cloud.create(spec, operation))
    short = len(names) - len(made)
    if short:
        where = next(iter(operation.places), zones[0])
        place = operation.places.setdefault(where, Place())
        place.target += short
        place.failed += short
        if not operation.refusals:
            operation.refusals.append(cloud.no_room(where, any_spec.type_name))
    if not made:
        few = OpError("VM_MIN_COUNT_NOT_REACHED", "Requested minimum count of "
                      f"{operation.least} VMs could not be created.", 503)
        refuse(cloud, operation, [few, *operation.refusals[:1]])


def insert_template(cloud: Cloud, body: Any, user: str) -> Operation:
    body = schema.check("InstanceTemplate", body)
    name = check_name(body.get("name"), "resource.name")
    path = f"projects/{cloud.project}/global/instanceTemplates/{name}"
    if name in cloud.templates:
        raise exists(path)
    properties = body.get("properties")
    if not properties:
        raise required("resource.properties")
    if not properties.get("machineType"):
        raise required("resource.properties.machineType")
    operation = cloud.operation("insert", "global", path, user)
    operation.target_id = cloud.new_number()
    cloud.templates[name] = {"id": operation.target_id, "made_s": cloud.now_s, "name": name,
                             "description": body.get("description") or "",
                             "properties": properties}
    cloud.finish_soon(operation)
    return operation
