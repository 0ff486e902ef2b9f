"""kubectl and the Python client take the fake Kubernetes for Kubernetes."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakecloud.k8s import kubeconfig
from fakecloud.k8s.cluster import ADMIN, MEMBER
from fakecloud.k8s.schema import TYPES
from fakecloud.k8s.service import FakeKubernetes
from k8s_world import LIMIT_S, pod, secret, serving
from processes import until

pytestmark = [pytest.mark.venv_only, pytest.mark.timeout(60)]
MANIFEST = """
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {token: abc}
---
apiVersion: v1
kind: Pod
metadata: {name: node-1, labels: {app: troupe}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 2
  tolerations: [{key: spot, operator: Exists, effect: NoSchedule}]
  containers:
  - name: node
    image: example/troupe:1
    command: [sh, -c, 'echo begin $TOKEN; trap "exit 0" TERM; while :; do sleep 0.02; done']
    env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: key, key: token}}}]
    resources: {requests: {cpu: 500m, memory: 64Mi}, limits: {memory: 1Gi}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: head}
spec:
  replicas: 1
  selector: {matchLabels: {app: head}}
  template:
    metadata: {labels: {app: head}}
    spec: {containers: [{name: head, image: example/troupe:1}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: fleet}
rules: [{apiGroups: [""], resources: [pods, secrets], verbs: [get, list, watch, create, delete]}]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    (tmp_path / "pods").mkdir()
    with serving(tmp_path / "pods") as new:
        yield new


class Kubectl:
    """With a kubeconfig of a user."""

    def __init__(self, cluster: FakeKubernetes, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        program = shutil.which("kubectl")
        assert program, "kubectl is missing: make install-deps"
        self._program = program
        self.login()

    def login(self, user: str = ADMIN, how: str = "token") -> None:
        self.config = self._folder / f"{user}-{how}"
        kubeconfig.write(self.config, self._cluster.kubeconfig(user=user, how=how))

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([self._program, *words], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=self._environment(), **more)

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self._folder),
                "KUBECONFIG": str(self.config)}

    def __call__(self, *words: str, good: bool = True, given: str = "") -> str:
        """What it has printed, or its error."""
        done = subprocess.run([self._program, *words], check=False, text=True, input=given,
                              capture_output=True, timeout=30, env=self._environment())
        assert (done.returncode == 0) == good, (words, done.stdout, done.stderr)
        return done.stdout if good else done.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json"))


@pytest.fixture
def kubectl(cluster: FakeKubernetes, tmp_path: Path) -> Kubectl:
    return Kubectl(cluster, tmp_path)


