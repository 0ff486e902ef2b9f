"""Placement groups: room that is reserved together, for actors that are then started in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from troupe._config import check_resource_count
from troupe.actors import _codec, _failures, _options, _refs, _session
from troupe.actors._refs import ObjectRef
from troupe.errors import ActorNameTakenError, ActorNotFoundError, TroupeError

_ASK_S = 30.0
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

Bundle = Mapping[str, float]


class PlacementGroup:
    """Bundles of resources that are reserved all together or not at all.

    Options of actors name one: ``options(placement_group=group,
    placement_group_bundle_index=0)``. A bundle whose node dies is placed anew. The group goes with
    the process or actor that made it, unless it is detached. Handles can be passed to others.
    """

    def __init__(self, id: str) -> None:
        self.id = id

    def __repr__(self) -> str:
        return f"<PlacementGroup {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def ready(self) -> ObjectRef:
        """A ref that is there when every bundle has a place; its value is this group.

        Once the group was removed, or if it can never be placed, ``get`` of the ref raises.
        """
        session = _session.current()
        session.check()
        payload = _codec.encode(self).payload
        call = session.actors.placement_group_later(
            "await", {"group": self.id}, payload, _refs.FOREVER_S)
        ref = ObjectRef(call, session, f"placement group {self.id}", _failures.PLACEMENT)
        ref._why = self._why
        return ref

    def _why(self) -> str:
        try:
            status = self.status()
        except TroupeError as error:
            return str(error)
        return f"it is {status['state']}: {status['reason']}"

    def wait(self, timeout: float = _ASK_S, *, timeout_seconds: Optional[float] = None) -> bool:
        """Whether every bundle has a place within ``timeout`` seconds; ``reason`` says why not.

        ``timeout_seconds`` is another name of ``timeout``.

        Raises:
            ActorNotFoundError (a ValueError): it was removed.
            PlacementError: it can never be placed on this machine.
        """
        limit = timeout if timeout_seconds is None else timeout_seconds
        try:
            self._ask("await", {}, _options.check_amount("timeout", limit))
        except TimeoutError:
            return self.state == "placed"
        return True

    def resize(
        self, add: Sequence[Bundle] = (), remove: Sequence[int] = (),
        label_selectors: Optional[Sequence[Any]] = None,
    ) -> None:
        """Adds bundles, and removes those of these numbers with what runs in them.

        The others stay where they are. Bundles are numbered from 0 and on; a number is never used
        again. Returns before what was added has a place: ``wait``.
        """
        self._ask("resize", {"add": _bundles(add, label_selectors), "remove": list(remove)})

    def remove(self) -> None:
        """Gives its room back; actors in it end. Doing it again is no error."""
        self._ask("remove", {})

    def status(self) -> dict[str, Any]:
        """``name``, ``state``, ``reason`` and ``bundles``, all of one moment."""
        return self._ask("status", {})

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """What each bundle reserves, by resource."""
        return [dict(bundle["resources"]) for bundle in self.bundles]

    @property
    def bundle_count(self) -> int:
        """How many bundles it has."""
        return len(self.bundles)

    @property
    def state(self) -> str:
        """``"pending"``, ``"placed"``, ``"resizing"`` or ``"rescheduling"`` (a node was lost)."""
        return str(self.status()["state"])

    @property
    def reason(self) -> str:
        """Why bundles wait; empty if none does."""
        return str(self.status()["reason"])

    @property
    def bundles(self) -> list[dict[str, Any]]:
        """Of each ``number``, ``resources``, ``labels``, ``node`` ("": it waits), ``devices``."""
        return list(self.status()["bundles"])

    def _ask(self, kind: str, options: dict[str, Any], limit: float = _ASK_S) -> dict[str, Any]:
        return _ask(kind, {"group": self.id, **options}, f"placement group {self.id}", limit)


def placement_group(
    bundles: Sequence[Bundle], strategy: str = "PACK", name: str = "",
    lifetime: Optional[str] = None, *, priority: int = 0,
    bundle_label_selector: Optional[Sequence[Any]] = None,
) -> PlacementGroup:
    """Reserves ``bundles``, each on one node; returns at once: ``wait`` for the room.

    Args:
        bundles: amounts by resource, ``{"CPU": 2, "GPU": 1}``; ``memory`` in bytes.
        strategy: ``"PACK"`` (on few nodes), ``"SPREAD"`` (on many), ``"STRICT_PACK"`` (on one),
            ``"STRICT_SPREAD"`` (each on another).
        name: unique among the cluster's groups; for :func:`get_placement_group`.
        lifetime: ``"detached"``: it outlives its creator.
        priority: among what waits for room; higher goes first.
        bundle_label_selector: for each bundle terms that its node must fulfil, as
            ``label_selector`` of actors.

    Raises:
        ActorNameTakenError (a ValueError): there is a group of this name.
        TypeError, ValueError: an argument is unusable.
    """
    if not isinstance(strategy, str) or strategy.upper() not in _STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(_STRATEGIES)}, not {strategy!r}")
    if lifetime not in (None, "detached"):
        raise ValueError(f'lifetime must be None or "detached", not {lifetime!r}')
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, not {name!r}")
    if not bundles:
        raise ValueError("a placement group has at least one bundle")
    asked = {"name": name, "detached": lifetime == "detached", "strategy": strategy.lower(),
             "priority": int(priority), "add": _bundles(bundles, bundle_label_selector)}
    return PlacementGroup(_ask("create", asked, "placement_group()")["id"])


def get_placement_group(name: str) -> PlacementGroup:
    """The placement group of this name.

    Raises:
        ActorNotFoundError (a ValueError): there is none. TypeError, ValueError: this is no name.
    """
    _options.check_name("the name of a placement group", name)
    return PlacementGroup(_ask("find", {"name": name}, f"get_placement_group({name!r})")["id"])


def remove_placement_group(group: PlacementGroup) -> None:
    """As :meth:`PlacementGroup.remove`.

    Raises:
        TypeError: this is no placement group.
    """
    if not isinstance(group, PlacementGroup):
        raise TypeError(f"remove_placement_group() takes a PlacementGroup, not {group!r}")
    group.remove()


def _bundles(bundles: Sequence[Bundle], selectors: Optional[Sequence[Any]]) -> list[dict[str, Any]]:
    if isinstance(bundles, (str, Mapping)):
        raise TypeError("bundles are a list of dicts of amounts by resource")
    if selectors is not None and len(selectors) != len(bundles):
        raise ValueError(f"{len(bundles)} bundles need as many label selectors, "
                         f"got {len(selectors)}")
    made = []
    for index, bundle in enumerate(bundles):
        if not isinstance(bundle, Mapping) or not bundle:
            raise ValueError(f"bundle {index} must be amounts by resource, not {bundle!r}")
        check_resource_count(f"bundle {index}", len(bundle))
        resources = {str(name): _options.check_amount(f"bundle {index}: {name}", amount)
                     for name, amount in bundle.items()}
        labels = _options.labels_of({"label_selector": selectors[index] if selectors else None})
        made.append({"resources": resources, "labels": labels})
    return made


def _ask(kind: str, options: dict[str, Any], what: str, limit: float = _ASK_S) -> dict[str, Any]:
    session = _session.current()
    session.check()
    try:
        return dict(session.actors.placement_group(kind, options, limit))
    except RuntimeError as error:
        code = getattr(error, "code", None)
        message = f"{what}: {getattr(error, 'message', None) or error}"
        known: dict[Any, Union[type[ActorNotFoundError], type[ActorNameTakenError]]] = {
            "not_found": ActorNotFoundError, "already_exists": ActorNameTakenError}
        if code in known:
            raise known[code](message) from None
        raise _failures.translate(error, what, _failures.PYTHON) from None
