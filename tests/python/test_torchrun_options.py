"""Launch lines of torchrun, as ``troupe run`` reads them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from troupe._runtime import usable_cores
from troupe.cli import _programs, _torchrun_options, build_parser, run_commands
from troupe.cli._errors import CommandError


def read(line: str) -> Any:
    arguments = build_parser().parse_args(["run", *line.split()])
    _torchrun_options.apply(arguments)
    return arguments


@pytest.mark.parametrize(("line", "sizes"), [
    ("--nproc-per-node=4 train.py", (None, 4, 4)),
    ("--standalone --nproc_per_node 4 train.py --nnodes 7", (None, 4, 4)),
    ("--nnodes=2 --nproc-per-node=3 train.py", (None, 6, 6)),
    ("--nnodes=1:4 --nproc-per-node=2 train.py", (None, 8, 2)),
    ("--nproc-per-node=cpu train.py", (None, usable_cores(), usable_cores())),
    ("--nproc-per-node=4 --min-np 1 --max-np 8 train.py", (8, 4, 1)),
    ("-np 3 train.py", (None, 3, None)),
])
def test_how_many_workers(line: str, sizes: tuple[Any, ...]) -> None:
    arguments = read(line)
    assert (arguments.max_np, arguments.np, arguments.min_np) == sizes


def test_as_many_workers_as_asked_for_fit_on_the_cores() -> None:
    many = 8 * usable_cores()
    arguments = read(f"--nproc-per-node={many} train.py")
    assert 0 < arguments.cpus_per_worker * many <= usable_cores()
    assert read("--nproc-per-node=1 train.py").cpus_per_worker == 1
    assert read("--nproc-per-node=9 --cpus-per-worker 2 train.py").cpus_per_worker == 2
    # On a cluster that runs it is the cluster that has the cores.
    assert read("--nproc-per-node=9 --address h:1 train.py").cpus_per_worker is None


def test_what_finds_peers_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = read("--rdzv-backend=c10d --rdzv_endpoint=h:1 --rdzv-id 7 --node-rank=0 "
                     "--master_port 29500 --monitor-interval=1 --max-restarts=3 "
                     "--log-dir logs -r 3 --nproc-per-node=2 train.py --rdzv-id mine")
    assert arguments.args == ["--rdzv-id", "mine"] and arguments.script == "train.py"
    assert arguments.reset_limit == 6
    assert capsys.readouterr().err.splitlines() == [
        "troupe: --log-dir has no effect: `troupe logs` shows what each worker has printed",
        "troupe: --redirects has no effect: what workers print is shown here, with their ranks"]


@pytest.mark.parametrize(("line", "problem"), [
    ("--nproc-per-node=many train.py", "a number, auto, cpu or gpu, not many"),
    ("--nproc-per-node=0 train.py", "a number, auto, cpu or gpu, not 0"),
    ("--nnodes=3:2 train.py", "MIN:MAX, not 3:2"),
    ("--nnodes=x train.py", "MIN:MAX, not x"),
    ("-np 2 --nproc-per-node=2 train.py", "either by -np or by --nproc-per-node"),
    ("--max-restarts=-1 train.py", "--max-restarts is 0 or more, not -1"),
])
def test_what_makes_no_sense_is_refused(line: str, problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        read(line)


def test_what_is_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    plain = ((run_commands.run_script, (str(script), ["-x"])), "train.py")
    assert run_commands.task_of([str(script), "-x"], False, False) == plain
    assert run_commands.task_of(["--", str(script), "-x"], False, False) == plain
    assert run_commands.task_of(["python3", str(script), "-x"], False, False) == plain
    module = ((run_commands.run_module, ("pkg.train", ["-x"], os.getcwd())), "pkg.train")
    assert run_commands.task_of(["pkg.train", "-x"], True, False) == module
    assert run_commands.task_of(["python", "-m", "pkg.train", "-x"], False, False) == module
    (function, (words, _)), name = run_commands.task_of(["bash", "run.sh"], False, False)
    assert (function, words, name) == (_programs.run_command, ["bash", "run.sh"], "bash")
    (function, (words, _)), _ = run_commands.task_of([sys.executable, "x.py"], False, True)
    assert (function, words) == (_programs.run_command, [sys.executable, "x.py"])
    for words, what in ((["absent.py"], "no such script: absent.py"), ([], "say what to run"),
                        (["python", "-m"], "say which module")):
        with pytest.raises(CommandError, match=what):
            run_commands.task_of(words, False, False)
    with pytest.raises(CommandError, match="no such command: absent"):
        run_commands.task_of(["absent"], False, True)
