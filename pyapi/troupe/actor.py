"""What actors are made of, under the names of ``ray.actor``."""

from __future__ import annotations

from troupe.actors._context import exit_actor
from troupe.actors._remote import ActorClass, ActorHandle, ActorMethod, method

__all__ = ["ActorClass", "ActorHandle", "ActorMethod", "exit_actor", "method"]
