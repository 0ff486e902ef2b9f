"""What the values of a state refer to, so that copies of them refer to the live objects.

A state's plain values are deep-copied by commits and pickled for those who join. A value that
holds on to a model, an optimizer or a parameter of the state would then belong to a copy of it,
and change the copy from there on, silently. So within copies and pickles the state's own objects
are names: they stand for the live object of whoever makes or reads them.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle
import torch
from torch.optim import lr_scheduler

_CONSTANT = frozenset((int, float, bool, str, bytes, complex, type(None)))
SCHEDULER_KINDS = tuple(
    kind for kind in (
        getattr(lr_scheduler, name, None)
        for name in ("LRScheduler", "_LRScheduler", "ReduceLROnPlateau"))
    if kind is not None
)


def has_state_dict(value: Any) -> bool:
    """Whether the value says by itself what its state is."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


def constant(value: Any) -> bool:
    """Whether nothing in the value can refer to anything else."""
    if type(value) in _CONSTANT:
        return True
    if type(value) in (list, tuple, set):
        return all(map(constant, value))
    return type(value) is dict and all(constant(k) and constant(v) for k, v in value.items())


class _Pickler(cloudpickle.Pickler):
    names: Mapping[int, str]

    def persistent_id(self, obj: Any) -> Any:
        return self.names.get(id(obj))


class _Unpickler(pickle.Unpickler):
    objects: Mapping[str, Any]

    def persistent_load(self, pid: Any) -> Any:
        try:
            return self.objects[pid]
        except KeyError:
            raise pickle.UnpicklingError(
                f"a value of the state refers to {pid}, which is not in the state here; all "
                "members must run the same code") from None


class Binding:
    """The live objects of a state by name: its values, their modules, parameters and buffers."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._objects: dict[str, Any] = {}
        for name, value in values.items():
            self._objects[name] = value
            if isinstance(value, torch.nn.Module):
                for kind in ("modules", "parameters", "buffers"):
                    for path, part in getattr(value, f"named_{kind}")():
                        self._objects.setdefault(f"{name}.{path}" if path else name, part)
            original = getattr(value, "wrapped_optimizer", None)
            if original is not None:
                self._objects[f"{name} (wrapped)"] = original
        self._names = {id(value): name for name, value in self._objects.items()}

    def copied(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Deep copies of named values of the state.

        Raises:
            TypeError: one cannot be copied; the message names it.
        """
        found = {}
        known = {id(part): part for part in self._objects.values()}
        for name, value in values.items():
            try:
                found[name] = copy.deepcopy(value, dict(known))  # Its memo: taken for copied.
            except Exception as error:
                raise _cannot("copied", name, value, error) from error
        return found

    def dumps(self, header: Any, values: Mapping[str, Any]) -> bytes:
        """Pickles ``header``, of which ``values`` are a part.

        Raises:
            TypeError: a value cannot be pickled; the message names it.
        """
        try:
            return self._dumps(header)
        except Exception:
            self.check(values)
            raise

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises TypeError that names the first value which cannot be pickled."""
        for name, value in values.items():
            if constant(value):
                continue
            try:
                self._dumps(value)
            except Exception as error:
                raise _cannot("pickled", name, value, error) from error

    def _dumps(self, value: Any) -> bytes:
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        pickler.names = self._names
        pickler.dump(value)
        return stream.getvalue()

    def loads(self, data: bytes) -> Any:
        """What :meth:`dumps` has made, bound to the objects here."""
        unpickler = _Unpickler(io.BytesIO(data))
        unpickler.objects = self._objects
        return unpickler.load()


def _cannot(verb: str, name: str, value: Any, error: Exception) -> TypeError:
    return TypeError(
        f"{name!r} of the state, a {type(value).__qualname__}, cannot be {verb}: {error}; keep it "
        "outside of the state, or give its class state_dict() and load_state_dict()")


def unlisted(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Schedulers of the state's optimizers that are not in the state, by optimizer.

    A scheduler that belongs to another one is left out. Under ``""`` are gradient scalers if the
    state has none; whose they are cannot be known.
    """
    optimizers: dict[int, str] = {}
    for name, value in values.items():
        if isinstance(value, torch.optim.Optimizer):
            for optimizer in (value, getattr(value, "wrapped_optimizer", None)):
                optimizers[id(optimizer)] = name
    alive = _alive()
    listed = {id(part) for value in values.values() for part in _with_parts(value)}
    nested = {id(part) for o in alive for part in _with_parts(o) if part is not o}
    has_scaler = not optimizers or any(map(_is_scaler, values.values()))
    found: dict[str, list[Any]] = {}
    for value in alive:
        if _is_scaler(value):
            if value.is_enabled() and not has_scaler:
                found.setdefault("", []).append(value)
        elif id(value) not in listed | nested and id(_optimizer_of(value)) in optimizers:
            found.setdefault(optimizers[id(_optimizer_of(value))], []).append(value)
    return found


def _alive() -> list[Any]:
    """All schedulers and gradient scalers of this process."""
    kinds = {kind for root in (*SCHEDULER_KINDS, *_scaler_kinds()) for kind in _family(root)}
    # An instance refers to its class. To list all objects instead would for a moment refer to
    # tuples that other threads are still making, which then fails there with a SystemError.
    return [o for o in gc.get_referrers(*kinds) if type(o) in kinds]


def _family(kind: Any) -> Iterator[Any]:
    yield kind
    for child in kind.__subclasses__():
        yield from _family(child)


def _scaler_kinds() -> Iterator[Any]:
    for module in (getattr(torch, "amp", None), getattr(torch.cuda, "amp", None)):
        kind = getattr(module, "GradScaler", None)
        if kind is not None:
            yield kind


def _is_scaler(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "GradScaler" and kind.__module__.startswith("torch.")


def _optimizer_of(scheduler: Any) -> Any:
    parts = list(_with_parts(scheduler))  # In torch 1.13 a chain names none itself.
    return next((o for part in parts if (o := getattr(part, "optimizer", None)) is not None), None)


def _with_parts(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, SCHEDULER_KINDS):
        for part in getattr(value, "_schedulers", ()):
            yield from _with_parts(part)
