"""Instances of the fake Compute Engine are processes: what they see, and that none of them is left.

They are asked for by a small client of our own, so that this needs Python alone.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from fakecloud.gce.machines import Machines
from fakecloud.gce.service import FakeGce
from gce_world import REGION, A, Client, bulk, instance, serving
from processes import MARK, assert_nothing_left, marked, until

pytestmark = [pytest.mark.once, pytest.mark.timeout(90)]
FAKECLOUD = Path(__file__).resolve().parents[1] / "fakecloud"
# What hides best: a grandchild in a session of its own, with nothing in its environment.
HIDING = "(setsid env -i sh -c 'echo $$ > hidden; exec sleep 1000' &)\n"
FLAVOR = {"Metadata-Flavor": "Google"}


@pytest.fixture
def cloud(tmp_path: Path, mark: str) -> Iterator[FakeGce]:
    with serving(tmp_path, mark) as new:
        yield new
    assert_nothing_left(mark)


@pytest.fixture
def client(cloud: FakeGce) -> Client:
    return Client(cloud)


def metadata_of(cloud: FakeGce, name: str = "vm") -> str:
    def find() -> str:
        return cloud.machines.machines[cloud.cloud.instances[A, name].id].url
    return cloud.do(find) + "/computeMetadata/v1/"


def fetch(url: str, **headers: str) -> tuple[str, Message]:
    asked = urllib.request.Request(url, headers={**FLAVOR, **headers})
    with urllib.request.urlopen(asked, timeout=10) as reply:
        return reply.read().decode(), reply.headers


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def folder_of(tmp_path: Path, instance: str) -> Path:
    return next(tmp_path.glob(f"fakecloud-*/{instance}"))


def test_what_an_instance_sees(tmp_path: Path, cloud: FakeGce, client: Client) -> None:
    made = client.run("env > env; pwd > where; echo out; echo err >&2; echo $BASH_VERSION > shell\n"
                      "trap 'echo ended > term; exit' TERM; echo up; while :; do sleep 0.02; done",
                      labels={"a": "b"})
    client.says("up")
    folder = folder_of(tmp_path, made["id"])
    env = dict(line.split("=", 1) for line in (folder / "env").read_text().splitlines())
    assert set(env) <= {"PATH", "HOME", "TROUPE_METADATA_URL", "GCE_METADATA_HOST",
                        "GCE_METADATA_IP", MARK, "PWD", "SHLVL", "_"}
    assert (folder / "where").read_text().strip() == env["HOME"] == str(folder)
    assert env["TROUPE_METADATA_URL"] == "http://" + env["GCE_METADATA_HOST"]
    assert (folder / "shell").read_text().strip()       # Without a first line: by a shell.
    assert client.console() == "out\nerr\nup\n"
    rest = client.ask("GET", f"zones/{A}/instances/vm/serialPort?start=4")
    assert (rest["contents"], rest["next"]) == ("err\nup\n", "11")
    client.wait(client.ask("DELETE", f"zones/{A}/instances/vm"))
    until(lambda: folder.exists(), False, 10)
    assert client.statuses() == {}


def test_metadata(cloud: FakeGce, client: Client) -> None:
    made = client.run("sleep 1000", serviceAccounts=[
        {"email": "default", "scopes": ["https://www.googleapis.com/auth/compute"]}])
    url = metadata_of(cloud)

    def get(path: str) -> str:
        return fetch(url + path)[0]
    assert get("instance/id") == made["id"] and get("instance/name") == "vm"
    assert get("instance/zone") == f"projects/123456789012/zones/{A}"
    assert get("instance/machine-type").endswith("/machineTypes/e2-standard-2")
    assert get("instance/attributes/startup-script") == "sleep 1000"
    assert get("instance/attributes/") == "startup-script\n"
    assert (get("instance/preempted"), get("instance/maintenance-event")) == ("FALSE", "NONE")
    assert get("instance/scheduling/preemptible") == "TRUE"
    assert get("project/project-id") == "fakecloud"
    assert "service-accounts/\n" in get("instance/")
    whole = json.loads(get("instance/?recursive=true"))
    assert whole["id"] == int(made["id"]) and whole["machineType"].endswith("e2-standard-2")
    assert whole["attributes"] == {"startup-script": "sleep 1000"}
    account = json.loads(get("instance/service-accounts/default/?recursive=true"))
    assert account["aliases"] == ["default"] and account["scopes"] == [
        "https://www.googleapis.com/auth/compute"]
    token = json.loads(get("instance/service-accounts/default/token"))
    assert token["token_type"] == "Bearer" and 3500 < token["expires_in"] <= 3600
    client.token = token["access_token"]
    assert client.statuses() == {"vm": "RUNNING"}
    for headers, code in (({"Metadata-Flavor": "x"}, 403), ({"X-Forwarded-For": "1.2.3.4"}, 403)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            fetch(url + "instance/id", **headers)
        assert caught.value.code == code
    with pytest.raises(urllib.error.HTTPError) as caught:
        get("instance/none")
    assert caught.value.code == 404 and caught.value.headers["Metadata-Flavor"] == "Google"
    text, headers = fetch(url + "instance")     # A redirection to the folder.
    assert "id\n" in text and headers["Metadata-Flavor"] == "Google"


def test_a_change_is_waited_for(cloud: FakeGce, client: Client) -> None:
    client.run("sleep 1000")
    url = metadata_of(cloud) + "instance/preempted?wait_for_change=true"
    value, headers = fetch(url + "&timeout_sec=0")
    assert value == "FALSE"
    value, again = fetch(f"{url}&timeout_sec=0&last_etag={headers['ETag']}")
    assert (value, again["ETag"]) == ("FALSE", headers["ETag"])
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(
        fetch(f"{url}&last_etag={headers['ETag']}")[0]))
    waiting.start()
    time.sleep(0.1)
    assert found == []
    cloud.order(do="false_alarm", instance="vm", seconds=100)
    waiting.join(10)
    assert found == ["TRUE"]
    assert fetch(f"{url}&last_etag={headers['ETag']}")[0] == "TRUE"     # Not waited for.


def test_a_preemption_ends_all_processes(tmp_path: Path, cloud: FakeGce, client: Client) -> None:
    made = client.run(f"{HIDING}trap 'echo term > term' TERM; echo up\n"
                      "while :; do sleep 0.02; done")
    client.says("up")
    folder = folder_of(tmp_path, made["id"])
    until(lambda: (folder / "hidden").exists() and (folder / "hidden").read_text()[-1:], "\n", 10)
    hidden = int((folder / "hidden").read_text())
    cloud.order(do="preempt", instance="vm", lead_s=0.6)
    assert client.statuses() == {"vm": "STOPPING"}
    until(lambda: (folder / "term").exists(), True, 10)
    until(lambda: client.statuses(), {}, 10)
    until(lambda: alive(hidden), False, 10)
    until(lambda: folder.exists(), False, 10)
    found = client.ask("GET", f"zones/{A}/operations?filter=operationType%3D"
                       "compute.instances.preempted")["items"]
    assert [one["targetId"] for one in found] == [made["id"]]


def test_stop_and_start_keep_the_disk(tmp_path: Path, client: Client) -> None:
    client.run("echo x >> boots; echo boot $(wc -l < boots); exec sleep 1000", spot=False)
    client.says("boot 1")
    client.wait(client.ask("POST", f"zones/{A}/instances/vm/stop"))
    assert client.statuses() == {"vm": "TERMINATED"}
    client.wait(client.ask("POST", f"zones/{A}/instances/vm/start"))
    client.says("boot 2")


def test_an_instance_switches_itself_off(client: Client) -> None:
    client.run("poweroff")
    until(lambda: client.statuses(), {"vm": "TERMINATED"}, 10)


def test_what_runs_an_instance_is_killed(mark: str, client: Client) -> None:
    client.run("echo up; exec sleep 1000")
    client.says("up")
    [pid] = marked(mark)
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    until(lambda: client.statuses(), {}, 10)
    assert_nothing_left(mark)


def test_a_host_that_has_no_room(cloud: FakeGce, client: Client,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts again by itself tries again, and holds up nobody."""
    with monkeypatch.context() as patch:
        def no_port(self: Machines, one: Any) -> Any:
            raise OSError("no port")
        patch.setattr(Machines, "_bind", no_port)
        client.ask("POST", f"zones/{A}/instances", instance(spot=False, script="echo up"))
        client.ask("POST", f"zones/{A}/instances", instance("spot"))
        kinds = [one["event"] for one in cloud.do(lambda: cloud.cloud.ledger.since(0))]
        assert kinds.count("host") == 2 and set(client.statuses()) == {"vm"}
    until(lambda: client.statuses(), {"vm": "RUNNING"}, 10)
    client.says("up")


