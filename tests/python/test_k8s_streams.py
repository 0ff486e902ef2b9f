"""Lists and watches of the fake Kubernetes: pages, versions, selectors, and how watches end."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakecloud.k8s import catalog
from fakecloud.k8s.service import FakeKubernetes
from fakecloud.k8s.watches import QUEUE_MAX
from k8s_world import LIMIT_S, MERGE, PODS, SECRETS, Client, pod, secret, serving
from processes import until

pytestmark = [pytest.mark.venv_only, pytest.mark.timeout(60)]
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    with serving(tmp_path) as new:
        yield new


@pytest.fixture
def client(cluster: FakeKubernetes) -> Client:
    return Client(cluster)


def put(client: Client, name: str, **labels: str) -> dict[str, Any]:
    one = secret(name, k="v")
    one["metadata"]["labels"] = labels
    return client.create(one)


def label(client: Client, name: str, **labels: Any) -> dict[str, Any]:
    return client.ask("PATCH", f"{SECRETS}/{name}", {"metadata": {"labels": labels}}, kind=MERGE)


def told(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["type"], one["object"]["metadata"].get("name", "")) for one in events]


# ---- lists ----

@pytest.mark.parametrize(("selector", "found"), [
    ("a", "pq"), ("!a", "rs"), ("a=1", "p"), ("a==1", "p"), ("a!=1", "qrs"), ("a in (1,2)", "pq"),
    ("a notin (1)", "qrs"), ("a in (1, 3),b", "p"), ("b=", "p"), ("n>3", "s"), ("n<3,!a", "r"),
])
def test_label_selectors(selector: str, found: str, shared: Client) -> None:
    assert "".join(shared.names(SECRETS, labelSelector=selector)) == found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: Any) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("k8s")) as cluster:
        client = Client(cluster)
        for name, labels in (("p", {"a": "1", "b": ""}), ("q", {"a": "2"}), ("r", {"n": "2"}),
                             ("s", {"n": "5"})):
            put(client, name, **labels)
        yield client


def test_field_selectors(client: Client) -> None:
    for name, node in (("p", "a-0"), ("q", "a-1")):
        client.create(pod(name, nodeSelector={"kubernetes.io/hostname": node}))
    client.create(pod("r", nodeSelector={"no": "where"}))
    for name in "pq":
        client.reaches(name, "Running")
    assert client.names(PODS, fieldSelector="spec.nodeName=a-1") == ["q"]
    assert client.names(PODS, fieldSelector="status.phase!=Running") == ["r"]
    assert client.names(PODS, fieldSelector="metadata.name==p,status.phase=Running") == ["p"]
    refused = client.refused("GET", f"{PODS}?fieldSelector=spec.x%3D1", None, 400, "BadRequest")
    assert refused["message"] == "field label not supported: spec.x"


def test_pages_belong_together(cluster: FakeKubernetes, client: Client) -> None:
    for name in "abcde":
        put(client, name)
    first = client.get(SECRETS, limit=2)
    assert first["metadata"]["remainingItemCount"] == 3
    client.ask("DELETE", f"{SECRETS}/c")
    put(client, "f")
    label(client, "e", new="1")
    second = client.get(SECRETS, limit=2, **{"continue": first["metadata"]["continue"]})
    third = client.get(SECRETS, **{"continue": second["metadata"]["continue"]})
    pages = [first, second, third]
    assert "".join(one["metadata"]["name"] for page in pages for one in page["items"]) == "abcde"
    assert "labels" not in third["items"][0]["metadata"]
    assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1
    assert "continue" not in third["metadata"]
    cluster.order(do="compact")
    put(client, "g")
    expired = client.refused("GET", f"{SECRETS}?continue={first['metadata']['continue']}", None,
                             410, "Expired")
    assert expired["message"].startswith("The provided continue parameter is too old")
    rest = client.get(SECRETS, **{"continue": expired["metadata"]["continue"]})
    assert "".join(one["metadata"]["name"] for one in rest["items"]) == "defg"
    assert rest["metadata"] == client.get(SECRETS)["metadata"]      # Of now, not of then.


def test_versions_of_lists(cluster: FakeKubernetes, client: Client) -> None:
    put(client, "a")
    before = int(client.get(SECRETS)["metadata"]["resourceVersion"])
    cluster.order(do="freeze")
    put(client, "b")
    stale = client.get(SECRETS, resourceVersion=0)
    assert [one["metadata"]["name"] for one in stale["items"]] == ["a"]
    assert int(stale["metadata"]["resourceVersion"]) == before
    assert client.names(SECRETS) == ["a", "b"]
    assert client.names(SECRETS, resourceVersion=before, resourceVersionMatch="Exact") == ["a"]
    assert client.names(SECRETS, resourceVersion=before) == ["a", "b"]
    cluster.order(do="freeze", on=False)
    assert client.names(SECRETS, resourceVersion=0) == ["a", "b"]
    late = client.refused("GET", f"{SECRETS}?resourceVersion={before + 1000}", None, 504,
                          "Timeout")
    assert late["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    cluster.order(do="compact")
    client.refused("GET", f"{SECRETS}?resourceVersion={before}&resourceVersionMatch=Exact", None,
                   410, "Expired")


# ---- watches ----

def test_watch_from_a_list(client: Client) -> None:
    put(client, "a", x="1")
    version = client.get(SECRETS)["metadata"]["resourceVersion"]
    put(client, "b")
    watching = client.watch(SECRETS, resourceVersion=version)
    assert watching.reply.headers["Transfer-Encoding"] == "chunked"
    label(client, "a", x="2")
    client.ask("DELETE", f"{SECRETS}/a")
    events = watching.until("DELETED")
    assert told(events) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]
    versions = [int(one["object"]["metadata"]["resourceVersion"]) for one in events]
    assert versions == sorted(set(versions)) and versions[0] > int(version)
    assert events[2]["object"]["metadata"]["labels"] == {"x": "2"}
    watching.close()


@pytest.mark.parametrize("query", [{}, {"resourceVersion": 0}])
def test_watch_from_nothing(query: dict[str, Any], client: Client) -> None:
    put(client, "a")
    put(client, "b")
    watching = client.watch(SECRETS, timeoutSeconds=1, **query)
    assert told([watching.next(), watching.next()]) == [("ADDED", "a"), ("ADDED", "b")]
    begin_s = time.monotonic()
    assert watching.rest() == [] and time.monotonic() - begin_s > 0.2
    watching.close()


def test_watch_through_selectors(client: Client) -> None:
    put(client, "a", x="1")
    watching = client.watch(SECRETS, labelSelector="x=1", fieldSelector="metadata.name=a")
    assert told([watching.next()]) == [("ADDED", "a")]
    put(client, "b", x="1")                 # Of another name.
    label(client, "a", x="2")               # Out of sight, which is as good as gone,
    label(client, "a", x="2", y="1")        # nor is this seen,
    label(client, "a", x="1")               # and back.
    label(client, "a", y="2")
    client.ask("DELETE", f"{SECRETS}/a")
    events = [watching.next() for _ in range(4)]
    assert told(events) == [("DELETED", "a"), ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    watching.close()


def test_bookmarks(cluster: FakeKubernetes, client: Client) -> None:
    cluster.order(do="set", settings={"bookmark_s": 0.1})
    version = client.get(SECRETS)["metadata"]["resourceVersion"]
    watching = client.watch(SECRETS, resourceVersion=version, allowWatchBookmarks="true")
    client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}, MAPS)
    now = int(client.get(SECRETS)["metadata"]["resourceVersion"])
    mark = watching.next()
    while int(mark["object"]["metadata"]["resourceVersion"]) < now:
        mark = watching.next()
    assert mark == {"type": "BOOKMARK", "object": {
        "kind": "Secret", "apiVersion": "v1",
        "metadata": {"resourceVersion": str(now), "creationTimestamp": None}}}
    watching.close()
    cluster.order(do="set", settings={"bookmark_s": 60})
    ending = client.watch(SECRETS, resourceVersion=now, allowWatchBookmarks="1", timeoutSeconds=1)
    plain = client.watch(SECRETS, resourceVersion=now, timeoutSeconds=1)
    assert [one["type"] for one in ending.rest()] == ["BOOKMARK"] and plain.rest() == []


def test_history_that_is_forgotten(cluster: FakeKubernetes, client: Client) -> None:
    put(client, "a")
    version = int(client.get(SECRETS)["metadata"]["resourceVersion"])
    put(client, "b")
    cluster.order(do="compact")
    watching = client.watch(SECRETS, resourceVersion=version)
    assert watching.reply.status == 200
    [event] = watching.rest()
    watching.close()
    assert event["type"] == "ERROR" and event["object"]["code"] == 410
    for _ in range(2):      # A watch that ends leaves the connection to the next request.
        client.raw("GET", f"{SECRETS}?watch=1&resourceVersion={version}")
    assert event["object"]["reason"] == "Expired"
    assert event["object"]["message"] == f"too old resource version: {version} ({version + 1})"
    late = client.watch(SECRETS, resourceVersion=version + 1000)
    assert late.reply.status == 504 and b"Too large resource version" in late.reply.read()
    late.close()


def test_short_history(tmp_path: Path) -> None:
    with serving(tmp_path, history=5) as cluster:
        client = Client(cluster)
        put(client, "a")
        version = client.get(SECRETS)["metadata"]["resourceVersion"]
        for number in range(6):
            label(client, "a", x=str(number))
        [event] = client.watch(SECRETS, resourceVersion=version).rest()
        assert event["object"]["code"] == 410


def test_watches_that_go_wrong(cluster: FakeKubernetes, client: Client) -> None:
    one, other = client.watch(SECRETS), client.watch(MAPS)
    cluster.order(do="fault", how="drop", resource="secrets")
    put(client, "a")
    with pytest.raises((http.client.HTTPException, OSError, ValueError, AssertionError)):
        while True:
            one.next()
    one.close()
    cluster.order(do="fault", how="gone", resource="configmaps")
    events = other.rest()
    assert events[-1]["type"] == "ERROR" and events[-1]["object"]["code"] == 410
    quiet = client.watch(SECRETS, labelSelector="x")
    cluster.order(do="fault", how="silent", resource="secrets")
    begin_s = time.monotonic()
    put(client, "b", x="1")
    time.sleep(0.3)
    cluster.order(do="mend")
    assert told([quiet.next()]) == [("ADDED", "b")] and time.monotonic() - begin_s >= 0.3
    quiet.close()


def test_who_is_too_slow_is_hung_up_on(cluster: FakeKubernetes, client: Client) -> None:
    """What a watcher has not read is bounded; one that never reads holds nobody up."""
    before = listening(cluster)
    unread, behind = client.watch(SECRETS), client.watch(SECRETS)
    put(client, "a")
    assert told([behind.next()]) == [("ADDED", "a")]

    def fill() -> None:
        store = cluster.cluster.store
        for number in range(QUEUE_MAX + 500):
            held = store.get(catalog.SECRETS, "default", "a")
            assert held is not None
            store.replace(catalog.SECRETS, {**held, "data": {"k": f"{number:08}" * 500}})
    cluster.do(fill)
    assert behind.rest() == []
    again = client.watch(SECRETS)
    assert told([again.next()]) == [("ADDED", "a")]
    for one in (unread, behind, again):
        one.close()
    put(client, "b")
    until(lambda: listening(cluster), before, LIMIT_S)


def listening(cluster: FakeKubernetes) -> int:
    return cluster.do(lambda: len(cluster.cluster.store.listeners))


def test_many_watches(cluster: FakeKubernetes, client: Client) -> None:
    before = listening(cluster)
    watching = [client.watch(SECRETS) for _ in range(30)]
    put(client, "a")
    assert [told([one.next()]) for one in watching] == [[("ADDED", "a")]] * 30
    for one in watching:
        one.close()
    put(client, "b")
    until(lambda: listening(cluster), before, LIMIT_S)


def test_tables(client: Client) -> None:
    put(client, "a")
    table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    status, text, _ = client.raw("GET", SECRETS, Accept=table)
    found = json.loads(text)
    assert status == 200 and found["kind"] == "Table"
    assert [one["name"] for one in found["columnDefinitions"]] == ["Name", "Type", "Data", "Age"]
    assert found["rows"][0]["cells"][:3] == ["a", "Opaque", 1]
    status, text, _ = client.raw("GET", "/api/v1/nodes/a-0", Accept=table)
    assert json.loads(text)["rows"][0]["cells"][:2] == ["a-0", "Ready"]
