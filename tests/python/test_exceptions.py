"""The errors of actors under Ray's names."""

from __future__ import annotations

import pytest

import troupe
from troupe import exceptions

pytestmark = pytest.mark.once


def test_a_name_of_ray_catches_what_it_catches_there() -> None:
    died = troupe.ActorDiedError("it has ended")
    away = troupe.ActorUnavailableError("it is away")
    raised = troupe.ActorTaskError("it raised")
    for error in (died, away, raised):
        assert isinstance(error, exceptions.RayError)
    assert isinstance(died, exceptions.RayActorError)
    assert isinstance(away, exceptions.RayActorError)
    assert not isinstance(raised, exceptions.RayActorError)
    assert isinstance(raised, exceptions.RayTaskError)
    assert isinstance(troupe.PlacementError("no room"), exceptions.TaskUnschedulableError)


def test_every_name_is_an_error_of_troupe() -> None:
    for name in exceptions.__all__:
        assert issubclass(getattr(exceptions, name), troupe.TroupeError), name
