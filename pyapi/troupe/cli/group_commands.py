"""``troupe groups``: runs, groups of actors, collective groups, placement groups."""

from __future__ import annotations

import argparse
from typing import Any

from troupe.cli import cluster_commands
from troupe.cli.cluster_commands import amounts, table

_KINDS = ("groups", "actor_groups", "collective_groups", "placement_groups")


def add_command(commands: Any) -> None:
    """Adds the subcommand to the parser of ``troupe``."""
    parser = commands.add_parser("groups", help="runs, groups of actors, collective groups, "
                                 "placement groups")
    cluster_commands.asking(parser).set_defaults(action=cluster_commands.guarded(_groups))


def _groups(arguments: argparse.Namespace) -> None:
    cluster_commands.show(arguments, lambda state: {kind: state[kind] for kind in _KINDS}, _draw)


def _draw(state: dict[str, Any]) -> None:
    table(("RUN", "NAME", "STATE", "EPOCH", "WORKERS", "REASON"),
          [(g["run"], g["name"], g["state"], g["epoch"], f"{len(g['workers'])}/{g['target']}",
            g["reason"]) for g in state["groups"]])
    if state["actor_groups"]:
        print()
        table(("ACTOR GROUP", "TYPE", "STATE", "ALIVE", "SIZE", "REASON"),
              [(g["name"], g["type"], "ended" if g["ended"] else "running",
                sum(m["state"] == "alive" for m in g["members"]),
                f"{g['min_size']} <= {g['size']} <= {g['max_size']}",
                g["reason"] or "; ".join(f"{m['number']} {m['state']}: {m['reason']}"
                                         for m in g["members"] if m["state"] != "alive"))
               for g in state["actor_groups"]])
    if state["collective_groups"]:
        print()
        table(("COLLECTIVE GROUP", "STATE", "EPOCH", "MEMBERS", "REASON"),
              [(g["name"], g["phase"], g["epoch"],
                f"{sum(m['number'] > 0 for m in g['members'])}/{g['size']}", g["reason"])
               for g in state["collective_groups"]])
    if state["placement_groups"]:
        print()
        table(("PLACEMENT GROUP", "STATE", "BUNDLES", "REASON"),
              [(g["id"], g["state"],
                "; ".join(f"{b['number']}: {amounts(b['resources'])} on {b['node'] or '-'}"
                          for b in g["bundles"]), g["reason"])
               for g in state["placement_groups"]])
