"""Options of ``torchrun`` that ``troupe run`` takes: a launch line changes by its first word.

What says how many workers is taken as it is meant. What finds the peers or watches processes is
Troupe's business and is accepted without effect.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Optional

from troupe._runtime import usable_cores
from troupe.cli._errors import CommandError

_GPUS = "/proc/driver/nvidia/gpus"
# Without effect here, and why nobody misses it.
_UNUSED = {
    "rdzv-backend": "", "rdzv-endpoint": "", "rdzv-id": "", "rdzv-conf": "", "node-rank": "",
    "master-addr": "", "master-port": "", "monitor-interval": "", "start-method": "", "role": "",
    "local-addr": "", "event-log-handler": "", "signals-to-handle": "", "logs-specs": "",
    "numa-binding": "",
    "log-dir": "`troupe logs` shows what each worker has printed",
    "redirects": "what workers print is shown here, with their ranks",
    "tee": "what workers print is shown here, with their ranks",
    "local-ranks-filter": "what all workers print is shown here, with their ranks",
}


def add_options(run: argparse.ArgumentParser) -> None:
    """Adds them to ``troupe run``."""
    group = run.add_argument_group("options of torchrun")
    group.add_argument("--nproc-per-node", "--nproc_per_node", dest="nproc", metavar="N",
                       help="workers for each node: a number, auto, cpu or gpu")
    group.add_argument("--nnodes", metavar="N|MIN:MAX", help="for how many nodes (1)")
    group.add_argument("--max-restarts", "--max_restarts", type=int, dest="max_restarts",
                       metavar="N", help="fail when so many workers were lost")
    group.add_argument("--standalone", action="store_true", help=argparse.SUPPRESS)
    for name in _UNUSED:
        short = {"redirects": ["-r"], "tee": ["-t"]}.get(name, [])
        names = [*short, *dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))]
        group.add_argument(*names, dest=f"unused_{name.replace('-', '_')}", metavar="X",
                           help=argparse.SUPPRESS)


def apply(arguments: argparse.Namespace) -> None:
    """Turns them into ``-np`` and its like, unless those are given; says what has no effect.

    Raises:
        CommandError: one makes no sense.
    """
    for name, why in _UNUSED.items():
        if why and getattr(arguments, f"unused_{name.replace('-', '_')}") is not None:
            print(f"troupe: --{name} has no effect: {why}", file=sys.stderr)
    if arguments.max_restarts is not None:
        if arguments.max_restarts < 0:
            raise CommandError(f"--max-restarts is 0 or more, not {arguments.max_restarts}", 2)
        if arguments.reset_limit is None:  # A worker that is lost, and one that takes its place.
            arguments.reset_limit = 2 * arguments.max_restarts
    if arguments.nproc is None and arguments.nnodes is None:
        return
    if arguments.np is not None:
        raise CommandError("say how many workers either by -np or by --nproc-per-node", 2)
    each = _workers_each(arguments.nproc or "1")
    least, most = _nodes(arguments.nnodes or "1")
    arguments.np = most * each
    if arguments.min_np is None:
        arguments.min_np = least * each
    if arguments.cpus_per_worker is None and arguments.address is None:
        # torchrun starts as many as it is told, however few the cores.
        arguments.cpus_per_worker = max(0.01, min(1.0, usable_cores() * 100 // arguments.np / 100))


def _workers_each(text: str) -> int:
    gpus = len(os.listdir(_GPUS)) if os.path.isdir(_GPUS) else 0
    if text == "cpu" or (text == "auto" and gpus == 0):
        return usable_cores()
    if text in ("gpu", "auto"):
        if gpus == 0:
            raise CommandError("--nproc-per-node gpu: there is no GPU on this host", 2)
        return gpus
    number = _number(text)
    if number is None:
        raise CommandError(f"--nproc-per-node wants a number, auto, cpu or gpu, not {text}", 2)
    return number


def _nodes(text: str) -> tuple[int, int]:
    first, colon, second = text.partition(":")
    least, most = _number(first), _number(second if colon else first)
    if least is None or most is None or least > most:
        raise CommandError(f"--nnodes wants a number or MIN:MAX, not {text}", 2)
    return least, most


def _number(text: str) -> Optional[int]:
    return int(text) if text.isdecimal() and int(text) > 0 else None
