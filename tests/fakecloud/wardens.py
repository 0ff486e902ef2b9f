"""The warden's process, as who holds it sees it: orders go in, events come out."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

END_LIMIT_S = 20.0


class WardenProcess:
    """Runs processes below ``base``, a folder that is removed with it; see ``warden.py``."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._output = b""
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        program = str(Path(__file__).with_name("warden.py"))
        process = subprocess.Popen([sys.executable, "-I", "-S", program, str(self._base)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   start_new_session=True)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def order(self, verb: str, instance: str, **more: object) -> None:
        assert self._process.stdin is not None
        line = json.dumps({"do": verb, "instance": instance, **more}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError:
            pass    # It has died, and that is noticed.

    def events(self) -> Iterator[dict[str, Any]]:
        """Those that have come. ``{"event": "died"}`` if somebody has killed it: its keepers have
        ended their instances, and there is another one from then on."""
        assert self._process.stdout is not None
        while select.select([self._process.stdout], [], [], 0)[0]:
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                self._process.wait()
                self._process.stdout.close()
                self._output = b""
                self._process = self._start()
                yield {"event": "died"}
                return
            *lines, self._output = (self._output + more).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def fileno(self) -> int:
        """Readable when there are events."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def end(self) -> None:
        """All processes; returns when there is none any more."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
