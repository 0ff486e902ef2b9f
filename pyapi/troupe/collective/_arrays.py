"""NumPy arrays and torch tensors as the core takes them: an address, bytes, a dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HOST = (-1, 0)  # As the core names memory: a device's index, and the stream that writes.
DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
          "bool")


class Flat:
    """The memory of an array in C order: its own, or that of a copy.

    Args:
        value: an array of NumPy, or a tensor of torch on the CPU or a CUDA device.
        what: for errors.
        out: the array is written; :meth:`finish` copies back where there is a copy.
    """

    def __init__(self, value: Any, what: str, out: bool = False) -> None:
        self._value = value
        self._copy: Any = None
        self._out = out
        if _is_tensor(value):
            self._take_tensor(value, what)
        elif hasattr(value, "__array_interface__") and hasattr(value, "dtype"):
            self._take_array(value, what)
        else:
            raise TypeError(f"{what} must be a NumPy array or a torch tensor, not "
                            f"{type(value).__name__}")
        if self.dtype not in DTYPES:
            raise TypeError(f"{what} has the dtype {self.dtype}; it can be {', '.join(DTYPES)}")

    def _take_tensor(self, value: Any, what: str) -> None:
        if value.device.type not in ("cpu", "cuda") or str(value.layout) != "torch.strided":
            raise TypeError(f"{what} must be a dense tensor on the CPU or a CUDA device, not a "
                            f"{value.layout} one on {value.device}")
        tensor = value.detach()
        if not tensor.is_contiguous():
            tensor = self._copy = tensor.contiguous()
        self._kept = tensor
        self.address = int(tensor.data_ptr())
        self.count = int(tensor.numel())
        self.nbytes = self.count * int(tensor.element_size())
        self.shape = tuple(tensor.shape)
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        self.memory = HOST
        if tensor.is_cuda:
            import torch

            stream = int(torch.cuda.current_stream(tensor.device).cuda_stream)
            self.memory = (int(tensor.device.index), stream)

    def _take_array(self, value: Any, what: str) -> None:
        array = value
        if not array.flags.c_contiguous:
            array = self._copy = array.copy(order="C")
        if self._out and not value.flags.writeable:
            raise ValueError(f"{what} cannot be written")
        self._kept = array
        self.address = int(array.__array_interface__["data"][0])
        self.count = int(array.size)
        self.nbytes = int(array.nbytes)
        self.shape = tuple(array.shape)
        self.dtype = str(array.dtype)
        self.memory = HOST

    @property
    def buffer(self) -> tuple[int, int]:
        """Address and bytes."""
        return self.address, self.nbytes

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def finish(self) -> None:
        """Where there is a copy that was written, the array gets it."""
        if self._out and self._copy is not None:
            if _is_tensor(self._value):
                self._value.detach().copy_(self._copy)
            else:
                self._value[...] = self._copy


def stacked(values: Sequence[Any], like: Flat, what: str) -> tuple[list[Flat], Any]:
    """The arrays of a list, all like ``like``, and one array with room for all of them."""
    flats = [Flat(value, f"{what}[{i}]", out=True) for i, value in enumerate(values)]
    for i, flat in enumerate(flats):
        if (flat.shape, flat.dtype) != (like.shape, like.dtype):
            raise ValueError(f"{what}[{i}] is {flat}, but the tensor is {like}")
        if flat.memory[0] != like.memory[0]:
            raise ValueError(f"{what}[{i}] is not on the device of the tensor")
    first = values[0]
    if _is_tensor(first):
        import torch

        room: Any = torch.empty((len(values), *like.shape), dtype=first.dtype, device=first.device)
    else:
        import numpy

        room = numpy.empty((len(values), *like.shape), dtype=first.dtype)
    return flats, room


def assign(target: Any, source: Any) -> None:
    """Copies one array over another of the same shape."""
    if _is_tensor(target):
        target.detach().copy_(source)
    else:
        target[...] = source


def _is_tensor(value: Any) -> bool:
    """Without importing torch."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor"
               for base in type(value).__mro__)
