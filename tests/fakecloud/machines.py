"""What the cloud's effects do on this host: folders, processes, metadata endpoints."""

from __future__ import annotations

import gzip
import io
import os
import socket
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Optional, Protocol, TypeVar

from fakecloud.timeline import Effect
from fakecloud.wardens import WardenProcess
from fakecloud.web import Handler, Server

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CONSOLE_BYTES = 64 << 10        # That are shown, the last ones.
CONSOLE_MAX = 16 << 20          # Then the file begins again, empty.
UNPACKED_MAX = 4 << 20
POWER_OFF = """\
#!/bin/sh
# The instance's own: it is not the host that is switched off.
case "$1" in -c) exit 0 ;; esac
for word; do
  case "$word" in +[1-9]*) { sleep "$((${word#+} * 60))"; : > FOLDER/power-off; } & exit 0 ;; esac
done
: > FOLDER/power-off
"""
AS_ROOT = """\
#!/bin/sh
# The instance has no other user: what is asked for runs as it is.
while [ $# -gt 0 ]; do
  case "$1" in
    -u | -g | -h | -p | -C | -T) shift 2 ;;
    --) shift; break ;;
    -*) shift ;;
    *=*) export "$1"; shift ;;
    *) break ;;
  esac
done
[ $# -eq 0 ] || exec "$@"
"""


class Metadata(Protocol):
    """Of one instance: what is announced to it."""

    def interrupt(self, lead_s: float) -> None: ...
    def calm(self) -> None: ...
    def forget(self) -> None: ...


class Life(Protocol):
    """Of one instance: what a host has to know of it."""

    @property
    def id(self) -> str: ...
    @property
    def address(self) -> str: ...


L = TypeVar("L", bound=Life)


class Lives(Protocol):
    """Of a cloud: what the instances on a host have to do with."""

    console_of: Callable[[str], bytes]

    def take_effects(self) -> list[Effect]: ...
    def note(self, event: str, **more: Any) -> None: ...
    def lost(self, instance: str) -> None: ...
    def powered_off(self, instance: str) -> None: ...


def script_of(user_data: bytes) -> tuple[bytes, str]:
    """What cloud-init would run, and if that is nothing, why."""
    if user_data.startswith(b"\x1f\x8b"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(user_data)) as file:
                user_data = file.read(UNPACKED_MAX + 1)
        except (OSError, EOFError, zlib.error):
            return b"", "the user data is no whole gzip file"
        if len(user_data) > UNPACKED_MAX:
            return b"", f"the user data has more than {UNPACKED_MAX} bytes when it is unpacked"
    if not user_data:
        return b"", ""
    if not user_data.startswith(b"#!"):
        first = user_data[:40].decode("utf-8", "replace").partition("\n")[0]
        return b"", ("the user data is no script and is not run: its first line is to be such as "
                     f"#!/bin/sh, it is {first!r}")
    return user_data, ""


class Machine:
    """One instance on this host."""

    def __init__(self, folder: Path, metadata: Any, sock: socket.socket) -> None:
        self.folder, self.metadata, self.sock = folder, metadata, sock
        self.number: Optional[int] = None   # Of its endpoint, while that is open.
        self.booted = False
        self.broken = ""
        host, port = sock.getsockname()[:2]
        self.url = f"http://{host}:{port}"

    def inner(self, name: str) -> Path:
        return self.folder / ".fakecloud" / name

    def install(self, user_data: bytes) -> str:
        """Writes its files; says why nothing is to be run, if nothing is."""
        self.inner("bin").mkdir(parents=True)
        self.folder.chmod(0o700)
        script, why = script_of(user_data)
        console = f"[fakecloud] {why}\n" if why else ""
        self.inner("console").write_text(console)
        inner = "'" + str(self.inner("")).rstrip("/").replace("'", "'\\''") + "'"
        programs = {"user-data": script or b"#!/bin/sh\n",
                    "bin/poweroff": POWER_OFF.replace("FOLDER", inner).encode(),
                    "bin/sudo": AS_ROOT.encode()}
        for name, content in programs.items():
            self.inner(name).write_bytes(content)
            self.inner(name).chmod(0o700)
        for name in ("shutdown", "halt"):
            self.inner("bin/" + name).symlink_to("poweroff")
        return why

    def run(self) -> dict[str, object]:
        """What cloud-init runs: the kernel reads the first line of the user data."""
        return {"argv": [str(self.inner("user-data"))], "cwd": str(self.folder),
                "output": str(self.inner("console")), "name": "user data"}

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        return {"PATH": f"{self.inner('bin')}:{SEARCH_PATH}", "HOME": str(self.folder),
                "TROUPE_METADATA_URL": self.url,
                **more}


