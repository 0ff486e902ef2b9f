"""Every name of horovod.torch 0.28.1, with its parameters, their order and their defaults."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import troupe.torch as hvd

PS = "process_set=global_process_set"
SCALES = "prescale_factor=1.0, postscale_factor=1.0"
REDUCE = f"average=None, name=None, op=None, {SCALES}, {PS}"
COMPRESSED = f"average=None, name=None, compression=Compression.none, op=None, {SCALES}, {PS}"
SCATTER = f"op=Average, {PS}, {SCALES}"
FUNCTIONS = {
    "init": "comm=None, process_sets=None", "shutdown": "", "is_initialized": "",
    "size": "", "local_size": "", "cross_size": "", "rank": "", "local_rank": "", "cross_rank": "",
    "is_homogeneous": "", "start_timeline": "file_path, mark_cycles=False", "stop_timeline": "",
    "mpi_threads_supported": "", "mpi_enabled": "", "mpi_built": "verbose=False",
    "gloo_enabled": "", "gloo_built": "verbose=False", "nccl_built": "verbose=False",
    "ddl_built": "verbose=False", "ccl_built": "verbose=False", "cuda_built": "verbose=False",
    "rocm_built": "verbose=False", "poll": "handle", "synchronize": "handle",
    "join": "device=-1", "barrier": PS,
    "check_extension": "ext_name, ext_env_var, pkg_path, *args",
    "gpu_available": "ext_base_name='torch', verbose=False",
    "extension_available": "ext_base_name, verbose=False", "num_rank_is_power_2": "num_rank",
    "allreduce": f"tensor, {COMPRESSED}", "allreduce_async": f"tensor, {REDUCE}",
    "allreduce_": f"tensor, {REDUCE}", "allreduce_async_": f"tensor, {REDUCE}",
    "grouped_allreduce": f"tensors, {COMPRESSED}",
    "grouped_allreduce_async": f"tensors, {REDUCE}", "grouped_allreduce_": f"tensors, {REDUCE}",
    "grouped_allreduce_async_": f"tensors, {REDUCE}",
    "sparse_allreduce_async": f"tensor, name, op, {PS}",
    "allgather": f"tensor, name=None, {PS}", "allgather_async": f"tensor, name=None, {PS}",
    "grouped_allgather": f"tensors, name=None, {PS}",
    "grouped_allgather_async": f"tensors, name=None, {PS}",
    "broadcast": f"tensor, root_rank, name=None, {PS}",
    "broadcast_async": f"tensor, root_rank, name=None, {PS}",
    "broadcast_": f"tensor, root_rank, name=None, {PS}",
    "broadcast_async_": f"tensor, root_rank, name=None, {PS}",
    "alltoall": f"tensor, splits=None, name=None, {PS}",
    "alltoall_async": f"tensor, splits=None, name=None, {PS}",
    "reducescatter": f"tensor, name=None, compression=Compression.none, {SCATTER}",
    "reducescatter_async": f"tensor, name=None, {SCATTER}",
    "grouped_reducescatter": f"tensors, name=None, compression=Compression.none, {SCATTER}",
    "grouped_reducescatter_async": f"tensors, name=None, {SCATTER}",
    "add_process_set": "process_set", "remove_process_set": "process_set",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": f"obj, root_rank=0, name=None, {PS}", "allgather_object": "obj, name=None",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=Compression.none, "
    "backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, num_groups=0, "
    f"groups=None, sparse_as_dense=False, {PS}",
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True",
    "ProcessSet": "ranks_or_comm=None",
    "elastic.run": "func", "elastic.State": "bcast_object, get_rank",
    "elastic.ObjectState": "bcast_object, get_rank, **kwargs",
    "elastic.TorchState": "model=None, optimizer=None, **kwargs",
    "elastic.ElasticSampler": "dataset, shuffle=True, seed=0",
}
METHODS = {
    "ProcessSet": {"size": "", "rank": "", "included": ""},
    "elastic.State": {
        "register_reset_callbacks": "callbacks", "on_reset": "",
        "on_hosts_updated": "timestamp, update_res", "commit": "", "check_host_updates": "",
        "save": "", "restore": "", "sync": "", "reset": ""},
    "elastic.ElasticSampler": {
        "set_epoch": "epoch", "record_batch": "batch_idx, batch_size", "state_dict": "",
        "load_state_dict": "state_dict", "reset": ""},
}
OPTIMIZER_METHODS = {
    "step": "closure=None", "synchronize": "", "skip_synchronize": "",
    "zero_grad": "*args, **kwargs", "set_backward_passes_per_step": "passes",
    "load_state_dict": "state_dict",
}
OPS = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}


def lookup(path: str) -> Any:
    found: Any = hvd
    for name in path.split("."):
        found = getattr(found, name)
    return found


def wanted_parameters(text: str) -> list[inspect.Parameter]:
    """The parameters of a Python function with this signature, defaults evaluated."""
    scope = {**vars(hvd)}
    exec(f"def function({text}): pass", scope)
    return list(inspect.signature(scope["function"]).parameters.values())


def check(function: Any, text: str) -> None:
    """Whether it can be called in every way that the wanted one can."""
    mine = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    more = {p.name: p for p in mine}
    positional = [p.name for p in mine if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    wanted = wanted_parameters(text)
    in_order = [p.name for p in wanted if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert positional[:len(in_order)] == in_order, (positional, in_order)
    for parameter in wanted:
        got = more[parameter.name]
        assert got.kind == parameter.kind
        if parameter.default is not parameter.empty:
            assert got.default == parameter.default, (parameter.name, got.default)
    known = {p.name for p in wanted}
    for parameter in mine:  # What there is besides may be left out.
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        optional = parameter.default is not parameter.empty
        assert parameter.name in known or variadic or optional, parameter.name


@pytest.mark.parametrize("path", FUNCTIONS)
def test_functions_and_classes(path: str) -> None:
    check(lookup(path), FUNCTIONS[path])
    if "." not in path:
        assert path in hvd.__all__
        assert getattr(hvd.mpi_ops, path) is lookup(path)


@pytest.mark.parametrize("path", METHODS)
def test_methods(path: str) -> None:
    for name, text in METHODS[path].items():
        check(getattr(lookup(path), name), text)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_methods_of_an_optimizer(op: Any) -> None:
    hvd.init()
    try:
        weight = torch.nn.Parameter(torch.zeros(1))
        made = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=op)
        for name, text in OPTIMIZER_METHODS.items():
            check(getattr(type(made), name), text)
        for name in ("backward_passes_per_step", "op", "process_set", "gradient_predivide_factor",
                     "sparse_as_dense", "_parameter_names", "_compression"):
            assert hasattr(made, name), name
        assert made._compression is hvd.Compression.none and made.sparse_as_dense is False
    finally:
        hvd.shutdown()


def test_constants() -> None:
    for name, value in OPS.items():
        assert getattr(hvd, name) == value
    assert hvd.global_process_set.process_set_id == 0
    for name in ("none", "fp16"):
        compressor = getattr(hvd.Compression, name)
        assert callable(compressor.compress) and callable(compressor.decompress)
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    assert issubclass(hvd.HostsUpdatedInterrupt, RuntimeError)
    assert hvd.HostsUpdatedInterrupt(True).skip_sync is True


def test_what_there_is_to_ask() -> None:
    hvd.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    assert hvd.extension_available("torch") and not hvd.extension_available("tensorflow")
    assert hvd.gpu_available("torch") == torch.cuda.is_available()
    assert not hvd.gpu_available("mxnet")
    assert [n for n in range(10) if hvd.num_rank_is_power_2(n)] == [1, 2, 4, 8]
