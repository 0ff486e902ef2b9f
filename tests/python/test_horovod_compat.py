"""The stand-in for the package horovod: what it is, and that it takes nobody's place unasked."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import troupe
from troupe import horovod_compat

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(troupe.__file__)))
SCRIPT = """
    import horovod
    import horovod.torch as hvd
    import horovod.torch.elastic.state
    from horovod.common.exceptions import HorovodInternalError, HorovodVersionMismatchError
    from horovod.common.process_sets import global_process_set
    from horovod.common.util import gpu_available
    from horovod.data import AsyncDataLoaderMixin
    from horovod.data.data_loader_base import BaseDataLoader
    from horovod.torch.compression import Compression
    from horovod.torch.elastic import TorchState, run
    from horovod.torch.elastic.sampler import ElasticSampler
    from horovod.torch.mpi_ops import allreduce_async_, synchronize
    from horovod.torch.sync_batch_norm import SyncBatchNorm

    import sys
    import troupe.torch, troupe.torch.data, troupe.torch.elastic.sampler

    assert hvd is troupe.torch and horovod.torch is troupe.torch
    assert ElasticSampler is troupe.torch.elastic.ElasticSampler
    assert TorchState is troupe.torch.elastic.TorchState is horovod.torch.elastic.state.TorchState
    assert HorovodInternalError is hvd.HorovodInternalError
    assert issubclass(HorovodVersionMismatchError, ImportError)
    assert global_process_set is hvd.global_process_set and not gpu_available("mxnet")
    assert BaseDataLoader is troupe.torch.data.BaseDataLoader
    assert horovod.__version__ == "0.28.1"
    # Nothing was loaded twice under the other name.
    for name, module in list(sys.modules.items()):
        if name.startswith("horovod.torch"):
            assert module is sys.modules["troupe" + name[len("horovod"):]], name
    try:
        import horovod.tensorflow
    except ModuleNotFoundError as error:
        assert "horovod.tensorflow" in str(error)
    else:
        raise AssertionError
    print("fine")
"""


def python(code: str, *folders: str, module: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a program that finds Troupe and what is in the folders before it."""
    path = os.pathsep.join([*folders, PACKAGE])
    what = ["-m", module] if module else ["-c", textwrap.dedent(code)]
    return subprocess.run([sys.executable, *what], env={**os.environ, "PYTHONPATH": path},
                          capture_output=True, text=True, timeout=60)


def real(folder: Path) -> str:
    """A folder with a package that is called like Horovod."""
    (folder / "horovod").mkdir()
    (folder / "horovod" / "__init__.py").write_text("who = 'the real one'\n")
    return str(folder)


def test_the_path_is_printed() -> None:
    printed = python("", module="troupe.horovod_compat")
    assert printed.stdout.strip() == horovod_compat.path()
    assert os.listdir(horovod_compat.path()) == ["horovod"]


def test_a_script_finds_everything_by_the_path() -> None:
    ran = python(SCRIPT, horovod_compat.path())
    assert ran.stdout == "fine\n", ran.stderr


def test_a_script_finds_everything_after_install() -> None:
    install = "import troupe.horovod_compat as compat\ncompat.install()\ncompat.install()\n"
    again = f"import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', {SCRIPT!r}])\n"
    ran = python(install + textwrap.dedent(SCRIPT))
    assert ran.stdout == "fine\n", ran.stderr
    ran = python(install + again.replace("\\n    ", "\\n"))  # A process that is started by it.
    assert ran.stdout == "fine\n", ran.stderr


def test_nothing_is_called_horovod_by_itself() -> None:
    ran = python("import troupe, troupe.torch, troupe.horovod_compat\nimport horovod")
    assert "No module named 'horovod'" in ran.stderr


def test_a_real_horovod_stays_unless_it_is_to_go(tmp_path: Path) -> None:
    folder = real(tmp_path)
    ran = python("import horovod, troupe.torch; print(horovod.who)", folder)
    assert ran.stdout == "the real one\n"
    install = "import troupe.horovod_compat as compat; compat.install({}); "
    ran = python(install.format(""), folder)
    assert f"ImportError: Horovod is installed ({folder}" in ran.stderr
    ran = python(install.format("replace=True") + "import horovod; print(horovod.torch)", folder)
    assert "troupe/torch/__init__.py" in ran.stdout, ran.stderr
    ran = python("import horovod; " + install.format("replace=True"), folder)
    assert "was imported from" in ran.stderr and "before the first import" in ran.stderr


@pytest.mark.integration
@pytest.mark.once
@pytest.mark.timeout(120)
def test_an_unchanged_function_runs_on_workers() -> None:
    def fn() -> list[float]:
        import horovod.torch as hvd
        import torch

        hvd.init()
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
        hvd.broadcast_parameters({"weight": weight.data}, root_rank=0)
        (weight * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
        return weight.tolist()

    path = os.pathsep.join([horovod_compat.path(), *filter(None, [os.environ.get("PYTHONPATH")])])
    with troupe.Executor(2, cpus_per_worker=0.1, num_cpus=2, progress="off",
                         env={"PYTHONPATH": path}) as executor:
        assert executor.run(fn) == [[-1.5, -1.5]] * 2
