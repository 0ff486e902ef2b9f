"""The commands about runs: ``troupe submit | runs | attach | cancel | resize | drain | logs``.

A run is named by its id or by its name, if only one of that name goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional

from troupe import _native
from troupe.cli import _programs, cluster_commands
from troupe.cli._shown import duration, seconds_of
from troupe.cli.cluster_commands import FAILED, NOT_FOUND, CommandError
from troupe.errors import TroupeError, code_of

if TYPE_CHECKING:
    from troupe.executor import Executor

_ENDED = ("succeeded", "failed", "cancelled")
_SLICE_S = 0.5
_LEAVE_S = 10.0
_PROGRAM_CPUS = 0.01  # It waits for its actors and tasks, which have their own.


def add_commands(commands: Any) -> None:
    """Adds the subcommands to the parser of ``troupe``."""
    submit = _command(commands, "submit", _submit, "run a script or a program in a cluster", """\
        With -np or --config a script runs on so many workers, and its run's id is printed. Without,
        a program runs once, as a driver of the cluster: its actors and tasks run there and end with
        it; what it prints is shown, and its exit status is this command's, unless --no-wait. Either
        goes on when this command and its terminal are gone. `troupe runs` lists it, `troupe attach`
        and `troupe logs -f` show it, `troupe cancel` ends it.""",
        "troupe submit -np 4 train.py --epochs 10\n  troupe submit -np 4 -m package.train\n"
        "  troupe submit --working-dir . --env MODE=fast -- python drive.py --size 10")
    add_run_options(submit)
    submit.add_argument("--working-dir", metavar="DIR",
                        help="of a program: send this folder and run it there; default: this one, "
                        "which the node needs to have, too")
    submit.add_argument("--env", action="append", default=[], metavar="NAME=VALUE",
                        help="a variable of a program")
    submit.add_argument("--no-wait", action="store_true",
                        help="of a program: only print its run's id")
    submit.add_argument("--name", help="of the run; default: the script's")
    submit.add_argument("-m", dest="module", metavar="MODULE", help="a module instead of a script")
    submit.add_argument("script", nargs="?", help="the script, optionally after the word python")
    submit.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")

    cluster_commands.asking(_command(
        commands, "runs", _runs, "all runs", """\
        Runs that have ended are kept for five minutes, detached ones for a day.""",
        "troupe runs"))
    attach = cluster_commands.asking(_command(
        commands, "attach", _attach, "show a run that goes on", """\
        Shows what its workers print, and how it goes, until it ends. Ctrl-C ends this command and
        not the run. In Python: troupe.attach(RUN).""", "troupe attach run-1f3a"))
    attach.add_argument("run", metavar="RUN", help="its id, or its name")
    cancel = cluster_commands.asking(_command(
        commands, "cancel", _cancel, "end a run", "Its workers are ended.", "troupe cancel train"))
    cancel.add_argument("run", metavar="RUN", help="its id, or its name")
    resize = cluster_commands.asking(_command(
        commands, "resize", _resize, "give a run another number of workers", """\
        Within its min_workers and max_workers; it goes on with those it has meanwhile.""",
        "troupe resize train 8"))
    resize.add_argument("run", metavar="RUN", help="its id, or its name")
    resize.add_argument("workers", type=int, metavar="N")
    drain = cluster_commands.asking(_command(
        commands, "drain", _drain, "empty a node, as for maintenance", """\
        The node takes nothing new. Its workers leave at their next step and are replaced on other
        nodes if there is room; what is still there at the deadline is ended. The node takes work
        again when it is started anew.""", "troupe drain node7 --deadline 2m --reason 'new disk'"))
    drain.add_argument("node", metavar="NODE", help="as `troupe nodes` names it")
    drain.add_argument("--deadline", type=seconds_of, default=60.0, metavar="TIME",
                       help="30, 30s or 2m (60s)")
    drain.add_argument("--reason", default="", metavar="TEXT",
                       help="shown in `troupe nodes` and by what is drained")
    logs = cluster_commands.asking(_command(
        commands, "logs", _logs, "what a run, a worker, an actor or a daemon has printed", """\
        Of a run the last lines of each of its workers that is there.""",
        "troupe logs train\n  troupe logs -f train\n  troupe logs train/w0\n  troupe logs head"))
    logs.add_argument("what", metavar="RUN|WORKER|ACTOR|DAEMON",
                      help="a run's id or name; a worker as RUN/w0; an actor's id or name; or: "
                           f"{', '.join(cluster_commands.DAEMONS)}")
    logs.add_argument("--node", metavar="NAME", help="a daemon's log on this node; default: here")
    logs.add_argument("-n", "--tail", type=int, default=100, metavar="LINES")
    logs.add_argument("-f", "--follow", action="store_true",
                      help="of a run: what the head has kept, and all that comes, until it ends")


def _command(
    commands: Any, name: str, action: Any, summary: str, text: str, example: str
) -> argparse.ArgumentParser:
    description = f"{summary[0].upper()}{summary[1:]}. {textwrap.dedent(text)}".replace("\n", " ")
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=textwrap.fill(description, 90),
        epilog=f"example:\n  {example}", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(action=cluster_commands.guarded(action))
    return parser


def add_run_options(run: argparse.ArgumentParser) -> None:
    """What ``run`` and ``submit`` have in common."""
    run.add_argument("-np", "--num-proc", type=int, dest="np", metavar="N",
                     help="workers to start with; needed without --config")
    run.add_argument("--min-np", "--min-num-proc", type=int, dest="min_np", metavar="N",
                     help="fewest workers to go on with; default: what --config says, else -np")
    run.add_argument("--max-np", "--max-num-proc", type=int, dest="max_np", metavar="N",
                     help="most workers; default: what --config says, else -np")
    run.add_argument("--cpus-per-worker", type=float, metavar="X")
    run.add_argument("--gpus-per-worker", type=float, metavar="X")
    run.add_argument("--elastic-timeout", type=float, metavar="S",
                     help="seconds to wait for --min-np after losses (600)")
    run.add_argument("--start-timeout", type=float, metavar="S",
                     help="seconds to wait for the first workers (60)")
    run.add_argument("--driver-silence", type=float, metavar="S",
                     help="end the run when this command is not heard for so long (3600)")
    run.add_argument("--reset-limit", type=int, metavar="N",
                     help="fail after this many membership changes")
    run.add_argument("--address", metavar="HOST:PORT",
                     help="a running cluster; default: embedded; for submit the one that runs here")
    run.add_argument("--key-file", metavar="FILE",
                     help="its key pair; default: TROUPE_KEY_FILE, else ~/.troupe/cluster.key")
    run.add_argument("--config", metavar="FILE",
                     help="YAML file with arguments of troupe.Executor; those given here win")


def make_executor(arguments: argparse.Namespace, **more: Any) -> Executor:
    """The executor that the options of :func:`add_run_options` describe.

    Raises:
        CommandError: they do not say how many workers. TypeError, ValueError: one is unusable.
    """
    from troupe.executor import Executor

    if arguments.np is None and arguments.config is None:
        raise CommandError("say how many workers: -np N, or --config FILE")
    unsaid = None if arguments.config else arguments.np
    options = {
        "min_workers": arguments.min_np if arguments.min_np is not None else unsaid,
        "max_workers": arguments.max_np if arguments.max_np is not None else unsaid,
        "workers": arguments.np,
        "cpus_per_worker": arguments.cpus_per_worker,
        "gpus_per_worker": arguments.gpus_per_worker,
        "elastic_timeout": arguments.elastic_timeout,
        "start_timeout": arguments.start_timeout,
        "driver_silence_s": arguments.driver_silence,
        "reset_limit": arguments.reset_limit,
        "address": arguments.address,
        "key_file": arguments.key_file,
        "config": arguments.config,
    }
    return Executor(**{**options, **more})


def script_words(words: Sequence[str]) -> tuple[str, list[str]]:
    """The script's absolute path and its arguments; the word python before it is skipped."""
    if words and os.path.basename(words[0]).startswith("python") and len(words) > 1:
        words = words[1:]
    script = os.path.abspath(words[0])
    if not os.path.isfile(script):
        raise CommandError(f"no such script: {words[0]}")
    return script, list(words[1:])


