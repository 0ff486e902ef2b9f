"""``python3 tests/fakecloud ec2``: serves a fake EC2 until a signal ends it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from fakecloud import hosting
from fakecloud.ec2 import market, traces
from fakecloud.ec2.cloud import DEFAULT_KEY
from fakecloud.ec2.errors import BadMarket
from fakecloud.ec2.service import FakeEc2
from fakecloud.ec2.sigv4 import Key


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="fakecloud ec2", description="A fake EC2 on this machine. Its instances are processes "
        "of yours that run what the user data says; none of them outlives it.",
        epilog="It prints the environment of a client. Tell it what to do with POST /fakecloud, a "
               "JSON object, as in docs/fleets.md; GET /fakecloud, /fakecloud/events and "
               "/fakecloud/ledger tell what there is, what was and what it has cost.")
    new.add_argument("--host", default="127.0.0.1", help="an address of this host's loopback")
    new.add_argument("--port", type=int, default=0, help="default: one that is free")
    new.add_argument("--market", action="append", default=[], metavar="[ZONE[/TYPE]=]PATH",
                     help="a market file, or traces: .json, .csv, .jsonl or a folder; may be "
                     "repeated")
    new.add_argument("--speed", type=float, help="seconds of the market per second")
    new.add_argument("--seed", type=int, default=0)
    new.add_argument("--set", action="append", default=[], metavar="NAME=JSON", dest="settings",
                     help='a setting, as in lag_s=0 or lead_s=\'{"choices": [[120, 4], [0, 1]]}\'')
    new.add_argument("--key", action="append", default=[], metavar="ID:SECRET[:TOKEN[:SECONDS]]",
                     help=f"who may sign, instead of {DEFAULT_KEY.id}; a token ends after so many "
                     "seconds")
    new.add_argument("--env", action="append", default=[], metavar="NAME=VALUE",
                     help="a variable of the instances")
    new.add_argument("--folder", type=Path, help="where instances have theirs; default: a "
                     "temporary one")
    hosting.add_with_parent(new)
    return new


def read_key(text: str) -> Key:
    parts = text.split(":")
    if not 2 <= len(parts) <= 4 or not all(parts[:2]):
        raise BadMarket(f"--key: expected ID:SECRET[:TOKEN[:SECONDS]], got {text[:20]!r}")
    try:
        ends = time.time() + float(parts[3]) if len(parts) == 4 else None
    except ValueError:
        raise BadMarket(f"--key: {parts[3]!r} is no number of seconds") from None
    return Key(parts[0], parts[1], parts[2] if len(parts) > 2 else "", ends)


def read_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for one in arguments.settings:
        name, equals, value = one.partition("=")
        if not equals:
            raise BadMarket(f"--set: expected NAME=JSON, got {one!r}")
        settings[name] = traces.load(value, f"--set {name}")
    if arguments.speed is not None:
        settings["speed"] = arguments.speed
    for one in arguments.env:
        name, equals, value = one.partition("=")
        if not equals:
            raise BadMarket(f"--env: expected NAME=VALUE, got {one!r}")
        settings.setdefault("environment", {})[name] = value
    return settings


def serve(arguments: argparse.Namespace) -> None:
    hosting.check_host(arguments.host)
    keys = [read_key(one) for one in arguments.key] or None
    cloud = FakeEc2(market.load(arguments.market), read_settings(arguments), arguments.seed,
                    arguments.host, arguments.port, keys, arguments.folder)

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
    except (BadMarket, OSError, OverflowError) as error:
        print(f"fakecloud ec2: {error}", file=sys.stderr)
        sys.exit(2)
