"""Nodes of the fake Kubernetes: which pods they take, and how they are taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakecloud.k8s.service import FakeKubernetes
from k8s_world import LIMIT_S, PODS, Client, condition, needing, pod, serving
from processes import marked, until

pytestmark = [pytest.mark.venv_only, pytest.mark.timeout(60)]
STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"


@pytest.fixture
def cluster(tmp_path: Path, mark: str) -> Iterator[FakeKubernetes]:
    with serving(tmp_path, mark) as new:
        yield new


@pytest.fixture
def client(cluster: FakeKubernetes) -> Client:
    return Client(cluster)


# ---- where they go ----

def message_of(client: Client, name: str) -> str:
    until(lambda: condition(client.get(f"{PODS}/{name}"), "PodScheduled").get("reason"),
          "Unschedulable", LIMIT_S)
    return str(condition(client.get(f"{PODS}/{name}"), "PodScheduled")["message"])


def test_scheduling(tmp_path: Path, mark: str) -> None:
    pools = [{"name": "cpu", "count": 2, "cpu": "4"},
             {"name": "gpu", "cpu": "4", "gpus": 1, "zone": "z1", "spot": True,
              "taints": [{"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}]}]
    with serving(tmp_path, mark, pools=pools) as cluster:
        client = Client(cluster)
        client.create(pod("big", container=needing({"cpu": "5"})))
        assert message_of(client, "big") == (
            "0/3 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: yes}, 2 "
            "Insufficient cpu. preemption: 0/3 nodes are available: 3 Preemption is not helpful "
            "for scheduling.")
        tolerant = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
        card = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
        client.create(pod("g1", container=card, **tolerant))
        client.create(pod("g2", container=card, **tolerant))
        assert client.reaches("g1", "Running")["spec"]["nodeName"] == "gpu-0"
        assert "3 Insufficient nvidia.com/gpu" in message_of(client, "g2")
        client.create(pod("zone", affinity={"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In",
                                       "values": ["z1"]}]}]}}}, **tolerant))
        assert client.reaches("zone", "Running")["spec"]["nodeName"] == "gpu-0"
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname",
             "labelSelector": {"matchLabels": {"app": "n"}}}]}}
        for name in ("n1", "n2", "n3"):
            client.create(pod(name, affinity=apart, metadata={"labels": {"app": "n"}}))
        where = {client.reaches(name, "Running")["spec"]["nodeName"] for name in ("n1", "n2")}
        assert where == {"cpu-0", "cpu-1"}
        assert "2 node(s) didn't match pod anti-affinity rules" in message_of(client, "n3")
        client.ask("DELETE", f"{PODS}/n1", {"gracePeriodSeconds": 0})
        client.reaches("n3", "Running")


def test_preemption(client: Client, cluster: FakeKubernetes) -> None:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    client.create({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                   "metadata": {"name": "high"}, "value": 100}, path)
    for name in ("a", "b"):
        client.create(pod(name, container=needing({"cpu": "3"})))
        client.reaches(name, "Running")
    watching = client.watch(PODS, resourceVersion=client.get(PODS)["metadata"]["resourceVersion"])
    client.create(pod("urgent", priorityClassName="high", container=needing({"cpu": "3"})))
    gone = watching.until("DELETED")[-1]["object"]
    watching.close()
    assert condition(gone, "DisruptionTarget")["reason"] == "PreemptionByScheduler"
    assert client.reaches("urgent", "Running")["spec"]["nodeName"] == gone["spec"]["nodeName"]
    assert sorted(client.names(PODS)) == sorted({"a", "b", "urgent"} - {gone["metadata"]["name"]})


def test_nodes_that_come_and_go_with_pods(tmp_path: Path, mark: str) -> None:
    pools = [{"name": "s", "count": 0, "max": 2, "cpu": "2", "boot_s": 0.3, "idle_s": 0.3}]
    with serving(tmp_path, mark, pools=pools) as cluster:
        client = Client(cluster)
        for name in "abc":
            client.create(pod(name, container=needing({"cpu": "1500m"})))
        assert message_of(client, "a") == "no nodes available to schedule pods"
        for name in "ab":
            client.reaches(name, "Running")
        assert len(client.names("/api/v1/nodes")) == 2 and client.phase("c") == "Pending"
        for name in "abc":
            client.ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        until(lambda: client.names("/api/v1/nodes"), [], LIMIT_S)


# ---- how nodes are taken ----

def test_notice_by_the_kubelet(cluster: FakeKubernetes, client: Client) -> None:
    client.create(pod("p", "trap 'sleep 0.1; echo bye; exit 0' TERM; while :; do sleep 0.02; done"))
    node = client.reaches("p", "Running")["spec"]["nodeName"]
    cluster.order(do="notice", node=node, lead_s=1.0)
    told = client.get(f"/api/v1/nodes/{node}")
    assert told["spec"]["taints"] == [{"key": "cloud.google.com/impending-node-termination",
                                       "effect": "NoSchedule"}]
    assert condition(told, "Ready")["status"] == "False"
    failed = client.reaches("p", "Failed")
    assert failed["status"]["reason"] == "Terminated" and client.log("p") == "bye\n"
    assert condition(failed, "DisruptionTarget")["reason"] == "TerminationByKubelet"
    until(lambda: node in client.names("/api/v1/nodes"), False, LIMIT_S)
    client.reaches("p", "")         # By the garbage collector of pods.


@pytest.mark.parametrize(("how", "taint"), [
    ("karpenter", "karpenter.sh/disrupted"), ("autoscaler", "ToBeDeletedByClusterAutoscaler")])
def test_notice_by_eviction(how: str, taint: str, cluster: FakeKubernetes, client: Client,
                            mark: str) -> None:
    client.create(pod("p", STUBBORN, terminationGracePeriodSeconds=100))
    node = client.reaches("p", "Running")["spec"]["nodeName"]
    cluster.order(do="notice", node=node, lead_s=0.5, how=how)
    one = client.get(f"{PODS}/p")
    assert one["metadata"]["deletionGracePeriodSeconds"] == 100
    assert condition(one, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"
    assert client.get(f"/api/v1/nodes/{node}")["spec"]["taints"][0]["key"] == taint
    client.reaches("p", "")
    until(lambda: marked(mark), [], LIMIT_S)


def test_node_that_is_gone_without_a_word(tmp_path: Path, mark: str) -> None:
    with serving(tmp_path, mark, unreachable_s=0.3, toleration_s=0, gone_s=0.5) as cluster:
        client = Client(cluster)
        client.create(pod("p"))
        node = client.reaches("p", "Running")["spec"]["nodeName"]
        cluster.order(do="silence", node=node)
        until(lambda: marked(mark), [], LIMIT_S)
        assert client.phase("p") == "Running"           # Nobody has said otherwise.
        until(lambda: condition(client.get(f"/api/v1/nodes/{node}"), "Ready")["status"],
              "Unknown", LIMIT_S)
        one = client.get(f"{PODS}/p")
        assert condition(one, "Ready")["status"] == "False"
        assert condition(one, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
        assert one["metadata"]["deletionTimestamp"]     # And nobody there to end it.
        until(lambda: node in client.names("/api/v1/nodes"), False, LIMIT_S)
        client.reaches("p", "")
        entry = cluster.do(lambda: cluster.cluster.ledger.as_json())["pods"][0]
        assert entry["node"] == node and entry["gone_s"] and entry["seconds"] > 0.3


def test_evictions_and_budgets(cluster: FakeKubernetes, client: Client) -> None:
    for name in ("a", "b"):
        client.create(pod(name, metadata={"labels": {"app": "x"}}))
        client.reaches(name, "Running")
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    client.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                   "metadata": {"name": "two"}, "spec": {
                       "minAvailable": 2, "selector": {"matchLabels": {"app": "x"}}}}, path)
    until(lambda: client.get(f"{path}/two")["status"]["disruptionsAllowed"], 0, LIMIT_S)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    told = client.refused("POST", f"{PODS}/a/eviction", eviction, 429, "TooManyRequests")
    assert told["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert told["details"]["causes"] == [{
        "reason": "DisruptionBudget", "message": "The disruption budget two needs 2 healthy pods "
        "and has 2 currently"}]
    with pytest.raises(ValueError, match="disruption budget"):
        cluster.order(do="evict", pod="a")
    client.ask("PATCH", f"{path}/two", {"spec": {"minAvailable": 1}},
               kind="application/merge-patch+json")
    watching = client.watch(PODS, resourceVersion=client.get(PODS)["metadata"]["resourceVersion"])
    client.ask("POST", f"{PODS}/a/eviction", eviction, 201)
    gone = watching.until("DELETED")[-1]["object"]
    watching.close()
    assert condition(gone, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"
    client.refused("POST", f"{PODS}/b/eviction", {**eviction, "metadata": {"name": "b"}}, 429,
                   "TooManyRequests")
