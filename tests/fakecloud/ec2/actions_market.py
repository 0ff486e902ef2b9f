"""The actions that only tell: zones, regions, types and prices."""

from __future__ import annotations

import calendar
import re
import time
from typing import Any, Optional

from fakecloud.ec2 import catalog
from fakecloud.ec2.call import Call, matches, passes
from fakecloud.ec2.catalog import InstanceType
from fakecloud.ec2.errors import Ec2Error, bad_value
from fakecloud.ec2.market import Priced
from fakecloud.ec2.markup import stamp

PRODUCT = "Linux/UNIX"
PRODUCTS = (PRODUCT, "Linux/UNIX (Amazon VPC)", "Windows", "Windows (Amazon VPC)", "SUSE Linux",
            "SUSE Linux (Amazon VPC)", "Red Hat Enterprise Linux",
            "Red Hat Enterprise Linux (Amazon VPC)")


def zones(call: Call) -> dict[str, Any]:
    names, ids = call.form.texts("ZoneName"), call.form.texts("ZoneId")
    filters = call.filters(("zone-name", "zone-id", "region-name", "state", "zone-type",
                            "group-name", "opt-in-status"))
    call.form.ignore("AllAvailabilityZones")
    call.ready()
    known = call.cloud.market.zones(call.region)
    for name in names:
        if name not in known:
            raise Ec2Error("InvalidParameterValue", f"Invalid availability zone: [{name[:80]}]")
    out = {pool.zone for pool in call.cloud.market.pools.values() if pool.outage}
    rows: list[dict[str, Any]] = [
            {"zoneName": one, "zoneState": "unavailable" if one in out else "available",
             "regionName": call.region, "zoneId": catalog.zone_id(one),
             "optInStatus": "opt-in-not-required", "groupName": call.region + "-zg-1",
             "networkBorderGroup": call.region, "zoneType": "availability-zone", "messageSet": []}
            for one in known if (not names or one in names)
            and (not ids or catalog.zone_id(one) in ids)]
    keys = {"zone-name": "zoneName", "zone-id": "zoneId", "region-name": "regionName",
            "state": "zoneState", "zone-type": "zoneType", "group-name": "groupName",
            "opt-in-status": "optInStatus"}
    return {"availabilityZoneInfo": [row for row in rows if passes(
        filters, {name: str(row[key]) for name, key in keys.items()}, {})]}


def regions(call: Call) -> dict[str, Any]:
    names = call.form.texts("RegionName")
    filters = call.filters(("region-name", "endpoint", "opt-in-status"))
    call.form.ignore("AllRegions")
    call.ready()
    known = call.cloud.market.regions()
    for name in names:
        if name not in known:
            raise bad_value("RegionName", name[:80], "There is no such region.")
    rows = [{"regionName": one, "regionEndpoint": f"ec2.{one}.amazonaws.com",
             "optInStatus": "opt-in-not-required"} for one in known if not names or one in names]
    return {"regionInfo": [row for row in rows if passes(filters, {
        "region-name": row["regionName"], "endpoint": row["regionEndpoint"],
        "opt-in-status": row["optInStatus"]}, {})]}


def _offered(call: Call) -> dict[str, InstanceType]:
    """Types of this region."""
    here = call.cloud.market.zones(call.region)
    return {pool.type.name: pool.type for pool in call.cloud.market.pools.values()
            if pool.zone in here}


