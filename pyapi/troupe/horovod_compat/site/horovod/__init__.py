"""Stands in for Horovod: its modules for PyTorch are those of ``troupe.torch``.

They are the same modules under another name, so classes and what is registered exist once. What
Horovod has for other frameworks and launchers is missing, so importing it fails.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import troupe.torch as torch
from troupe import errors
from troupe.torch import _basics, data, elastic, functions, process_sets

__version__ = "0.28.1"  # Of the names; the version of what does the work is troupe.__version__.


class HorovodVersionMismatchError(ImportError):
    """Is never raised: there is no extension that could be of another version."""


def _module(name: str, **contents: Any) -> types.ModuleType:
    made = types.ModuleType(f"horovod.{name}", "Part of the stand-in for Horovod.")
    made.__dict__.update(contents)
    sys.modules[made.__name__] = made
    return made


# Every module of troupe.torch, public or not: one that is missing would be loaded a second time.
for _name, _found in list(sys.modules.items()):
    if _name == "troupe.torch" or _name.startswith("troupe.torch."):
        sys.modules["horovod" + _name[len("troupe"):]] = _found
sys.modules["horovod.data"] = data
sys.modules["horovod.data.data_loader_base"] = data

common = _module(
    "common",
    exceptions=_module(
        "common.exceptions",
        HorovodInternalError=errors.HorovodInternalError,
        HostsUpdatedInterrupt=errors.HostsUpdatedInterrupt,
        HorovodVersionMismatchError=HorovodVersionMismatchError,
    ),
    elastic=_module(
        "common.elastic", State=elastic.State, ObjectState=elastic.ObjectState),
    process_sets=_module(
        "common.process_sets", ProcessSet=process_sets.ProcessSet,
        add_process_set=process_sets.add_process_set,
        remove_process_set=process_sets.remove_process_set,
        global_process_set=process_sets.global_process_set,
    ),
    util=_module("common.util", **{
        name: getattr(_basics, name)
        for name in ("check_extension", "extension_available", "gpu_available",
                     "num_rank_is_power_2", "mpi_built", "gloo_built", "nccl_built", "ddl_built",
                     "ccl_built", "cuda_built", "rocm_built")
    }),
)

__all__ = ["common", "data", "elastic", "functions", "torch"]
