"""What the programs of all clouds have in common."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import resource
import signal

from fakecloud.orders import BadOrder

FILES_WANTED = 65_536
_PR_SET_PDEATHSIG = 1  # Of linux/prctl.h.


def check_host(host: str) -> None:
    """The keys are known to everybody, and who has them runs programs here. Raises BadOrder."""
    try:
        good = ipaddress.ip_address(host).is_loopback
    except ValueError:
        good = host == "localhost"
    if not good:
        raise BadOrder(f"--host: {host} is no loopback address; whoever reaches this cloud runs "
                       "programs as you")


def end_with_parent() -> None:
    """A signal ends this process when its parent ends, whatever way that does."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # It has ended before.
        os.kill(os.getpid(), signal.SIGTERM)


def raise_limits() -> None:
    """Sockets and pipes of many machines are to be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_WANTED:
        most = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
