"""Pods of the fake Kubernetes are processes: what they see, where they go, that none is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakecloud import grafts
from fakecloud.k8s.service import FakeKubernetes
from k8s_world import LIMIT_S, PODS, Client, pod, secret, serving
from processes import MARK, assert_nothing_left, marked, until

pytestmark = [pytest.mark.venv_only, pytest.mark.timeout(60)]
FAKECLOUD = Path(__file__).resolve().parents[1] / "fakecloud"
# What hides best: a grandchild in a session of its own, with nothing in its environment.
HIDING = "(setsid env -i sh -c 'echo $$ > hidden; exec sleep 1000' &)\n"
STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"


@pytest.fixture
def cluster(tmp_path: Path, mark: str) -> Iterator[FakeKubernetes]:
    with serving(tmp_path, mark) as new:
        yield new


@pytest.fixture
def client(cluster: FakeKubernetes) -> Client:
    return Client(cluster)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def file_of(tmp_path: Path, made: dict[str, Any], name: str) -> Path:
    """In the container's own folder."""
    return next(tmp_path.glob("fakecloud-*")) / made["metadata"]["uid"] / "work" / "main" / name


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().endswith("\n"), True, LIMIT_S)
    return int(path.read_text())


def field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


# ---- what a container sees ----

def test_variables_and_folder(client: Client, tmp_path: Path) -> None:
    client.create(secret("s", token="a b", other="c"))
    made = client.create(pod("p", "env; pwd; cat; ls /proc/self/fd | wc -l", container={
        "env": [field("NAME", "metadata.name"), field("SPACE", "metadata.namespace"),
                field("NODE", "spec.nodeName"), field("POD_IP", "status.podIP"),
                field("HOST_IP", "status.hostIP"), {"name": "PLAIN", "value": "$(NAME)-$$(X)"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}],
        "envFrom": [{"prefix": "S_", "secretRef": {"name": "s"}}]}))
    done = client.reaches("p", "Succeeded")
    *lines, folder, files = client.log("p").splitlines()
    env = dict(one.split("=", 1) for one in lines)
    node = done["spec"]["nodeName"]
    wanted = {"NAME": "p", "SPACE": "default", "NODE": node, "POD_IP": "127.0.0.1", "PLAIN":
              "p-$(X)", "HOST_IP": "127.0.0.1", "TOKEN": "a b", "S_token": "a b", "S_other": "c",
              "HOSTNAME": "p", "KUBERNETES_SERVICE_HOST": "127.0.0.1", "HOME": folder}
    assert wanted.items() <= env.items() and "VIRTUAL_ENV" not in env
    assert Path(folder).is_relative_to(tmp_path) and int(files) <= 4
    assert Path(folder).parts[-3] == made["metadata"]["uid"]


