"""The state behind ``troupe.checkpoint``: one tree of tensors and plain values."""

from __future__ import annotations

import copy
import os
from typing import Any, Optional

import torch

from troupe.torch._tree import unflatten
from troupe.torch.elastic.durable import CommitLog, as_durable
from troupe.torch.elastic.handlers import TreeHandler
from troupe.torch.elastic.state import ObjectState


class _KeptHandler(TreeHandler):
    """A tree that is live only while it is saved or sent."""

    def __init__(self) -> None:
        self.tree: Any = None
        super().__init__(None)

    def live_tree(self) -> Any:
        return self.tree

    def load_tree(self, tree: Any) -> None:
        self.tree = tree

    def in_place_targets(self, skeleton: Any) -> Optional[list[torch.Tensor]]:
        return None  # A tree is taken over whole: its plain values belong to its tensors.


class KeptState(ObjectState):
    """The value that was saved last.

    Args:
        directory: where commits are kept on disk, too; None: nowhere.
    """

    def __init__(self, directory: Any) -> None:
        self._handler = _KeptHandler()
        super().__init__()
        self.directory: Optional[str] = None
        if directory is not None:
            self.keep_in(directory)

    def keep_in(self, directory: Any) -> None:
        """Keeps commits on disk from now on, if it does not.

        Raises:
            ValueError: they are kept in another directory.
        """
        path = os.fspath(directory)
        settings = as_durable(path)
        if self.directory is None and settings is not None:
            self._commits = CommitLog(settings)
            # What is being written to disk is not written over.
            self._handler.snapshot.may_overwrite = self._commits.may_overwrite
            self.directory = path
        elif path != self.directory:
            raise ValueError(f"states are kept in {self.directory}, and cannot be in {path} too")

    def resume(self) -> None:
        """Takes over the newest state on disk; all members call it, when nothing was saved."""
        self._has_state = False
        self.sync()

    def keep(self, tree: Any) -> None:
        """Commits a copy of ``tree``.

        Raises:
            HostsUpdatedInterrupt: members come or go here; the commit is done.
        """
        self._handler.tree = tree
        try:
            self.commit()
        finally:
            self.forget()

    def value(self) -> Any:
        """A copy of what was saved or received last."""
        snapshot = self._handler.snapshot
        return unflatten(
            copy.deepcopy(snapshot.skeleton), [buffer.clone() for buffer in snapshot.buffers])

    def forget(self) -> None:
        """Lets go of the live tree; the copy stays."""
        self._handler.tree = None
        self._handler.snapshot.sources = []

    def save(self) -> None:
        self._handler.save()
        super().save()

    def restore(self) -> None:
        self._handler.restore()

    def sync(self) -> None:
        self.restore()  # What is sent is what was saved last.
        super().sync()
        self.forget()

    def _tree_handlers(self) -> dict[str, TreeHandler]:
        return {"checkpoint": self._handler}