class Machines(Generic[L]):
    """All instances; call from the thread of the server's event loop.

    A subclass has ``_life``, ``_metadata_of``, ``_boot_script`` and ``_environment``. An effect
    that is not here is its own, too: ``_NAME``.
    """

    def __init__(self, cloud: Lives, server: Server,
                 handler_of: Callable[[Machine], Handler], base: Optional[Path] = None) -> None:
        self.cloud, self._server, self._handler_of = cloud, server, handler_of
        parent = None if base is None else str(base)
        self.base = Path(tempfile.mkdtemp(prefix="fakecloud-", dir=parent))
        self.machines: dict[str, Machine] = {}
        self._warden = WardenProcess(self.base)
        cloud.console_of = self.console

    def apply(self) -> None:
        """Does what the cloud has asked for."""
        while effects := self.cloud.take_effects():
            for effect in effects:
                try:
                    getattr(self, "_" + effect.do)(effect)
                except OSError as error:
                    # No port, or no room on the disk: this host cannot have one more.
                    self.cloud.note("host", instance=effect.instance, error=str(error))
                    self.cloud.lost(effect.instance)

    def look(self) -> None:
        """What the instances have done themselves."""
        self._read_events()
        for id_, machine in self.machines.items():
            if not machine.booted:
                continue
            if machine.inner("power-off").exists():
                machine.inner("power-off").unlink(missing_ok=True)
                self.cloud.powered_off(id_)
            try:
                if machine.inner("console").stat().st_size > CONSOLE_MAX:
                    os.truncate(machine.inner("console"), 0)
            except OSError:
                pass

    def _read_events(self) -> None:
        for event in self._warden.events():
            if event["event"] == "lost":
                self.cloud.lost(event["instance"])
            elif event["event"] == "died":
                for id_, machine in self.machines.items():
                    if machine.booted:
                        self.cloud.lost(id_)

    # ---- one effect each ----

    def _bind(self, one: L) -> socket.socket:
        """On the instance's own address, which any host has as one of its loopback's."""
        for host in (one.address, "127.0.0.1"):
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                sock.bind((host, 0))
                return sock
            except OSError:
                sock.close()
        raise OSError("no port of the loopback address can be bound")

    def _life(self, instance: str) -> L:
        raise NotImplementedError

    def _metadata_of(self, one: L) -> Metadata:
        raise NotImplementedError

    def _boot_script(self, one: L) -> bytes:
        raise NotImplementedError

    def _environment(self, one: L, machine: Machine) -> dict[str, str]:
        raise NotImplementedError

    def _create(self, effect: Effect) -> None:
        one = self._life(effect.instance)
        machine = Machine(self.base / one.id, self._metadata_of(one), self._bind(one))
        machine.number = self._server.listen(machine.sock, self._handler_of(machine))
        self.machines[one.id] = machine

    def _boot(self, effect: Effect) -> None:
        one, machine = self._life(effect.instance), self.machines[effect.instance]
        machine.install(self._boot_script(one))
        machine.booted = True
        self._warden.order("boot", one.id, run=machine.run(),
                           env=machine.environment(self._environment(one, machine)))

    def _soft(self, effect: Effect) -> None:
        self._warden.order("soft", effect.instance)

    def _kill(self, effect: Effect) -> None:
        machine = self.machines.get(effect.instance)
        if machine is None:
            return
        machine.booted = False
        self._warden.order("kill", effect.instance)
        if machine.number is not None:
            self._server.close(machine.number)
            machine.number = None

    def _calm(self, effect: Effect) -> None:
        self.machines[effect.instance].metadata.calm()

    def _forget(self, effect: Effect) -> None:
        machine = self.machines.pop(effect.instance, None)
        if machine is not None:
            machine.metadata.forget()
            self._warden.order("forget", effect.instance)

    def console(self, instance: str) -> bytes:
        machine = self.machines.get(instance)
        if machine is None:
            return b""
        try:
            with machine.inner("console").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - CONSOLE_BYTES))
                return file.read()
        except OSError:
            return b""

    def end(self) -> None:
        """All processes; returns when there is none any more."""
        self._warden.end()
