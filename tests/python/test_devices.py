"""What of a collective's memory is copied to the host, and what the core is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from troupe.torch._devices import HOST, HOST_COPY, host_place, place_of

CPU = torch.device("cpu")


def on(*names: str) -> list[Any]:
    """Stand-ins for tensors, as there need not be a GPU."""
    return [SimpleNamespace(device=torch.device(name)) for name in names]


def group(devices: bool) -> Any:
    return SimpleNamespace(devices=lambda: devices)


def test_tensors_of_one_cuda_device_stay_where_they_are() -> None:
    place = place_of(group(True), on("cuda:1", "cuda:1"))
    assert (place.device, place.kind) == (torch.device("cuda", 1), "cuda")


@pytest.mark.parametrize("devices", [True, False])
@pytest.mark.parametrize("names", [("cuda:0", "cuda:1"), ("cuda:0", "cpu")])
def test_all_ranks_hear_of_cuda_tensors_that_are_copied(
    devices: bool, names: tuple[str, ...]
) -> None:
    place = place_of(group(devices), on(*names))
    assert (place.device, place.kind, place.memory) == (CPU, "cuda", HOST_COPY)


def test_without_a_driver_cuda_tensors_are_copied() -> None:
    place = place_of(group(False), on("cuda:0"))
    assert (place.device, place.kind, place.memory) == (CPU, "cuda", HOST_COPY)


@pytest.mark.parametrize("name", ["cpu", "mps:0", "meta"])
def test_other_devices_are_the_hosts_affair(name: str) -> None:
    def never() -> bool:
        raise AssertionError("no driver is looked for without a CUDA tensor")

    place = place_of(SimpleNamespace(devices=never), on(name))
    assert (place.device, place.kind, place.memory) == (CPU, "cpu", HOST)


def test_work_is_the_tensor_itself_where_it_can_be() -> None:
    place = host_place()
    tensor = torch.arange(6.0).reshape(2, 3)
    assert place.work(tensor).data_ptr() == tensor.data_ptr()
    turned = place.work(tensor.t())
    assert turned.is_contiguous() and torch.equal(turned, tensor.t())
    assert place.empty((2, 0), torch.int64).shape == (2, 0)