def task_of(words: Sequence[str], module: bool, command: bool) -> tuple[tuple[Any, Any], str]:
    """The function and arguments that run what these words of ``troupe run`` say, and a name.

    Args:
        module: they are those of ``python -m``. command: they are any command.

    Raises:
        CommandError: there is no such script or command.
    """
    if list(words[:1]) == ["--"]:
        words = words[1:]
    if not words:
        raise CommandError("say what to run: a script, -m MODULE, or a command", 2)
    if os.path.basename(words[0]).startswith("python") and list(words[1:2]) == ["-m"]:
        words, module = words[2:], True
        if not words:
            raise CommandError("say which module: python -m MODULE", 2)
    if module:
        return (run_module, (words[0], list(words[1:]), os.getcwd())), words[0]
    found = shutil.which(words[0])
    python = os.path.basename(words[0]).startswith("python") or words[0].endswith(".py")
    if command or (found is not None and not python and not _is_python(found)):
        if found is None:
            raise CommandError(f"no such command: {words[0]}")
        return (_programs.run_command, (list(words), os.getcwd())), os.path.basename(words[0])
    script, args = script_words(words)
    return (run_script, (script, args)), os.path.basename(script)


def _is_python(path: str) -> bool:
    """Whether a file is a script that its first line gives to Python."""
    with open(path, "rb") as file:
        first = file.readline(256)
    return first.startswith(b"#!") and b"python" in first


