"""Runs the processes of all instances of a cloud, and ends them with it, however that ends.

A process of its own: orders are JSON lines at its standard input, events are lines at its standard
output. When the input ends, because whoever held it was killed, all instances end. Each instance
has a keeper, a fork of this process, to which the kernel gives what an instance's processes leave
behind (PR_SET_CHILD_SUBREAPER): nothing escapes by a double fork or a session of its own. A keeper
whose warden is killed ends its instance too (PR_SET_PDEATHSIG), and what a keeper that was killed
leaves behind comes to the warden, which ends it.

An order to boot says what to ``run``: ``argv``, ``cwd``, ``output`` (a file), and ``container``:
the instance ends with its first process, which alone is asked to end, and an event tells how it
did. ``mounts`` are pairs of a path here and the path at which that process sees it.

Without imports of ours but one beside it, so that it starts fast and its forks stay small.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import shutil
import signal
import sys
import time
from typing import Any, NoReturn, Optional

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import grafts
else:
    from fakecloud import grafts

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KEPT = {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP}
KILL_LIMIT_S = 10.0     # For what cannot be killed: a process of another user, a hung disk.
BUSY_LIMIT_S = 2.0      # A process that was just forked may still have the script open for writing.
KERNEL_LISTS = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
_LIBC = ctypes.CDLL(None, use_errno=True)


def children_of(pid: int) -> list[int]:
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return found if KERNEL_LISTS else children_by_parent(pid)
    except (OSError, ValueError):
        pass
    return found


def children_by_parent(pid: int) -> list[int]:
    """For kernels that list no children: whoever names it as the parent."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                if name.isdigit() and int(file.read().rpartition(b")")[2].split()[1]) == pid:
                    found.append(int(name))
        except (OSError, ValueError, IndexError):
            pass
    return found


def tree_of(pid: int) -> list[int]:
    """Its descendants; those that come meanwhile are found by who asks again."""
    found, left = [], children_of(pid)
    while left:
        one = left.pop()
        found.append(one)
        left += children_of(one)
    return found


def send(pids: list[int], what: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, what)
        except (ProcessLookupError, PermissionError):
            pass


