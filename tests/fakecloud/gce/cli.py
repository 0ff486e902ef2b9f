"""``python3 tests/fakecloud gce``: serves a fake Compute Engine until a signal ends it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from fakecloud import hosting, traces
from fakecloud.gce import catalog
from fakecloud.gce.service import FakeGce
from fakecloud.orders import BadOrder


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="fakecloud gce", description="A fake Google Compute Engine on this machine. Its "
        "instances are processes of yours that run their startup-script; none of them outlives it.",
        epilog="It prints the environment of a client. Tell it what to do with POST /fakecloud, a "
               "JSON object, as in its README.md; GET /fakecloud, /fakecloud/events, "
               "/fakecloud/journal and /fakecloud/ledger tell what there is, what was, what was "
               "asked for and what it has cost.")
    new.add_argument("--host", default="127.0.0.1", help="an address of this host's loopback")
    new.add_argument("--port", type=int, default=0, help="default: one that is free")
    new.add_argument("--market", action="append", default=[], metavar="[ZONE[/TYPE]=]PATH",
                     help="a market file, or traces: .json, .csv, .jsonl or a folder; may be "
                     "repeated")
    new.add_argument("--speed", type=float, help="seconds of the market per second")
    new.add_argument("--seed", type=int, default=0)
    new.add_argument("--set", action="append", default=[], metavar="NAME=JSON", dest="settings",
                     help='a setting, as in lag_s=0 or lead_s=\'{"choices": [[30, 4], [0, 1]]}\'')
    new.add_argument("--project", help="its id; default: fakecloud")
    new.add_argument("--env", action="append", default=[], metavar="NAME=VALUE",
                     help="a variable of the instances")
    new.add_argument("--unsigned", action="store_true", help="without a service account, whose key "
                     "needs Python's package cryptography")
    new.add_argument("--folder", type=Path, help="where instances have theirs; default: a "
                     "temporary one")
    hosting.add_with_parent(new)
    return new


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadOrder(f"{option}: expected NAME=VALUE, got {text!r}")
    return name, value


def read_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for one in arguments.settings:
        name, value = _pair(one, "--set")
        settings[name] = traces.load(value, f"--set {name}")
    if arguments.speed is not None:
        settings["speed"] = arguments.speed
    if arguments.project is not None:
        settings["project"] = arguments.project
    for one in arguments.env:
        name, value = _pair(one, "--env")
        settings.setdefault("environment", {})[name] = value
    return settings


def serve(arguments: argparse.Namespace) -> None:
    hosting.check_host(arguments.host)
    cloud = FakeGce(catalog.load(arguments.market), read_settings(arguments), arguments.seed,
                    arguments.host, arguments.port, arguments.folder, not arguments.unsigned)

    def tell() -> None:
        for name, value in cloud.environment().items():
            print(f"{name}={shlex.quote(value)}")
        print(f"FAKECLOUD_URL={cloud.url}/fakecloud", flush=True)

    hosting.serve(cloud, arguments, tell)


def main(words: list[str]) -> None:
    hosting.raise_limits()
    arguments = parser().parse_args(words)
    try:
        serve(arguments)
    except BrokenPipeError:
        os._exit(1)     # Nobody reads what is printed.
    except ModuleNotFoundError as error:
        print(f"fakecloud gce: the Python package {error.name} is missing; --unsigned does "
              "without a service account", file=sys.stderr)
        sys.exit(2)
    except (BadOrder, OSError, OverflowError) as error:
        print(f"fakecloud gce: {error}", file=sys.stderr)
        sys.exit(2)
