"""What the programs of all clouds have in common."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import ipaddress
import os
import resource
import signal
import threading
from collections.abc import Callable
from typing import Any, Optional, TypeVar

from fakecloud.orders import BadOrder

T = TypeVar("T")
FILES_WANTED = 65_536
END_LIMIT_S = 40
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


def add_with_parent(parser: argparse.ArgumentParser) -> None:
    """Adds what :func:`serve` reads."""
    parser.add_argument("--with-parent", action="store_true",
                        help="ends when the process ends that has started it, whatever way that "
                        "does")


def serve(cloud: HostedCloud, arguments: argparse.Namespace, tell: Callable[[], None]) -> None:
    """Until a signal ends it. ``tell``: prints how it is reached, when it is."""
    ends = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    if arguments.with_parent:
        end_with_parent()
    with cloud:
        tell()
        while not cloud.ended and signal.sigtimedwait(ends, 1.0) is None:
            pass
    cloud.check()


class HostedCloud:
    """An event loop in a thread of its own; a context manager.

    A subclass has ``_main``, which sets ``_ready`` when it serves and goes on until ``_ended``;
    ``_now``, which does something at the present time of the cloud; and ``_obey``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._ended = False
        self._ready = threading.Event()
        self._failure: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, daemon=True,
                                        name=name.lower().replace(" ", "-"))

    async def _main(self) -> None:
        raise NotImplementedError

    def _now(self, what: Callable[[], T]) -> T:
        raise NotImplementedError

    def _obey(self, body: Any) -> None:
        raise NotImplementedError

    def __enter__(self) -> Any:
        self._thread.start()
        self._ready.wait()
        self.check()
        return self

    def __exit__(self, *unused: object) -> None:
        self._ended = True
        self._thread.join(END_LIMIT_S)
        if self._thread.is_alive():
            raise RuntimeError(f"the {self._name} does not end")
        if unused[0] is None:
            self.check()

    @property
    def ended(self) -> bool:
        return self._ended

    def check(self) -> None:
        """Raises what has ended it, if something has."""
        if self._failure is not None:
            raise self._failure

    def do(self, what: Callable[[], T]) -> T:
        """In the cloud's thread, at its present time."""
        assert self._loop is not None

        async def run() -> T:
            return self._now(what)
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def order(self, **body: Any) -> None:
        """As ``POST /fakecloud`` does it."""
        self.do(lambda: self._obey(body))

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._failure = error
        finally:
            self._ended = True
            self._ready.set()