@pytest.mark.skipif(not grafts.possible(), reason="mounts need root")
def test_volumes_come_to_their_paths(client: Client, tmp_path: Path) -> None:
    """Nothing of them is to be seen outside."""
    client.create(secret("s", token="abc", **{"ca.pem": "def"}))
    volumes = [{"name": "s", "secret": {"secretName": "s", "items": [
        {"key": "token", "path": "deep/token", "mode": 256}]}},
        {"name": "whole", "secret": {"secretName": "s"}}, {"name": "e", "emptyDir": {}},
        {"name": "d", "downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "h", "hostPath": {"path": str(tmp_path)}}]
    mounts = [{"name": "s", "mountPath": "/troupe-test/secret"},
              {"name": "whole", "mountPath": "/etc/troupe-test", "readOnly": True},
              {"name": "e", "mountPath": "/var/lib/troupe-test/x"},
              {"name": "d", "mountPath": "/run/troupe-test"}, {"name": "h", "mountPath": "/mnt"}]
    command = ("cat /troupe-test/secret/deep/token /etc/troupe-test/ca.pem\n"
               "cat /run/troupe-test/labels; echo\n"
               "stat -L -c %a /troupe-test/secret/deep/token; ls / | grep -c usr; ls /mnt\n"
               "touch /etc/troupe-test/x || echo kept; echo y > /var/lib/troupe-test/x/y\n"
               "cat /var/lib/troupe-test/x/*; echo n > /troupe-test/n\n"
               "test -e /dev/null && echo ok")
    client.create(pod("p", command, volumes=volumes, container={"volumeMounts": mounts},
                      metadata={"labels": {"a": "b"}}))
    client.reaches("p", "Succeeded")
    text = [one for one in client.log("p").splitlines() if not one.startswith("touch")]
    [folder] = [one.name for one in tmp_path.iterdir()]
    assert text == ['abcdefa="b"', "400", "1", folder, "kept", "y", "ok"]
    assert not any(Path(one).exists() for one in (
        "/troupe-test", "/etc/troupe-test", "/var/lib/troupe-test", "/run/troupe-test"))


def test_volumes_without_root(tmp_path: Path, mark: str) -> None:
    with serving(tmp_path, mark, mounts="folder") as cluster:
        client = Client(cluster)
        client.create(secret("s", token="abc"))
        client.create(pod("p", 'cat "$FAKECLOUD_ROOT/etc/x/token"', container={
            "volumeMounts": [{"name": "s", "mountPath": "/etc/x"}]},
            volumes=[{"name": "s", "secret": {"secretName": "s"}}]))
        client.reaches("p", "Succeeded")
        assert client.log("p") == "abc"


def test_a_pod_asks_the_api(tmp_path: Path, mark: str) -> None:
    """By the token of its service account."""
    with serving(tmp_path, mark, automount=True) as cluster:
        client = Client(cluster)
        at = "/var/run/secrets/kubernetes.io/serviceaccount"
        folder = at if cluster.do(lambda: cluster.containers.grafting) else f"$FAKECLOUD_ROOT{at}"
        client.create(pod("p", f"cd {folder}; curl -s --cacert ca.crt -H \"Authorization: Bearer "
                          '$(cat token)" https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT'
                          "/api/v1/namespaces/$(cat namespace)/pods"))
        client.reaches("p", "Succeeded")
        assert 'User \\"system:serviceaccount:default:default\\" cannot list' in client.log("p")


def test_logs(client: Client) -> None:
    client.create(pod("p", "for i in 1 2 3 4; do echo line $i; done; echo err >&2; exec sleep 9"))
    client.reaches("p", "Running")
    until(lambda: client.log("p").endswith("err\n"), True, LIMIT_S)
    assert client.log("p", tailLines=2) == "line 4\nerr\n"
    assert client.log("p", limitBytes=6, container="main") == "line 1"
    assert client.log("p", tailLines=0) == ""
    for query, said in (("container=x", "container x is not valid for pod p"), (
            "previous=true", 'previous terminated container "main" in pod "p" not found')):
        told = client.refused("GET", f"{PODS}/p/log?{query}", None, 400, "BadRequest")
        assert told["message"] == said
    two = pod("two", "echo a")
    two["spec"]["containers"].append({"name": "b", "image": "missing"})
    client.create(two)
    told = client.refused("GET", f"{PODS}/two/log", None, 400, "BadRequest")
    assert told["message"] == ("a container name must be specified for pod two, choose one of: "
                               "[main b]")
    told = client.refused("GET", f"{PODS}/two/log?container=b", None, 400, "BadRequest")
    assert 'container "b" in pod "two" is waiting to start: ' in told["message"]


def test_log_that_is_followed(client: Client, tmp_path: Path) -> None:
    made = client.create(pod("p", "echo one; until test -e go; do sleep 0.02; done; echo two"))
    client.reaches("p", "Running")
    following = client.watch(f"{PODS}/p/log", follow="true")
    assert following.reply.readline() == b"one\n"
    file_of(tmp_path, made, "go").touch()
    assert following.reply.read() == b"two\n"
    following.close()


# ---- how they begin and end ----

@pytest.mark.parametrize(("command", "phase", "code", "reason"), [
    ("exit 0", "Succeeded", 0, "Completed"), ("echo why; exit 3", "Failed", 3, "Error"),
    ("kill -9 $$", "Failed", 137, "Error"), ("kill -TERM $$", "Failed", 143, "Error")])
def test_ends(command: str, phase: str, code: int, reason: str, client: Client) -> None:
    client.create(pod("p", command, container={
        "terminationMessagePolicy": "FallbackToLogsOnError"}))
    client.reaches("p", phase)
    ended = client.state("p")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (code, reason)
    assert ended.get("message", "") == ("why\n" if code == 3 else "")
    assert client.state("p")["restartCount"] == 0
    assert client.ask("DELETE", f"{PODS}/p")["metadata"]["deletionGracePeriodSeconds"] == 0
    assert client.phase("p") == ""


def test_the_first_process_takes_the_others_with_it(client: Client, tmp_path: Path) -> None:
    made = client.create(pod("p", HIDING + "until test -s hidden; do sleep 0.01; done; exit 5"))
    hidden = pid_in(file_of(tmp_path, made, "hidden"))
    client.reaches("p", "Failed")
    assert client.state("p")["state"]["terminated"]["exitCode"] == 5 and not alive(hidden)


def test_containers_start_again(tmp_path: Path, mark: str) -> None:
    with serving(tmp_path, mark, backoff_s=0.2) as cluster:
        client = Client(cluster)
        client.create(pod("p", "echo $$; exit 1", restartPolicy="OnFailure"))
        until(lambda: client.state("p").get("restartCount", 0) >= 3, True, LIMIT_S)
        seen = set()
        until(lambda: seen.add(client.state("p")["state"].get("waiting", {}).get("reason"))
              or "CrashLoopBackOff" in seen, True, LIMIT_S)
        assert client.state("p")["lastState"]["terminated"]["exitCode"] == 1
        assert client.phase("p") == "Running"
        assert client.log("p", previous="true").strip().isdigit()
        client.create(pod("q", "exit 0", restartPolicy="OnFailure"))
        client.create(pod("r", "exit 0", restartPolicy="Always"))
        client.reaches("q", "Succeeded")
        until(lambda: client.state("r").get("restartCount", 0) >= 1, True, LIMIT_S)
        assert client.phase("r") == "Running"


def test_what_cannot_start(client: Client) -> None:
    def waits(name: str) -> str:
        return str(client.state(name).get("state", {}).get("waiting", {}).get("reason"))

    client.create(pod("image", container={"image": "registry/missing:1"}))
    until(lambda: waits("image"), "ErrImagePull", LIMIT_S)
    until(lambda: waits("image"), "ImagePullBackOff", LIMIT_S)
    client.create(pod("config", "echo $T", container={"env": [
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "late", "key": "t"}}}]}))
    until(lambda: waits("config"), "CreateContainerConfigError", LIMIT_S)
    assert client.state("config")["state"]["waiting"]["message"] == 'secret "late" not found'
    client.create(pod("volume", "true", volumes=[{"name": "s", "secret": {"secretName": "late"}}],
                      container={"volumeMounts": [{"name": "s", "mountPath": "/mnt"}]}))
    until(lambda: waits("volume"), "ContainerCreating", LIMIT_S)
    client.create(secret("late", t="here"))
    client.reaches("config", "Succeeded")
    assert client.log("config") == "here\n"
    client.reaches("volume", "Succeeded")
    client.create(pod("start", container={"command": ["/no/such/program"]}))
    client.reaches("start", "Failed")
    ended = client.state("start")["state"]["terminated"]
    assert ended["exitCode"] == 128 and ended["reason"] == "StartError"
    assert 'exec: "/no/such/program": executable file not found in $PATH' in ended["message"]


