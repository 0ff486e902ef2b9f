"""Clouds on this machine, for tests and drills: metadata services that announce preemptions.

Each module is one cloud, and follows its documentation to the status codes and headers. Only
Python's standard library is used. ``python3 tests/fakecloud aws --port 1338`` serves one; see
:mod:`fakecloud.service` for what it can be told to do. :mod:`fakecloud.ec2` is a whole EC2,
:mod:`fakecloud.gce` a Compute Engine and :mod:`fakecloud.k8s` a Kubernetes; the key of the one and
the certificates of the other alone need a package.
"""

from __future__ import annotations

from fakecloud.aws import AwsMetadata
from fakecloud.azure import AzureMetadata
from fakecloud.gcp import GcpMetadata
from fakecloud.service import MetadataService

CLOUDS: dict[str, type[MetadataService]] = {
    "aws": AwsMetadata, "gcp": GcpMetadata, "azure": AzureMetadata}

__all__ = ["CLOUDS", "AwsMetadata", "AzureMetadata", "GcpMetadata", "MetadataService"]
