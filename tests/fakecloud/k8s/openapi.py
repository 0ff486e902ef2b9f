"""What the types are, for clients that check what they send."""

from __future__ import annotations

from fakecloud.k8s import errors
from fakecloud.service import Reply


def answer(accept: str) -> Reply:
    raise errors.no_such_path()