def test_init_containers(client: Client) -> None:
    first = {"name": "first", "image": "x", "command": ["sh", "-c", "echo first > /mnt/f"]}
    shared = {"volumeMounts": [{"name": "v", "mountPath": "/mnt"}]}
    one = pod("p", "cat /mnt/f", container=shared, volumes=[{"name": "v", "emptyDir": {}}],
              initContainers=[{**first, **shared}])
    if not grafts.possible():
        pytest.skip("mounts need root")
    client.create(one)
    client.reaches("p", "Succeeded")
    assert client.log("p") == "first\n"
    one = pod("q", initContainers=[{**first, "command": ["sh", "-c", "exit 4"]}])
    client.create(one)
    failed = client.reaches("q", "Failed")
    assert failed["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == (
        "PodInitializing")


def test_deletion_and_its_grace(client: Client, tmp_path: Path) -> None:
    made = client.create(pod("p", "trap 'echo bye; echo > told; exit 0' TERM; echo ready\n"
                             "while :; do sleep 0.02; done", terminationGracePeriodSeconds=30))
    client.reaches("p", "Running")
    until(lambda: client.log("p"), "ready\n", LIMIT_S)
    told = file_of(tmp_path, made, "told")
    watching = client.watch(PODS, resourceVersion=client.get(PODS)["metadata"]["resourceVersion"])
    gone = client.ask("DELETE", f"{PODS}/p")
    assert gone["metadata"]["deletionGracePeriodSeconds"] == 30
    events = watching.until("DELETED")
    assert events[0]["object"]["metadata"]["deletionTimestamp"]
    assert events[-2]["object"]["status"]["phase"] == "Succeeded"
    assert events[-1]["object"]["metadata"]["deletionGracePeriodSeconds"] == 0
    watching.close()
    until(told.exists, False, LIMIT_S)      # Its folder goes with it.


