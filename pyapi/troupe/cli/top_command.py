"""``troupe top``: what uses the cluster, again and again."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

from troupe.cli import cluster_commands


def add_command(commands: Any) -> None:
    """Adds the subcommand to the parser of ``troupe``."""
    parser = commands.add_parser("top", help="what uses the cluster, again and again")
    top = cluster_commands.asking(parser)
    top.add_argument("-n", "--count", type=int, metavar="TIMES",
                     help="how often; default: until Ctrl-C on a terminal, else once")
    top.add_argument("--interval", type=float, default=1.0, metavar="SECONDS")
    top.add_argument("--sort", choices=("cpu", "memory"), default="cpu")
    top.set_defaults(action=cluster_commands.guarded(_top))


def _top(arguments: argparse.Namespace) -> None:
    """Processes by what they use; one drawing after the other, each JSON on a line of its own."""
    count = arguments.count
    if (count is not None and count < 1) or not 0.1 <= arguments.interval <= 3600:
        raise cluster_commands.CommandError(
            "--count wants 1 or more, --interval 0.1 to 3600 seconds", 2)
    screen = sys.stdout.isatty() and arguments.output == "table"
    if count is None and not screen:
        count = 1
    driver = cluster_commands.driver_at(*cluster_commands.target(arguments))
    shown = 0
    try:
        while True:
            state = dict(driver.state())
            if screen:
                print("\x1b[H\x1b[J", end="")  # From the top of an empty screen.
            elif shown and arguments.output == "table":
                print()
            _draw_top(state, arguments)
            sys.stdout.flush()
            shown += 1
            if shown == count:
                return
            time.sleep(arguments.interval)
    except KeyboardInterrupt:
        print()
    finally:
        driver.shutdown()


def _draw_top(state: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    key = "cores" if arguments.sort == "cpu" else "rss_bytes"
    processes = sorted(state["processes"], key=lambda p: (-p[key], p["process"]))
    if arguments.output == "json":
        print(json.dumps({"time": time.time(), "nodes": state["nodes"], "processes": processes},
                         sort_keys=True))
        return
    for node in state["nodes"]:
        of_node = [p for p in processes if p["node"] == node["id"]]
        cores, rss = (sum(p[name] for p in of_node) for name in ("cores", "rss_bytes"))
        memory = cluster_commands.amounts({"memory": rss})
        print(f"{node['id']}  {node['state']}  reserved: {cluster_commands.usage(node)}  "
              f"used: {cores:.2f} cores, {memory} by {len(of_node)} processes")
    lines = shutil.get_terminal_size().lines - len(state["nodes"]) - 2
    if sys.stdout.isatty():
        processes = processes[:max(1, lines)]
    cluster_commands.table(("NODE", "PID", "CPU%", "MEMORY", "WHAT"),
          [(p["node"], p["pid"], f"{100 * p['cores']:.0f}",
            cluster_commands.amounts({"memory": p["rss_bytes"]}).removeprefix("memory "), p["what"])
           for p in processes])