def test_kubectl_applies_and_shows(kubectl: Kubectl, tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(MANIFEST)
    made = kubectl("apply", "-f", str(path)).splitlines()
    assert made == ["secret/key created", "pod/node-1 created", "deployment.apps/head created",
                    "role.rbac.authorization.k8s.io/fleet created"]
    kubectl("wait", "--for=condition=Ready", "pod/node-1", "--timeout=10s")
    path.write_text(MANIFEST.replace("app: troupe", "app: other"))
    assert "pod/node-1 configured" in kubectl("apply", "-f", str(path))
    before = kubectl.json("get", "pod", "node-1")["metadata"]
    assert "deployment.apps/head unchanged" in kubectl("apply", "-f", str(path))
    assert kubectl.json("get", "pod", "node-1")["metadata"] == before
    row = kubectl("get", "pods", "-l", "app=other", "-o", "wide").splitlines()[1].split()
    assert row[:4] == ["node-1", "1/1", "Running", "0"] and row[5] == "127.0.0.1"
    assert kubectl("logs", "node-1") == "begin abc\n"
    told = kubectl("describe", "pod", "node-1")
    assert "TOKEN:  <set to the key 'token' in secret 'key'>" in told
    assert "Successfully assigned default/node-1 to a-" in told and "Started container" in told
    assert "cpu:" in told and "QoS Class:" in told
    assert kubectl.json("get", "secret", "key")["data"] == {"token": "YWJj"}
    changed = MANIFEST.replace("500m", "600m")
    path.write_text(changed)
    assert "pod updates may not change fields other than" in kubectl(
        "apply", "-f", str(path), good=False)
    assert kubectl("delete", "-f", str(path)).count("deleted") == 4
    assert kubectl("get", "pods") == ""


def test_kubectl_checks_what_it_sends(kubectl: Kubectl) -> None:
    wrong = json.dumps(pod("p", container={"comand": ["x"]}))
    assert 'unknown field "' in kubectl("apply", "-f", "-", given=wrong, good=False)
    assert kubectl("apply", "--validate=false", "-f", "-", given=wrong) == "pod/p created\n"
    assert kubectl("explain", "pod.spec.nodeSelector").startswith("KIND:")
    assert "pods \"none\" not found" in kubectl("get", "pod", "none", good=False)
    assert "AlreadyExists" in kubectl("create", "-f", "-", given=wrong.replace("comand", "args"),
                                      good=False)


def test_kubectl_and_nodes(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=MANIFEST)
    kubectl("wait", "--for=condition=Ready", "pod/node-1", "--timeout=10s")
    node = kubectl.json("get", "pod", "node-1")["spec"]["nodeName"]
    assert "tainted" in kubectl("taint", "node", node, "spot=yes:NoSchedule")
    assert kubectl.json("get", "node", node)["spec"]["taints"] == [
        {"key": "spot", "value": "yes", "effect": "NoSchedule"}]
    assert "untainted" in kubectl("taint", "node", node, "spot-")
    assert "labeled" in kubectl("label", "node", node, "pool=x")
    assert "Allocated resources" in kubectl("describe", "node", node)
    assert "evicted" in kubectl("drain", node, "--force", "--timeout=10s")
    assert kubectl("get", "nodes", node).split()[6] == "Ready,SchedulingDisabled"
    assert "uncordoned" in kubectl("uncordon", node)


def test_kubectl_as_others(kubectl: Kubectl) -> None:
    for how in ("certificate", "exec"):
        kubectl.login(ADMIN, how)
        assert "a-0" in kubectl("get", "nodes")
    kubectl.login(MEMBER)
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    assert kubectl("auth", "can-i", "list", "nodes", "-A", good=False) is not None
    told = kubectl("get", "nodes", good=False)
    assert 'nodes is forbidden: User "troupe" cannot list resource "nodes"' in told
    kubectl.login("nobody")
    assert "Forbidden" in kubectl("get", "pods", good=False)


def test_kubectl_watches_and_follows(kubectl: Kubectl) -> None:
    command = "echo one; until test -e $HOME/go; do sleep 0.02; done; echo two"
    kubectl("apply", "-f", "-", given=json.dumps(pod("p", command)))
    kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=10s")
    watching, following = kubectl.start("get", "pods", "-w", "--no-headers"), kubectl.start(
        "logs", "-f", "p")
    assert watching.stdout is not None and following.stdout is not None
    try:
        assert following.stdout.readline() == "one\n"
        assert watching.stdout.readline().split()[2] == "Running"
        kubectl("delete", "pod", "p", "--grace-period=0", "--force")
        assert following.wait(10) == 0
        assert watching.stdout.readline().split()[2] in ("Terminating", "Running")
    finally:
        for one in (watching, following):
            one.kill()
            one.communicate()


# ---- the Python client ----

@pytest.fixture(scope="module")
def kubernetes() -> Any:
    return importlib.import_module("kubernetes")


@pytest.fixture
def core(cluster: FakeKubernetes, kubernetes: Any) -> Any:
    loader = importlib.import_module("kubernetes.config.kube_config")
    client = loader.new_client_from_config_dict(cluster.kubeconfig())
    client.configuration.retries = False
    return kubernetes.client.CoreV1Api(client)


def running(core: Any, name: str) -> Any:
    until(lambda: core.read_namespaced_pod(name, "default").status.phase, "Running", LIMIT_S)
    return core.read_namespaced_pod(name, "default")


def test_python_client(core: Any, kubernetes: Any) -> None:
    core.create_namespaced_secret("default", secret("s", token="abc"))
    made = core.create_namespaced_pod("default", pod("p", "echo here; exec sleep 1000"))
    assert made.metadata.uid and made.spec.containers[0].image == "busybox"
    found = running(core, "p")
    assert found.status.container_statuses[0].state.running.started_at.tzinfo
    assert found.status.conditions and found.spec.node_name.startswith("a-")
    until(lambda: core.read_namespaced_pod_log("p", "default", _preload_content=False).data,
          b"here\n", LIMIT_S)
    changed = core.patch_namespaced_pod("p", "default", {"metadata": {"labels": {"a": "b"}}})
    assert changed.metadata.labels == {"a": "b"}
    listed = core.list_namespaced_pod("default", label_selector="a=b", limit=1)
    assert [one.metadata.name for one in listed.items] == ["p"]
    assert listed.metadata._continue is None
    changed.metadata.resource_version = made.metadata.resource_version
    with pytest.raises(kubernetes.client.ApiException) as caught:
        core.replace_namespaced_pod("p", "default", changed)
    assert caught.value.status == 409 and json.loads(caught.value.body)["reason"] == "Conflict"
    budgets = kubernetes.client.PolicyV1Api(core.api_client)
    budgets.create_namespaced_pod_disruption_budget("default", {
        "metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {
            "matchLabels": {"a": "b"}}}})
    eviction = kubernetes.client.V1Eviction(
        metadata=kubernetes.client.V1ObjectMeta(name="p", namespace="default"))
    with pytest.raises(kubernetes.client.ApiException) as caught:
        core.create_namespaced_pod_eviction("p", "default", eviction)
    assert caught.value.status == 429
    budgets.delete_namespaced_pod_disruption_budget("b", "default")
    assert core.create_namespaced_pod_eviction("p", "default", eviction)
    until(lambda: core.list_namespaced_pod("default").items, [], LIMIT_S)
    done = core.delete_namespaced_secret("s", "default")
    assert done.status == "Success"
    nodes = core.list_node()
    assert nodes.items[0].status.allocatable["cpu"] == "4"
    review = kubernetes.client.AuthorizationV1Api(core.api_client)
    asked = review.create_self_subject_access_review({"spec": {"resourceAttributes": {
        "verb": "list", "resource": "nodes"}}})
    assert asked.status.allowed