def _type_xml(one: InstanceType) -> dict[str, Any]:
    gpus = {"gpus": [{"name": one.gpu, "manufacturer": "NVIDIA", "count": one.gpus,
                      "memoryInfo": {"sizeInMiB": one.gpu_mib}}],
            "totalGpuMemoryInMiB": one.gpus * one.gpu_mib} if one.gpus else None
    return {"instanceType": one.name, "currentGeneration": True, "freeTierEligible": False,
            "supportedUsageClasses": ["on-demand", "spot"], "supportedRootDeviceTypes": ["ebs"],
            "supportedVirtualizationTypes": ["hvm"], "bareMetal": False, "hypervisor": "nitro",
            "processorInfo": {"supportedArchitectures": ["x86_64"],
                              "sustainedClockSpeedInGhz": 3.1},
            "vCpuInfo": {"defaultVCpus": one.vcpus, "defaultCores": max(1, one.vcpus // 2),
                         "defaultThreadsPerCore": min(2, one.vcpus)},
            "memoryInfo": {"sizeInMiB": one.memory_mib}, "gpuInfo": gpus,
            "instanceStorageSupported": False, "hibernationSupported": False}


def types(call: Call) -> dict[str, Any]:
    names = call.form.texts("InstanceType")
    filters = call.filters(("instance-type", "vcpu-info.default-vcpus", "memory-info.size-in-mib",
                            "current-generation", "supported-usage-class",
                            "processor-info.supported-architecture"))
    if len(names) > 100:
        raise bad_value("InstanceType", len(names), "At most 100 types are asked for at a time.")
    offered = _offered(call)
    wrong = [name[:80] for name in names if name not in offered]
    if wrong:
        raise Ec2Error("InvalidInstanceType",
                       f"The following supplied instance types do not exist: [{', '.join(wrong)}]")
    found = [offered[name] for name in sorted(offered) if (not names or name in names) and passes(
        filters, {"instance-type": name, "current-generation": "true",
                  "vcpu-info.default-vcpus": str(offered[name].vcpus),
                  "memory-info.size-in-mib": str(offered[name].memory_mib),
                  "supported-usage-class": "spot",
                  "processor-info.supported-architecture": "x86_64"}, {})]
    page, token = call.page(found, 100, 100)
    call.ready()
    return {"instanceTypeSet": [_type_xml(one) for one in page], "nextToken": token}


def offerings(call: Call) -> dict[str, Any]:
    place = call.form.choice("LocationType", ("region", "availability-zone",
                                              "availability-zone-id"), "region")
    filters = call.filters(("instance-type", "location"))
    here = call.cloud.market.zones(call.region)
    rows = set()
    for pool in call.cloud.market.pools.values():
        if pool.zone in here:
            location = {"region": call.region, "availability-zone": pool.zone,
                        "availability-zone-id": catalog.zone_id(pool.zone)}[place]
            rows.add((pool.type.name, location))
    found = [row for row in sorted(rows)
             if passes(filters, {"instance-type": row[0], "location": row[1]}, {})]
    page, token = call.page(found, 1000, 1000)
    call.ready()
    return {"instanceTypeOfferingSet": [
        {"instanceType": type_, "locationType": place, "location": location}
        for type_, location in page], "nextToken": token}


def _time(call: Call, key: str) -> Optional[float]:
    text = call.form.text(key, "")
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?"
                         r"(?:Z|\+00:00)?", text)
    try:
        if match is None:
            raise ValueError
        whole = calendar.timegm(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        raise bad_value(key, text[:80], "Expected a time such as 2026-01-31T23:59:59Z.") from None
    return whole + float(match.group(2) or 0)


def _between(history: list[Priced], start: Optional[float], end: Optional[float],
             now_s: float) -> list[Priced]:
    """Changes of that time, with the price that was there when it began. None: now."""
    start = now_s if start is None else start
    end = now_s if end is None else end
    before = [one for one in history if one.wall_s <= start]
    return [*before[-1:], *(one for one in history if start < one.wall_s <= end)]


def prices(call: Call) -> dict[str, Any]:
    names, products = call.form.texts("InstanceType"), call.form.texts("ProductDescription")
    zone = call.form.text("AvailabilityZone", "")
    filters = call.filters(("availability-zone", "instance-type", "product-description",
                            "spot-price", "timestamp"))
    shift_s, now_s = call.cloud.shift_s, call.cloud.now_s
    start, end = _time(call, "StartTime"), _time(call, "EndTime")
    for name in names:
        if name not in call.cloud.market.types:
            raise Ec2Error("InvalidParameterValue",
                           f"Invalid value '{name[:80]}' for InstanceType.")
    for product in products:
        if product not in PRODUCTS:
            raise bad_value("ProductDescription", product[:80], "There is no such product.")
    here = call.cloud.market.zones(call.region)
    if zone and zone not in here:
        raise Ec2Error("InvalidParameterValue", f"Invalid availability zone: [{zone[:80]}]")
    asked = not products or matches(PRODUCT, products) or PRODUCTS[1] in products
    found: list[tuple[float, dict[str, Any]]] = []
    for pool in call.cloud.market.pools.values():
        if not asked or pool.zone not in here or (zone and pool.zone != zone) or (
                names and pool.type.name not in names):
            continue
        for one in _between(list(pool.history), None if start is None else start - shift_s,
                            None if end is None else end - shift_s, now_s):
            row = {"instanceType": pool.type.name, "productDescription": PRODUCT,
                   "spotPrice": f"{one.price:.6f}", "timestamp": stamp(one.wall_s + shift_s),
                   "availabilityZone": pool.zone}
            if passes(filters, {"availability-zone": pool.zone, "instance-type": pool.type.name,
                                "product-description": PRODUCT, "spot-price": row["spotPrice"],
                                "timestamp": row["timestamp"]}, {}):
                found.append((-one.wall_s, row))
    # The newest first; by the exact time, of which replies have only the seconds.
    found.sort(key=lambda one: (one[0], one[1]["availabilityZone"], one[1]["instanceType"]))
    page, token = call.page([row for _, row in found], 1000, 1000, 1)
    call.ready()
    return {"nextToken": token or "", "spotPriceHistorySet": page}
