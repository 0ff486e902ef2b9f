"""``provider: kubernetes`` on a fake Kubernetes whose pods are processes: trainings of real nodes."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fleets
from conftest import PYAPI
from fakecloud import grafts
from fakecloud.k8s.service import FakeKubernetes
from k8s_world import PODS, SECRETS, Client, serving
from processes import assert_nothing_left, free_port, until

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(120),
              pytest.mark.skipif(not grafts.possible(), reason="mounts need root")]
SPOT = "{name: spot, market: spot, max_workers: 2}"
# So many workers as can be had, without torch.
CALL = """\
import time, troupe
with troupe.Executor(1, progress="off") as executor:
    print("worked", executor.run(lambda: 7), flush=True)
"""


class Fleet(fleets.Fleet):
    """``troupe up`` beside a cluster."""

    def __init__(self, folder: Path, mark: str, cluster: FakeKubernetes, user: str) -> None:
        super().__init__(folder, mark, HOME=str(folder), KUBECONFIG=str(folder / "kubeconfig"))
        self.cluster, self.client = cluster, Client(cluster)
        self.log_in(user)

    def log_in(self, user: str = "kubernetes-admin", how: str = "token") -> None:
        self.folder.joinpath("kubeconfig").write_text(
            json.dumps(self.cluster.kubeconfig(user=user, how=how)))

    def up(self, training: str, pools: str = SPOT, more: str = "", workers: int = 2) -> Any:
        (self.folder / "train.py").write_text(training)
        path = self.folder / "fleet.yaml"
        path.write_text(
            "name: demo\nprovider: kubernetes\n"
            f"kubernetes: {{image: troupe, interval: 200ms, timeout: 20s{more}}}\n"
            f"head: {{listen: '127.0.0.1:{free_port()}'}}\n"
            f"training: {{command: ['{sys.executable}', train.py], min_workers: 1,"
            f"  max_workers: {workers}}}\n"
            "autoscaler: {tick: 200ms, cooldown: 1s, drain_timeout: 10s, fallback_after: 0s}\n"
            f"pools: [{pools}]\n")
        return self.start("up", str(path))

    def pods(self) -> dict[str, dict[str, Any]]:
        """That have a place, by the names of their nodes."""
        return {one["metadata"]["labels"]["troupe.dev/node"]: one
                for one in self.client.get(PODS)["items"] if one["spec"].get("nodeName")}

    def name_of(self, node: str) -> str:
        return str(self.pods()[node]["metadata"]["name"])


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    return f"{os.getpid()}-{request.node.name}"


@pytest.fixture
def fleet(mark: str, tmp_path: Path) -> Iterator[Fleet]:
    environment = {"PYTHONPATH": str(PYAPI), "TMPDIR": "/tmp",
                   "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    with serving(tmp_path, mark, environment=environment, watch_s=600,
                 gc_s=0.05) as cluster, tempfile.TemporaryDirectory(prefix="k8f-") as folder:
        yield Fleet(Path(folder), mark, cluster, "kubernetes-admin")
        until(lambda: Client(cluster).names(PODS), [], limit_s=20)
        until(lambda: Client(cluster).names(SECRETS), [], limit_s=20)
    assert_nothing_left(mark)


def finish(up: Any, limit_s: float = 90) -> str:
    try:
        out, _ = up.communicate(timeout=limit_s)
    finally:
        up.kill()
    assert up.returncode == 0, out
    return str(out)


def test_start_to_end(fleet: Fleet) -> None:
    fleet.log_in("troupe")      # It may do all in its namespace, and nothing with machines.
    with fleet.up(CALL) as up:
        out = finish(up)
    assert "worked [7]" in out
    assert len(re.findall("machines of the cluster are not watched", out)) == 1, out
    assert re.search(r'a ClusterRole with the verb "list" on nodes is needed', out), out
