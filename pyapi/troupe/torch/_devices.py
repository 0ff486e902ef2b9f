"""Where the memory of a collective is: the one place that decides what is copied to the host.

Tensors of one CUDA device are handed to the core as they are if it can read that memory. It uses
NCCL if all ranks can, and copies by itself otherwise. All other tensors are copied to host memory
here. What is told to the core says too whether the operation is one on CUDA tensors, because every
rank must treat it as such, wherever its own memory is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from troupe.torch._tree import staging

Memory = tuple[int, int]  # What the core calls it: a device's index, and the stream that writes.

HOST: Memory = (-1, 0)
HOST_COPY: Memory = (-2, 0)  # In the host, of tensors that are on CUDA devices.


@dataclass(frozen=True)
class Place:
    """Where the core finds the tensors of one operation."""

    device: torch.device
    kind: str  # Of the user's tensors: what all ranks must agree on.

    @property
    def memory(self) -> Memory:
        """What to tell the core; what is in the device's current stream now comes before."""
        if self.device.type == "cuda":
            stream = int(torch.cuda.current_stream(self.device).cuda_stream)
            return int(self.device.index), stream
        return HOST_COPY if self.kind == "cuda" else HOST

    def work(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` itself if it is contiguous and in place, else a contiguous copy there."""
        plain = tensor.detach()
        return plain.contiguous() if plain.device == self.device else staging(plain)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A new tensor for a result."""
        return torch.empty(list(shape), dtype=dtype, device=self.device)


def place_of(group: Any, tensors: Sequence[torch.Tensor]) -> Place:
    """Where an operation on these tensors takes place."""
    devices = {tensor.device for tensor in tensors}
    kinds = {device.type for device in devices}
    kind = "cuda" if "cuda" in kinds else "cpu"
    if kinds == {"cuda"} and len(devices) == 1 and group.devices():
        return Place(devices.pop(), kind)
    return Place(torch.device("cpu"), kind)


def host_place() -> Place:
    """For what is done in host memory on every rank, whatever device its tensors are on."""
    return Place(torch.device("cpu"), "cpu")
