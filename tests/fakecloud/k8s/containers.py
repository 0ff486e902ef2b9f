"""Does on this host what the kubelet asks for: folders, files and processes of containers."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Optional

from fakecloud import grafts
from fakecloud.k8s.cluster import Cluster
from fakecloud.k8s.kubelet import Effect
from fakecloud.k8s.launch import Launch, Mount
from fakecloud.warden import tree_of
from fakecloud.wardens import WardenProcess

LOG_MAX = 16 << 20      # Then the file begins again, empty.
TAIL_BYTES = 4_096
PAGE = os.sysconf("SC_PAGE_SIZE")


class Containers:
    """All of them; call from the thread of the server's event loop."""

    def __init__(self, cluster: Cluster, base: Optional[Path] = None) -> None:
        self.cluster = cluster
        self.base = Path(tempfile.mkdtemp(prefix="fakecloud-k8s-",
                                          dir=None if base is None else str(base)))
        how = cluster.settings.mounts
        self.grafting = how == "namespace" or (how == "auto" and grafts.possible())
        self._warden = WardenProcess(self.base)
        self._pids: dict[str, int] = {}
        cluster.kubelet.tail = self.tail

    def log(self, uid: str, container: str, number: int) -> Path:
        return self.base / uid / "logs" / container / f"{number}.log"

    def tail(self, uid: str, container: str, number: int) -> str:
        try:
            with self.log(uid, container, number).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    # ---- effects ----

    def apply(self) -> bool:
        """Does what is asked for; whether that was anything."""
        effects, self.cluster.kubelet.effects = self.cluster.kubelet.effects, []
        for effect in effects:
            if effect.do == "start":
                self._start(effect)
            elif effect.do == "forget":
                self._warden.order("forget", effect.id)
            else:
                self._warden.order(effect.do, effect.id)
        return bool(effects)

    def _start(self, effect: Effect) -> None:
        uid, container, number = effect.id.split(".")
        ready = effect.launch
        assert ready is not None
        try:
            log = self.log(uid, container, int(number))
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
            own = self.base / uid / "work" / container
            own.mkdir(parents=True, exist_ok=True)
            env = {"HOME": str(own), **ready.env}
            mounts = [self._mount(uid, container, at, one)
                      for at, one in enumerate(ready.mounts)]
            if not self.grafting and mounts:
                env["FAKECLOUD_ROOT"] = str(self._fold(uid, container, mounts))
                mounts = []
        except OSError as error:    # No room on the disk, or a name that is none.
            self.cluster.kubelet.unstarted(effect.id, error.strerror or str(error))
            return
        self._warden.order("boot", effect.id, env=env, run={
            "argv": ready.argv, "cwd": self._folder(ready, own), "output": str(log),
            "name": "container", "container": True, "mounts": mounts})

    @staticmethod
    def _folder(ready: Launch, own: Path) -> str:
        return ready.folder if ready.folder and Path(ready.folder).is_dir() else str(own)

    def _mount(self, uid: str, container: str, number: int, mount: Mount) -> list[str]:
        if mount.host:
            source = Path(mount.host)
        elif mount.files is not None:
            source = self.base / uid / "mounts" / container / str(number)
            self._fill(source, mount.files)
        else:
            source = self.base / uid / "volumes" / mount.volume
            source.mkdir(parents=True, exist_ok=True)
        if mount.sub:
            source = source / mount.sub
            if not source.exists():
                source.mkdir(parents=True)
        return [str(source), mount.path, *(["ro"] if mount.read_only else [])]

    @staticmethod
    def _fill(folder: Path, files: dict[str, tuple[bytes, int]]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, (content, mode) in files.items():
            path = folder / name
            if ".." in Path(name).parts or path.is_absolute() and not path.is_relative_to(folder):
                raise OSError(0, f"{name!r} is no path in a volume")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            path.write_bytes(content)
            path.chmod(mode)

    def _fold(self, uid: str, container: str, mounts: list[list[str]]) -> Path:
        """Where mounts cannot be: links below a folder that the container is told."""
        root = self.base / uid / "root" / container
        for source, target, *_ in mounts:
            link = root / target.lstrip("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(source)
        return root

    # ---- events ----

    def look(self) -> None:
        """What the containers have done."""
        kubelet = self.cluster.kubelet
        for event in self._warden.events():
            kind, id_ = event["event"], event.get("instance", "")
            if kind == "started":
                self._pids[id_] = event["pid"]
                kubelet.started(id_)
            elif kind == "unstarted":
                kubelet.unstarted(id_, event["why"])
            elif kind == "exit":
                self._pids.pop(id_, None)
                kubelet.exited(id_, event["code"])
            elif kind in ("lost", "ended"):
                self._pids.pop(id_, None)
                kubelet.lost(id_)
            elif kind == "died":
                for one, _ in kubelet.running():
                    kubelet.lost(one)
                self._pids.clear()

    def fileno(self) -> int:
        return self._warden.fileno()

    def memory(self) -> None:
        """Ends those that take more memory than their limit."""
        if not self.cluster.settings.memory_limits:
            return
        for id_, one in self.cluster.kubelet.running():
            limit = one.memory_limit()
            pid = self._pids.get(id_)
            if limit is not None and pid is not None and resident(pid) > limit:
                self.cluster.kubelet.out_of_memory(id_)

    def trim(self) -> None:
        for id_, _ in self.cluster.kubelet.running():
            uid, container, number = id_.split(".")
            try:
                if self.log(uid, container, int(number)).stat().st_size > LOG_MAX:
                    os.truncate(self.log(uid, container, int(number)), 0)
            except OSError:
                pass

    def processes(self) -> dict[str, Any]:
        """The first process of each container that runs."""
        return dict(self._pids)

    def end(self) -> None:
        """All processes; returns when there is none any more, and raises RuntimeError if some are
        left all the same."""
        self._warden.end()
        left = {id_: pid for id_, pid in self._pids.items() if Path(f"/proc/{pid}").exists()}
        if left:
            raise RuntimeError(f"processes of containers are left: {left}")
        self._pids.clear()


def resident(pid: int) -> int:
    """Bytes in memory of a process and all below it."""
    total = 0
    for one in [pid, *tree_of(pid)]:
        try:
            with open(f"/proc/{one}/statm") as file:
                total += int(file.read().split()[1]) * PAGE
        except (OSError, ValueError, IndexError):
            pass
    return total
