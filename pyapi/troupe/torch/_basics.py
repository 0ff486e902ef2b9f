"""Ranks, sizes and feature probes."""

from __future__ import annotations

from collections import Counter

import torch

from troupe.torch import _context


def rank() -> int:
    """This process's rank; 0 is the oldest member. ValueError if not initialised."""
    return _context.current().rank


def size() -> int:
    """Number of members of the group. ValueError if not initialised."""
    return _context.current().size


def local_rank() -> int:
    """Rank among the members on this host."""
    return int(_context.current().view["local_rank"])


def device() -> torch.device:
    """What this process is to compute on: its GPU, or the CPU if it was given none.

    A worker sees only the GPUs that it was given, so the first of them is ``cuda:0``, whatever its
    local rank, and it stays the same while members come and go.
    """
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def local_size() -> int:
    """Number of members on this host."""
    return int(_context.current().view["local_size"])


def cross_rank() -> int:
    """Index of this host among the hosts that have this local rank."""
    return int(_context.current().view["cross_rank"])


def cross_size() -> int:
    """Number of hosts that have this local rank."""
    return int(_context.current().view["cross_size"])


def max_size() -> int:
    """The most members that the group can have; constant while members come and go."""
    return int(_context.current().view["max_size"])


def epoch() -> int:
    """Number of the group's present epoch; it grows whenever members come or go."""
    return int(_context.current().view["epoch"])


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of members."""
    counts = Counter(member["host"] for member in _context.current().view["members"])
    return len(set(counts.values())) <= 1


def gloo_built(verbose: bool = False) -> bool:
    """True: collectives between hosts run on Gloo."""
    return True


def gloo_enabled() -> bool:
    """True: collectives between hosts run on Gloo."""
    return True


def mpi_built(verbose: bool = False) -> bool:
    """False: there is no MPI controller."""
    return False


def mpi_enabled() -> bool:
    """False: there is no MPI controller."""
    return False


def mpi_threads_supported() -> bool:
    """False: there is no MPI controller. ValueError if not initialised, as in Horovod."""
    _context.current()
    return False


def nccl_built(verbose: bool = False) -> int:
    """0: tensors on a GPU are staged through host memory."""
    return 0


def ddl_built(verbose: bool = False) -> bool:
    """False."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """False."""
    return False


def cuda_built(verbose: bool = False) -> bool:
    """False: the native part is independent of CUDA."""
    return False


def rocm_built(verbose: bool = False) -> bool:
    """False."""
    return False


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Does nothing: there is no extension of its own for torch that may be missing.

    The arguments are Horovod's, which raises an ImportError if it was built without one.
    """


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether collectives work on tensors of this library: of torch only."""
    return ext_base_name == "torch"


def gpu_available(ext_base_name: str = "torch", verbose: bool = False) -> bool:
    """Whether this process has a GPU, for what Horovod asks by its library (``"torch"``)."""
    return extension_available(ext_base_name) and torch.cuda.is_available()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is a power of two, of which Adasum here works with any number."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0
