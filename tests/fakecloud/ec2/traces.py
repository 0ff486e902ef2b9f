"""Recorded markets; see :mod:`fakecloud.traces`."""

from __future__ import annotations

from fakecloud.traces import Point, Trace, load, parse

__all__ = ["Point", "Trace", "load", "parse"]
