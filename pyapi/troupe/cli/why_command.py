"""``troupe why``: what an autoscaler did, and why, from the journal that ``troupe up`` keeps."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

LINE_MAX = 64 << 10
NOW_ACTIONS = 8  # The latest, which ``troupe why now`` shows.
_ACTIONS = ("launch", "drain", "terminate", "notice", "failure", "up", "gone", "trouble")
_PHASES = {"launch": "launching", "up": "up", "notice": "up, with a notice", "drain": "draining",
           "terminate": "ending"}


class JournalError(Exception):
    """There is no journal, or it does not know what was asked for."""


@dataclass(frozen=True)
class Record:
    """One line of a journal."""

    at: float
    life: str
    kind: str
    node: str
    pool: str
    group: str
    text: str
    fields: dict[str, Any]

    @property
    def never_was(self) -> bool:
        """A launch that has come to nothing."""
        return self.kind == "failure" and self.text.startswith("launch failed")

    def line(self) -> str:
        """For people: when, what, about whom, and why."""
        about = self.node or self.group
        if self.kind == "launch" or (self.kind == "failure" and not about):
            about = f"{about} (pool {self.pool})" if about else f"pool {self.pool}"
        words = " ".join(word for word in (self.kind, about) if word)
        return f"{_when(self.at)}  {words}" + (f": {self.text}" if self.text else "")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``why``."""
    why = commands.add_parser(
        "why", help="what `troupe up` did about a node, a pool or a run, and why",
        description="Reads the journal of a cluster that `troupe up` holds, or has held.")
    why.add_argument("about", nargs="?", default="now", metavar="NODE|POOL|RUN|now",
                     help="of whom; now: what holds at the end of the journal (now)")
    add_journal_options(why)
    why.add_argument("--last", type=int, default=100, metavar="N",
                     help="at most so many of the latest lines (100)")
    why.add_argument("--all-lives", action="store_true",
                     help="also of earlier `troupe up` of that name")
    why.add_argument("--json", action="store_true", help="the records, one per line")
    why.set_defaults(action=_why)


def add_journal_options(command: argparse.ArgumentParser) -> None:
    """Which journal a command reads."""
    command.add_argument("--fleet", metavar="NAME",
                         help="the cluster's name (the one that was written to last)")
    command.add_argument("--journal", metavar="FILE", help="a journal in another place")


def journals_folder() -> Path:
    """Where ``troupe up`` keeps journals: ``$XDG_STATE_HOME`` or ``~/.local/state``."""
    state = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return root / "troupe" / "fleets"


def read_journal(path: Path) -> Iterator[Record]:
    """All records of ``path`` and of the file before it, the oldest first.

    A line that is no record is passed over: the last one may be in the middle of its writing.

    Raises:
        OSError: ``path`` cannot be read.
    """
    before = path.with_name(path.name + ".1")
    for file in ([before] if before.exists() else []) + [path]:
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in iter(lambda: lines.readline(LINE_MAX), ""):
                record = _parse(line)
                if record is not None:
                    yield record


def last_life(records: Iterable[Record]) -> list[Record]:
    """Those of the ``troupe up`` that began last."""
    kept = list(records)
    started = [record.life for record in kept if record.kind == "start"]
    life = started[-1] if started else (kept[-1].life if kept else "")
    return [record for record in kept if record.life == life]


def about(records: list[Record], whom: str) -> list[Record]:
    """Those about a node, a pool or a run.

    Raises:
        JournalError: none is about it; the message names what is near.
    """
    found = [r for r in records if whom in (r.node, r.group)]
    found = found or [r for r in records if r.pool == whom]
    if found:
        return found
    names = sorted({name for r in records for name in (r.node, r.pool, r.group) if name})
    near = difflib.get_close_matches(whom, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    known = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    raise JournalError(f"the journal says nothing about {whom}{hint or '.'} It knows: "
                       + (known or "nothing"))


def now_of(records: list[Record]) -> list[str]:
    """What holds at the end of the journal: nodes, the latest decision, the latest actions."""
    phases: dict[str, str] = {}
    decision: Optional[Record] = None
    trouble: Optional[Record] = None
    account: Optional[Record] = None
    groups: dict[str, Record] = {}
    for record in records:
        if record.kind == "decision":
            decision, trouble = record, None
        elif record.kind == "trouble":
            trouble = record
        elif record.kind == "account":
            account = record
        elif record.kind == "group":
            groups[record.group] = record
        elif record.kind == "gone" or record.never_was:
            phases.pop(record.node, None)
        elif record.kind in _PHASES and record.node:
            phases[record.node] = _PHASES[record.kind]
    lines = [r.line() for r in records if r.kind == "start"][-1:]
    ended = records[-1] if records and records[-1].kind == "end" else None
    if ended is not None:
        lines.append(ended.line())
    else:
        nodes = ", ".join(f"{node} is {phase}" for node, phase in sorted(phases.items()))
        lines.append(f"nodes: {nodes or 'none'}")
    lines += [record.line() for record in groups.values()]
    lines += [record.line() for record in (decision, trouble, account) if record is not None]
    actions = [record.line() for record in records if record.kind in _ACTIONS]
    return lines + (["lately:"] if actions else []) + actions[-NOW_ACTIONS:]


def _parse(line: str) -> Optional[Record]:
    try:
        fields = json.loads(line)
        texts = {name: str(fields.get(name, "")) for name in ("node", "pool", "group", "text")}
        return Record(at=float(fields["at"]), life=str(fields["life"]), kind=str(fields["kind"]),
                      fields=fields, **texts)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) + f".{int(at * 10) % 10}"


def path_of(arguments: argparse.Namespace) -> Path:
    """The journal that :func:`add_journal_options` chose.

    Raises:
        JournalError: there is none.
    """
    if arguments.journal:
        return Path(arguments.journal)
    folder = journals_folder()
    known = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if arguments.fleet:
        path = folder / f"{arguments.fleet}.jsonl"
        if path in known:
            return path
        names = ", ".join(path.stem for path in known) or "none"
        raise JournalError(f"no journal of a cluster {arguments.fleet} in {folder}; "
                           f"there are: {names}")
    if not known:
        raise JournalError(f"no journals in {folder}; `troupe up FILE` writes one. On another "
                           "machine, or as another user? Name it with --journal")
    return known[-1]


def _why(arguments: argparse.Namespace) -> int:
    try:
        if arguments.last < 1:
            raise JournalError(f"--last is at least 1, got {arguments.last}")
        path = path_of(arguments)
        records = list(read_journal(path))
        if not arguments.all_lives:
            records = last_life(records)
        if not records:
            raise JournalError(f"{path} has no records")
        if arguments.about == "now" and not arguments.json:
            lines = now_of(records)
        else:
            found = records if arguments.about == "now" else about(records, arguments.about)
            lines = [json.dumps(r.fields) if arguments.json else r.line() for r in found]
            left = len(lines) - arguments.last
            if left > 0:
                print(f"troupe: {left} earlier lines are left out; see --last", file=sys.stderr)
            lines = lines[-arguments.last:]
        print("\n".join(lines))
    except (JournalError, OSError) as error:
        print(f"troupe: {error}", file=sys.stderr)
        return 1
    return 0
