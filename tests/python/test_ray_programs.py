"""The programs of examples/ray, as their user runs them, with deaths in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import EXAMPLES, PYAPI
from processes import MARK, assert_nothing_left, beside, wait_gone

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]


class Program:
    """A running example; its output is read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def line(self, beginning: str) -> str:
        """The next line that begins so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith(beginning):
                return line.rstrip()
        raise AssertionError(f"no line {beginning!r} in:\n" + "\n".join(self.lines))

    def pids(self, beginning: str) -> list[int]:
        """The process ids that the next line names that begins so."""
        return [int(pid) for pid in re.findall(r"\d+", self.line(beginning))]


@contextmanager
def running(name: str, size: int, mark: Path) -> Iterator[Program]:
    """Must end with status 0, and leave no process behind."""
    env = {**os.environ, "PYTHONPATH": str(PYAPI), MARK: str(mark)}
    with beside([sys.executable, str(EXAMPLES / "ray" / f"{name}.py"), str(size)], env=env,
                stdout=subprocess.PIPE) as process:
        yield Program(process)
        assert process.wait(60) == 0
    assert_nothing_left(str(mark))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert wait_gone([pid], 20) == []


def test_a_parameter_server_ends_as_if_nobody_had_died(tmp_path: Path) -> None:
    with running("parameter_server", 100, tmp_path) as program:
        expected = program.line("done")
    with running("parameter_server", 100, tmp_path) as program:
        server, worker, *_ = program.pids("server")
        program.line("step 20")
        kill(worker)
        program.line("step 40")
        kill(server)
        assert program.line("done") == expected


def test_a_pipeline_holds_few_pieces_however_many_there_are(tmp_path: Path) -> None:
    with running("pipeline", 300, tmp_path) as program:
        assert program.line("300 pieces") == "300 pieces, sum 135450, parsed by 3 tasks: 300"
        most = int(program.line("at most").split()[2])
    # Two queues of 4, and one piece in each of the reader, the parsers and the writer.
    assert 4 < most <= 2 * 4 + 1 + 3 + 1


def test_tasks_fork_deeper_than_there_are_cpus(tmp_path: Path) -> None:
    with running("fork_join", 200_000, tmp_path) as program:
        assert program.line("sorted") == "sorted: 200000 True"
        assert program.line("queens") == "queens on a board of 8: 92"


def test_a_supervisor_replaces_workers_and_is_replaced(tmp_path: Path) -> None:
    with running("supervisor", 300, tmp_path) as program:
        own, first, *_ = program.pids("supervisor")
        program.line("20 of")
        kill(first)
        program.line("50 of")  # It has written down that it has replaced the worker.
        kill(own)
        assert program.line("done") == (
            "done: 300 results, right: True, workers replaced: 1, lives of the supervisor: 2")
