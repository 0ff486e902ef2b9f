"""Commits on disk, from which a group resumes whose members have all died.

``commit()`` hands the snapshot, which is in host memory already, to a thread that writes it. While
that thread reads one set of buffers the next commits go to a second one; training waits for neither
memory nor disk. A slow disk makes durable commits rarer: what waits is replaced by the newest.
"""

from __future__ import annotations

import logging
import os
import urllib.parse
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import torch

from troupe import _native
from troupe._config import check_count
from troupe.errors import TroupeError, code_of
from troupe.torch import _context
from troupe.torch._tree import nbytes

_log = logging.getLogger("troupe.elastic")
_FLUSH_LIMIT_S = 60.0
_DIGEST_BITS = (1 << 62) - 1
_DEFAULT_RUN = "local"  # outside of any executor


class DurableCommits:
    """Where and how often a state's commits are written to disk.

    They lie in ``directory/RUN/commit-VERSION``, and a run of the same name continues from the
    newest whole one as soon as no living member holds the state: after all members have died, and
    in a new run. To start from nothing, name another run or remove the folder.

    Members of a data-parallel group hold equal state, so one member per host writes: that of local
    rank 0. When it dies the next one takes over with the next epoch. Whoever reads a commit runs
    what it holds (it is a pickle), so let only trusted users write to the directory.

    Args:
        directory: a folder that outlives the workers; on every host, or one that hosts share.
        every: a commit whose version divides by this is written; or the next one, if it had to give
            way because the disk is slow.
        keep: complete commits that stay, at least 1.
        run: the folder's name; default: the run's, see ``Executor(name=...)``.
        shared: all hosts see the same directory; then only rank 0 writes.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """

    def __init__(
        self,
        directory: Union[str, os.PathLike[str]],
        every: int = 1,
        keep: int = 2,
        run: Optional[str] = None,
        shared: bool = False,
    ) -> None:
        if not isinstance(directory, (str, os.PathLike)):
            raise TypeError(f"directory must be a path, not {type(directory).__name__}")
        if run is not None and not isinstance(run, str):
            raise TypeError(f"run must be a string, not {type(run).__name__}")
        if not os.fspath(directory) or run == "":
            raise ValueError("directory and run must not be empty")
        self.directory = os.path.abspath(os.path.expanduser(os.fspath(directory)))
        self.every = check_count("every", every)
        self.keep = check_count("keep", keep)
        self.run = run
        self.shared = bool(shared)

    def folder(self, run: str) -> str:
        """The folder of a run's commits; any name makes one folder."""
        name = urllib.parse.quote(self.run or run, safe=" ")
        return os.path.join(self.directory, name.replace(".", "%2E"))


def as_durable(durable: Any) -> Optional[DurableCommits]:
    """The argument ``durable=`` of a state.

    Raises:
        TypeError: it is neither a path nor a DurableCommits.
    """
    if durable is None or isinstance(durable, DurableCommits):
        return durable
    if isinstance(durable, (str, os.PathLike)):
        return DurableCommits(durable)
    raise TypeError(
        f"durable must be a directory or DurableCommits(...), not {type(durable).__name__}"
    )


