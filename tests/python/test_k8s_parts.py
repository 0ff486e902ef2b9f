"""The parts of the fake Kubernetes that decide, without a server and under a clock of the test."""

from __future__ import annotations

import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fakecloud.k8s import catalog, launch, openapi, patches, quantities, scheduler, tables
from fakecloud.k8s.cluster import Cluster
from fakecloud.k8s.errors import ApiError
from fakecloud.k8s.logs import read
from fakecloud.k8s.selectors import fits_selector, matcher
from fakecloud.k8s.settings import Settings
from fakecloud.k8s.store import Store
from fakecloud.orders import BadOrder

pytestmark = [pytest.mark.venv_only, pytest.mark.timeout(60)]
FAKECLOUD = Path(__file__).resolve().parents[1] / "fakecloud"
START_S = 1_000_000.0


def simple(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [
        {"name": "main", "image": "x", **spec.pop("container", {})}], **spec}}


class World:
    """A cluster whose containers start when they are told to, and end when the test says so."""

    def __init__(self, **settings: Any) -> None:
        read = Settings()
        read.update({"create_s": 0, "gc_s": 0, "automount": False, **settings}, "settings")
        self.cluster = Cluster(read, 7, START_S)
        self.killed: list[str] = []
        self.asked: list[str] = []

    def after(self, seconds: float) -> None:
        self.cluster.advance(self.cluster.now_s + seconds)
        for _ in range(10):
            effects, self.cluster.kubelet.effects = self.cluster.kubelet.effects, []
            for one in effects:
                if one.do == "start":
                    self.cluster.kubelet.started(one.id)
                elif one.do == "soft":
                    self.asked.append(one.id)
                elif one.do == "kill":
                    self.killed.append(one.id)
                    self.cluster.kubelet.exited(one.id, -9)
            self.cluster.advance(self.cluster.now_s)

    def create(self, one: dict[str, Any]) -> dict[str, Any]:
        made = self.cluster.registry.create(catalog.PODS, "default", one)
        self.after(0)
        return made

    def pod(self, name: str) -> dict[str, Any]:
        return self.cluster.registry.need(catalog.PODS, "default", name)

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"]["phase"])

    def exit(self, name: str, code: int) -> None:
        uid = self.pod(name)["metadata"]["uid"]
        [one] = [one for one, _ in self.cluster.kubelet.running() if one.startswith(uid)]
        self.cluster.kubelet.exited(one, code)
        self.after(0)


# ---- time ----

def test_back_off_doubles_and_is_bounded() -> None:
    world = World(backoff_s=10, backoff_max_s=40)
    world.create(simple())
    waits = []
    for _ in range(6):
        began_s = world.cluster.now_s
        world.exit("p", 1)
        while not world.cluster.kubelet.running():
            world.after(1)
        waits.append(round(world.cluster.now_s - began_s))
    assert waits == [0, 10, 20, 40, 40, 40]
    world.after(600)
    world.exit("p", 1)      # It has run for long: as at first.
    assert world.cluster.kubelet.running()


def test_grace_is_kept_to_the_second() -> None:
    world = World()
    world.create(simple(terminationGracePeriodSeconds=30))
    assert world.phase("p") == "Running"
    registry = world.cluster.registry
    registry.delete(catalog.PODS, world.pod("p"))
    world.after(0)
    assert len(world.asked) == 1
    world.after(29)
    assert world.phase("p") == "Running" and not world.killed
    registry.delete(catalog.PODS, world.pod("p"), {"gracePeriodSeconds": 40})
    assert world.pod("p")["metadata"]["deletionGracePeriodSeconds"] == 30
    world.after(1)
    assert len(world.killed) == 1 and world.cluster.store.all(catalog.PODS) == []
    world.create(simple("q", terminationGracePeriodSeconds=30))
    registry.delete(catalog.PODS, world.pod("q"))
    world.after(0)
    world.after(5)
    registry.delete(catalog.PODS, world.pod("q"), {"gracePeriodSeconds": 8})
    world.after(2)
    assert world.phase("q") == "Running"
    world.after(1)
    assert world.cluster.store.all(catalog.PODS) == []


def test_silent_node_as_by_default() -> None:
    """Not ready after 40 s, its pods are to go 300 s later, and go with the node."""
    world = World(gone_s=600)
    world.create(simple())
    node = world.pod("p")["spec"]["nodeName"]
    world.cluster.nodes.silence(node, world.cluster.now_s)
    world.after(39)
    assert "deletionTimestamp" not in world.pod("p")["metadata"]
    ready = [one for one in world.pod("p")["status"]["conditions"] if one["type"] == "Ready"]
    assert ready[0]["status"] == "True"
    world.after(2)
    ready = [one for one in world.pod("p")["status"]["conditions"] if one["type"] == "Ready"]
    assert ready[0]["status"] == "False"
    world.after(298)
    assert "deletionTimestamp" not in world.pod("p")["metadata"]
    world.after(3)
    assert world.pod("p")["metadata"]["deletionTimestamp"]
    world.after(200)
    assert world.phase("p") == "Running"
    world.after(150)
    assert world.cluster.store.all(catalog.PODS) == []
    entry = world.cluster.ledger.closed[-1]
    assert entry.reason == "DeletionByPodGC" and entry.phases[-1] == "Failed"
    assert 640 <= entry.seconds(world.cluster.now_s) <= 700


