"""Commands about fleets: ``troupe up``, ``config``, ``simulate`` and ``provider``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence

from troupe.cli._errors import FAILED, NOT_FOUND, CommandError
from troupe.cli.why_command import journals_folder

_CONFIG = {
    "check": "say what is wrong with a cluster file: every problem, with line and column",
    "explain": "print each key of a cluster file: its value, where from, and what it means",
}
_MODEL = {  # Of `troupe simulate`.
    "boot-s": "from a launch until its node is up (60)",
    "notice-s": "before a node is taken back (0)",
    "rebuild-s": "how long all stand still after a change of members "
                 "(autoscaler.rebuild_time, or 5)",
    "lost-s": "work that is done again after a loss without notice (0)",
    "restart-s": "of a whole group, in the reference that has one (240)",
    "scaling-loss": "n workers do the work of n / (1 + X * (n - 1)) (0)",
}


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``up``, ``config``, ``simulate`` and ``provider``."""
    up = commands.add_parser("up", help="hold the instances that a cluster file asks for")
    up.add_argument("file", help="cluster file (YAML)")
    up.add_argument("args", nargs=argparse.REMAINDER, help="further arguments of the autoscaler")
    up.set_defaults(action=_up)

    config = commands.add_parser("config", help="check or explain a cluster file, or print the "
                                                "schema of such files")
    actions = config.add_subparsers(dest="what", required=True, metavar="ACTION")
    for what, text in _CONFIG.items():
        action = actions.add_parser(what, help=text)
        action.add_argument("file", help="cluster file (YAML)")
        action.set_defaults(action=_config)
    schema = actions.add_parser("schema", help="print a JSON schema, with which editors complete "
                                               "and check cluster files")
    schema.set_defaults(action=_config, file="")

    _add_simulate(commands)
    provider = commands.add_parser("provider", help="about programs that supply nodes")
    kinds = provider.add_subparsers(dest="what", required=True, metavar="ACTION")
    check = kinds.add_parser(
        "check", help="test that a program supplies nodes as `provider: exec` asks; it makes up to "
                      "four nodes and ends them")
    check.add_argument("--offer", default="", help="take nodes of this offer (the first)")
    check.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND",
                       help="the program and its arguments")
    check.set_defaults(action=_check_provider)


def _add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    simulate = commands.add_parser(
        "simulate", help="try a cluster file on a recorded or made-up spot market, with the policy "
                         "that `troupe up` has, beside other fleets")
    simulate.add_argument("--config", required=True, metavar="FILE", help="cluster file (YAML)")
    simulate.add_argument("--trace", action="append", default=[], metavar="[NAME=]PATH",
                          help="a recorded market, a file or a folder of them; NAME: of the pool "
                               "or the zone, where the file has another one")
    simulate.add_argument("--synthetic", metavar="SEED", help="a market that is made up instead")
    simulate.add_argument("--hours", metavar="H",
                          help="how much of it (all of the traces; 30 days of what is made up)")
    for name, text in _MODEL.items():
        simulate.add_argument(f"--{name}", metavar="X" if name == "scaling-loss" else "S",
                              help=text)
    simulate.add_argument("-o", "--output", nargs="+", default=["table"], metavar="HOW",
                          help="table, json, or html FILE")
    simulate.set_defaults(action=_simulate)


def _simulate(arguments: argparse.Namespace) -> int:
    how, *rest = arguments.output
    if (how == "html") != (len(rest) == 1) or len(rest) > 1:
        return _fail("say -o table, -o json, or -o html FILE")
    options = ["--simulate", f"--output={how}"]
    options += [f"--trace={trace}" for trace in arguments.trace]
    for name in ("synthetic", "hours", *_MODEL):
        value = getattr(arguments, name.replace("-", "_"))
        if value is not None:
            options.append(f"--{name}={value}")
    if rest:
        options.append(f"--output-file={rest[0]}")
    return _become_autoscaler(arguments.config, options)


def _up(arguments: argparse.Namespace) -> int:
    # The file's `python3` is then the one that runs this, with its packages.
    folder = os.path.dirname(sys.executable)
    os.environ["PATH"] = folder + os.pathsep + os.environ.get("PATH", os.defpath)
    return _become_autoscaler(arguments.file, arguments.args)


def take_down(arguments: argparse.Namespace) -> None:
    """``troupe down FILE``. Does not return unless something is missing.

    Raises:
        CommandError: there is no such file, and no cluster of that name is held on this host.
    """
    limit = [f"--timeout-s={arguments.timeout_s}"] if arguments.timeout_s else []
    if _become_autoscaler(_cluster_file(arguments.fleet), ["--down", *limit]) != 0:
        raise SystemExit(FAILED)


def _cluster_file(fleet: str) -> str:
    """The file itself, or that of the cluster of this name which is held here, or was left."""
    if os.path.exists(fleet) or "/" in fleet:
        return fleet
    lock = journals_folder() / f"{fleet}.lock"
    try:
        held = json.loads(lock.read_text(encoding="utf-8"))["file"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CommandError(f"no cluster file {fleet}, and nothing of a cluster of that name is "
                           f"left here ({lock})", NOT_FOUND) from None
    return str(held)


def _config(arguments: argparse.Namespace) -> int:
    return _become_autoscaler(arguments.file, [f"--{arguments.what}"])


def _check_provider(arguments: argparse.Namespace) -> int:
    if not arguments.words:
        return _fail("which program? troupe provider check COMMAND ARG...")
    offer = ["--offer", arguments.offer] if arguments.offer else []
    words = [f"--check-provider={word}" for word in arguments.words]
    return _become_autoscaler("", [*offer, *words])


def _become_autoscaler(file: str, options: Sequence[str]) -> int:
    """Does not return unless something is missing."""
    from troupe._cluster import find_bin_dir

    if file and not os.path.isfile(file):
        return _fail(f"no such cluster file: {file}")
    daemon = os.path.join(find_bin_dir(), "troupe-autoscaler")
    if not os.access(daemon, os.X_OK):
        return _fail(f"{daemon} is not there; set TROUPE_BIN_DIR to the folder that holds it")
    words = [daemon, *([file] if file else []), *options]
    sys.stdout.flush()
    # One that comes when Python has looked for signals for the last time would be lost with it. The
    # daemon finds them blocked, as it wants them, and takes what is pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    os.execv(daemon, words)


def _fail(message: str) -> int:
    print(f"troupe: {message}", file=sys.stderr)
    return 1
