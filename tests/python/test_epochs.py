"""What a run's list of epochs says of each, whatever the order of the events."""

from __future__ import annotations

from typing import Any

import pytest

from troupe.executor._epochs import Epochs

SOON = "its process ended"


def epoch(number: int, reason: str) -> dict[str, Any]:
    return {"kind": "epoch", "epoch": number, "reason": reason}


def death(worker: str, cause: str) -> dict[str, Any]:
    return {"kind": "worker", "worker": worker, "state": "died", "detail": cause}


@pytest.mark.parametrize("epoch_first", [True, False])
def test_a_reason_gets_the_cause_of_death(epoch_first: bool) -> None:
    epochs = Epochs()
    both = [epoch(2, f"w1#1 died: {SOON}; w11#1 died: {SOON}"), death("w1#1", "signal SIGKILL")]
    for event in both if epoch_first else reversed(both):
        epochs.take(event)
    assert epochs[-1]["reason"] == f"w1#1 died: signal SIGKILL; w11#1 died: {SOON}"


def test_a_later_life_has_a_cause_of_its_own() -> None:
    epochs = Epochs()
    epochs.take(epoch(2, f"w1#1 died: {SOON}"))
    epochs.take(death("w1#1", "exit code 3"))
    epochs.take(epoch(3, "join of w1#2"))
    epochs.take(epoch(4, f"w1#2 died: {SOON}"))
    epochs.take({"kind": "worker", "worker": "w1#2", "state": "started", "detail": ""})
    assert [e["reason"] for e in epochs] == [
        "w1#1 died: exit code 3", "join of w1#2", f"w1#2 died: {SOON}"]


def test_the_state_that_was_sent_is_summed_by_epoch() -> None:
    epochs = Epochs()
    for number in (1, 2):
        epochs.take(epoch(number, "group formed"))
    for sent in (100, 20):
        epochs.take({"kind": "state", "epoch": 1, "bytes": sent})
    assert [e["state_bytes"] for e in epochs] == [120, 0] and len(epochs) == 2
