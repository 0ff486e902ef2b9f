"""What can be rented: instance types with their size and on-demand price, zones by their region."""

from __future__ import annotations

import hashlib

from fakecloud.catalogs import Catalog, InstanceType

# Sizes are those of AWS, prices those of us-east-1 at some time.
_TYPES = [
    InstanceType("t3.micro", 2, 1024, 0.0104),
    InstanceType("t3.medium", 2, 4096, 0.0416),
    InstanceType("m5.large", 2, 8192, 0.096),
    InstanceType("m5.xlarge", 4, 16384, 0.192),
    InstanceType("m5.2xlarge", 8, 32768, 0.384),
    InstanceType("c5.large", 2, 4096, 0.085),
    InstanceType("c5.xlarge", 4, 8192, 0.17),
    InstanceType("c5.4xlarge", 16, 32768, 0.68),
    InstanceType("g4dn.xlarge", 4, 16384, 0.526, 1, "T4", 16384),
    InstanceType("g4dn.12xlarge", 48, 196608, 3.912, 4, "T4", 16384),
    InstanceType("g5.xlarge", 4, 16384, 1.006, 1, "A10G", 22888),
    InstanceType("p2.xlarge", 4, 62464, 0.9, 1, "K80", 12288),
    InstanceType("p2.8xlarge", 32, 499712, 7.2, 8, "K80", 12288),
    InstanceType("p3.2xlarge", 8, 62464, 3.06, 1, "V100", 16384),
    InstanceType("p3.8xlarge", 32, 249856, 12.24, 4, "V100", 16384),
    InstanceType("p3.16xlarge", 64, 499712, 24.48, 8, "V100", 16384),
    InstanceType("p4d.24xlarge", 96, 1179648, 32.7726, 8, "A100", 40960),
    InstanceType("p5.48xlarge", 192, 2097152, 98.32, 8, "H100", 81920),
]
EC2 = Catalog(_TYPES, r"([a-z]{2}(?:-[a-z]+)+-[0-9])([a-z])", r"[a-z0-9-]+\.[a-z0-9-]+", "m5.large",
              ("us-east-1a", "p3.2xlarge"), "FAMILY.SIZE")
TYPES, region_of = EC2.types, EC2.region_of


def zone_id(zone: str) -> str:
    """us-east-1a as use1-az1."""
    region, letter = region_of(zone), zone[-1]
    area, *direction, number = region.split("-")
    return f"{area}{''.join(word[0] for word in direction)}{number}-az{ord(letter) - 96}"


def subnet_of(zone: str) -> str:
    return "subnet-" + hashlib.sha256(zone.encode()).hexdigest()[:17]