def test_many_at_once(mark: str, client: Client) -> None:
    operation = client.wait(client.ask("POST", REGION, bulk(
        6, least=1, shape="ANY", script="exec sleep 1000")))
    assert "error" not in operation
    until(lambda: len(marked(mark)), 6, 20)
    for name in list(client.statuses()):
        for zone in (A, "us-central1-b"):
            client.raw("DELETE", f"zones/{zone}/instances/{name}")
    until(lambda: client.statuses(), {}, 10)
    assert_nothing_left(mark)


@pytest.mark.parametrize("how, code, reason", [
    ("throttle", 403, "rateLimitExceeded"), ("error", 503, "backendError")])
def test_requests_that_fail(cloud: FakeGce, client: Client, how: str, code: int,
                            reason: str) -> None:
    cloud.order(do="fault", how=how, method="instances.*", count=2)
    client.ask("GET", "zones")
    for _ in range(2):
        refused = client.ask("GET", "aggregated/instances", status=code)
        assert refused["error"]["errors"][0]["reason"] == reason
    assert client.statuses() == {}
    cloud.order(do="fault", how=how, code=429 if how == "throttle" else 500)
    status, body = client.raw("GET", "zones")
    assert status == (429 if how == "throttle" else 500) and b'"status"' in body


def test_answers_that_are_no_use(cloud: FakeGce, client: Client) -> None:
    for how in ("garbage", "huge", "types"):
        cloud.order(do="fault", how=how)
        status, body = client.raw("GET", "zones")
        assert status == 200 and (len(body) > 1 << 20) == (how == "huge")
        if how == "garbage":
            with pytest.raises(ValueError):
                json.loads(body)
    cloud.order(do="fault", how="slow", seconds=0.3)
    began = time.monotonic()
    client.ask("GET", "zones")
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("how, made", [("lost", 1), ("cut", 0)])
def test_answers_that_do_not_come(cloud: FakeGce, client: Client, how: str, made: int) -> None:
    cloud.order(do="fault", how=how, method="regionInstances.bulkInsert")
    with pytest.raises((http.client.HTTPException, OSError)):
        client.raw("POST", REGION, bulk(1))
    again = Client(cloud)
    assert len(again.statuses()) == made
    last = json.loads(urllib.request.urlopen(f"{cloud.url}/fakecloud/journal").read())[0]
    assert (last["method"], last["status"]) == ("regionInstances.bulkInsert", None)