def test_scaler_waits_and_takes_back() -> None:
    pools = [{"name": "s", "count": 1, "min": 1, "max": 4, "capacity": 3, "cpu": "2", "boot_s": 60,
              "idle_s": 600}]
    world = World(pools=pools)
    for number in range(8):
        world.create(simple(f"p{number}", container={"resources": {"requests": {"cpu": "1"}}}))
    world.after(59)
    assert len(world.cluster.store.all(catalog.NODES)) == 1
    world.after(2)
    assert len(world.cluster.store.all(catalog.NODES)) == 3     # The market has no more.
    phases = [world.phase(f"p{number}") for number in range(8)]
    assert phases.count("Running") == 6
    for pod in world.cluster.store.all(catalog.PODS):
        world.cluster.registry.delete(catalog.PODS, pod, {"gracePeriodSeconds": 0})
    world.after(1)
    world.after(590)
    assert len(world.cluster.store.all(catalog.NODES)) == 3
    world.after(20)
    assert len(world.cluster.store.all(catalog.NODES)) == 1


def change_nodes(world: World, rng: random.Random) -> None:
    nodes, now_s = world.cluster.nodes, world.cluster.now_s
    alive = [one.name for one in nodes.machines.values() if one.alive]
    if not alive or rng.random() > 0.3:
        return
    name, what = rng.choice(alive), rng.choice(["silence", "remove", "add", "gke", "karpenter"])
    if what == "silence":
        nodes.silence(name, now_s)
    elif what == "remove":
        nodes.remove(name)
    elif what == "add":
        nodes.add("a", 1, now_s)
    else:
        nodes.notice(name, 3.0, what, now_s)


def change_pods(world: World, rng: random.Random, name: str) -> None:
    cluster, what = world.cluster, rng.choice(["create", "create", "delete", "exit", "evict", ""])
    pods, running = cluster.store.all(catalog.PODS), cluster.kubelet.running()
    options = {"gracePeriodSeconds": rng.choice([0, 1, 30])}
    if what == "create":
        amounts = {"resources": {"requests": {"cpu": str(rng.choice([1, 2, 3]))}}}
        policy = rng.choice(["Always", "Never", "OnFailure"])
        world.create(simple(name, restartPolicy=policy, container=amounts))
    elif what == "delete" and pods:
        cluster.registry.delete(catalog.PODS, rng.choice(pods), options)
    elif what == "evict" and pods:
        cluster.evict(rng.choice(pods), options)
    elif what == "exit" and running:
        cluster.kubelet.exited(rng.choice(running)[0], rng.choice([0, 1, -9]))


@pytest.mark.parametrize("seed", range(15))
def test_random_lives_add_up(seed: int) -> None:
    """Whatever is done to pods and nodes: no node holds more than it has, the books agree with
    what there is, and in the end nothing runs."""
    rng = random.Random(seed)
    world = World(pools=[{"name": "a", "count": 3, "cpu": "4"}], gone_s=30, unreachable_s=5,
                  toleration_s=5)
    cluster = world.cluster
    for number in range(60):
        change_pods(world, rng, f"p{number}")
        change_nodes(world, rng)
        world.after(rng.choice([0.0, 0.5, 3.0, 20.0]))
        pods = cluster.store.all(catalog.PODS)
        for room in scheduler.rooms_of(cluster.store.all(catalog.NODES), pods).values():
            assert room.used.get("cpu", 0) <= room.all["cpu"]
        assert set(cluster.ledger.open) == {one["metadata"]["uid"] for one in pods}
        ids = {one["metadata"]["uid"] for one in pods}
        assert all(id_.partition(".")[0] in ids for id_, _ in cluster.kubelet.running())
    for pod in cluster.store.all(catalog.PODS):
        cluster.registry.delete(catalog.PODS, pod, {"gracePeriodSeconds": 0})
    world.after(100)
    assert cluster.kubelet.lives == {} and cluster.ledger.open == {}


# ---- pure functions ----

@pytest.mark.parametrize(("text", "value"), [
    ("1", 1), ("250m", Fraction(1, 4)), ("1Ki", 1024), ("2Gi", 2 << 30), ("1.5G", 1_500_000_000),
    ("1e3", 1000), ("1E", 10 ** 18), ("-3", -3), (".5", Fraction(1, 2)), ("", None), ("x", None),
    ("1 Gi", None), ("1GiB", None), ("--1", None)])
def test_quantities(text: str, value: Any) -> None:
    assert quantities.parse(text) == value


def test_quantities_are_told_short() -> None:
    assert [quantities.text(Fraction(one)) for one in (0, 3, 1 << 30, 1536, "1.5")] == [
        "0", "3", "1Gi", "1536", "1500m"]


