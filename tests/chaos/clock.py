"""A time of day that can be set, for all processes that are started with it.

The clock that measures durations goes on as it was: so it is when a wrong clock is set right.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("time_of_day.c")


class Clock:
    """Its offset lies in ``folder``; on time until :meth:`jump`."""

    def __init__(self, folder: Path) -> None:
        self._library, self._file = folder / "time_of_day.so", folder / "time-of-day"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o",
                        str(self._library), str(SOURCE)], check=True)
        self._file.write_bytes(bytes(8))

    def prefix(self) -> list[str]:
        """What a command begins with whose processes are to read this clock."""
        return ["env", f"LD_PRELOAD={self._library}", f"TIME_OF_DAY={self._file}"]

    def jump(self, seconds: int) -> None:
        """From now on the time of day is off by so many seconds."""
        with self._file.open("r+b") as file:  # who has mapped it sees the same file
            file.write(seconds.to_bytes(8, "little", signed=True))