def run_script(path: str, args: Sequence[str]) -> None:
    """Runs a script as ``__main__`` inside a worker; ``sys.exit(0)`` counts as a normal end."""
    sys.argv = [path, *args]
    if sys.path[:1] != [os.path.dirname(path)]:  # It may run again in this process.
        sys.path.insert(0, os.path.dirname(path))
    with _normal_exit(path):
        runpy.run_path(path, run_name="__main__")


def run_module(module: str, args: Sequence[str], folder: Optional[str] = None) -> None:
    """The same for a module, as ``python -m`` in ``folder``."""
    sys.argv = [module, *args]
    if folder is not None and sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    with _normal_exit(module):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


@contextlib.contextmanager
def _normal_exit(what: str) -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        if error.code not in (None, 0):
            raise RuntimeError(f"{what} exited with status {error.code!r}") from error


# ---- commands ----


def _submit(arguments: argparse.Namespace) -> None:
    address, key_file = cluster_commands.target(arguments)
    words = [word for word in (arguments.script, *arguments.args) if word is not None]
    if arguments.np is None and arguments.config is None:
        return _submit_program(arguments, words, address, key_file)
    if arguments.working_dir or arguments.env or arguments.no_wait:
        raise CommandError("--working-dir, --env and --no-wait are of a program, which runs "
                           "without -np and --config", 2)
    if arguments.module:
        task: tuple[Any, tuple[str, list[str]]] = (run_module, (arguments.module, words))
        name = arguments.module
    elif words:
        task = (run_script, script_words(words))
        name = os.path.basename(task[1][0])
    else:
        raise CommandError("say what to run: a script, or -m MODULE", 2)
    try:
        executor = make_executor(arguments, address=address, key_file=key_file, progress="off")
        executor.settings.name = arguments.name or executor.settings.name or name
        with executor:
            handle = executor.submit(*task, detached=True)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    print(handle.run_id)
    print(f"see it: troupe attach {handle.run_id}; end it: troupe cancel {handle.run_id}",
          file=sys.stderr)