class CommitLog:
    """One state's end of its commit store.

    **Thread:** the one that trains.
    """

    def __init__(self, settings: DurableCommits) -> None:
        self.settings = settings
        self.folder = ""
        self._store: Any = None
        self._due = False
        self._held: dict[int, list[list[torch.Tensor]]] = {}  # by ticket: not yet written
        self._open_failure = ""

    # -- writing --------------------------------------------------------------------------------

    def may_overwrite(self, buffers: list[torch.Tensor]) -> bool:
        """Whether the writer does not need these buffers; a commit that waits gives way."""
        if not self._prune():
            return True
        writing, waiting = self._store.state()
        if _holds(self._held.get(waiting, ()), buffers) and self._store.withdraw():
            self._due = True
            del self._held[waiting]
        # The commit may have been begun in between, so look again.
        writing, _ = self._store.state()
        return not _holds(self._held.get(writing, ()), buffers)

    def wants(self, context: _context.Context, version: int) -> bool:
        """Whether this member is to write the commit of this version."""
        self._due = self._due or version % self.settings.every == 0
        return self._due and self._mine(context)

    def save(
        self,
        context: _context.Context,
        version: int,
        header: Callable[[], bytes],
        buffers: Sequence[list[torch.Tensor]],
    ) -> None:
        """Hands a commit over if it is due and this member writes; tells earlier problems."""
        self._tell_problem(context)
        if not self.wants(context, version):
            return
        try:
            store = self._open(context)
        except TroupeError as error:
            if str(error) != self._open_failure:
                self._open_failure = str(error)
                _warn(context, str(error))
            return
        pairs = [(t.data_ptr(), nbytes(t)) for tensors in buffers for t in tensors]
        self._held[store.save(version, header(), pairs)] = list(buffers)
        self._due = False
        self._prune()

    def settle(self, context: _context.Context) -> None:
        """Waits until what was handed over is written, for a limited time."""
        if self._store is None:
            return
        if not self._store.flush(_FLUSH_LIMIT_S):
            _warn(context, f"the last commit is not written to {self.folder} after "
                           f"{_FLUSH_LIMIT_S:g} s")
        self._prune()
        self._tell_problem(context)

    def stats(self) -> dict[str, Any]:
        """Commits ``written``, ``superseded`` (they gave way to newer ones) and ``failed`` by this
        member; ``bytes`` and ``writing_s`` of the written ones; their newest ``version``."""
        return dict(self._store.stats()) if self._store is not None else {}

    # -- reading --------------------------------------------------------------------------------

    def find(self, context: _context.Context) -> Any:
        """The newest whole commit, read by one member per host; None for the others."""
        if not self._mine(context):
            return None
        store = self._open(context)
        try:
            return store.newest()
        except RuntimeError as error:
            raise self._unusable(error) from error

    def agree(
        self, context: _context.Context, mine: Any
    ) -> Optional[tuple[int, int, list[int]]]:
        """(version, source, ranks with the very same commit) of the newest that any member has."""
        lead = [0, 0] if mine is None else [mine.version + 1, mine.digest & _DIGEST_BITS]
        rows = context.gather_ints(lead, "durable commits")
        best = max(row[0] for row in rows)
        if best == 0:
            return None
        source = next(rank for rank, row in enumerate(rows) if row[0] == best)
        return best - 1, source, [r for r, row in enumerate(rows) if row == rows[source]]

    # -- inside ---------------------------------------------------------------------------------

    def _mine(self, context: _context.Context) -> bool:
        rank = "rank" if self.settings.shared else "local_rank"
        return int(context.view[rank]) == 0

    def _open(self, context: _context.Context) -> Any:
        if self._store is None:
            run = str(context.runtime.assignment.get("name") or _DEFAULT_RUN)
            self.folder = self.settings.folder(run)
            try:
                store = _native.core().CommitStore(self.folder, self.settings.keep)
            except RuntimeError as error:
                raise self._unusable(error) from error
            # The writer reads tensors: it must end before they do.
            weakref.finalize(self, _close, store, os.getpid())
            self._store = store
        return self._store

    def _unusable(self, error: RuntimeError) -> TroupeError:
        if code_of(error) is None:
            raise error
        return TroupeError(
            f"durable commits in {self.folder} cannot be used: {error}; mend this, or give "
            "another directory"
        )

    def _prune(self) -> bool:
        """Lets go of buffers that are written; whether any are not."""
        if self._held:
            busy = self._store.state()
            self._held = {t: b for t, b in self._held.items() if t in busy}
        return bool(self._held)

    def _tell_problem(self, context: _context.Context) -> None:
        problem = self._store.take_problem() if self._store is not None else None
        if problem is not None:
            _warn(context, f"{problem}; training goes on, but commits are not durable until this "
                           "is mended")


def _holds(held: Sequence[list[torch.Tensor]], buffers: list[torch.Tensor]) -> bool:
    return any(tensors is buffers for tensors in held)


def _close(store: Any, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has no writer
        store.close()


def _warn(context: _context.Context, message: str) -> None:
    _log.warning("%s", message)
    context.runtime.worker.tell("warning", message)