def test_an_operation_is_waited_for(cloud: FakeGce, client: Client) -> None:
    cloud.order(do="set", settings={"wait_s": 0.2})
    cloud.order(do="trap", how="stuck")
    operation = client.ask("POST", REGION, bulk(1))
    path = operation["selfLink"].partition("/projects/fakecloud/")[2]
    assert client.ask("POST", f"{path}/wait")["status"] == "RUNNING"
    cloud.order(do="set", settings={"wait_s": 60})
    done: list[Any] = []
    other = Client(cloud)
    waiting = threading.Thread(target=lambda: done.append(other.wait(operation)))
    waiting.start()
    cloud.order(do="release")
    waiting.join(10)
    assert done[0]["progress"] == 100


def test_journal_and_ledger(cloud: FakeGce, client: Client) -> None:
    client.run("sleep 1000")
    client.raw("GET", "zones/nowhere")
    client.token = "none"
    client.ask("GET", "zones", status=401)

    def told(name: str) -> Any:
        with urllib.request.urlopen(f"{cloud.url}/fakecloud{name}", timeout=5) as reply:
            return json.loads(reply.read())
    journal = told("/journal")
    assert [one["method"] for one in journal[:3]] == [
        "instances.insert", "zoneOperations.wait", "instances.get"]
    assert [(one["status"], one.get("reason")) for one in journal[-2:]] == [
        (400, "invalid"), (401, "authError")]
    assert journal[0]["user"].startswith("fleet@")
    [entry] = told("/ledger")["instances"]
    assert entry["market"] == "spot" and entry["open"] and entry["zone"] == A
    assert [one["event"] for one in told("/events")][:2] == ["launched", "running"]
    assert told("")["instances"][0]["status"] == "RUNNING"
    for body, code in ((b"{", 400), (b'{"do": "x"}', 400), (b'{"do": "mend"}', 200)):
        try:
            with urllib.request.urlopen(f"{cloud.url}/fakecloud", body, timeout=5) as reply:
                status = reply.status
        except urllib.error.HTTPError as error:
            status = error.code
        assert status == code


