"""How many threads a worker's libraries may use."""

from __future__ import annotations

import os
from typing import Optional

import pytest

from troupe import worker


@pytest.mark.parametrize(("cpus", "before", "after"), [
    ("0.25", None, "1"), ("1", None, "1"), ("3.9", None, "3"), ("4", "7", "7"),
    (None, None, None), ("0", None, None)])
def test_as_many_threads_as_cpus_unless_somebody_has_decided(
    cpus: Optional[str], before: Optional[str], after: Optional[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("TROUPE_WORKER_CPUS", cpus), ("OMP_NUM_THREADS", before)):
        monkeypatch.setenv(name, "")  # So that it is as it was in the end.
        monkeypatch.delenv(name)
        if value is not None:
            monkeypatch.setenv(name, value)
    worker._share_threads()
    assert os.environ.get("OMP_NUM_THREADS") == after
