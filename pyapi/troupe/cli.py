"""The command line: ``troupe version | doctor | run | trace | up`` and what cluster_cli adds."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from troupe._version import __version__
from troupe.errors import TroupeError


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
    run.add_argument("-np", "--num-proc", type=int, required=True, dest="np", metavar="N",
                     help="workers to start with")
    run.add_argument("--min-np", "--min-num-proc", type=int, dest="min_np", metavar="N",
                     help="fewest workers to go on with; default: -np")
    run.add_argument("--max-np", "--max-num-proc", type=int, dest="max_np", metavar="N",
                     help="most workers; default: -np")
    run.add_argument("--cpus-per-worker", type=float, metavar="X")
    run.add_argument("--gpus-per-worker", type=float, metavar="X")
    run.add_argument("--elastic-timeout", type=float, metavar="S",
                     help="seconds to wait for --min-np after losses (600)")
    run.add_argument("--start-timeout", type=float, metavar="S",
                     help="seconds to wait for the first workers (60)")
    run.add_argument("--reset-limit", type=int, metavar="N",
                     help="fail after this many membership changes")
    run.add_argument("--address", metavar="HOST:PORT", help="a running cluster; default: embedded")
    run.add_argument("--config", metavar="FILE", help="YAML file with arguments of troupe.Executor")
    run.add_argument("script", help="the script, optionally after the word python")
    run.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(action=_run)

    trace = commands.add_parser("trace", help="merge the traces of a run with TROUPE_TRACE_DIR")
    trace.add_argument("folder", help="what TROUPE_TRACE_DIR was")
    trace.add_argument("-o", "--output", default="trace.json", metavar="FILE",
                       help="merged file, for Perfetto or chrome://tracing (trace.json)")
    trace.set_defaults(action=_trace)

    up = commands.add_parser("up", help="hold the instances that a cluster file asks for")
    up.add_argument("file", help="cluster file (YAML)")
    up.add_argument("args", nargs=argparse.REMAINDER, help="further arguments of the autoscaler")
    up.set_defaults(action=_up)

    from troupe.cluster_cli import add_commands

    add_commands(commands)
    return parser


def _version(arguments: argparse.Namespace) -> int:
    print(f"troupe {__version__}")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from troupe.doctor import run_checks

    findings = run_checks()
    for finding in findings:
        print(finding.line())
    return 1 if any(f.required and not f.ok for f in findings) else 0


def _run(arguments: argparse.Namespace) -> int:
    from troupe.executor import Executor

    words: list[str] = [arguments.script, *arguments.args]
    if os.path.basename(words[0]).startswith("python") and len(words) > 1:
        words = words[1:]
    script = os.path.abspath(words[0])
    if not os.path.isfile(script):
        return _fail(f"no such script: {words[0]}")
    try:
        with Executor(
            min_workers=arguments.min_np if arguments.min_np is not None else arguments.np,
            max_workers=arguments.max_np if arguments.max_np is not None else arguments.np,
            workers=arguments.np,
            cpus_per_worker=arguments.cpus_per_worker,
            gpus_per_worker=arguments.gpus_per_worker,
            elastic_timeout=arguments.elastic_timeout,
            start_timeout=arguments.start_timeout,
            reset_limit=arguments.reset_limit,
            address=arguments.address,
            config=arguments.config,
            name=os.path.basename(script),
        ) as executor:
            executor.run(run_script, (script, words[1:]))
    except KeyboardInterrupt:
        return 130
    except (TroupeError, ValueError, TypeError, OSError) as error:
        return _fail(str(error))
    return 0


def run_script(path: str, args: Sequence[str]) -> None:
    """Runs a script as ``__main__`` inside a worker; ``sys.exit(0)`` counts as a normal end."""
    sys.argv = [path, *args]
    sys.path.insert(0, os.path.dirname(path))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise RuntimeError(f"{path} exited with status {error.code!r}") from error


def _trace(arguments: argparse.Namespace) -> int:
    from troupe._trace import write_merged

    try:
        print(write_merged(Path(arguments.folder), Path(arguments.output)))
    except OSError as error:
        return _fail(str(error))
    return 0


def _up(arguments: argparse.Namespace) -> int:
    from troupe._cluster import find_bin_dir

    if not os.path.isfile(arguments.file):
        return _fail(f"no such cluster file: {arguments.file}")
    daemon = os.path.join(find_bin_dir(), "troupe-autoscaler")
    if not os.access(daemon, os.X_OK):
        return _fail(f"{daemon} is not there; set TROUPE_BIN_DIR to the folder that holds it")
    os.execv(daemon, [daemon, arguments.file, *arguments.args])


def _fail(message: str) -> int:
    print(f"troupe: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
