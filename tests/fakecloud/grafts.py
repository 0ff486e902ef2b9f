"""Shows a process files at paths of its own, as a container's mounts do, without a container.

The process gets a mount namespace of its own. A path that is there is mounted over. One that is
not must not come to be on this host: the deepest folder above it that is there is replaced by one
in memory, which has all that the first has, mounted, and room for what is missing. Whatever the
process writes beside that goes with it. Needs root, or CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import os
import stat
import tempfile

CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_LIBC = ctypes.CDLL(None, use_errno=True)


def _check(result: int, path: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{path}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _check(_LIBC.mount(source.encode(), target.encode(), kind.encode() or None, flags,
                       options.encode() or None), target)


def _bind(source: str, target: str) -> None:
    _mount(source, target, "", MS_BIND | MS_REC)


def possible() -> bool:
    """Whether this process may do it; asked in a child, which ends."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if _LIBC.unshare(CLONE_NEWNS) == 0 else 1)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _open_up(folder: str, staging: str) -> None:
    """Replaces a folder by one in memory with the same in it."""
    new = tempfile.mkdtemp(dir=staging)
    _mount("tmpfs", new, "tmpfs", 0, "size=16m")
    os.chmod(new, stat.S_IMODE(os.stat(folder).st_mode))
    for entry in os.scandir(folder):
        target = os.path.join(new, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target)
            continue
        if entry.path == staging:
            continue
        if entry.is_dir():
            os.mkdir(target)
        elif stat.S_ISREG(entry.stat().st_mode):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600))
        else:
            os.mknod(target, stat.S_IFREG | 0o600)
        _bind(entry.path, target)
    if folder == "/":
        os.chroot(new)
        os.chdir("/")
    else:
        _bind(new, folder)


def _place(target: str, is_folder: bool, staging: str) -> str:
    """Makes sure that there is something to mount over; the path without links."""
    if os.path.lexists(target) and os.path.isdir(target) == is_folder:
        return os.path.realpath(target)
    above = os.path.dirname(target)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    rest = os.path.relpath(target, above)
    above = os.path.realpath(above)
    _open_up(above, staging)
    target = os.path.normpath(os.path.join(above, rest))
    os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)
    if not is_folder:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600))
    return target


def mount(pairs: list[list[str]]) -> None:
    """For this process and its children: ``[path here, path there]``, or with ``"ro"`` as a third.
    Raises OSError."""
    _check(_LIBC.unshare(CLONE_NEWNS), "unshare")
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    # What is mounted over could hide what is still to be mounted: sources are held open.
    held = [(os.open(source, os.O_PATH), target, how) for source, target, *how in pairs]
    staging = tempfile.mkdtemp(prefix=".graft-", dir=os.path.dirname(pairs[0][0]))
    for fd, target, how in sorted(held, key=lambda one: one[1].count("/")):
        source = f"/proc/self/fd/{fd}"
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        there = _place(os.path.normpath(target), is_folder, staging)
        _bind(source, there)
        if how:
            _mount("none", there, "", MS_REMOUNT | MS_BIND | MS_RDONLY)
        os.close(fd)
