"""The commands that start, show and end a cluster: ``troupe start | stop | status | ... | down``.

What runs on this host is recorded in ``$TROUPE_HOME/run`` (default ``~/.troupe/run``), one file per
``troupe start``. Exit statuses: 0 done, 1 failed, 2 wrong usage, 3 no cluster answers, 4 no such
thing.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import platform
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from troupe import _host_records
from troupe._cluster import find_bin_dir
from troupe._host_records import home, records
from troupe._payload import show_amount
from troupe._redis_server import find_redis_server
from troupe.cli import fleet_commands, join_commands
from troupe.cli._errors import (
    FAILED,
    INTERRUPTED,
    NOT_FOUND,
    UNREACHABLE,
    CommandError,
)
from troupe.cli._shown import notice
from troupe.errors import TroupeError, code_of

_START_LIMIT_S = 20.0
_AWAIT_LIMIT_S = 30.0  # A head that cannot begin tries for 20 s, and then says why.
_STOP_LIMIT_S = 10.0
_ASK_LIMIT_S = 5.0
_TAIL_BYTES = 1 << 20
DAEMONS = ("head", "node", "local", "redis")


def add_commands(commands: Any) -> None:
    """Adds the subcommands to the parser of ``troupe``."""
    start = commands.add_parser("start", help="start this host's part of a cluster")
    what = start.add_mutually_exclusive_group(required=True)
    what.add_argument("--head", action="store_true", help="a new cluster, with its first node")
    what.add_argument("--address", metavar="HOST:PORT", help="a node of the cluster there")
    start.add_argument("--host", default="0.0.0.0", help="where the head listens (0.0.0.0)")
    start.add_argument("--port", type=int, default=6380, help="of the head (6380)")
    start.add_argument("--key-file", metavar="FILE",
                       help="the cluster's key pair (~/.troupe/cluster.key); made by --head")
    start.add_argument("--token", metavar="TOKEN",
                       help="with --address: what `troupe token` has printed, instead of a key")
    start.add_argument("--name", help="of this node; default: the host's name")
    start.add_argument("--num-cpus", type=float, metavar="X")
    start.add_argument("--num-gpus", type=float, metavar="X")
    start.add_argument("--memory", type=float, metavar="BYTES")
    start.add_argument("--resource", action="append", default=[], metavar="NAME=AMOUNT")
    start.add_argument("--label", action="append", default=[], metavar="NAME=VALUE")
    start.add_argument("--data-address", metavar="ADDRESS", help="that others reach this host by")
    start.add_argument("--log-dir", metavar="DIR", help="default: ~/.troupe/logs/NAME")
    start.add_argument("--metrics-port", type=int, metavar="PORT",
                       help="with --head: serve the cluster's metrics there; docs/metrics.md")
    start.add_argument("--metrics-host", default="127.0.0.1", metavar="ADDRESS",
                       help="of what interface (127.0.0.1); another one needs --metrics-token-file")
    start.add_argument("--metrics-token-file", metavar="FILE",
                       help="whose first line is the password of the user troupe")
    start.add_argument("--fence-s", type=float, metavar="S",
                       help="end this node's actors when its head was not heard for so long (600; "
                       "0: never)")
    start.add_argument("--notices", action="append", default=[], metavar="SOURCE",
                       help="of preemption: aws, gcp, azure, slurm, auto; docs/fleets.md")
    start.add_argument("--store-dir", metavar="DIR",
                       help="with --head: keep the cluster's records there; `troupe start` with "
                       "the same options takes the cluster up after a restart of this host")
    start.add_argument("--redis", metavar="HOST:PORT",
                       help="with --head: keep them in this Redis")
    start.add_argument("--redis-password-file", metavar="FILE")
    start.add_argument("--redis-prefix", metavar="TEXT", help="of its keys (troupe:)")
    start.add_argument("--no-node", action="store_true", help="with --head: no node here")
    start.set_defaults(action=guarded(_start))

    stop = commands.add_parser("stop", help="end what `troupe start` has started on this host")
    stop.set_defaults(action=guarded(_stop))

    for name, show, text in (("status", _status, "the cluster in a few lines"),
                             ("nodes", _nodes, "all nodes"),
                             ("actors", _actors, "all actors, the dead for five minutes")):
        command = asking(commands.add_parser(name, help=text))
        command.set_defaults(action=guarded(show))
    down = asking(commands.add_parser("down", help="end the whole cluster, on all hosts"))
    down.add_argument("fleet", nargs="?", metavar="FILE",
                      help="a cluster file, or the name of a cluster that `troupe up` holds: end "
                      "it, and every node that its supplier lists of it, until none is left")
    down.add_argument("--timeout-s", type=float, metavar="S",
                      help="with FILE: for so long at most (300)")
    down.set_defaults(action=_down_any)


def asking(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds what every question about a cluster has; returns the parser."""
    command.add_argument("--address", metavar="HOST:PORT",
                         help="of the head; default: $TROUPE_ADDRESS, else what runs on this host")
    command.add_argument("--key-file", metavar="FILE",
                         help="default: $TROUPE_KEY_FILE, else what the cluster here uses")
    command.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return command


