"""What the tests of fleets share: ``troupe up`` in a folder of its own, and a training that tells
who has had a part in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conftest import EXAMPLES, PYAPI
from processes import MARK, until

FAKECLOUD = Path(__file__).parents[1] / "fakecloud"
SUPPLIER = EXAMPLES / "providers" / "local_processes.py"
_TRAINING = """\
import os
import pathlib
import platform
import time
import troupe

def work():
    import torch
    import troupe.torch as hvd

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    state = hvd.elastic.TorchState(model, optimizer, step=0, seen=[])

    @hvd.elastic.run
    def loop(state):
        while len(state.seen) < COUNT:
            state.seen = sorted({*state.seen, *hvd.allgather_object(WHO)})
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            state.step += 1
            state.commit()
            for who in state.seen:
                pathlib.Path(FOLDER, "seen-" + who).touch()
            time.sleep(0.02)

    loop(state)
    return state.seen, state.step

with troupe.Executor(1, max_workers=2, progress="off") as executor:
    seen, steps = executor.run(work)[0]
    print("seen", seen, "in", steps, "steps")
"""
NODE = 'os.environ["TROUPE_WORKER_NODE"]'
HOST = "platform.node()"


class Fleet:
    """``troupe`` with a temp directory of its own, in ``folder``."""

    def __init__(self, folder: Path, mark: str, **variables: str) -> None:
        self.folder, self.mark = folder, mark
        self.environment = {**os.environ, MARK: mark, "TMPDIR": str(folder),
                            "PYTHONPATH": str(PYAPI), "PYTHONUNBUFFERED": "1",
                            "XDG_STATE_HOME": str(folder / "state"), **variables}
        for name in ("TROUPE_ADDRESS", "TROUPE_KEY_FILE"):
            self.environment.pop(name, None)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-m", "troupe", *words], env=self.environment,
                                text=True, cwd=self.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)

    def run(self, *words: str) -> tuple[int, str]:
        with self.start(*words) as process:
            try:
                out, _ = process.communicate(timeout=120)
            finally:
                process.kill()
        return process.returncode, out

    def seen_training(self, who: str, count: int) -> str:
        """Ends when ``count`` of ``who``, an expression of a worker, have had a part in it, and its
        state has come from the first to the last of them; a file for each tells that it has.
        """
        return (_TRAINING.replace("COUNT", str(count)).replace("WHO", who)
                .replace("FOLDER", repr(str(self.folder))))

    def await_seen(self, up: subprocess.Popen[str], count: int) -> None:
        """Until so many have had a part in the training, which goes on."""
        until(lambda: up.poll() is not None
              or len(list(self.folder.glob("seen-*"))) >= count, True, limit_s=90)
        assert up.poll() is None, up.communicate()[0]


    def read_until(self, up: subprocess.Popen[str], told: str) -> str:
        """What it says until a line holds ``told``, or to its end."""
        out = ""
        assert up.stdout is not None
        for line in up.stdout:
            out += line
            if told in line:
                break
        return out

    def interrupted(self, up: subprocess.Popen[str], told: str) -> str:
        """The same, and what it says when it is then asked to end."""
        out = self.read_until(up, told)
        up.send_signal(signal.SIGTERM)
        return out + up.communicate(timeout=60)[0]


class FakeCloud:
    """A cloud of ``tests/fakecloud`` in a process of its own.

    Args:
        kind: which one.
        settings: of it, as ``NAME=JSON``.
        market: a file of capacity and prices.
        variables: of its instances.
    """

    def __init__(self, kind: str, *settings: str, market: str = "", **variables: str) -> None:
        words = [word for setting in settings for word in ("--set", setting)]
        words += ["--market", market] if market else []
        words += [word for name, value in variables.items()
                  for word in ("--env", f"{name}={value}")]
        self._process = subprocess.Popen([sys.executable, str(FAKECLOUD), kind, *words],
                                         text=True, stdout=subprocess.PIPE)
        self.environment: dict[str, str] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            name, _, value = line.strip().partition("=")
            self.environment[name] = value.strip("'")
            if name == "FAKECLOUD_URL":
                break
        self._url = self.environment.pop("FAKECLOUD_URL")

    def order(self, **body: Any) -> None:
        """Has the cloud do something."""
        request = urllib.request.Request(self._url, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert reply.status == 200

    def state(self) -> dict[str, Any]:
        """What it tells of itself."""
        with urllib.request.urlopen(self._url, timeout=10) as reply:
            return dict(json.load(reply))

    def end(self) -> None:
        """With all its instances."""
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=30)


class SuppliedFleet(Fleet):
    """One whose nodes a program supplies, which has a state of its own."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.nodes_file = folder / "nodes" / "nodes.json"
        super().__init__(folder, mark, TROUPE_NODES_DIR=str(self.nodes_file.parent))

    def file(self, command: str, training: str, more: str = "") -> str:
        path = self.folder / "fleet.yaml"
        path.write_text(
            f"provider: exec\nexec: {{command: {command}, interval: 300ms, timeout: 20s}}\n"
            f"training: {{command: {training}, env: {{MODE: \"it's fast\"}}, min_workers: 2,"
            "  max_workers: 2}\n"
            "autoscaler: {tick: 200ms, cooldown: 500ms, cooldown_max: 1s}\n"
            f"pools: [{{name: spot, market: spot, max_workers: 4}}]\n{more}")
        return str(path)

    def nodes(self) -> list[dict[str, Any]]:
        """What the supplier believes to have."""
        if not self.nodes_file.exists():
            return []
        with open(self.nodes_file, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # While it writes, nothing is in it.
            return list(json.loads(file.read() or "[]"))


@contextlib.contextmanager
def supplied(mark: str) -> Iterator[SuppliedFleet]:
    """In a folder of its own; whatever nodes are left in the end are killed."""
    with tempfile.TemporaryDirectory(prefix="sup-") as folder:  # Short, for sockets.
        fleet = SuppliedFleet(Path(folder), mark)
        yield fleet
        for node in fleet.nodes():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node["pid"], signal.SIGKILL)