def reap() -> list[tuple[int, int]]:
    """Children that have ended, and how. None left at all: ``[(0, 0)]``."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended or [(0, 0)]
        if pid == 0:
            return ended
        ended.append((pid, status))


def kill_all_below(first: int = 0) -> Optional[int]:
    """Until this process has no child any more: orphans become its children. How ``first`` ended,
    if it did meanwhile."""
    limit = time.monotonic() + KILL_LIMIT_S
    how = None
    while time.monotonic() < limit:
        send(tree_of(os.getpid()), signal.SIGKILL)
        ended = reap()
        how = dict(ended).get(first, how)
        if ended == [(0, 0)]:
            break
        time.sleep(0.005)
    return how


# ---- the keeper of one instance ----

def say(run: dict[str, Any], text: str) -> None:
    try:
        with open(run["output"], "a") as file:
            file.write(f"[fakecloud] {text}\n")
    except OSError:
        pass    # The instance has removed it, or filled the disk.


def tell(event: str, instance: str, **more: object) -> None:
    """One write of less than a pipe takes at once: events of several processes do not mix."""
    line = json.dumps({"event": event, "instance": instance, **more}) + "\n"
    try:
        os.write(1, line.encode())
    except OSError:
        pass


def become(run: dict[str, Any], env: dict[str, str], failure: int) -> NoReturn:
    """Whatever the order names, as cloud-init and container runtimes run it. Why it cannot be run
    is written to ``failure``."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    for one in (signal.SIGPIPE, signal.SIGXFSZ):    # Which Python ignores.
        signal.signal(one, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDONLY)
    output = os.open(run["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd, to in ((null, 0), (output, 1), (output, 2)):
        os.dup2(fd, to)
    for fd in range(3, 256):
        if fd != failure:
            os.closerange(fd, fd + 1)
    limit = time.monotonic() + BUSY_LIMIT_S
    try:
        os.chdir(run["cwd"])
        if run.get("mounts"):
            grafts.mount(run["mounts"])
            os.chdir(run["cwd"])
        while True:
            try:
                os.execvpe(run["argv"][0], run["argv"], env)
            except OSError as error:
                if error.errno != errno.ETXTBSY or time.monotonic() >= limit:
                    raise
            time.sleep(0.01)
    except OSError as error:
        os.write(failure, (error.strerror or str(error)).encode())
    os._exit(126)


def start(run: dict[str, Any], env: dict[str, str]) -> tuple[int, str]:
    """The first process, and why it does not run if it does not."""
    reads, failure = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            become(run, env, failure)
        finally:
            os._exit(126)
    os.close(failure)
    with os.fdopen(reads, "rb") as file:    # Ends when it has become another program.
        why = file.read(1000).decode("utf-8", "replace")
    return first, why


def keep(instance: str, run: dict[str, Any], env: dict[str, str], warden: int) -> NoReturn:
    """The keeper's life."""
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 2):
        os.dup2(null, fd)
    os.closerange(3, 256)
    if os.getppid() == warden:
        how = watch(instance, run, *start(run, env))
    else:
        how = kill_all_below()
    if run.get("container") and how is not None:
        tell("exit", instance, code=os.waitstatus_to_exitcode(how))
    os._exit(0)


def watch(instance: str, run: dict[str, Any], first: int, why: str) -> Optional[int]:
    """Until all that belongs to it has ended; how the first process did, if it ended by itself or
    just now."""
    container = run.get("container", False)
    if why:
        say(run, f"the {run['name']} cannot be run: {why}")
    if container:
        tell("unstarted" if why else "started", instance, **{"why": why} if why else {"pid": first})
    what = 0
    while what not in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        what = signal.sigwait(KEPT)
        if what == signal.SIGUSR1:
            send([first] if container else tree_of(os.getpid()), signal.SIGTERM)
        for pid, status in reap():
            if pid == first and container:
                kill_all_below()
                return status
            if pid == first:
                code = os.waitstatus_to_exitcode(status)
                say(run, f"{run['name']} has ended with status {code}")
    return kill_all_below(first)


# ---- the warden ----

class Warden:
    def __init__(self, base: str) -> None:
        self.base = base
        self.keepers: dict[str, int] = {}
        self._ending: set[int] = set()      # Keepers that were told to end.

    def order(self, order: dict[str, Any]) -> None:
        verb, instance = order["do"], order["instance"]
        folder = os.path.join(self.base, instance)
        keeper = self.keepers.get(instance)
        if verb == "boot" and keeper is None:
            me = os.getpid()
            try:
                pid = os.fork()
            except OSError:     # The host has no room for one more.
                return tell("lost", instance)
            if pid == 0:
                try:
                    keep(instance, order["run"], order["env"], me)
                finally:
                    os._exit(1)
            self.keepers[instance] = pid
        elif verb == "soft" and keeper is not None:
            send([keeper], signal.SIGUSR1)
        elif verb == "kill" and keeper is not None:
            self._ending.add(keeper)
            send([keeper], signal.SIGTERM)
        elif verb == "forget":
            shutil.rmtree(folder, ignore_errors=True)

    def look(self) -> None:
        """Which keepers have ended; what those that were killed have left behind ends too."""
        gone = {pid for pid, _ in reap()}
        for instance, keeper in list(self.keepers.items()):
            if keeper in gone:
                del self.keepers[instance]
                tell("ended" if keeper in self._ending else "lost", instance)
                self._ending.discard(keeper)
        keepers = set(self.keepers.values())
        strays = [one for one in children_of(os.getpid()) if one not in keepers]
        for one in strays:
            send([*tree_of(one), one], signal.SIGKILL)

    def end(self) -> None:
        send(list(self.keepers.values()), signal.SIGTERM)
        limit = time.monotonic() + KILL_LIMIT_S
        while self.keepers and time.monotonic() < limit:
            self.look()
            time.sleep(0.005)
        kill_all_below()
        shutil.rmtree(self.base, ignore_errors=True)

    def run(self) -> None:
        buffer = b""
        while True:
            ready, _, _ = select.select([0], [], [], 0.2)
            if ready:
                more = os.read(0, 1 << 16)
                if not more:
                    return
                *lines, buffer = (buffer + more).split(b"\n")
                for line in lines:
                    self.order(json.loads(line))
            self.look()


def main() -> None:
    """``warden.py FOLDER``: the folder is removed at the end."""
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The keepers wait for these; a signal that comes before they do is not lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, KEPT)
    warden = Warden(sys.argv[1])
    try:
        warden.run()
    finally:
        warden.end()


if __name__ == "__main__":
    main()