def guarded(action: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], int]:
    """The action with its errors told in a line, and a status."""
    def run(arguments: argparse.Namespace) -> int:
        try:
            action(arguments)
        except CommandError as error:
            print(f"troupe: {error}", file=sys.stderr)
            return error.status
        except (TroupeError, OSError, RuntimeError) as error:
            print(f"troupe: {error}", file=sys.stderr)
            return FAILED
        except KeyboardInterrupt:
            return INTERRUPTED
        return 0

    return run


# ---- start and stop ----


def _start(arguments: argparse.Namespace) -> None:
    folder = home().absolute() / "run"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = arguments.name or _free_name(platform.node() or "node")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise CommandError(f"a node's name has 1 to 64 letters, digits, . _ or -, got {name!r}", 2)
    if any(record.node == name for record in records()):
        raise CommandError(f"{name} runs already; `troupe stop` ends it, --name starts another")
    key_file = os.path.abspath(arguments.key_file or home() / "cluster.key")
    if arguments.address and not arguments.token and not os.path.exists(key_file):
        raise CommandError(f"no key file {key_file}; `troupe token` on the head's host makes a "
                           "--token that fetches it, or copy it from there (mode 0600), or name "
                           "another with --key-file")
    if arguments.token and arguments.head:
        raise CommandError("--token joins a cluster that is there; it is for --address", 2)
    if arguments.token:
        join_commands.fetch_key(arguments.address, arguments.token, key_file, name)
    if arguments.head:
        _check_port(arguments.host, arguments.port)
    elif arguments.store_dir or arguments.redis:
        raise CommandError("--store-dir and --redis are for --head", 2)
    node_args = [f"--node-arg={word}" for word in _node_words(arguments)]
    log_dir = Path(arguments.log_dir or home() / "logs" / name).absolute()
    log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    run_dir = tempfile.mkdtemp(prefix=_host_records.RUN_DIR_PREFIX)
    command = [os.path.join(find_bin_dir(), "troupe-local"), "--keep", "--run-dir", run_dir,
               "--bin-dir", find_bin_dir(), "--log-dir", str(log_dir), "--key-file", key_file,
               "--node-name", name, "--record", str(folder / f"{name}.record")]
    if arguments.head:
        command += ["--listen", f"tcp://{arguments.host}:{arguments.port}"]
        if arguments.no_node:
            command.append("--no-node")
        command += [f"--head-arg={word}" for word in _metrics_words(arguments)]
        command += _store_words(arguments)
        redis = find_redis_server(None, find_bin_dir())
        command += ["--redis-server", redis] if redis else []
    else:
        command += ["--join", f"tcp://{arguments.address}"]
    supervisor, address = _launch(command + node_args, run_dir, log_dir)
    try:
        _await_node(address, key_file, None if arguments.no_node else name)
    except CommandError as error:
        supervisor.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(_STOP_LIMIT_S)
        said = _host_records.last_words(log_dir / "head.out") if arguments.head else ""
        status = FAILED if said else error.status
        raise CommandError(f"{said or error}; the logs are in {log_dir}", status) from error
    if arguments.metrics_port:
        print(f"metrics:     http://{arguments.metrics_host}:{arguments.metrics_port}/metrics")
    role = "node" if not arguments.head else "head" if arguments.no_node else "head and node"
    print(f"{role} {name} started; logs in {log_dir}")
    if arguments.head:
        where = f"{_host_records.address_towards(arguments.host)}:{arguments.port}"
        print(f"more nodes:  troupe start --address {where} --token TOKEN  (`troupe token` "
              "makes one)")
        print(f"programs:    export TROUPE_ADDRESS={where} TROUPE_KEY_FILE={key_file}")