def _submit_program(
    arguments: argparse.Namespace, words: list[str], address: str, key_file: Optional[str]
) -> None:
    if words[:1] == ["--"]:
        words = words[1:]
    if arguments.module:
        words = ["python", "-m", arguments.module, *words]
    elif words and words[0].endswith(".py"):
        words = ["python", *words]
    if not words:
        raise CommandError("say what to run: -- python script.py, or with -np N a script", 2)
    pairs = [one.partition("=") for one in arguments.env]
    if not all(name and sign for name, sign, _ in pairs):
        raise CommandError(f"--env wants NAME=VALUE, got {' '.join(arguments.env)}", 2)
    try:
        folder = _programs.pack(arguments.working_dir) if arguments.working_dir else os.getcwd()
        arguments.np, arguments.reset_limit = 1, 0  # Nobody may run it a second time.
        if arguments.cpus_per_worker is None:
            arguments.cpus_per_worker = _PROGRAM_CPUS
        executor = make_executor(arguments, address=address, key_file=key_file, progress="off",
                                 log_to_driver=False)
        executor.settings.name = arguments.name or next(
            (os.path.basename(word) for word in words[1:] if not word.startswith("-")), words[0])
        with executor:
            handle = executor.submit(
                _programs.run_program, (words, folder, {name: value for name, _, value in pairs}),
                on_event=None if arguments.no_wait else _programs.print_line, detached=True)
            print(handle.run_id, flush=True, file=sys.stdout if arguments.no_wait else sys.stderr)
            if not arguments.no_wait:
                _await_program(handle)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from error


def _await_program(handle: Any) -> None:
    try:
        failed = _programs.failure_of(handle.result)
    except KeyboardInterrupt:
        print(f"\n{handle.run_id} goes on; see it: troupe attach {handle.run_id}; end it: troupe "
              f"cancel {handle.run_id}", file=sys.stderr)
        raise
    if failed is not None:
        raise CommandError(str(failed), failed.status)


def _runs(arguments: argparse.Namespace) -> None:
    runs = cluster_commands.ask(*cluster_commands.target(arguments))["groups"]
    runs.sort(key=lambda run: -run["age_s"])
    if arguments.output == "json":
        print(json.dumps(runs, indent=2, sort_keys=True))
        return
    cluster_commands.table(
        ("RUN", "NAME", "STATE", "WORKERS", "EPOCH", "AGE", "DRIVER", "REASON"),
        [(run["run"], run["name"], run["state"], f"{cluster_commands.working(run)}/{run['target']}",
          run["epoch"], duration(run["age_s"]), cluster_commands.driver_of(run),
          run["reason"]) for run in runs])


