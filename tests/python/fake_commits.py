"""A stand-in for ``_core.CommitStore``: a writer that reads the memory when it is told to.

The files are pickles. ``CommitStore.hold`` keeps what is being written unread, so that a test sees
whether anybody overwrites it meanwhile.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

Buffers = Sequence[tuple[int, int]]


class Commit:
    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        self.version, self.header, self._tensors = pickle.loads(data)
        self.sizes = [len(t) for t in self._tensors]
        self.digest = int.from_bytes(hashlib.sha256(data).digest()[:8], "little")

    def copy_to(self, buffers: Buffers) -> None:
        assert [n for _, n in buffers] == self.sizes
        for (ptr, n), tensor in zip(buffers, self._tensors):
            if n:
                ctypes.memmove(ptr, tensor, n)


class CommitStore:
    hold = False
    open: list[CommitStore] = []

    def __init__(self, directory: str, keep: int) -> None:
        self._folder = Path(directory)
        self._keep = keep
        self._tickets = 0
        self._pending: list[tuple[int, int, bytes, list[tuple[int, int]]]] = []
        self.problem: Optional[str] = None
        self.closed = False
        self.superseded = 0
        os.makedirs(directory, exist_ok=True)
        CommitStore.open.append(self)

    def save(self, version: int, header: bytes, tensors: Buffers) -> int:
        assert not self.closed
        self._tickets += 1
        if len(self._pending) == 2:
            self._pending.pop()
            self.superseded += 1
        self._pending.append((self._tickets, version, header, list(tensors)))
        if not CommitStore.hold:
            self.release()
        return self._tickets

    def release(self) -> None:
        """Reads and writes what is being written and what waits."""
        while self._pending:
            _, version, header, tensors = self._pending.pop(0)
            content = (version, header, [ctypes.string_at(p, n) if n else b"" for p, n in tensors])
            (self._folder / f"commit-{version:020d}").write_bytes(pickle.dumps(content))
            for path in self._paths()[self._keep:]:
                path.unlink()

    def state(self) -> tuple[int, int]:
        tickets = [entry[0] for entry in self._pending] + [0, 0]
        return tickets[0], tickets[1]

    def withdraw(self) -> bool:
        if len(self._pending) < 2:
            return False
        self._pending.pop()
        self.superseded += 1
        return True

    def flush(self, timeout_s: float) -> bool:
        return not self._pending

    def take_problem(self) -> Optional[str]:
        problem, self.problem = self.problem, None
        return problem

    def newest(self) -> Optional[Commit]:
        return next((Commit(path) for path in self._paths()), None)

    def close(self) -> None:
        self.closed = True

    def _paths(self) -> list[Any]:
        return sorted(self._folder.glob("commit-*"), reverse=True)