def _launch(command: Sequence[str], run_dir: str, log_dir: Path
            ) -> tuple[subprocess.Popen[bytes], str]:
    """Starts a supervisor; the process, and where it says the head is."""
    deadline = time.monotonic() + _START_LIMIT_S
    supervisor = None
    try:
        with open(log_dir / "local.out", "ab") as output:
            supervisor = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=output,
                                          stdout=subprocess.PIPE, start_new_session=True)
        said = _first_line(supervisor, deadline)
        if said is None:
            raise CommandError(f"it did not start within {_START_LIMIT_S:g} s and was ended; see "
                               f"{log_dir}")
        if not said.startswith("ready "):
            raise CommandError(said.removeprefix("error ") or f"it did not start; see {log_dir}")
        return supervisor, said.split()[1].removeprefix("tcp://")
    except BaseException:
        if supervisor is not None:
            supervisor.kill()  # What it has started ends with it.
            supervisor.wait(_STOP_LIMIT_S)
        _host_records.remove_run_dir(run_dir)
        raise


def _first_line(process: subprocess.Popen[bytes], deadline: float) -> Optional[str]:
    """What a process prints first, perhaps nothing; None if that is not known by the deadline."""
    assert process.stdout is not None
    said = b""
    with process.stdout as pipe:
        while b"\n" not in said:
            if not _host_records.readable(pipe.fileno(), deadline):
                return None
            more = os.read(pipe.fileno(), 4096)
            if not more:
                break
            said += more
    return said.decode(errors="replace").partition("\n")[0].strip()