@contextlib.contextmanager
def _at(arguments: argparse.Namespace) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A driver, and the run that is meant."""
    driver = cluster_commands.driver_at(*cluster_commands.target(arguments))
    try:
        yield driver, _find(driver.state()["groups"], arguments.run)
    except RuntimeError as error:
        if isinstance(error, TroupeError):
            raise
        status = NOT_FOUND if code_of(error) == "not_found" else FAILED
        raise CommandError(getattr(error, "message", None) or str(error), status) from error
    finally:
        driver.shutdown()


def _find(runs: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    exact = [run for run in runs if run["run"] == name]
    named = [run for run in runs if run["name"] == name]
    found = exact or [run for run in named if run["state"] not in _ENDED] or named
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(f"{run['run']} ({run['state']})" for run in found)
        raise CommandError(f"several runs are called {name}: {ids}; say which by its id", NOT_FOUND)
    raise CommandError(_none(runs, name), NOT_FOUND)


def _none(runs: Sequence[dict[str, Any]], name: str) -> str:
    there = ", ".join(f"{run['run']} ({run['name']}, {run['state']})" for run in runs)
    return f"no run {name}; " + (f"there is {there}" if there else "there are none")


def _attach(arguments: argparse.Namespace) -> None:
    from troupe.executor import display
    from troupe.executor.handle import RunHandle

    with _at(arguments) as (driver, run):
        driver.attach(run["run"], watch=True)
        handle = RunHandle(driver, run["run"], run["name"], os.getpid())
        display.attach(handle, "auto" if arguments.output == "table" else "off")
        try:
            with _native.deferred_interrupt():  # Lines come as soon as the thread runs.
                handle.start_pump()
            handle.wait()
        except KeyboardInterrupt:
            print(f"\nrun {run['run']} goes on; end it with: troupe cancel {run['run']}",
                  file=sys.stderr)
            # Its thread must be out of native code when the interpreter ends.
            handle.abandon("left")
            handle.join_pump(_LEAVE_S)
            return
        handle.join_pump(_SLICE_S)
        status = handle.status()
        if arguments.output == "json":
            print(json.dumps(status, indent=2, sort_keys=True))
        if status["state"] == "failed":
            failed = _programs.failure_of(handle.result)
            if failed is not None:
                raise CommandError(str(failed), failed.status)
        if status["state"] != "succeeded":
            raise CommandError(f"run {run['name']} {status['state']}: {status.get('reason', '')}")


def _cancel(arguments: argparse.Namespace) -> None:
    with _at(arguments) as (driver, run):
        if run["state"] in _ENDED:
            print(f"run {run['run']} has ended already: {run['state']}")
            return
        driver.cancel(run["run"])
        print(f"cancelled {run['run']} ({run['name']})")


def _resize(arguments: argparse.Namespace) -> None:
    if arguments.workers < 1:
        raise CommandError(f"N is 1 or more, got {arguments.workers}", 2)
    with _at(arguments) as (driver, run):
        driver.resize(run["run"], arguments.workers)
        print(f"{run['run']} ({run['name']}): {run['target']} -> {arguments.workers} workers")


def _drain(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.deadline <= 1e6:
        raise CommandError(f"--deadline wants seconds above 0, got {arguments.deadline:g}", 2)
    driver = cluster_commands.driver_at(*cluster_commands.target(arguments))
    try:
        driver.drain_node(arguments.node, arguments.deadline, arguments.reason)
    except RuntimeError as error:
        status = NOT_FOUND if code_of(error) == "not_found" else FAILED
        raise CommandError(getattr(error, "message", None) or str(error), status) from error
    finally:
        driver.shutdown()
    print(f"node {arguments.node} is drained within {arguments.deadline:g} s; "
          "`troupe nodes` shows it")


# ---- logs ----


def _logs(arguments: argparse.Namespace) -> None:
    if arguments.tail < 0:
        raise CommandError(f"--tail wants a number of lines, got {arguments.tail}", 2)
    if arguments.what in cluster_commands.DAEMONS or arguments.node:
        if arguments.follow:
            raise CommandError("-f follows runs only; a daemon's log is a file, whose name is "
                               "shown without -f")
        return cluster_commands.show_logs(arguments)
    driver = cluster_commands.driver_at(*cluster_commands.target(arguments))
    try:
        state = driver.state()
        run, _, member = arguments.what.partition("/")
        actors = {a[key] for a in state["actors"] for key in ("id", "name")}
        if arguments.what in actors and not arguments.follow:
            return cluster_commands.show_logs(arguments)
        groups = state["groups"]
        if not any(run in (group["run"], group["name"]) for group in groups):
            raise CommandError(f"no actor {arguments.what}, {_none(groups, run)}", NOT_FOUND)
        found = _find(groups, run)
        if arguments.follow:
            return _follow(driver, found, member)
        _tail(driver, found, member, arguments)
    finally:
        driver.shutdown()


def _tail(driver: Any, run: dict[str, Any], member: str, arguments: argparse.Namespace) -> None:
    workers = [w for w in run["workers"] if _is(w["id"], member)]
    if not workers:
        ids = ", ".join(w["id"] for w in run["workers"]) or "none"
        raise CommandError(f"run {run['run']} has no worker {member or 'now'}; there is {ids}",
                           NOT_FOUND)
    problems = 0
    for worker in workers:
        try:
            log = driver.log(f"worker-{worker['process']}", worker["node"], arguments.tail)
        except RuntimeError as error:
            problems += 1
            print(f"troupe: {worker['id']}: {getattr(error, 'message', None) or error}",
                  file=sys.stderr)
            continue
        lines = log["text"].splitlines()
        cluster_commands.print_log(
            {"node": log["node"], "file": log["file"], "worker": worker["id"], "lines": lines},
            arguments.output)
    if problems == len(workers):
        raise CommandError(f"no log of {run['run']} can be read", NOT_FOUND)


def _follow(driver: Any, run: dict[str, Any], member: str) -> None:
    driver.attach(run["run"], watch=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            event: Optional[dict[str, Any]] = driver.next_event(run["run"], _SLICE_S)
            if event is None:
                continue
            if event["kind"] == "done":
                return
            if event["kind"] != "log" or not _is(event["worker"], member):
                continue
            for line in event["lines"]:
                print(f"[{event['worker']} {event['host']}] {line}", flush=True)


def _is(worker: str, wanted: str) -> bool:
    return not wanted or wanted in (worker, worker.partition("#")[0])
