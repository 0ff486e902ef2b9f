"""The fake Kubernetes on the wire: each answer has the status and the words of the real server."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakecloud.k8s.cluster import MEMBER, NOBODY
from fakecloud.k8s.service import FakeKubernetes
from k8s_world import MERGE, PODS, SECRETS, Client, needing, pod, secret, serving
from processes import until

pytestmark = [pytest.mark.venv_only, pytest.mark.timeout(60)]
NODES, BINDINGS = "/api/v1/nodes", "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: Any) -> Iterator[FakeKubernetes]:
    with serving(tmp_path_factory.mktemp("k8s")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: FakeKubernetes) -> Iterator[FakeKubernetes]:
    """One for all tests here: each finds it without pods, secrets and faults."""
    yield shared
    shared.order(do="mend")
    client = Client(shared)
    for path in (PODS, SECRETS, "/api/v1/namespaces/default/configmaps"):
        client.ask("DELETE", path, {"gracePeriodSeconds": 0})
    until(lambda: client.names(PODS), [], 10)


@pytest.fixture
def client(cluster: FakeKubernetes) -> Client:
    return Client(cluster)


def put_off(name: str, **more: Any) -> dict[str, Any]:
    """A pod that no node takes, so that nothing but a test changes it."""
    return pod(name, nodeSelector={"no": "where"}, **more)


# ---- who, and what they may ----

def test_users_and_what_they_may(cluster: FakeKubernetes, client: Client) -> None:
    stranger, nobody, member = (Client(cluster, user) for user in (None, NOBODY, MEMBER))
    assert stranger.get("/version")["gitVersion"].startswith("v1.")
    told = stranger.refused("GET", PODS, None, 403, "Forbidden")
    assert told["message"] == ('pods is forbidden: User "system:anonymous" cannot list resource '
                               '"pods" in API group "" in the namespace "default"')
    told = nobody.refused("GET", f"{SECRETS}/x", None, 403, "Forbidden")
    assert told["message"] == ('secrets "x" is forbidden: User "nobody" cannot get resource '
                               '"secrets" in API group "" in the namespace "default"')
    assert told["details"] == {"name": "x", "kind": "secrets"}
    assert member.names(PODS) == []
    for path, where in ((NODES, 'resource "nodes" in API group "" at the cluster scope'),
                        ("/api/v1/namespaces/kube-system/pods",
                         'resource "pods" in API group "" in the namespace "kube-system"'),
                        ("/api/v1/pods", 'resource "pods" in API group "" at the cluster scope')):
        told = member.refused("GET", path, None, 403, "Forbidden")
        assert told["message"].endswith(f'User "troupe" cannot list {where}')
    told = nobody.refused("GET", "/metrics", None, 403, "Forbidden")
    assert told["message"] == 'forbidden: User "nobody" cannot get path "/metrics"'
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {
        "resourceAttributes": {"verb": "create", "resource": "pods", "namespace": "default"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert [one.ask("POST", path, review)["status"]["allowed"]
            for one in (client, member, nobody)] == [True, True, False]


def test_roles_that_are_stored_count(cluster: FakeKubernetes, client: Client) -> None:
    nobody = Client(cluster, NOBODY)
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "read:nodes"},
            "rules": [{"apiGroups": [""], "resources": ["nodes", "pods/log"], "verbs": ["list"]}]}
    client.create(role, f"{BINDINGS}/clusterroles")
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
               "metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "read:nodes"},
               "subjects": [{"kind": "User", "name": NOBODY}]}
    client.create(binding, f"{BINDINGS}/clusterrolebindings")
    assert len(nobody.names(NODES)) == 2
    nobody.refused("GET", f"{NODES}/a-0", None, 403, "Forbidden")
    binding["roleRef"]["name"] = "other"
    told = client.refused("PUT", f"{BINDINGS}/clusterrolebindings/b", binding, 422, "Invalid")
    assert "cannot change roleRef" in told["message"]
    client.ask("DELETE", f"{BINDINGS}/clusterrolebindings/b")
    nobody.refused("GET", NODES, None, 403, "Forbidden")


def test_tokens_and_certificates(cluster: FakeKubernetes, tmp_path: Path) -> None:
    member = Client(cluster, MEMBER)
    old = member.token
    cluster.order(do="rotate", user=MEMBER, keep_s=60)
    assert member.names(PODS) == []
    cluster.order(do="rotate", user=MEMBER)
    told = member.refused("GET", PODS, None, 401, "Unauthorized")
    assert told["message"] == "Unauthorized"
    member = Client(cluster, MEMBER)
    assert member.token != old and member.names(PODS) == []
    cluster.order(do="expire", user=MEMBER)
    member.refused("GET", PODS, None, 401, "Unauthorized")
    cluster.order(do="rotate", user=MEMBER)
    with urllib.request.urlopen(f"{cluster.admin_url}/credential?user={MEMBER}&seconds=1") as got:
        credential = json.load(got)
    assert credential["kind"] == "ExecCredential"
    member.token = credential["status"]["token"]
    assert member.names(PODS) == []
    until(lambda: member.raw("GET", PODS)[0], 401, 10)
    certificate, key = cluster.authority.client("someone", ("a", "system:masters"))
    (tmp_path / "pem").write_bytes(certificate + key)
    assert Client(cluster, None, tmp_path / "pem").names(PODS) == []
    certificate, key = cluster.authority.client("someone")
    (tmp_path / "pem").write_bytes(certificate + key)
    told = Client(cluster, None, tmp_path / "pem").refused("GET", PODS, None, 403, "Forbidden")
    assert 'User "someone"' in told["message"]
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
             "spec": {"expirationSeconds": 600}}
    account = Client(cluster)
    account.token = account.ask("POST", path, asked)["status"]["token"]
    told = account.refused("GET", PODS, None, 403, "Forbidden")
    assert 'User "system:serviceaccount:default:default"' in told["message"]


def test_discovery(client: Client) -> None:
    groups = {one["name"] for one in client.get("/apis")["groups"]}
    assert groups >= {"apps", "policy", "rbac.authorization.k8s.io", "coordination.k8s.io"}
    assert client.get("/api")["versions"] == ["v1"]
    core = {one["name"]: one for one in client.get("/api/v1")["resources"]}
    assert core["pods/eviction"]["kind"] == "Eviction" and core["nodes"]["namespaced"] is False
    assert client.get("/apis/apps/v1")["resources"][0]["shortNames"] == ["deploy"]
    for path in ("/apis/none", "/apis/apps/v2", "/apis/none/v1/x", "/api/v1/nones", "/none",
                 f"{PODS}/p/none"):
        told = client.refused("GET", path, None, 404, "NotFound")
        assert told["message"] == "the server could not find the requested resource"
    assert client.raw("GET", "/healthz")[1] == b"ok"
    client.refused("POST", f"{PODS}/p", pod(), 405, "MethodNotAllowed")
    types = client.get("/openapi/v2")["definitions"]
    assert "nodeSelector" in types["io.k8s.api.v1.PodSpec"]["properties"]


# ---- objects ----

def test_create_and_names(client: Client) -> None:
    made = client.create(put_off("a"))
    assert made["metadata"]["uid"] and made["status"]["phase"] == "Pending"
    assert made["spec"]["tolerations"][0]["tolerationSeconds"] == 300
    told = client.refused("POST", PODS, put_off("a"), 409, "AlreadyExists")
    assert told["message"] == 'pods "a" already exists'
    generated = put_off("", metadata={"generateName": "node-"})
    del generated["metadata"]["name"]
    names = {client.create(generated)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3 and all(one.startswith("node-") and len(one) == 10 for one in names)
    told = client.refused("GET", f"{PODS}/b", None, 404, "NotFound")
    assert told["message"] == 'pods "b" not found' and told["details"]["kind"] == "pods"
    told = client.refused("POST", PODS.replace("default", "none"), put_off("a"), 404, "NotFound")
    assert told["message"] == 'namespaces "none" not found'
    told = client.refused("GET", "/apis/apps/v1/namespaces/default/deployments/d", None, 404,
                          "NotFound")
    assert told["message"] == 'deployments.apps "d" not found'
    dry = client.ask("POST", f"{PODS}?dryRun=All", put_off("dry"), 201)
    assert dry["metadata"]["uid"] and "dry" not in client.names(PODS)


@pytest.mark.parametrize(("change", "field", "reason", "said"), [
    ({"containers": []}, "spec.containers", "FieldValueRequired", "Required value"),
    ({"restartPolicy": "Some"}, "spec.restartPolicy", "FieldValueNotSupported",
     'Unsupported value: "Some": supported values: "Always", "Never", "OnFailure"'),
    ({"containers": [{"name": "A", "image": "x"}]}, "spec.containers[0].name",
     "FieldValueInvalid", 'Invalid value: "A": a lowercase RFC 1123 label'),
    ({"containers": [{"name": "a", "image": "x"}] * 2}, "spec.containers[1].name",
     "FieldValueDuplicate", 'Duplicate value: "a"'),
    ({"containers": [{"name": "a"}]}, "spec.containers[0].image", "FieldValueRequired",
     "Required value"),
    ({"containers": [{"name": "a", "image": "x", "volumeMounts": [
        {"name": "v", "mountPath": "/v"}]}]}, "spec.containers[0].volumeMounts[0].name",
     "FieldValueNotFound", 'Not found: "v"'),
    ({"containers": [{"name": "a", "image": "x", **needing({"nvidia.com/gpu": "1"})}]},
     "spec.containers[0].resources.limits", "FieldValueRequired", "Limit must be set"),
    ({"containers": [{"name": "a", "image": "x", "resources": {
        "requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}}]},
     "spec.containers[0].resources.requests", "FieldValueInvalid",
     "must be less than or equal to cpu limit of 1500m"),
    ({"tolerations": [{"key": "a", "operator": "Some"}]}, "spec.tolerations[0].operator",
     "FieldValueNotSupported", "Unsupported value"),
    ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds", "FieldValueInvalid",
     "must be between 1 and 2147483647, inclusive"),
    ({"nodeSelector": {"a": "b c"}}, "spec.nodeSelector", "FieldValueInvalid", "a valid label"),
])
def test_specs_that_are_refused(change: dict[str, Any], field: str, reason: str, said: str,
                                client: Client) -> None:
    told = client.refused("POST", PODS, pod("p", **change), 422, "Invalid")
    assert told["message"].startswith(f'Pod "p" is invalid: {field}: ')
    [cause] = told["details"]["causes"]
    assert (cause["field"], cause["reason"]) == (field, reason) and said in cause["message"]


def test_names_and_labels_that_are_refused(client: Client) -> None:
    bad = put_off("A_b", metadata={"labels": {"x": "y z", "a/b/c": "v" * 64}})
    told = client.refused("POST", PODS, bad, 422, "Invalid")
    fields = [one["field"] for one in told["details"]["causes"]]
    assert fields[0] == "metadata.name" and fields.count("metadata.labels") >= 3
    assert told["message"].startswith(
        'Pod "A_b" is invalid: [metadata.name: Invalid value: "A_b": ')
    assert client.names(PODS) == []


def test_fields_that_are_unknown_or_of_another_type(client: Client) -> None:
    bad = put_off("p", container={"comand": ["x"]}, nodeselector={})
    told = client.refused("POST", f"{PODS}?fieldValidation=Strict", bad, 400, "BadRequest")
    assert told["message"] == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field '
        '"spec.containers[0].comand", unknown field "spec.nodeselector"')
    status, text, headers = client.raw("POST", PODS, bad)
    assert status == 201 and "nodeselector" not in json.loads(text)["spec"]
    assert headers["Warning"].startswith('299 - "unknown field \\"spec.containers[0].comand\\""')
    wrong = put_off("q", terminationGracePeriodSeconds="30")
    told = client.refused("POST", PODS, wrong, 400, "BadRequest")
    assert ("json: cannot unmarshal string into Go struct field "
            "Pod.spec.terminationGracePeriodSeconds of type int64") in told["message"]
    wrong = put_off("q", container=needing({"cpu": "two"}))
    assert "quantities must match" in client.refused("POST", PODS, wrong, 400, "BadRequest")[
        "message"]
    wrong = {**secret("s"), "data": {"a": "***"}}
    assert "illegal base64 data at input byte 0" in client.refused(
        "POST", SECRETS, wrong, 400, "BadRequest")["message"]
    for body in (b"{", b"[]", {"kind": "Secret", "apiVersion": "v1"},
                 {"kind": "Pod", "apiVersion": "v2"}):
        client.refused("POST", PODS, body, 400, "BadRequest")
    bare = {key: value for key, value in put_off("bare").items() if key in ("metadata", "spec")}
    assert client.ask("POST", PODS, bare, 201)["kind"] == "Pod"
    client.refused("POST", PODS, b"a: b", 415, "UnsupportedMediaType", kind="application/yaml")


def test_updates_and_conflicts(client: Client) -> None:
    made = client.create(put_off("p", metadata={"labels": {"a": "1"}}))
    newer = client.ask("PATCH", f"{PODS}/p", {"metadata": {"labels": {"a": "2"}}}, kind=MERGE)
    told = client.refused("PUT", f"{PODS}/p", made, 409, "Conflict")
    assert told["message"] == (
        'Operation cannot be fulfilled on pods "p": the object has been modified; please apply '
        "your changes to the latest version and try again")
    newer["metadata"]["labels"]["a"] = "3"
    changed = client.ask("PUT", f"{PODS}/p", newer)
    assert int(changed["metadata"]["resourceVersion"]) > int(newer["metadata"]["resourceVersion"])
    again = client.ask("PUT", f"{PODS}/p", changed)
    assert again["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]
    changed["spec"]["containers"][0]["command"] = ["other"]
    told = client.refused("PUT", f"{PODS}/p", changed, 422, "Invalid")
    assert "spec: Forbidden: pod updates may not change fields other than" in told["message"]
    free = {**changed, "metadata": {"name": "p", "labels": {"a": "4"}},
            "spec": again["spec"], "status": {"phase": "Failed"}}
    kept = client.ask("PUT", f"{PODS}/p", free)     # Without a version, and without a status.
    assert kept["metadata"]["labels"] == {"a": "4"} and kept["status"]["phase"] == "Pending"
    other = client.ask("PATCH", f"{PODS}/p/status", {"status": {"phase": "Running"}}, kind=MERGE)
    assert other["status"]["phase"] == "Running" and other["spec"] == kept["spec"]
    frozen = {**secret("s", k="v"), "immutable": True}
    client.create(frozen)
    told = client.refused("PUT", f"{SECRETS}/s", {**frozen, "data": {"k": "YQ=="}}, 422, "Invalid")
    assert "field is immutable when `immutable` is set" in told["message"]


def test_patches(client: Client) -> None:
    client.create(put_off("p", metadata={"labels": {"a": "1", "b": "2"}}))
    path = f"{PODS}/p"
    made = client.ask("PATCH", path, {"metadata": {"labels": {"a": None, "c": "3"}}}, kind=MERGE)
    assert made["metadata"]["labels"] == {"b": "2", "c": "3"}
    strategic = "application/strategic-merge-patch+json"
    made = client.ask("PATCH", path, {"metadata": {"finalizers": ["x.y/z"]}, "spec": {
        "containers": [{"name": "main", "image": "other"}]}}, kind=strategic)
    assert made["spec"]["containers"][0]["image"] == "other"
    assert made["spec"]["containers"][0]["command"] == ["sh", "-c", "sleep 1000"]
    assert made["metadata"]["finalizers"] == ["x.y/z"]
    operations = [{"op": "test", "path": "/metadata/labels/b", "value": "2"},
                  {"op": "add", "path": "/metadata/labels/d~1e", "value": "4"},
                  {"op": "remove", "path": "/metadata/finalizers"}]
    kind = "application/json-patch+json"
    made = client.ask("PATCH", path, operations, kind=kind)
    assert made["metadata"]["labels"]["d/e"] == "4" and "finalizers" not in made["metadata"]
    operations[0]["value"] = "5"
    client.refused("PATCH", path, operations, 422, "Invalid", kind=kind)
    stale = {"metadata": {"resourceVersion": "1", "labels": {"z": "z"}}}
    client.refused("PATCH", path, stale, 409, "Conflict", kind=MERGE)
    client.refused("PATCH", path, {}, 415, "UnsupportedMediaType",
                   kind="application/apply-patch+yaml")
    client.refused("PATCH", f"{PODS}/none", {}, 404, "NotFound", kind=MERGE)


# ---- ends ----

def test_deletes(client: Client) -> None:
    made = client.create(put_off("p"))
    uid = made["metadata"]["uid"]
    told = client.refused("DELETE", f"{PODS}/p", {"preconditions": {"uid": "other"}}, 409,
                          "Conflict")
    assert told["message"] == (
        'Operation cannot be fulfilled on pods "p": Precondition failed: UID in precondition: '
        f"other, UID in object meta: {uid}")
    stale = {"preconditions": {"uid": uid, "resourceVersion": "1"}}
    client.refused("DELETE", f"{PODS}/p", stale, 409, "Conflict")
    client.refused("DELETE", f"{PODS}/p", {"propagationPolicy": "Some"}, 422, "Invalid")
    gone = client.ask("DELETE", f"{PODS}/p", {"preconditions": {"uid": uid}})
    assert gone["kind"] == "Pod" and gone["metadata"]["deletionGracePeriodSeconds"] == 0
    client.refused("DELETE", f"{PODS}/p", None, 404, "NotFound")
    client.create(secret("s", k="v"))
    done = client.ask("DELETE", f"{SECRETS}/s")
    assert (done["kind"], done["status"], done["details"]["name"]) == ("Status", "Success", "s")
    for name in "abc":
        client.create(put_off(name, metadata={"labels": {"x": name}}))
    many = client.ask("DELETE", f"{PODS}?labelSelector=x+in+(a,b)")
    assert many["kind"] == "PodList" and client.names(PODS) == ["c"]


def test_finalizers(client: Client) -> None:
    client.create(put_off("p", metadata={"finalizers": ["troupe.dev/keep"]}))
    held = client.ask("DELETE", f"{PODS}/p")
    assert held["metadata"]["deletionTimestamp"] and client.names(PODS) == ["p"]
    again = client.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
    assert again["metadata"]["finalizers"] == ["troupe.dev/keep"]
    told = client.refused("PATCH", f"{PODS}/p", {"metadata": {"finalizers": ["a.b/c"]}}, 422,
                          "Invalid", kind=MERGE)
    assert "no new finalizers can be added if the object is being deleted" in told["message"]
    client.ask("PATCH", f"{PODS}/p", {"metadata": {"finalizers": None}}, kind=MERGE)
    assert client.names(PODS) == []


def test_what_has_lost_its_owners_goes(client: Client) -> None:
    def owner(made: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Pod", "name": made["metadata"]["name"],
                "uid": made["metadata"]["uid"], **more}

    first, second = client.create(put_off("a")), client.create(put_off("b"))
    owned = secret("s", k="v")
    owned["metadata"]["ownerReferences"] = [owner(first), owner(second)]
    client.create(owned)
    client.create(secret("free", k="v"))
    client.ask("DELETE", f"{PODS}/a")
    time.sleep(0.1)
    assert client.names(SECRETS) == ["free", "s"]
    client.ask("DELETE", f"{PODS}/b")
    until(lambda: client.names(SECRETS), ["free"], 10)
    third = client.create(put_off("c"))
    owned["metadata"]["ownerReferences"] = [owner(third, blockOwnerDeletion=True)]
    client.create(owned)
    client.ask("DELETE", f"{PODS}/c", {"propagationPolicy": "Orphan"})
    until(lambda: client.names(PODS), [], 10)
    kept = client.get(f"{SECRETS}/s")
    assert "ownerReferences" not in kept["metadata"]
    fourth = client.create(put_off("d"))
    kept["metadata"]["ownerReferences"] = [owner(fourth, blockOwnerDeletion=True)]
    kept["metadata"]["finalizers"] = ["a.b/c"]
    client.ask("PUT", f"{SECRETS}/s", kept)
    client.ask("DELETE", f"{PODS}/d", {"propagationPolicy": "Foreground"})
    until(lambda: "deletionTimestamp" in client.get(f"{SECRETS}/s")["metadata"], True, 10)
    assert client.names(PODS) == ["d"]      # It waits for what it owns.
    client.ask("PATCH", f"{SECRETS}/s", {"metadata": {"finalizers": None}}, kind=MERGE)
    until(lambda: client.names(PODS), [], 10)


def test_namespaces(client: Client) -> None:
    path = "/api/v1/namespaces"
    client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}, path)
    until(lambda: client.names(f"{path}/other/serviceaccounts"), ["default"], 10)
    there = f"{path}/other/secrets"
    held = secret("s", k="v")
    held["metadata"]["finalizers"] = ["a.b/c"]
    client.create(held, there)
    assert client.ask("DELETE", f"{path}/other")["status"]["phase"] == "Terminating"
    told = client.refused("POST", there, secret("t", k="v"), 403, "Forbidden")
    assert told["message"] == ('secrets "t" is forbidden: unable to create new content in '
                               "namespace other because it is being terminated")
    assert told["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    client.ask("PATCH", f"{there}/s", {"metadata": {"finalizers": None}}, kind=MERGE)
    until(lambda: "other" in client.names(path), False, 10)
    client.refused("DELETE", f"{path}/default", None, 403, "Forbidden")


# ---- admission ----

def test_quotas_and_limits(client: Client) -> None:
    space = "/api/v1/namespaces/default"
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"},
             "spec": {"hard": {"pods": "2", "requests.cpu": "3"}}}
    client.create(quota, f"{space}/resourcequotas")
    told = client.refused("POST", PODS, put_off("p"), 403, "Forbidden")
    assert told["message"].endswith("failed quota: few: must specify requests.cpu for: main")
    client.create(put_off("p", container=needing({"cpu": "2"})))
    told = client.refused("POST", PODS, put_off("q", container=needing({"cpu": "1500m"})), 403,
                          "Forbidden")
    assert told["message"] == (
        'pods "q" is forbidden: exceeded quota: few, requested: requests.cpu=1500m, used: '
        "requests.cpu=2, limited: requests.cpu=3")
    until(lambda: client.get(f"{space}/resourcequotas/few")["status"]["used"],
          {"pods": "1", "requests.cpu": "2"}, 10)
    client.ask("DELETE", f"{space}/resourcequotas/few")
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": {
        "limits": [{"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "1"}}]}}
    client.create(limits, f"{space}/limitranges")
    made = client.create(put_off("r"))
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1"},
                                                          "requests": {"cpu": "1"}}
    told = client.refused("POST", PODS, put_off("t", container={"resources": {
        "limits": {"cpu": "3"}}}), 403, "Forbidden")
    assert told["message"] == ('pods "t" is forbidden: maximum cpu usage per Container is 2, but '
                               "limit is 3")
    client.ask("DELETE", f"{space}/limitranges/small")


def test_admission_denies(cluster: FakeKubernetes, client: Client) -> None:
    cluster.order(do="deny", resource="pods", name="x", message="no x here", webhook="v.example")
    told = client.refused("POST", PODS, put_off("x1"), 403, "Forbidden")
    assert told["message"] == 'admission webhook "v.example" denied the request: no x here'
    client.create(put_off("x1"))
    told = client.refused("POST", PODS, put_off("y", serviceAccountName="none"), 403, "Forbidden")
    assert told["message"] == ('pods "y" is forbidden: error looking up service account default/'
                               'none: serviceaccount "none" not found')
    told = client.refused("POST", PODS, put_off("y", priorityClassName="none"), 403, "Forbidden")
    assert told["message"] == ('pods "y" is forbidden: no PriorityClass with name none was found')


# ---- faults ----

def test_requests_that_go_wrong(cluster: FakeKubernetes, client: Client) -> None:
    cluster.order(do="fault", how="throttle", seconds=7, verb="list", resource="pods")
    status, text, headers = client.raw("GET", PODS)
    assert (status, text, headers["Retry-After"]) == (
        429, b"Too many requests, please try again later.\n", "7")
    assert headers["X-Kubernetes-PF-FlowSchema-UID"] and not headers["Content-Type"].startswith(
        "application/json")
    assert client.names(PODS) == []
    for code, reason in ((500, "InternalError"), (503, "ServiceUnavailable"), (504, "Timeout")):
        cluster.order(do="fault", how="error", code=code, count=2)
        for _ in range(2):
            client.refused("GET", PODS, None, code, reason)
        assert client.names(PODS) == []
    cluster.order(do="fault", how="slow", seconds=0.2)
    begin_s = time.monotonic()
    client.names(PODS)
    assert time.monotonic() - begin_s >= 0.2
    cluster.order(do="fault", how="garbage")
    with pytest.raises(ValueError):
        json.loads(client.raw("GET", PODS)[1])
    cluster.order(do="fault", how="cut", verb="create")
    cluster.order(do="fault", how="lost", verb="create", name="")
    for name, made in (("cut", False), ("lost", True)):
        with pytest.raises((OSError, http.client.HTTPException)):
            client.create(put_off(name))
        assert (name in client.names(PODS)) == made


def test_administrators_errors(cluster: FakeKubernetes) -> None:
    for order in ({}, {"do": "x"}, {"do": "notice", "node": "x"}, {"do": "evict", "pod": "x"},
                  {"do": "fault", "how": "x"}, {"do": "fault", "how": "slow", "x": 1},
                  {"do": "rotate", "user": "x"}, {"do": "set", "settings": {"x": 1}},
                  {"do": "notice", "node": "a-0", "how": "x"}):
        with pytest.raises(ValueError):
            cluster.order(**order)


def test_hostile_requests(cluster: FakeKubernetes, client: Client) -> None:
    deep = b'{"kind":"Pod","apiVersion":"v1","metadata":' + b"[" * 5000 + b"]" * 5000 + b"}"
    for method, path, body in (
            ("POST", PODS, deep), ("POST", PODS, b'{"kind":1,"apiVersion":[]}'),
            ("POST", PODS, b'{"kind":"Pod","apiVersion":"v1","metadata":7}'),
            ("POST", PODS, b'{"kind":"Pod","apiVersion":"v1","spec":{"containers":[1]}}'),
            ("POST", PODS, b'{"kind":"Pod","apiVersion":"v1"}'),
            ("POST", PODS, b"\xff\xfe"), ("GET", PODS + "?labelSelector=a+in+(", None),
            ("GET", PODS + "?labelSelector=%01", None), ("GET", PODS + "?labelSelector=,,", None),
            ("GET", PODS + "?fieldSelector=spec.x=1", None),
            ("GET", PODS + "?fieldSelector=nothing", None),
            ("GET", PODS + "?limit=-1", None), ("GET", PODS + "?continue=xyz", None),
            ("GET", PODS + "?resourceVersion=abc", None),
            ("GET", PODS + "?watch=1&resourceVersion=-1", None),
            ("DELETE", f"{PODS}/p", b"[]"), ("PATCH", f"{PODS}/p", b"[1]"),
            ("POST", f"{PODS}/p/eviction", b"[]"), ("POST", f"{PODS}/p/binding", b"{}")):
        status, text, _ = client.raw(method, path, body)
        assert 400 <= status < 500, (method, path, body, status, text)
        assert json.loads(text)["kind"] == "Status"
    made = client.create(put_off("p"))
    for kind, body in ((MERGE, b"[]"), (MERGE, b'{"metadata":null}'), (MERGE, b'{"spec":null}'),
                       ("application/json-patch+json", b'[{"op":"remove","path":""}]'),
                       ("application/json-patch+json", b'[{"op":"add","path":"x"}]'),
                       ("application/json-patch+json",
                        b'[{"op":"replace","path":"/spec","value":3}]'),
                       ("application/strategic-merge-patch+json",
                        b'{"spec":{"containers":[{"image":"x"}]}}')):
        status, text, _ = client.raw("PATCH", f"{PODS}/p", body, kind)
        assert 400 <= status < 500, (kind, body, status, text)
    assert client.get(f"{PODS}/p")["spec"] == made["spec"]


def test_many_at_once(cluster: FakeKubernetes) -> None:
    """Every one counts up, by version; a conflict is tried again."""
    client = Client(cluster)
    client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n"},
                   "data": {"n": "0"}}, "/api/v1/namespaces/default/configmaps")
    path = "/api/v1/namespaces/default/configmaps/n"

    def count_up() -> None:
        own = Client(cluster)
        for _ in range(5):
            while True:
                one = own.get(path)
                one["data"]["n"] = str(int(one["data"]["n"]) + 1)
                if own.raw("PUT", path, one)[0] == 200:
                    break

    threads = [threading.Thread(target=count_up) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
    assert client.get(path)["data"] == {"n": "20"}
