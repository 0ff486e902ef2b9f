"""How other hosts join a cluster without its key file: ``troupe token``, ``start --token``."""

from __future__ import annotations

import argparse
import os
import subprocess
from typing import Any

from troupe import _host_records
from troupe._cluster import find_bin_dir
from troupe.cli._errors import FAILED, CommandError
from troupe.cli._shown import seconds_of

_VALID_MAX_S = 7 * 86400.0
_JOIN_LIMIT_S = 90.0  # The node gives up after 60.


def add_commands(commands: Any) -> None:
    """Adds ``troupe token``."""
    from troupe.cli import cluster_commands

    token = cluster_commands.asking(commands.add_parser(
        "token", help="let another host join, once: prints the command for it"))
    token.add_argument("--node", default="", metavar="NAME", help="only as the node of this name")
    token.add_argument("--valid", type=seconds_of, default=3600.0, metavar="TIME",
                       help="for how long, at most 7d (1h)")
    token.set_defaults(action=cluster_commands.guarded(_token))


def _token(arguments: argparse.Namespace) -> None:
    from troupe.cli import cluster_commands

    valid_s = arguments.valid
    if not 0 < valid_s <= _VALID_MAX_S:
        raise CommandError("--valid wants a time above 0, such as 30m, and at most 7d", 2)
    driver = cluster_commands.driver_at(*cluster_commands.target(arguments))
    try:
        token, listens = driver.offer_join(arguments.node, valid_s)
    finally:
        driver.shutdown()
    host, _, port = listens.rpartition(":")
    where = f"{_host_records.address_towards(host) if host == '0.0.0.0' else host}:{port}"
    name = f" --name {arguments.node}" if arguments.node else ""
    if arguments.output == "json":
        import json

        print(json.dumps({"address": where, "token": token, "valid_s": valid_s}))
    else:
        print(f"troupe start --address {where}{name} --token {token}")


def fetch_key(address: str, token: str, key_file: str, node: str) -> None:
    """Has the token give the cluster's key pair into the file; raises CommandError if it does not.

    Args:
        address: HOST:PORT of the head.
        token: as ``troupe token`` has printed it.
        key_file: where it is put, unless it is there already.
        node: the name that this host is to have.
    """
    os.makedirs(os.path.dirname(key_file), mode=0o700, exist_ok=True)
    command = [os.path.join(find_bin_dir(), "troupe-node"), "--head", f"tcp://{address}",
               "--name", node, "--key-file", key_file, "--join-only"]
    try:
        done = subprocess.run(command, env={**os.environ, "TROUPE_JOIN_TOKEN": token},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=_JOIN_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"the cluster at {address} could not be joined within "
                           f"{_JOIN_LIMIT_S:g} s") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        why = said[-1].removeprefix("troupe-node: ") if said else f"status {done.returncode}"
        raise CommandError(why, FAILED)
