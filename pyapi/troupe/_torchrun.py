"""What ``torchrun`` does for a script, done by Troupe.

``RANK`` and its like come with each view (:mod:`troupe._runtime`); here is what the workers have to
agree on, and the backend "troupe", which is there as soon as a function imports torch. This file
needs no torch, since many a function that is run does not either.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import importlib.abc
import importlib.util
import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, Optional

from troupe import _native, _runtime
from troupe.errors import HorovodInternalError

_BACKEND = "troupe.torch.distributed"
_CARD = struct.Struct("!64sI")
_FOREVER_S = 3600.0


def call(runtime: _runtime.WorkerRuntime, function: Callable[[], Any]) -> Any:
    """Calls a function that may be one of torch.distributed.

    If it is, it is called again when the members of its group have changed; see
    ``troupe.torch.distributed``.
    """
    if runtime.own_process:
        _offer_backend()
        with contextlib.suppress(HorovodInternalError):  # The function meets the same change.
            export(runtime)
    error: Optional[BaseException] = None
    try:
        value = function()
        restarts = _restarts()
        if restarts is not None:
            restarts.finish()
        return value
    except BaseException as raised:
        restarts = _restarts()
        error = None if restarts is None else restarts.interrupted(raised)
        if error is None:
            raise
    return restarts.go_on(function, error)


def _restarts() -> Any:
    """The part that begins again, if the function has come near torch.distributed."""
    return sys.modules.get(f"{_BACKEND}._restarts")


def export(runtime: _runtime.WorkerRuntime) -> None:
    """Sets torchrun's variables for the present view, MASTER_ADDR those of its rank 0.

    Every member of the view calls it. The port was free when it was chosen, at the address at which
    workers reach each other.

    Raises:
        HorovodInternalError: a member died meanwhile.
    """
    view = runtime.group.view()
    if not runtime.own_process:
        return
    address, port = _free_port(listening_address())
    if view is None:
        # Who joins has none of its own yet; what it runs up to init_process_group() may look.
        me = {"host": runtime.worker.host}
        os.environ.update({"MASTER_ADDR": address, "MASTER_PORT": str(port)})
        _export_counts({**runtime.provisional_view(), "rank": 0, "size": 1, "members": [me]},
                       runtime)
        return
    cards = _shared(runtime, int(view["size"]), _CARD.pack(address.encode(), port))
    name, port = _CARD.unpack(cards[:_CARD.size])
    os.environ["MASTER_ADDR"] = name.rstrip(b"\0").decode()
    os.environ["MASTER_PORT"] = str(port)
    _export_counts(view, runtime)


def _shared(runtime: _runtime.WorkerRuntime, size: int, mine: bytes) -> bytes:
    """What all ranks give, in order of rank."""
    if size == 1:
        return mine
    source, room = array.array("B", mine), array.array("B", bytes(len(mine) * size))
    with _native.collective_errors("the address of rank 0"):
        handle = runtime.group.allgather(
            source.buffer_info()[0], room.buffer_info()[0], [len(mine)] * size,
            "torchrun's variables")
        runtime.group.wait(handle, _FOREVER_S)
    return room.tobytes()


def _export_counts(view: Mapping[str, Any], runtime: _runtime.WorkerRuntime) -> None:
    """Sets the rest of torchrun's variables."""
    hosts = [str(member["host"]) for member in view["members"]]
    own = hosts[int(view["rank"])]
    os.environ.update({
        "GROUP_RANK": str(list(dict.fromkeys(hosts)).index(own)),
        "GROUP_WORLD_SIZE": str(len(set(hosts))),
        "ROLE_RANK": str(view["rank"]),
        "ROLE_WORLD_SIZE": str(view["size"]),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": str(runtime.assignment.get("run") or runtime.worker.id),
        "TORCHELASTIC_RESTART_COUNT": str(max(0, int(view["epoch"]) - 1)),
        "TORCHELASTIC_MAX_RESTARTS": os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    })


def listening_address() -> str:
    """Where other workers reach this one: an IP address of this host."""
    given = os.environ.get("TROUPE_WORKER_DATA_ADDRESS") or "127.0.0.1"
    found: Any = socket.getaddrinfo(given.strip("[]"), 0, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


def _free_port(address: str) -> tuple[str, int]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return address, int(probe.getsockname()[1])


def _offer_backend() -> None:
    """Has the backend registered: at once if torch is imported, else when it is."""
    if "torch" in sys.modules:
        _import_backend()
    elif not any(isinstance(finder, _AfterTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())


def _import_backend() -> None:
    """Not where torch was built without torch.distributed, nor where torch is another module."""
    with contextlib.suppress(ImportError, AttributeError):
        if importlib.import_module("torch.distributed").is_available():
            importlib.import_module(_BACKEND)


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the backend right after torch."""

    def __init__(self) -> None:
        self._real: Any = None
        self._looking = False

    def __getattr__(self, name: str) -> Any:
        # Who only looks whether there is a torch may ask the loader for more.
        return getattr(self.__dict__["_real"], name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """That of torch, with this as its loader. It is asked for by many who do not import it."""
        if name != "torch" or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            self._real, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        """As torch's own loader."""
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Torch, and then the backend, without which torch is as good as ever."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        module.__spec__.loader = module.__loader__ = self._real
        self._real.exec_module(module)
        _import_backend()