def test_python_client_watches_through_410(core: Any, kubernetes: Any,
                                           cluster: FakeKubernetes) -> None:
    """What it has known is forgotten: it is told, lists again, and goes on."""
    version = core.list_namespaced_secret("default").metadata.resource_version
    for name in "abc":
        core.create_namespaced_secret("default", secret(name, k="v"))
    watching = kubernetes.watch.Watch()
    seen = [event["object"].metadata.name for event in watching.stream(
        core.list_namespaced_secret, "default", resource_version=version, timeout_seconds=1)]
    assert seen == ["a", "b", "c"]
    cluster.order(do="compact")
    core.create_namespaced_secret("default", secret("d", k="v"))
    with pytest.raises(kubernetes.client.ApiException) as caught:
        for _ in kubernetes.watch.Watch().stream(core.list_namespaced_secret, "default",
                                                 resource_version=version, timeout_seconds=2):
            pass
    assert caught.value.status == 410
    fresh = core.list_namespaced_secret("default").metadata.resource_version
    threading.Timer(0.1, core.create_namespaced_secret, ("default", secret("e", k="v"))).start()
    watching = kubernetes.watch.Watch()
    for event in watching.stream(core.list_namespaced_secret, "default", resource_version=fresh,
                                 timeout_seconds=5):
        assert (event["type"], event["object"].metadata.name) == ("ADDED", "e")
        watching.stop()


def test_python_client_in_a_cluster(cluster: FakeKubernetes, kubernetes: Any,
                                    tmp_path: Path) -> None:
    """By the folder of a service account, whose rights are those of a role."""
    kubeconfig.write_account(tmp_path / "account", cluster)
    loader = importlib.import_module("kubernetes.config.incluster_config")
    host, _, port = cluster.cluster.address.partition(":")
    configuration = kubernetes.client.Configuration()
    loader.InClusterConfigLoader(
        str(tmp_path / "account" / "token"), str(tmp_path / "account" / "ca.crt"),
        environ={"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port},
    ).load_and_set(configuration)
    core = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(configuration))
    with pytest.raises(kubernetes.client.ApiException) as caught:
        core.list_namespaced_pod("default")
    assert caught.value.status == 403
    assert (tmp_path / "account" / "namespace").read_text() == "default"


def test_fields_are_those_of_the_client(kubernetes: Any) -> None:
    """Its models are made from the real server's description."""
    names = {"Event": "CoreV1Event"}
    for name, fields in TYPES.items():
        model = next((getattr(kubernetes.client, one) for one in (
            names.get(name, "V1" + name), "CoreV1" + name, "RbacV1" + name)
            if hasattr(kubernetes.client, one)), None)
        assert model is not None, name
        assert sorted(fields) == sorted(model.attribute_map.values()), name