def test_whoever_does_not_end_is_killed(client: Client, tmp_path: Path, mark: str) -> None:
    made = client.create(pod("p", HIDING + STUBBORN))
    hidden = pid_in(file_of(tmp_path, made, "hidden"))
    client.ask("DELETE", f"{PODS}/p")
    time.sleep(0.3)
    assert alive(hidden) and client.phase("p") == "Running"
    watching = client.watch(PODS)
    last = watching.until("DELETED")[-2]["object"]["status"]
    assert last["phase"] == "Failed"
    assert last["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    until(lambda: alive(hidden) or marked(mark), [], LIMIT_S)
    watching.close()


def test_deletion_by_force(client: Client, tmp_path: Path, mark: str) -> None:
    made = client.create(pod("p", HIDING + STUBBORN, terminationGracePeriodSeconds=100))
    hidden = pid_in(file_of(tmp_path, made, "hidden"))
    client.ask("DELETE", f"{PODS}/p")
    assert client.phase("p") == "Running"
    client.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
    assert client.phase("p") == ""          # Gone at once, whatever its processes do.
    until(lambda: alive(hidden) or marked(mark), [], LIMIT_S)


def test_limits_of_time_and_memory(client: Client, cluster: FakeKubernetes) -> None:
    client.create(pod("slow", activeDeadlineSeconds=1))
    client.create(pod("big", "x=$(head -c 90000000 /dev/zero | tr '\\0' x); sleep 9", container={
        "resources": {"limits": {"memory": "40Mi"}}}))
    client.create(pod("told"))
    client.reaches("told", "Running")
    cluster.order(do="oom", pod="told")
    for name in ("big", "told"):
        client.reaches(name, "Failed")
        ended = client.state(name)["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
    failed = client.reaches("slow", "Failed")
    assert failed["status"]["reason"] == "DeadlineExceeded"


# ---- that none is left ----

def test_keeper_or_warden_is_killed(tmp_path: Path, mark: str, client: Client) -> None:
    made = {name: client.create(pod(name, "echo $$ > me\n" + HIDING + "exec sleep 1000"))
            for name in "ab"}
    pids = {name: [pid_in(file_of(tmp_path, one, each)) for each in ("me", "hidden")]
            for name, one in made.items()}
    keeper = parent(pids["a"][0])
    warden = parent(keeper)
    os.kill(keeper, signal.SIGKILL)
    client.reaches("a", "Failed")
    until(lambda: any(map(alive, pids["a"])), False, LIMIT_S)
    assert all(map(alive, pids["b"]))
    os.kill(warden, signal.SIGKILL)
    client.reaches("b", "Failed")
    until(lambda: any(map(alive, pids["b"])), False, LIMIT_S)
    client.create(pod("c", "echo again"))
    client.reaches("c", "Succeeded")
    assert client.log("c") == "again\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_all_ends_with_the_cluster(how: signal.Signals, tmp_path: Path, mark: str) -> None:
    config = tmp_path / "config"
    (tmp_path / "run").mkdir()
    process = subprocess.Popen(
        [sys.executable, str(FAKECLOUD), "k8s", "--folder", str(tmp_path / "run"), "--set",
         "create_s=0", "--kubeconfig", str(config), "--ledger", str(tmp_path / "ledger")],
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, MARK: mark, "PYTHONDONTWRITEBYTECODE": "1"})
    assert process.stdout is not None
    told: dict[str, str] = {}
    while "FAKECLOUD_URL" not in told:
        name, equals, value = process.stdout.readline().strip().partition("=")
        assert equals, f"it has ended with status {process.wait(10)}"
        told[name] = value
    try:
        with urllib.request.urlopen(f"{told['FAKECLOUD_URL']}/token?user=kubernetes-admin") as got:
            token = got.read().decode()
        command = (HIDING + "trap '' TERM HUP; sleep 1000").replace("hidden", "$HOME/hidden")
        curl = ["curl", "-sk", "-H", f"Authorization: Bearer {token}", "-H",
                "Content-Type: application/json", "-d", "@-", told["KUBERNETES_URL"] + PODS]
        for number in range(3):
            one = pod(f"p{number}", command.replace("env -i", f"env -i HOME={tmp_path}/{number}"))
            (tmp_path / str(number)).mkdir()
            subprocess.run(curl, input=json.dumps(one), text=True, check=True,
                           capture_output=True, timeout=20)
        hidden = [pid_in(tmp_path / str(number) / "hidden") for number in range(3)]
        assert all(map(alive, hidden)) and config.stat().st_mode & 0o077 == 0
    finally:
        process.send_signal(how)
        process.wait(20)
        process.stdout.close()
    until(lambda: any(map(alive, hidden)), False, 20)
    assert_nothing_left(mark)
    until(lambda: list((tmp_path / "run").iterdir()), [], LIMIT_S)
    assert process.returncode == (-9 if how == signal.SIGKILL else 0)
    if how == signal.SIGTERM:
        ledger = json.loads((tmp_path / "ledger").read_text())
        assert ledger["processes"] == {} and ledger["totals"]["open"] == 0
        assert [one["name"] for one in ledger["pods"] if one["gone_s"]] == ["p0", "p1", "p2"]


def test_many_pods_at_once(tmp_path: Path, mark: str) -> None:
    with serving(tmp_path, mark, pools=[{"name": "a", "count": 3}]) as cluster:
        client = Client(cluster)

        def create(first: int) -> None:
            own = Client(cluster)
            for number in range(first, first + 10):
                own.create(pod(f"p{number}", "echo $HOSTNAME"))
        threads = [threading.Thread(target=create, args=(first,)) for first in (0, 10, 20, 30)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(30)
        until(lambda: len(client.names(PODS, fieldSelector="status.phase=Succeeded")), 40, 20)
        assert client.log("p17") == "p17\n"
