"""``provider: kubernetes`` on a fake Kubernetes whose pods are processes: nodes of trainings."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fleets
from conftest import EXAMPLES, PYAPI
from fakecloud import grafts
from fakecloud.k8s.service import FakeKubernetes
from k8s_world import PODS, SECRETS, Client, serving
from processes import assert_nothing_left, free_port, until

yaml = pytest.importorskip("yaml")
pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.venv_only,
              pytest.mark.timeout(120),
              pytest.mark.skipif(not grafts.possible(), reason="mounts need root")]
_RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/"
RIGHTS = {"ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
          "Role": _RBAC + "roles", "RoleBinding": _RBAC + "rolebindings"}
SPOT = "{name: spot, market: spot, max_workers: 2}"
# Each of its pods takes a machine of its own.
RARE = ("{name: spot, market: spot, max_workers: 2, template: {spec: {containers: "
        "[{name: troupe, resources: {requests: {cpu: 3}}}], terminationGracePeriodSeconds: 40}}}")
# Without torch, which takes seconds to begin.
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

    def log_in(self, user: str = "kubernetes-admin", how: str = "token", **server: Any) -> None:
        """``server``: more about the API, as a kubeconfig has it."""
        config = self.cluster.kubeconfig(user=user, how=how)
        config["clusters"][0]["cluster"].update(server)
        self.folder.joinpath("kubeconfig").write_text(json.dumps(config))

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
    machines = [{"name": "a", "count": 4, "cpu": "4", "memory": "8Gi"}]
    with serving(tmp_path, mark, environment=environment, watch_s=600, gc_s=0.05,
                 pools=machines) as cluster, tempfile.TemporaryDirectory(prefix="k8f-") as folder:
        yield Fleet(Path(folder), mark, cluster, "kubernetes-admin")
        cluster.order(do="mend")
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


def test_a_service_account_with_no_more_than_the_role_of_the_example(fleet: Fleet) -> None:
    for one in yaml.safe_load_all((EXAMPLES / "kubernetes" / "rights.yaml").read_text()):
        path = RIGHTS.get(one["kind"])
        if path is None:
            continue
        for part in (one["metadata"], *one.get("subjects", [])):
            part["namespace"] = "default"
        fleet.client.ask("POST", path, one, 201)
    fleet.log_in("troupe")
    config = json.loads((fleet.folder / "kubeconfig").read_text())
    config["users"][0]["user"] = {"tokenFile": "token"}
    (fleet.folder / "kubeconfig").write_text(json.dumps(config))
    (fleet.folder / "token").write_text(
        fleet.cluster.do(lambda: fleet.cluster.cluster.account_of("default", "troupe")))
    with fleet.up(CALL) as up:
        out = finish(up)
    assert "worked [7]" in out
    assert len(re.findall("machines of the cluster are not watched", out)) == 1, out
    assert re.search(r'a ClusterRole with the verb "list" on nodes is needed', out), out


def test_the_example_of_a_fleet_is_right(tmp_path: Path) -> None:
    found = yaml.safe_load((EXAMPLES / "kubernetes" / "fleet.yaml").read_text())
    for name, text in found["data"].items():
        (tmp_path / name).write_text(text)
    told = subprocess.run([sys.executable, "-m", "troupe", "config", "check", "fleet.yaml"],
                          cwd=tmp_path, text=True, capture_output=True, check=False, timeout=30,
                          env={**os.environ, "PYTHONPATH": str(PYAPI)})
    assert told.returncode == 0, told
    assert "Cluster demo on kubernetes: 1 pool" in told.stdout


def test_nodes_are_lost_and_replaced_while_the_api_fails(fleet: Fleet) -> None:
    order = fleet.cluster.order
    with fleet.up(fleet.seen_training(fleets.NODE, 4), RARE) as up:
        try:
            fleet.await_seen(up, 2)
            taken, killed = (fleet.pods()[node] for node in ("spot-2", "spot-1"))
            order(do="rotate", user="kubernetes-admin")
            fleet.log_in()
            order(do="fault", how="throttle", count=1, resource="pods", verb="create")
            order(do="fault", how="lost", count=1, resource="pods", verb="create")
            order(do="fault", how="error", code=500, count=1, resource="secrets")
            order(do="notice", node=taken["spec"]["nodeName"], lead_s=40, how="karpenter")
            order(do="oom", pod=killed["metadata"]["name"])
            order(do="fault", how="drop", count=1, resource="pods", verb="watch")
        except BaseException:
            up.kill()
            raise
        out = finish(up)
    assert re.search(r"spot-1 has ended: demo-spot-1-\w+: exit code 137, OOMKilled", out), out
    assert re.search(r"notice: node spot-2 drains within \d\d\.\d s: preempt", out), out
    assert re.search(r"seen \['spot-1', 'spot-2', 'spot-3', 'spot-4'", out), out


def test_pools_that_cannot_supply_say_why_and_another_one_does(fleet: Fleet) -> None:
    # A certificate for a name by which the server is not reached, and one of ours in place of a
    # token.
    fleet.log_in(how="certificate", **{"tls-server-name": "kubernetes.default.svc"})
    with fleet.up(CALL, "{name: huge, market: spot, max_workers: 1, resources: {CPU: 99},"
                        "  price_per_hour: 0.1},"
                        "{name: typo, market: spot, max_workers: 1, image: 'missing:1',"
                        "  price_per_hour: 0.2},"
                        "{name: good, market: spot, max_workers: 1, price_per_hour: 0.3}",
                  ", schedule_within: 1s", workers=1) as up:
        out = finish(up)
    assert re.search(r"launch in pool huge failed.*no capacity: pod demo-huge-1-\w+ had no place: "
                     r"0/4 nodes are available: 4 Insufficient cpu", out), out
    assert re.search(r"launch in pool typo failed.*container troupe of pod demo-typo-1-\w+: "
                     r"\w*ImagePull\w*", out), out
    assert "worked [7]" in out


def test_a_server_that_is_not_who_it_should_be_is_told_of_nothing(fleet: Fleet) -> None:
    fleet.log_in(**{"tls-server-name": "kubernetes.example.com"})
    with fleet.up("import time; time.sleep(60)") as up:
        try:
            assert up.stdout is not None
            line = next(line for line in up.stdout if "cannot see who else holds" in line)
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=30)
        finally:
            up.kill()
    assert "SSL" in line or "certificate" in line, line
    assert fleet.pods() == {}


def test_a_head_that_is_killed_leaves_nothing_to_the_next_one(fleet: Fleet) -> None:
    fleet.log_in(how="exec")
    waiting = CALL.replace("lambda: 7", "lambda: time.sleep(600)")
    with fleet.up(waiting, RARE.replace("40", "2"), workers=1) as up:
        assert up.stdout is not None
        assert any("node spot-1 is up" in line for line in up.stdout)
        first = fleet.name_of("spot-1")
        up.send_signal(signal.SIGKILL)
        up.communicate()
    with fleet.up(CALL, workers=1) as up:
        out = finish(up)
    assert f"ending what an earlier `troupe up` has left: spot-1 ({first})" in out, out
    assert "worked [7]" in out
    assert len(re.findall("launch spot-", out)) == 1, out
    ledger = fleet.cluster.cluster.ledger
    until(lambda: fleet.cluster.do(lambda: (ledger.totals()["pods"], len(ledger.open))), (2, 0),
          limit_s=20)