def _check_port(host: str, port: int) -> None:
    """Raises if the head could not listen there: its node would join the head that does."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As ZeroMQ has it.
            probe.bind(where)
    except OSError as error:
        problem = f"port {port} of {host} cannot be listened on: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            problem = (f"port {port} of {host} is in use, perhaps by another cluster; `troupe "
                       "stop` ends what runs here, --port N takes another port, and `troupe start "
                       "--address` adds a node to a cluster")
        raise CommandError(problem) from error


def _store_words(arguments: argparse.Namespace) -> list[str]:
    if arguments.store_dir and arguments.redis:
        raise CommandError("--store-dir and --redis exclude one another", 2)
    if arguments.store_dir:
        return ["--store-dir", os.path.abspath(arguments.store_dir)]
    if not arguments.redis:
        if arguments.redis_password_file or arguments.redis_prefix:
            raise CommandError("--redis-password-file and --redis-prefix are for --redis", 2)
        return []
    if not re.fullmatch(r"[^:\s]+:[0-9]+", arguments.redis):
        raise CommandError(f"--redis wants HOST:PORT, got {arguments.redis!r}", 2)
    words = ["--redis", arguments.redis]
    if arguments.redis_password_file:
        path = os.path.abspath(arguments.redis_password_file)
        Path(path).read_text()  # Who starts it may not read it: say so now.
        words += ["--redis-password-file", path]
    if arguments.redis_prefix is not None:
        if not arguments.redis_prefix:
            raise CommandError("an empty --redis-prefix makes every key there the cluster's", 2)
        words += ["--redis-prefix", arguments.redis_prefix]
    return words


def _metrics_words(arguments: argparse.Namespace) -> list[str]:
    if arguments.metrics_port is None:
        return []
    if arguments.metrics_port == arguments.port and arguments.metrics_host == arguments.host:
        raise CommandError("--metrics-port and --port must differ", 2)
    _check_port(arguments.metrics_host, arguments.metrics_port)
    words = ["--metrics-address", f"{arguments.metrics_host}:{arguments.metrics_port}"]
    if arguments.metrics_token_file:
        return [*words, "--metrics-token-file", os.path.abspath(arguments.metrics_token_file)]
    if not arguments.metrics_host.startswith("127."):
        raise CommandError("metrics beyond this host need --metrics-token-file FILE", 2)
    return words


def _node_words(arguments: argparse.Namespace) -> list[str]:
    words: list[str] = []
    for flag, value in (("--cpus", arguments.num_cpus), ("--gpus", arguments.num_gpus),
                        ("--memory", arguments.memory), ("--fence-s", arguments.fence_s)):
        if value is not None:
            words += [flag, repr(float(value))]
    words += [f"--notices={source}" for source in arguments.notices]
    for flag, values in (("--resource", arguments.resource), ("--label", arguments.label)):
        for value in values:
            if "=" not in value:
                raise CommandError(f"{flag} wants NAME=..., got {value!r}", 2)
            words += [flag, value]
    host = (arguments.address or arguments.host).rsplit(":", 1)[0]
    address = arguments.data_address or _host_records.address_towards(host)
    return [*words, "--data-address", address]


def _free_name(host: str) -> str:
    taken = {record.node for record in records()}
    return host if host not in taken else f"{host}-{secrets.token_hex(2)}"


def _await_node(address: str, key_file: str, node: Optional[str]) -> None:
    deadline = time.monotonic() + _AWAIT_LIMIT_S
    while True:
        try:
            state = ask(address, key_file)
            if node is None or any(n["id"] == node and n["state"] == "alive"
                                   for n in state["nodes"]):
                return
            problem = f"the head at {address} does not know node {node}"
        except CommandError as error:
            problem = str(error)
        if time.monotonic() > deadline:
            raise CommandError(problem, UNREACHABLE)
        time.sleep(0.05)


def _stop(arguments: argparse.Namespace) -> None:
    running = records()
    if not running:
        print("nothing runs on this host")
        return
    for record in sorted(running, key=lambda r: r.role == "head"):  # nodes say goodbye to it first
        if not _host_records.end(record, _STOP_LIMIT_S):
            raise CommandError(f"{record.node} (process {record.pid}) does not end; see "
                               f"{record.log_dir}")
        record.discard()
        print(f"stopped {record.role} {record.node}")


def _down_any(arguments: argparse.Namespace) -> int:
    if arguments.fleet is None:
        return guarded(_down)(arguments)
    return guarded(fleet_commands.take_down)(arguments)


def _down(arguments: argparse.Namespace) -> None:
    address, key_file = target(arguments)
    running = [record for record in records() if record.serves(address, key_file)]
    driver = driver_at(address, key_file)
    try:
        driver.take_down()
    finally:
        driver.shutdown()
    left = _host_records.await_end(running, _STOP_LIMIT_S)
    if left:
        names = ", ".join(record.node for record in left)
        raise CommandError(f"{names} still runs on this host; try `troupe stop`")
    records()  # Removes what they have left.
    print(f"the cluster at {address} is down")


# ---- questions ----


def target(arguments: argparse.Namespace) -> tuple[str, str]:
    """Address and key file of the cluster that is meant."""
    address = arguments.address or os.environ.get("TROUPE_ADDRESS", "")
    key_file = arguments.key_file or os.environ.get("TROUPE_KEY_FILE", "")
    if not address:
        running = sorted(records(), key=lambda r: r.role != "head")
        private = [] if running else _host_records.private_clusters()
        if running:
            address = running[0].address
            key_file = key_file or running[0].key_file
        elif len(private) == 1:
            address, key = _host_records.private_access(private[0])
            key_file = key_file or key
        elif private:
            raise CommandError("several private clusters run here; name one with --address: "
                               + ", ".join(private), UNREACHABLE)
        else:
            raise CommandError("no cluster runs on this host; name its head with --address "
                               "HOST:PORT, or start one with `troupe start --head`", UNREACHABLE)
    return address.removeprefix("tcp://"), key_file or str(home() / "cluster.key")


def driver_at(address: str, key_file: str) -> Any:
    """A driver of the cluster there, to be shut down."""
    from troupe import _native

    try:
        return _native.core().Driver(address, {"key_file": key_file, "bin_dir": find_bin_dir(),
                                               "start_timeout_s": _ASK_LIMIT_S})
    except RuntimeError as error:
        raise CommandError(f"{getattr(error, 'message', None) or error}", UNREACHABLE) from error


def ask(address: str, key_file: str) -> dict[str, Any]:
    """What the head at ``address`` knows."""
    driver = driver_at(address, key_file)
    try:
        return dict(driver.state())
    finally:
        driver.shutdown()


def show(arguments: argparse.Namespace, pick: Callable[[dict[str, Any]], Any],
         draw: Callable[[dict[str, Any]], None]) -> None:
    """What ``pick`` takes of the cluster's state as JSON, or what ``draw`` makes of it."""
    state = ask(*target(arguments))
    if arguments.output == "json":
        print(json.dumps(pick(state), indent=2, sort_keys=True))
    else:
        draw(state)


def amounts(resources: Mapping[str, float]) -> str:
    """``CPU 2, memory 16GiB``."""
    return ", ".join(show_amount(name, amount) for name, amount in resources.items()) or "-"


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints aligned columns; the last one is not padded."""
    cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(padded).rstrip())


def usage(node: Mapping[str, Any]) -> str:
    """What of a node's resources is in use."""
    return ", ".join(f"{name} {node['used'].get(name, 0):g}/{amount:g}"
                     for name, amount in node["resources"].items() if name != "memory")


def working(run: Mapping[str, Any]) -> int:
    """How many of a run's workers are there and at work, or on their way to it."""
    return sum(w["state"] not in ("dead", "drained") for w in run["workers"])


