"""``troupe report``: the life of a fleet in figures and on one page."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from troupe.cli import why_command
from troupe.cli._fleet_report import html_of, read_losses, report_of
from troupe.cli.accounts_command import table_of


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``report``."""
    report = commands.add_parser(
        "report", help="nodes, members, loss and cost of a fleet over its life",
        description="Reads the journal of a cluster that `troupe up` holds, or has held.")
    why_command.add_journal_options(report)
    report.add_argument("--losses", metavar="FILE",
                        help='lines of JSON with "at" (seconds since 1970) and "loss"')
    report.add_argument("-o", "--output", nargs="+", default=["text"], metavar="HOW",
                        help="text, json, or html FILE")
    report.set_defaults(action=_report)


def _report(arguments: argparse.Namespace) -> int:
    how, *rest = arguments.output
    if how not in ("text", "json", "html") or (how == "html") != (len(rest) == 1) or len(rest) > 1:
        print("troupe: say -o text, -o json, or -o html FILE", file=sys.stderr)
        return 1
    try:
        path = why_command.path_of(arguments)
        records = why_command.last_life(why_command.read_journal(path))
        if not records:
            raise why_command.JournalError(f"{path} has no records")
        report = report_of(records, read_losses(Path(arguments.losses)) if arguments.losses else ())
        if how == "html":
            Path(rest[0]).write_text(html_of(report), encoding="utf-8")
            print(f"written to {rest[0]}")
            return 0
        figures = report.figures()
        if how == "json":
            print(json.dumps(figures))
            return 0
        accounts = figures.pop("accounts")
        for name, value in figures.items():
            print(f"{name.replace('_', ' ')}: {'-' if value is None else value}")
        if accounts:
            print("\n".join(table_of(accounts)))
    except (why_command.JournalError, OSError) as error:
        print(f"troupe: {error}", file=sys.stderr)
        return 1
    except (KeyError, TypeError, ValueError) as error:
        print(f"troupe: the journal cannot be read: {error!r}", file=sys.stderr)
        return 1
    return 0
