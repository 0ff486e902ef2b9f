"""The command ``troupe``: its entry point, and the subcommands that need no cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from troupe._version import __version__
from troupe.cli import (
    _programs,
    _torchrun_options,
    accounts_command,
    chaos_command,
    cluster_commands,
    fleet_commands,
    group_commands,
    join_commands,
    report_command,
    run_commands,
    top_command,
    why_command,
)
from troupe.errors import TroupeError, WorkerError


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Entry point; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    return int(arguments.action(arguments))


def build_parser() -> argparse.ArgumentParser:
    """All subcommands and their options."""
    parser = argparse.ArgumentParser(
        prog="troupe", description="Elastic training on an actor runtime."
    )
    parser.add_argument("--version", action="version", version=f"troupe {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    version = commands.add_parser("version", help="print the version")
    version.set_defaults(action=_version)

    doctor = commands.add_parser("doctor", help="check that everything a run needs is there")
    doctor.set_defaults(action=_doctor)

    run = commands.add_parser("run", help="run a training script on an elastic group of workers")
    run_commands.add_run_options(run)
    _torchrun_options.add_options(run)
    run.add_argument("-m", "--module", action="store_true",
                     help="what follows is a module, as of python -m")
    run.add_argument("--no-python", "--no_python", action="store_true", dest="no_python",
                     help="what follows is any command, which each worker runs once")
    run.add_argument("script", help="the script, optionally after the word python; or a command")
    run.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(action=_run)

    trace = commands.add_parser("trace", help="merge the traces of a run with TROUPE_TRACE_DIR")
    trace.add_argument("folder", help="what TROUPE_TRACE_DIR was")
    trace.add_argument("-o", "--output", default="trace.json", metavar="FILE",
                       help="merged file, for Perfetto or chrome://tracing (trace.json)")
    trace.set_defaults(action=_trace)

    fleet_commands.add_commands(commands)
    cluster_commands.add_commands(commands)
    group_commands.add_command(commands)
    join_commands.add_commands(commands)
    run_commands.add_commands(commands)
    top_command.add_command(commands)
    why_command.add_command(commands)
    chaos_command.add_command(commands)
    accounts_command.add_command(commands)
    report_command.add_command(commands)
    return parser


def _version(arguments: argparse.Namespace) -> int:
    print(f"troupe {__version__}")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from troupe.cli.doctor import run_checks

    findings = run_checks()
    for finding in findings:
        print(finding.line())
    return 1 if any(f.required and not f.ok for f in findings) else 0


def _run(arguments: argparse.Namespace) -> int:
    try:
        _torchrun_options.apply(arguments)
        task, name = run_commands.task_of(
            [arguments.script, *arguments.args], arguments.module, arguments.no_python)
        with run_commands.make_executor(arguments) as executor:
            executor.settings.name = executor.settings.name or name
            executor.run(*task)
    except KeyboardInterrupt:
        return 130
    except WorkerError as error:
        _fail(str(error))
        failed = error.__cause__
        return failed.status if isinstance(failed, _programs.ProgramFailed) else 1
    except (TroupeError, cluster_commands.CommandError, ValueError, TypeError, OSError) as error:
        return _fail(str(error))
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    from troupe._trace import write_merged

    try:
        print(write_merged(Path(arguments.folder), Path(arguments.output)))
    except OSError as error:
        return _fail(str(error))
    return 0


def _fail(message: str) -> int:
    print(f"troupe: {message}", file=sys.stderr)
    return 1

