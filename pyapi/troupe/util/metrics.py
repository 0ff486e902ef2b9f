"""Metrics of user code, with the names of ``ray.util.metrics``: counted in drivers, actors, tasks
and workers of runs, added up by the head, and read at its Prometheus endpoint (docs/metrics.md).

A value is added here in memory; once a second the process tells the head. Importing starts nothing.
"""

from __future__ import annotations

import bisect
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from troupe import _metric_report

__all__ = ["Counter", "Gauge", "Histogram", "Metric"]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_TAG = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_BOUNDARIES_MAX = 200
Number = Union[int, float]


class Metric:
    """What counters, gauges and histograms have in common.

    Args:
        name: as Prometheus shows it: letters, digits, ``_`` and ``:``; not one of ``troupe_...``.
        description: what it counts, for people.
        tag_keys: names of its tags; a value needs all of them.

    One of the same name in this process or another is the same metric. It can be pickled.

    Raises:
        TypeError, ValueError: an argument is unusable, or this process has another kind of metric
            of this name.
    """

    _kind = ""

    def __init__(
        self, name: str, description: str = "", tag_keys: Optional[tuple[str, ...]] = None
    ) -> None:
        if not self._kind:
            raise TypeError("a metric is a Counter, a Gauge or a Histogram")
        if not isinstance(name, str) or not isinstance(description, str):
            raise TypeError("name and description of a metric are strings")
        if not _NAME.fullmatch(name) or name.startswith("troupe_"):
            raise ValueError(f"{name!r} is no name for a metric: letters, digits, '_' and ':', and "
                             "not 'troupe_' in front, which is the cluster's own")
        if tag_keys is not None and not isinstance(tag_keys, tuple):
            raise TypeError(f"tag_keys is a tuple of strings, not {tag_keys!r}")
        self._name = name
        self._description = description
        self._tag_keys = _check_keys(tag_keys or ())
        self._default_tags: dict[str, str] = {}
        boundaries = self._boundaries()
        _metric_report.registry.declare(
            name, _metric_report.Family(self._kind, description, boundaries))

    def set_default_tags(self, default_tags: Mapping[str, str]) -> Metric:
        """Tags of values that do not say otherwise.

        Raises:
            ValueError: a key is none of ``tag_keys``. TypeError: a value is no string.
        """
        for key, value in default_tags.items():
            if key not in self._tag_keys:
                raise ValueError(f"metric {self._name} has no tag {key}; its tag_keys are "
                                 f"{', '.join(self._tag_keys) or 'none'}")
            if not isinstance(value, str):
                raise TypeError(f"the value of the tag {key} is a string, not {value!r}")
        self._default_tags = dict(default_tags)
        return self

    @property
    def info(self) -> dict[str, Any]:
        """Its ``name``, ``description``, ``tag_keys`` and ``default_tags``."""
        return {"name": self._name, "description": self._description, "tag_keys": self._tag_keys,
                "default_tags": dict(self._default_tags)}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (type(self), self._arguments(), self._default_tags))

    def _arguments(self) -> tuple[Any, ...]:
        return self._name, self._description, self._tag_keys

    def _boundaries(self) -> tuple[float, ...]:
        return ()

    def _series(self, tags: Optional[Mapping[str, str]]) -> Optional[list[float]]:
        """Where its values are, with the registry's lock held; None: there is no room."""
        final = _metric_report.final_tags(self._tag_keys, self._default_tags, tags)
        return _metric_report.registry.series(self._name, final)


class Counter(Metric):
    """Counts up; what all processes have counted is one sum, also when they have ended.

    Arguments and errors as of :class:`Metric`.
    """

    _kind = "counter"

    def inc(self, value: Number = 1.0, tags: Optional[Mapping[str, str]] = None) -> None:
        """Adds ``value``, which is above 0.

        Raises:
            TypeError, ValueError: the value or a tag is unusable.
        """
        amount = _number(value)
        if not amount > 0 or math.isinf(amount):
            raise ValueError(f"a counter grows by a finite number above 0, not by {value!r}")
        with _metric_report.registry.lock:
            series = self._series(tags)
            if series is not None:
                series[0] += amount
        _started()


class Gauge(Metric):
    """A value that goes up and down; one for each process (tag ``troupe_process``), while it lives.

    Arguments and errors as of :class:`Metric`.
    """

    _kind = "gauge"

    def set(self, value: Optional[Number], tags: Optional[Mapping[str, str]] = None) -> None:
        """The value from now on; None changes nothing.

        Raises:
            TypeError, ValueError: the value or a tag is unusable.
        """
        if value is None:
            return
        amount = _number(value)
        with _metric_report.registry.lock:
            series = self._series(tags)
            if series is not None:
                series[0] = amount
        _started()


class Histogram(Metric):
    """How many values fall between boundaries; added up over processes as a counter is.

    Args:
        boundaries: upper ends of the buckets, ascending and above 0; at most 200.

    The other arguments, and errors, as of :class:`Metric`.
    """

    _kind = "histogram"

    def __init__(
        self, name: str, description: str = "", boundaries: Optional[Sequence[Number]] = None,
        tag_keys: Optional[tuple[str, ...]] = None,
    ) -> None:
        if not isinstance(boundaries, (list, tuple)) or not boundaries:
            raise ValueError(f"a histogram needs boundaries, such as [0.1, 1, 10], not "
                             f"{boundaries!r}")
        self.boundaries = [_number(boundary) for boundary in boundaries]
        usable = all(0 < boundary < math.inf for boundary in self.boundaries)
        ascends = all(a < b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False))
        if not usable or not ascends or len(self.boundaries) > _BOUNDARIES_MAX:
            raise ValueError(f"boundaries are finite, above 0, ascending and at most "
                             f"{_BOUNDARIES_MAX}: {list(boundaries)[:10]!r}")
        super().__init__(name, description, tag_keys)

    def observe(self, value: Number, tags: Optional[Mapping[str, str]] = None) -> None:
        """Counts a value.

        Raises:
            TypeError, ValueError: the value or a tag is unusable.
        """
        amount = _number(value)
        if not math.isfinite(amount):
            raise ValueError(f"a histogram takes finite numbers, not {value!r}")
        bucket = bisect.bisect_left(self.boundaries, amount)
        with _metric_report.registry.lock:
            series = self._series(tags)
            if series is not None:
                series[bucket] += 1
                series[-1] += amount
        _started()

    @property
    def info(self) -> dict[str, Any]:
        """As of the others, and its ``boundaries``."""
        return {**super().info, "boundaries": list(self.boundaries)}

    def _arguments(self) -> tuple[Any, ...]:
        return self._name, self._description, self.boundaries, self._tag_keys

    def _boundaries(self) -> tuple[float, ...]:
        return tuple(self.boundaries)


def _check_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"tag_keys is a tuple of strings, not {keys!r}")
        reserved = key.startswith(("__", "troupe_")) or key == "le"
        if not _TAG.fullmatch(key) or reserved:
            raise ValueError(f"{key!r} is no name for a tag: letters, digits and '_', and neither "
                             "'le' nor '__' or 'troupe_' in front")
    if len(set(keys)) != len(keys):
        raise ValueError(f"a tag is named twice: {', '.join(keys)}")
    return keys


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # NumPy's are, too.
        raise TypeError(f"a metric takes a number, not {value!r}")
    return float(value)


def _restore(kind: type, arguments: tuple[Any, ...], default_tags: dict[str, str]) -> Metric:
    metric: Metric = kind(*arguments)
    return metric.set_default_tags(default_tags)


def _started() -> None:
    if not _metric_report.reporter.started:
        _metric_report.reporter.start()
