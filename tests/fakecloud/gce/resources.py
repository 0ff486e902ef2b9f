"""What is only read: the project, its places, machine types, images, networks and templates."""

from __future__ import annotations

from typing import Any

from fakecloud.catalogs import InstanceType
from fakecloud.gce import catalog, lists
from fakecloud.gce.cloud import Cloud
from fakecloud.gce.errors import not_found
from fakecloud.gce.operations import BASE, stamp

EPOCH_S = 1_700_000_000.0
Body = dict[str, Any]
METRICS = ("CPUS", "PREEMPTIBLE_CPUS", "INSTANCES", "NVIDIA_T4_GPUS", "NVIDIA_V100_GPUS",
           "NVIDIA_L4_GPUS", "NVIDIA_A100_GPUS", "NVIDIA_H100_GPUS", "NVIDIA_K80_GPUS",
           "PREEMPTIBLE_NVIDIA_T4_GPUS", "PREEMPTIBLE_NVIDIA_V100_GPUS",
           "PREEMPTIBLE_NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_A100_GPUS")


def _named(kind: str, path: str, id_: int, **more: Any) -> Body:
    return {"kind": f"compute#{kind}", "id": str(10**18 + id_), "name": path.rpartition("/")[2],
            "creationTimestamp": stamp(EPOCH_S), "selfLink": BASE + path, **more}


def project(cloud: Cloud) -> Body:
    quotas = [{"metric": "NETWORKS", "limit": 50.0, "usage": float(len(cloud.settings.networks))}]
    return _named("project", f"projects/{cloud.project}", 1,
                  commonInstanceMetadata={"kind": "compute#metadata",
                                          "fingerprint": "AAAAAAAAAAA="},
                  quotas=quotas, defaultServiceAccount=f"{catalog.PROJECT_NUMBER}"
                  "-compute@developer.gserviceaccount.com", xpnProjectStatus="UNSPECIFIED",
                  defaultNetworkTier="PREMIUM")


def region(cloud: Cloud, name: str) -> Body:
    path, used = f"projects/{cloud.project}/regions/{name}", cloud.used(name)
    metrics = dict.fromkeys([*METRICS, *cloud.settings.quotas, *used,
                             *(metric for one, metric in cloud.limits if one == name)])
    quotas = [{"metric": metric, "limit": float(cloud.limit(name, metric) or 0),
               "usage": float(used.get(metric, 0))} for metric in metrics]
    zones = [f"{BASE}projects/{cloud.project}/zones/{zone}" for zone in cloud.zones()
             if catalog.region_of(zone) == name]
    return _named("region", path, 1000 + cloud.market.regions().index(name), description=name,
                  status="UP", zones=zones, quotas=quotas)


def zone(cloud: Cloud, name: str) -> Body:
    status = "DOWN" if name in cloud.unreachable else "UP"
    return _named("zone", f"projects/{cloud.project}/zones/{name}",
                  2000 + cloud.zones().index(name), description=name, status=status,
                  region=f"{BASE}projects/{cloud.project}/regions/{catalog.region_of(name)}",
                  availableCpuPlatforms=["Intel Broadwell"])


def machine_type(cloud: Cloud, where: str, one: InstanceType) -> Body:
    path = f"projects/{cloud.project}/zones/{where}/machineTypes/{one.name}"
    more: Body = {}
    if one.gpus:
        before = "nvidia-" if one.gpu == "L4" else "nvidia-tesla-"
        more["accelerators"] = [{"guestAcceleratorType": before + one.gpu.lower(),
                                 "guestAcceleratorCount": one.gpus}]
    return _named("machineType", path, sorted(cloud.market.types).index(one.name),
                  description=f"{one.vcpus} vCPUs {one.memory_mib // 1024} GB RAM",
                  guestCpus=one.vcpus, memoryMb=one.memory_mib, imageSpaceGb=0,
                  maximumPersistentDisks=128, maximumPersistentDisksSizeGb="263168", zone=where,
                  isSharedCpu=one.name in ("e2-micro", "e2-small", "e2-medium"),
                  architecture="X86_64", **more)


def machine_types(cloud: Cloud, where: str) -> list[Body]:
    """Those that the zone has, with or without accelerators beside them."""
    names = {type_.partition("+")[0] for zone_, type_ in cloud.market.pools if zone_ == where}
    return [machine_type(cloud, where, cloud.market.types[name]) for name in sorted(names)
            if name in cloud.market.types]


def image(of: str, name: str, family: str) -> Body:
    return _named("image", f"projects/{of}/global/images/{name}", sum(name.encode()),
                  family=family, status="READY", sourceType="RAW", diskSizeGb="10",
                  archiveSizeBytes="1000000000", architecture="X86_64")


def images(cloud: Cloud, of: str) -> list[Body]:
    own = {one: one for one in cloud.settings.images} if of == cloud.project else (
        catalog.IMAGES.get(of, {}))
    return [image(of, name, family) for family, name in own.items()]


def network(cloud: Cloud, name: str) -> Body:
    return _named("network", f"projects/{cloud.project}/global/networks/{name}",
                  3000 + cloud.settings.networks.index(name), autoCreateSubnetworks=True,
                  subnetworks=[f"{BASE}projects/{cloud.project}/regions/{one}/subnetworks/{name}"
                               for one in cloud.market.regions()],
                  routingConfig={"routingMode": "REGIONAL"})


def template(cloud: Cloud, found: Body) -> Body:
    path = f"projects/{cloud.project}/global/instanceTemplates/{found['name']}"
    return {"kind": "compute#instanceTemplate", "id": found["id"], "name": found["name"],
            "description": found["description"], "properties": found["properties"],
            "creationTimestamp": stamp(found["made_s"]), "selfLink": BASE + path}


def _all(cloud: Cloud, kind: str, parts: dict[str, str]) -> list[Body]:
    if kind == "regions":
        return [region(cloud, one) for one in cloud.market.regions()]
    if kind == "zones":
        return [zone(cloud, one) for one in cloud.zones()]
    if kind == "machineTypes":
        return machine_types(cloud, parts["zone"])
    if kind == "images":
        return images(cloud, parts["project"])
    if kind == "networks":
        return [network(cloud, one) for one in cloud.settings.networks]
    return [template(cloud, one) for one in cloud.templates.values()]


def read(cloud: Cloud, method: str, parts: dict[str, str], path: str,
         query: dict[str, str]) -> Body:
    """``method``: get, getFromFamily, list or aggregatedList of a kind. Raises GceError."""
    kind, _, verb = method.partition(".")
    if kind == "projects":
        return project(cloud)
    if verb == "aggregatedList":
        rows = [(f"zones/{one}", body) for one in cloud.zones()
                for body in machine_types(cloud, one)]
        return lists.of_all("machineType", kind, path, lists.asked(query),
                            [f"zones/{one}" for one in cloud.zones()], rows, set())
    found = _all(cloud, kind, parts)
    if verb == "list":
        return lists.of_scope(kind.removesuffix("s"), path, lists.asked(query), "", found)
    key = "family" if verb == "getFromFamily" else "name"
    wanted = parts.get("name") or parts.get("zone") or parts.get("region") or ""
    for one in found:
        if one[key] == wanted:
            return one
    raise not_found(path)


