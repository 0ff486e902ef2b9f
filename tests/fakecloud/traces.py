"""Recorded markets, in the three forms that ``troupe simulate`` reads too (docs/fleets.md).

A trace is a list of points: from so many seconds on there are so many machines, at this price, or
at None if the trace has no price. Errors name the file and, where there is one, the line.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fakecloud.orders import BadOrder

BYTES_MAX = 256 << 20
POINTS_MAX = 2_000_000
NODES_MAX = 1_000_000
GAP_MAX_S = 30.0 * 86400
TIME_MAX_S = 10.0 * 365 * 86400
KINDS = (".json", ".csv", ".jsonl")


class Point(NamedTuple):
    at_s: float
    capacity: int
    price: Optional[float] = None


@dataclass
class Trace:
    """``name``: the offering, or the file's name without its kind."""

    name: str
    points: list[Point] = field(default_factory=list)

    def put(self, point: Point, where: str) -> None:
        if len(self.points) >= POINTS_MAX:
            raise BadOrder(f"{where}: is too long")
        if self.points and self.points[-1].at_s == point.at_s:
            self.points[-1] = point
        else:
            self.points.append(point)


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def load(text: str, where: str, line: int = 1) -> Any:
    """JSON without NaN and Infinity; ``line``: the number of the text's first one."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        at = line + error.lineno - 1
        raise BadOrder(f"{where}:{at}: is not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise BadOrder(f"{where}: is not JSON: {error}") from None


def number(body: Any, key: str, most: float, where: str) -> float:
    value = body.get(key) if isinstance(body, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadOrder(f'{where}: expected a number "{key}"')
    if not 0 <= value <= most:
        raise BadOrder(f'{where}: "{key}" is out of range: {str(value)[:40]}')
    return float(value)


def _spot_trace(body: Any, path: str) -> list[Trace]:
    where = f"{path}:1"
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        raise BadOrder(f'{where}: expected an object with "metadata" and "data"')
    gap = number(body["metadata"], "gap_seconds", GAP_MAX_S, where)
    data = body.get("data")
    if gap <= 0:
        raise BadOrder(f'{where}: "gap_seconds" is 0')
    if not isinstance(data, list) or not data:
        raise BadOrder(f'{where}: expected a list "data" of counts')
    trace = Trace(Path(path).stem)
    for i, count in enumerate(data):
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= NODES_MAX:
            raise BadOrder(f"{where}: data[{i}]: expected a count, got {str(count)[:40]}")
        trace.put(Point(gap * i, count), where)
    return [trace]


def _bamboo(text: str, path: str) -> list[Trace]:
    trace, last_ms = Trace(Path(path).stem), 0.0
    up: set[str] = set()
    for line_number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{line_number}"
        if not line:
            continue
        parts = line.split(",", 2)
        if len(parts) != 3 or not parts[2]:
            raise BadOrder(f"{where}: expected milliseconds,add|remove,node")
        try:
            ms = float(parts[0])
        except ValueError:
            ms = math.nan
        if not 0 <= ms <= TIME_MAX_S * 1e3:
            raise BadOrder(f"{where}: expected milliseconds, got {parts[0][:40]!r}")
        if ms < last_ms:
            raise BadOrder(f"{where}: goes back in time")
        verb, node = parts[1], parts[2]
        if verb not in ("add", "remove"):
            raise BadOrder(f"{where}: expected add or remove, got {verb[:40]!r}")
        if (node in up) == (verb == "add"):
            wrong = f"adds {node} again" if verb == "add" else f"removes {node}, which is not there"
            raise BadOrder(f"{where}: {wrong}")
        up ^= {node}
        last_ms = ms
        trace.put(Point(ms / 1e3, len(up)), where)
    if not trace.points:
        raise BadOrder(f"{path}:1: has no event")
    return [trace]


def _lines(text: str, path: str) -> list[Trace]:
    traces: dict[str, Trace] = {}
    for line_number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{line_number}"
        if not line:
            continue
        body = load(line, path, line_number)
        if not isinstance(body, dict):
            raise BadOrder(f"{where}: is not a JSON object")
        offering = body.get("offering")
        if not isinstance(offering, str):
            raise BadOrder(f'{where}: expected a string "offering"')
        capacity = number(body, "capacity", NODES_MAX, where)
        if capacity != int(capacity):
            raise BadOrder(f'{where}: "capacity" is no whole number')
        price = number(body, "price", 1e6, where) if "price" in body else None
        trace = traces.setdefault(offering, Trace(offering))
        at_s = number(body, "t", TIME_MAX_S, where)
        if trace.points and at_s < trace.points[-1].at_s:
            raise BadOrder(f"{where}: goes back in time")
        trace.put(Point(at_s, int(capacity), price), where)
    if not traces:
        raise BadOrder(f"{path}:1: has no line")
    return list(traces.values())


def parse(text: str, path: str) -> list[Trace]:
    kind = Path(path).suffix
    if kind == ".json":
        return _spot_trace(load(text, path), path)
    if kind == ".csv":
        return _bamboo(text, path)
    if kind == ".jsonl":
        return _lines(text, path)
    raise BadOrder(f"{path}: expected a {', '.join(KINDS)} file")


def read_text(path: Path) -> str:
    try:
        if path.suffix not in KINDS and path.exists():
            raise BadOrder(f"{path}: expected a {', '.join(KINDS)} file")
        if not path.is_file() and path.exists():
            raise BadOrder(f"{path}: is no file")
        if path.stat().st_size > BYTES_MAX:
            raise BadOrder(f"{path}: is larger than 256 MiB")
        return path.read_text()
    except OSError as error:
        raise BadOrder(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadOrder(f"{path}: is not text") from None


def files_of(path: Path) -> list[Path]:
    """A folder stands for the traces in it."""
    if not path.is_dir():
        return [path]
    files = sorted(one for one in path.iterdir() if one.suffix in KINDS)
    if not files:
        raise BadOrder(f"{path}: the folder has no {', '.join(KINDS)} file")
    return files
