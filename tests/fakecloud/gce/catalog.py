"""Machine types, zones, images and quotas. Sizes are Google's, prices those of us-central1 once."""

from __future__ import annotations

import re
from typing import Optional

from fakecloud import markets
from fakecloud.catalogs import Catalog, InstanceType
from fakecloud.markets import Market, MarketFile, Pool
from fakecloud.traces import Point

# A name with "+MODELxN" is a type with accelerators beside it: one offer of the market.
_TYPES = [
    InstanceType("e2-micro", 2, 1024, 0.0084),
    InstanceType("e2-small", 2, 2048, 0.0168),
    InstanceType("e2-medium", 2, 4096, 0.0335),
    InstanceType("e2-standard-2", 2, 8192, 0.067),
    InstanceType("e2-standard-4", 4, 16384, 0.134),
    InstanceType("e2-standard-8", 8, 32768, 0.268),
    InstanceType("n1-standard-1", 1, 3840, 0.0475),
    InstanceType("n1-standard-4", 4, 15360, 0.19),
    InstanceType("n1-standard-8", 8, 30720, 0.38),
    InstanceType("n2-standard-2", 2, 8192, 0.0971),
    InstanceType("n2-standard-4", 4, 16384, 0.1942),
    InstanceType("n2-standard-8", 8, 32768, 0.3885),
    InstanceType("n2d-standard-4", 4, 16384, 0.169),
    InstanceType("c2-standard-4", 4, 16384, 0.2088),
    InstanceType("c3-standard-4", 4, 16384, 0.2016),
    InstanceType("n1-standard-4+t4x1", 4, 15360, 0.54, 1, "T4", 16384),
    InstanceType("n1-standard-8+v100x1", 8, 30720, 2.86, 1, "V100", 16384),
    InstanceType("n1-standard-8+v100x4", 8, 30720, 10.3, 4, "V100", 16384),
    InstanceType("n1-standard-8+k80x1", 8, 30720, 0.83, 1, "K80", 12288),
    InstanceType("g2-standard-4", 4, 16384, 0.7068, 1, "L4", 24576),
    InstanceType("g2-standard-8", 8, 32768, 0.8536, 1, "L4", 24576),
    InstanceType("g2-standard-24", 24, 98304, 1.9988, 2, "L4", 24576),
    InstanceType("a2-highgpu-1g", 12, 87040, 3.6734, 1, "A100", 40960),
    InstanceType("a2-highgpu-8g", 96, 696320, 29.3872, 8, "A100", 40960),
    InstanceType("a3-highgpu-8g", 208, 1916928, 88.25, 8, "H100", 81920),
]
GCE = Catalog(_TYPES, r"([a-z]+(?:-[a-z]+)*-[a-z]+[0-9]+)-[a-z]",
              r"[a-z0-9-]+(\+[a-z0-9]+x[0-9]+)?", "e2-standard-2",
              ("us-central1-a", "e2-standard-2"), "FAMILY-CLASS-SIZE")
region_of = GCE.region_of
ACCELERATORS = {"nvidia-tesla-t4": "t4", "nvidia-tesla-v100": "v100", "nvidia-tesla-k80": "k80",
                "nvidia-tesla-p100": "p100"}
PROJECT_NUMBER = "123456789012"

# Project -> family -> image.
IMAGES = {
    "debian-cloud": {"debian-12": "debian-12-bookworm-v20250610",
                     "debian-11": "debian-11-bullseye-v20250610"},
    "ubuntu-os-cloud": {"ubuntu-2204-lts": "ubuntu-2204-jammy-v20250603",
                        "ubuntu-2404-lts-amd64": "ubuntu-2404-noble-amd64-v20250606"},
    "cos-cloud": {"cos-stable": "cos-stable-121-18867-90-38"},
    "deeplearning-platform-release": {
        "common-cu124-ubuntu-2204": "common-cu124-v20250605-ubuntu-2204"},
}
_IMAGE = re.compile(r"(?:https?://[^/]+/compute/(?:v1|beta)/)?"
                    r"(?:projects/([a-z0-9:.-]+)/)?global/images/(family/)?([a-z0-9-]+)")


def family_of(type_: str) -> str:
    return type_.partition("-")[0]


def shape_of(type_: str, accelerators: dict[str, int]) -> str:
    """The offer of the market for a type with these accelerators beside it."""
    parts = [f"{ACCELERATORS.get(name, name)}x{count}" for name, count in accelerators.items()]
    return "+".join([type_, *parts])


def image_named(text: str, project: str, own: list[str]) -> Optional[str]:
    """The image's path that a link to an image or a family stands for. ``own``: the project's
    images, each its own family, too."""
    match = _IMAGE.fullmatch(text)
    if match is None:
        return None
    of, family, name = match.group(1) or project, match.group(2), match.group(3)
    images = {one: one for one in own} if of == project else IMAGES.get(of, {})
    if family:
        name = images.get(name, "")
    return f"projects/{of}/global/images/{name}" if name in images.values() else None


def quotas_of(type_: InstanceType, spot: bool) -> dict[str, int]:
    """Metric -> how much one machine takes of it."""
    before = "PREEMPTIBLE_" if spot else ""
    taken = {f"{before}CPUS": type_.vcpus, "INSTANCES": 1}
    if type_.gpus:
        taken[f"{before}NVIDIA_{type_.gpu.upper()}_GPUS"] = type_.gpus
    return taken


def default_market() -> Market:
    offers = [("us-central1-a", 16), ("us-central1-b", 16), ("us-central1-c", 16),
              ("europe-west4-a", 8)]
    names = ("e2-standard-2", "n2-standard-4", "g2-standard-4", "n1-standard-8+v100x1")
    return Market([Pool(zone, GCE.types[name], [Point(0.0, count)])
                   for zone, count in offers for name in names], GCE)


def load(specs: list[str]) -> MarketFile:
    """None at all: a small market."""
    return markets.load(specs, GCE) if specs else MarketFile(default_market(), {})
