"""``troupe accounts``: what the paid time of a fleet went to, and what it cost."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Optional

from troupe.cli import why_command

USES = ("useful", "redone", "recovering", "waiting", "starting", "idle", "draining")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``accounts``."""
    accounts = commands.add_parser(
        "accounts", help="what the paid time of a fleet went to, and what it cost",
        description="Reads the journal of a cluster that `troupe up` holds, or has held; its "
                    "accounts are as of the last minute, or of its end.")
    why_command.add_journal_options(accounts)
    accounts.add_argument("--json", action="store_true", help="the figures as one JSON object")
    accounts.set_defaults(action=_accounts)


def table_of(figures: dict[str, Any]) -> list[str]:
    """The accounts of a journal's record, for people."""
    paid = float(figures["paid_worker_s"])
    lines = [f"{'':12}{'worker-hours':>14}{'share':>9}{'dollars':>12}"]
    for use in USES:
        seconds = float(figures["worker_s"][use])
        share = seconds / paid if paid else 0.0
        lines.append(f"{use:12}{seconds / 3600:14.3f}{share:9.2%}{figures['dollars'][use]:12.4f}")
    lines.append(f"{'paid':12}{paid / 3600:14.3f}{1:9.0%}{figures['paid_dollars']:12.4f}")
    if figures["paid_dollars"]:
        per_hour = figures["paid_dollars"] / (paid / 3600)
        lines.append(f"one worker-hour: ${per_hour:.4f}")
    on_demand = figures["on_demand_dollars"]
    if on_demand:
        saved = on_demand - figures["paid_dollars"]
        lines.append(f"on demand: ${on_demand:.4f}; saved ${saved:.4f} ({saved / on_demand:.1%})")
    lines.append(f"preemptions: {figures['preemptions']}, which cost "
                 f"${figures['lost_dollars']:.4f}")
    for what in ("steps", "samples"):
        if figures.get(what):
            dollars = figures["paid_dollars"] * 1000 / figures[what]
            lines.append(f"{what}: {figures[what]}; ${dollars:.3g} per thousand")
    if figures.get("epochs"):
        dollars = figures["paid_dollars"] / figures["epochs"]
        lines.append(f"epochs: {figures['epochs']:.3f}; ${dollars:.3g} each")
    pools = figures.get("pools", {})
    if len(pools) > 1:
        lines.append(f"{'pool':12}{'worker-hours':>14}{'useful':>9}{'dollars':>12}")
        for name, of in sorted(pools.items()):
            time = float(of["paid_worker_s"])
            useful = of["worker_s"]["useful"] / time if time else 0.0
            lines.append(f"{name:12}{time / 3600:14.3f}{useful:9.2%}{of['paid_dollars']:12.4f}")
    return lines


def _accounts(arguments: argparse.Namespace) -> int:
    try:
        path = why_command.path_of(arguments)
        records = why_command.last_life(why_command.read_journal(path))
        figures: Optional[dict[str, Any]] = None
        for record in records:
            if record.kind == "account" and isinstance(record.fields.get("figures"), dict):
                figures = record.fields["figures"]
        if figures is None:
            raise why_command.JournalError(
                f"{path} has no accounts yet; the first come with the first node")
        print(json.dumps(figures) if arguments.json else "\n".join(table_of(figures)))
    except (why_command.JournalError, OSError) as error:
        print(f"troupe: {error}", file=sys.stderr)
        return 1
    except (KeyError, TypeError, ValueError) as error:
        print(f"troupe: the accounts in the journal cannot be read: {error!r}", file=sys.stderr)
        return 1
    return 0