def start(*options: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    process = subprocess.Popen([sys.executable, str(FAKECLOUD), "gce", "--unsigned", *options],
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    environment = {}
    while "FAKECLOUD_URL" not in environment:
        name, equals, value = process.stdout.readline().strip().partition("=")
        assert equals, "it has ended"
        environment[name] = value
    return process, environment


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_command(tmp_path: Path, mark: str, how: int) -> None:
    quick = [f"--set={name}=0" for name in ("launch_s", "lag_s", "pending_s")]
    process, environment = start("--folder", str(tmp_path), "--env", f"{MARK}={mark}", *quick)
    try:
        assert set(environment) == {
            "TROUPE_GCE_ENDPOINT", "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "GCE_METADATA_HOST",
            "GCE_METADATA_IP", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT",
            "CLOUDSDK_CORE_PROJECT", "FAKECLOUD_URL"}
        outside = f"http://{environment['GCE_METADATA_HOST']}/computeMetadata/v1/"
        token = json.loads(fetch(f"{outside}instance/service-accounts/default/token")[0])
        assert fetch(f"{outside}project/project-id")[0] == environment["GOOGLE_CLOUD_PROJECT"]
        endpoint = environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"]
        url = f"{endpoint}projects/fakecloud/{REGION}"
        body = json.dumps(bulk(2, script=HIDING + "exec sleep 1000")).encode()
        asked = urllib.request.Request(url, body, {
            "Authorization": f"Bearer {token['access_token']}"})
        urllib.request.urlopen(asked, timeout=5).close()
        until(lambda: len(marked(mark)), 2, 20)
        until(lambda: len(list(tmp_path.glob("fakecloud-*/*/hidden"))), 2, 10)
        hidden = [int(path.read_text() or 0) for path in tmp_path.glob("fakecloud-*/*/hidden")]
    finally:
        process.send_signal(how)
        process.wait(20)
    assert_nothing_left(mark)
    until(lambda: any(map(alive, hidden)), False, 10)
    until(lambda: list(tmp_path.iterdir()), [], 10)


def test_a_command_that_is_wrong() -> None:
    for options, told in ((["--host", "8.8.8.8"], "loopback"),
                          (["--set", "x=1"], "no such setting"),
                          (["--market", "/nowhere.json"], "cannot be read")):
        done = subprocess.run([sys.executable, str(FAKECLOUD), "gce", "--unsigned", *options],
                              capture_output=True, text=True, timeout=20)
        assert done.returncode == 2 and told in done.stderr