def test_patches_by_hand() -> None:
    """The examples of RFC 7386."""
    for target, patch, wanted in (
            ({"a": "b"}, {"a": "c"}, {"a": "c"}), ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
            ({"a": "b"}, {"a": None}, {}), ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
            ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
            ({"a": [1]}, ["c"], ["c"]), ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
            ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}})):
        assert patches.merge(target, patch) == wanted
    spec = {"containers": [{"name": "a", "env": [{"name": "x", "value": "1"}]}, {"name": "b"}],
            "tolerations": [{"key": "k"}]}
    patch = {"containers": [{"name": "b", "$patch": "delete"},
                            {"name": "a", "env": [{"name": "y", "value": "2"}]}, {"name": "c"}],
             "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
             "tolerations": [{"key": "j"}]}
    assert patches.strategic(spec, patch, "PodSpec") == {
        "containers": [{"name": "c"}, {"name": "a", "env": [
            {"name": "x", "value": "1"}, {"name": "y", "value": "2"}]}],
        "tolerations": [{"key": "j"}]}


def test_variables_expand_as_in_a_container() -> None:
    env = {"A": "1"}
    assert [launch.expand(one, env) for one in (
        "$(A)", "$$(A)", "$A", "$(B)", "$$$$", "$(A)$(A)", "$(", "$(a b)")] == [
        "1", "$(A)", "$A", "$(B)", "$$", "11", "$(", "$(a b)"]


def test_selectors_of_objects() -> None:
    assert not fits_selector(None, {}) and fits_selector({}, {"a": "b"})
    expressions = [{"key": "a", "operator": "In", "values": ["b"]},
                   {"key": "c", "operator": "DoesNotExist"}]
    assert fits_selector({"matchExpressions": expressions}, {"a": "b"})
    assert not fits_selector({"matchExpressions": expressions}, {"a": "b", "c": ""})
    for text in ("a in b", "a in (b", "=", "a b", "a,,", "in (x)"):
        with pytest.raises(ApiError):
            matcher(text, "", "pods")


def test_history_undoes() -> None:
    """What there was at each version is what was seen then."""
    rng, store = random.Random(3), Store(50)
    seen: dict[int, dict[Any, Any]] = {}
    for _ in range(120):
        now = {("n", one["metadata"]["name"]): one for one in store.all(catalog.SECRETS)}
        name = rng.choice("abcdef")
        held = store.get(catalog.SECRETS, "n", name)
        if held is None:
            store.add(catalog.SECRETS, {"metadata": {"namespace": "n", "name": name}})
        elif rng.random() < 0.5:
            store.replace(catalog.SECRETS, {**held, "data": str(rng.random())})
        else:
            store.remove(catalog.SECRETS, held)
        seen[store.version] = {("n", one["metadata"]["name"]): one
                               for one in store.all(catalog.SECRETS)}
        assert seen[store.version] != now
    for version, wanted in seen.items():
        if version < store.compacted:
            with pytest.raises(ApiError):
                store.at(catalog.SECRETS, version)
        else:
            assert store.at(catalog.SECRETS, version) == wanted
    assert len([one for one in seen if one >= store.compacted]) == 51


def test_ends_of_logs(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert read(path, None, None) == b""
    path.write_bytes(b"a\nb\nc")
    assert [read(path, *one) for one in ((None, None), (2, None), (0, None), (9, 3))] == [
        b"a\nb\nc", b"b\nc", b"", b"a\nb"]


def test_ages_and_types() -> None:
    assert [tables.age(one) for one in (0, 119, 120, 7200, 172800)] == [
        "0s", "119s", "2m", "2h", "2d"]
    whole = openapi.document()
    assert len(openapi.encoded()) > 10_000
    refs = [one["$ref"] for fields in whole["definitions"].values()
            for one in fields["properties"].values() if "$ref" in one]
    assert {one.rpartition("/")[2] for one in refs} <= set(whole["definitions"])


@pytest.mark.parametrize("settings", [
    [], {"x": 1}, {"create_s": "a"}, {"pools": {}}, {"pools": [{}]}, {"pools": [{"name": "a"}] * 2},
    {"pools": [{"name": "a", "x": 1}]}, {"pools": [{"name": "a", "cpu": "many"}]},
    {"pools": [{"name": "a", "count": -1}]}, {"mounts": "x"}, {"automount": 1}, {"history": 1.5},
    {"environment": {"a=b": "c"}}, {"pools": [{"name": "a", "max": "x"}]}])
def test_settings_are_read_strictly(settings: Any) -> None:
    with pytest.raises(BadOrder):
        Settings().update(settings, "settings")


@pytest.mark.parametrize(("words", "said"), [
    (["--settings", "/nowhere"], "/nowhere"), (["--set", "x=1"], "no such setting"),
    (["--host", "0.0.0.0"], "loopback"), (["--port", "99999"], "port"),
    (["--set", "create_s"], "NAME=VALUE"), (["--set", "create_s={"], "is not JSON")])
def test_clear_errors(words: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, str(FAKECLOUD), "k8s", *words], check=False, text=True,
                          capture_output=True, timeout=30)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