def driver_of(run: Mapping[str, Any]) -> str:
    """Whether somebody has it in hand."""
    if run["detached"]:
        return "detached"
    return "here" if run["attended"] else "silent"


def _status(arguments: argparse.Namespace) -> None:
    def draw(state: dict[str, Any]) -> None:
        up = [n for n in state["nodes"] if n["state"] in ("alive", "suspect", "draining")]
        print(f"{len(up)} of {len(state['nodes'])} nodes up")
        for node in state["nodes"]:
            print(f"  {node['id']}  {node['state']}  {usage(node)}")
        counts: dict[str, int] = {}
        for actor in state["actors"]:
            counts[actor["state"]] = counts.get(actor["state"], 0) + 1
        print("actors: " + (", ".join(f"{n} {s}" for s, n in sorted(counts.items())) or "none"))
        for run in state["groups"]:
            if run["state"] in ("succeeded", "failed", "cancelled"):
                continue
            print(f"run {run['name']}: {run['state']}, {working(run)} of {run['target']} "
                  f"workers, epoch {run['epoch']}, {run['run']}"
                  + (", detached" if run["detached"] else ""))
        for lease in state["waiting"][:10]:
            print(f"waiting: {lease['id']} ({amounts(lease['resources'])}): {lease['reason']}")
        if len(state["waiting"]) > 10:
            print(f"... and {len(state['waiting']) - 10} more wait")

    said = arguments.address or os.environ.get("TROUPE_ADDRESS")
    private = [] if said else _host_records.private_clusters()
    if private and arguments.output == "table":
        targets = [target(arguments)] if records() else []
        for index, (address, key_file) in enumerate([*targets, *((a, "") for a in private)]):
            print(*([""] if index else []), f"cluster at {address}", sep="\n")
            try:
                draw(ask(address, key_file))
            except CommandError as error:  # It may just have ended.
                print(f"  {error}")
        return
    show(arguments, lambda state: state, draw)


def _nodes(arguments: argparse.Namespace) -> None:
    show(arguments, lambda state: state["nodes"], lambda state: table(
        ("NODE", "HOST", "STATE", "USED", "MEMORY", "LABELS", "NOTICE", "REASON"),
        [(n["id"], n["host"], n["state"], usage(n),
          amounts({"memory": n["resources"].get("memory", 0)}).removeprefix("memory "),
          ",".join(f"{k}={v}" for k, v in n["labels"].items()) or "-", notice(n), n["reason"])
         for n in state["nodes"]]))


def _actors(arguments: argparse.Namespace) -> None:
    show(arguments, lambda state: state["actors"], lambda state: table(
        ("ACTOR", "NAME", "TYPE", "STATE", "NODE", "PID", "RESTARTS", "REASON"),
        [(a["id"], a["name"] or "-", a["type"], a["state"], a["node"] or "-", a["pid"] or "-",
          a["restarts"], a["reason"]) for a in state["actors"]]))


def show_logs(arguments: argparse.Namespace) -> None:
    """The log of an actor, or of a daemon here or of a node."""
    if arguments.node or arguments.what not in DAEMONS:
        found = [_log_of(arguments)]
    else:
        found = [_read_log(path, arguments.tail) for path in _logs_here(arguments.what)]
    for log in found:
        print_log(log, arguments.output)


def print_log(log: Mapping[str, Any], output: str) -> None:
    """One log, behind a line that says whose it is; JSON on a line."""
    if output == "json":
        print(json.dumps(log))
    else:
        where = f"{log['node']}:" if log["node"] else ""
        print(f"==> {where}{log['file']}", *log["lines"], sep="\n")


def _log_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the head gets from the node where the log is."""
    driver = driver_at(*target(arguments))
    try:
        log = driver.log(arguments.what, arguments.node or "", arguments.tail)
    except RuntimeError as error:
        status = NOT_FOUND if code_of(error) == "not_found" else FAILED
        raise CommandError(getattr(error, "message", None) or str(error), status) from error
    finally:
        driver.shutdown()
    return {"node": log["node"], "file": log["file"], "lines": log["text"].splitlines()}


def _logs_here(daemon: str) -> list[Path]:
    paths = [Path(record.log_dir) / f"{daemon}.log" for record in records()]
    paths = [path for path in paths if path.exists()]
    if not paths:
        raise CommandError(f"no log of {daemon} on this host; --node NAME shows another's",
                           NOT_FOUND)
    return paths


def _read_log(path: Path, lines: int) -> dict[str, Any]:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return {"node": "", "file": str(path), "lines": text.splitlines()[-lines:] if lines else []}
