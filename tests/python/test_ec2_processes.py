"""Instances of the fake EC2 are processes: what they see, and that none of them is left.

They are asked for by a small client of our own, so that this needs Python alone.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlencode, urlsplit

import pytest

from ec2_world import IMAGE
from fakecloud import machines
from fakecloud.ec2 import sigv4
from fakecloud.ec2.cloud import DEFAULT_KEY
from fakecloud.ec2.instances import Instance
from fakecloud.ec2.machines import Machines
from fakecloud.ec2.service import FakeEc2
from processes import MARK, assert_nothing_left, marked, until

pytestmark = [pytest.mark.once, pytest.mark.timeout(90)]
FAKECLOUD = Path(__file__).resolve().parents[1] / "fakecloud"
QUICK: dict[str, Any] = {"lag_s": 0, "launch_s": 0, "shutdown_s": 0.2, "throttle": None,
                         "on_demand_capacity": 1000}
# What hides best: a grandchild in a session of its own, with nothing in its environment.
HIDING = "(setsid env -i sh -c 'echo $$ > hidden; exec sleep 1000' &)\n"


class Client:
    """One connection, kept alive."""

    def __init__(self, url: str) -> None:
        self.host = urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self.host, timeout=30)

    def raw(self, body: str, **more: str) -> tuple[int, bytes]:
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"{date[:8]}/us-east-1/ec2/aws4_request"
        headers = {"host": self.host, "x-amz-date": date,
                   "content-type": "application/x-www-form-urlencoded", **more}
        request = sigv4.Signed("POST", "/", "", headers, body.encode())
        names = sorted(headers)
        text = sigv4.to_sign(sigv4.canonical(request, names), date, scope)
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={DEFAULT_KEY.id}/{scope}, "
            f"SignedHeaders={';'.join(names)}, "
            f"Signature={sigv4.signature(DEFAULT_KEY.secret, scope, text)}")
        self._connection.request("POST", "/", body.encode(), headers)
        reply = self._connection.getresponse()
        return reply.status, reply.read()

    def call(self, action: str, **form: Any) -> ET.Element:
        plain = {key.replace("__", "."): str(value) for key, value in form.items()}
        status, body = self.raw(urlencode({"Action": action, "Version": "2016-11-15", **plain}))
        root = ET.fromstring(body)
        for one in root.iter():
            one.tag = one.tag.rpartition("}")[2]
        assert status == 200, body
        return root

    def launch(self, script: str, count: int = 1, **form: Any) -> list[str]:
        user_data = base64.b64encode(script.encode()).decode()
        reply = self.call("RunInstances", ImageId=IMAGE, InstanceType="m5.large", MinCount=count,
                          MaxCount=count, UserData=user_data, **form)
        return [one.text or "" for one in reply.iter("instanceId")]

    def states(self) -> dict[str, str]:
        reply = self.call("DescribeInstances")
        return {one.findtext("instanceId", ""): one.findtext("instanceState/name", "")
                for one in reply.findall("reservationSet/item/instancesSet/item")}


@contextlib.contextmanager
def serving(tmp_path: Path, mark: str, **settings: Any) -> Iterator[FakeEc2]:
    more = {"environment": {MARK: mark}, **QUICK, **settings}
    with FakeEc2(settings=more, folder=tmp_path) as cloud:
        yield cloud
    assert list(tmp_path.iterdir()) == []


def folder_of(tmp_path: Path, instance: str) -> Path:
    return next(tmp_path.glob(f"fakecloud-*/{instance}"))


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().endswith("\n"), True, 10)
    return int(path.read_text())


def test_what_an_instance_sees(tmp_path: Path, mark: str) -> None:
    script = ("#!/bin/sh\nenv > env; pwd > where; ps -o pid=,pgid=,sid= -p $$ > ids\n"
              "ls /proc/self/fd | wc -l > files; cat > input; trap 'echo ended > term; exit' TERM\n"
              "echo out; echo err >&2; echo done > done; while :; do sleep 0.05; done\n")
    with serving(tmp_path, mark) as cloud:
        client = Client(cloud.url)
        [one] = client.launch(script)
        until(lambda: bool(list(tmp_path.glob("fakecloud-*/*/done"))), True, 10)
        folder = folder_of(tmp_path, one)
        env = dict(line.split("=", 1) for line in (folder / "env").read_text().splitlines())
        assert set(env) <= {"PATH", "HOME", "TROUPE_METADATA_URL", MARK, "PWD", "SHLVL", "_"}
        assert (folder / "where").read_text().strip() == env["HOME"] == str(folder)
        pid, group, session = (folder / "ids").read_text().split()
        assert pid == group == session and int(session) != os.getsid(0)
        assert (folder / "input").read_text() == "" and int((folder / "files").read_text()) <= 4
        reply = client.call("GetConsoleOutput", InstanceId=one)
        assert base64.b64decode(reply.findtext("output", "")) == b"out\nerr\n"

        def get(item: str, token: str) -> bytes:
            asked = urllib.request.Request(env["TROUPE_METADATA_URL"] + item,
                                           headers={"X-aws-ec2-metadata-token": token})
            with urllib.request.urlopen(asked, timeout=5) as got:
                return bytes(got.read())
        asked = urllib.request.Request(
            env["TROUPE_METADATA_URL"] + "/latest/api/token", method="PUT",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        with urllib.request.urlopen(asked, timeout=5) as got:
            token = got.read().decode()
        assert get("/latest/meta-data/instance-id", token).decode() == one
        assert get("/latest/user-data", token).decode() == script
        assert b"placement/" in get("/latest/meta-data/", token)
        identity = json.loads(get("/latest/dynamic/instance-identity/document", token))
        assert identity["instanceId"] == one and identity["privateIp"].startswith("127.")
        cloud.order(do="interrupt", instance=one, lead_s=100)
        action = json.loads(get("/latest/meta-data/spot/instance-action", token))
        assert action["action"] == "terminate" and action["time"].endswith("Z")
        client.call("TerminateInstances", InstanceId__1=one)
        until(lambda: client.states()[one], "terminated", 10)
        assert (folder / "term").read_text() == "ended\n"   # It had time to end by itself.


def test_deadline_kills_the_whole_tree(tmp_path: Path, mark: str) -> None:
    script = "#!/bin/sh\ntrap '' TERM\n" + HIDING + "sleep 1000 & echo $! > child\nwait\n"
    with serving(tmp_path, mark) as cloud:
        client = Client(cloud.url)
        [one] = client.launch(script, InstanceMarketOptions__MarketType="spot")
        [other] = client.launch("#!/bin/sh\necho $$ > me; exec sleep 1000\n")
        until(lambda: "running" in client.states().values(), True, 10)
        folder = folder_of(tmp_path, one)
        pids = [pid_in(folder / "hidden"), pid_in(folder / "child")]
        assert all(map(alive, pids))
        cloud.order(do="interrupt", instance=one, lead_s=0.3)
        until(lambda: client.states()[one], "terminated", 10)
        until(lambda: any(map(alive, pids)), False, 10)
        assert alive(pid_in(folder_of(tmp_path, other) / "me"))
        events = {one["event"]: one for one in cloud.do(lambda: list(cloud.cloud.ledger.events))}
        assert events["interrupted"]["lead_s"] == 0.3
        assert events["killed"]["reason"] == "Server.SpotInstanceTermination"


def test_instance_switches_itself_off(tmp_path: Path, mark: str) -> None:
    with serving(tmp_path, mark) as cloud:
        client = Client(cloud.url)
        ids = [*client.launch("#!/bin/sh\nsudo -n shutdown -h now; sleep 1000\n",
                              InstanceMarketOptions__MarketType="spot"),
               *client.launch("#!/bin/sh\npoweroff; sleep 1000\n"),
               *client.launch("#!/usr/bin/env python3\nprint('snake', flush=True)\n"),
               *client.launch("echo no first line\n")]
        until(lambda: [client.states()[one] for one in ids],
              ["terminated", "stopped", "running", "running"], 10)
        until(lambda: cloud.do(lambda: cloud.cloud.console_of(ids[2])),
              b"snake\n[fakecloud] user data has ended with status 0\n", 10)
        assert b"is not run" in cloud.do(lambda: cloud.cloud.console_of(ids[3]))


def test_tree_that_grows_while_it_is_killed(tmp_path: Path, mark: str) -> None:
    """Whoever lives for 20 ms has left another one in a session of its own behind."""
    script = ("#!/bin/sh\necho 'setsid sh ./next & sleep 0.02' > next\n"
              "for i in 1 2 3 4 5; do sh ./next; done\n")
    with serving(tmp_path, mark) as cloud:
        client = Client(cloud.url)
        [one] = client.launch(script)
        until(lambda: len(marked(mark)) >= 5, True, 10)
        client.call("TerminateInstances", InstanceId__1=one)
        until(client.states, {one: "terminated"}, 10)
        until(lambda: marked(mark), [], 10)


def test_instance_that_removes_its_files(tmp_path: Path, mark: str) -> None:
    with serving(tmp_path, mark) as cloud:
        client = Client(cloud.url)
        [one] = client.launch('#!/bin/sh\nrm -rf "$HOME"; echo > "${HOME%/*}/gone"; exit 3\n')
        until(lambda: bool(list(tmp_path.glob("fakecloud-*/gone"))), True, 10)
        [two] = client.launch("#!/bin/missing\n")
        until(lambda: cloud.do(lambda: cloud.cloud.console_of(two)),
              b"[fakecloud] the user data cannot be run: No such file or directory\n"
              b"[fakecloud] user data has ended with status 126\n", 10)
        assert client.states() == {one: "running", two: "running"}
        assert client.call("GetConsoleOutput", InstanceId=one).findtext("output") == ""


def test_keeper_or_warden_is_killed(tmp_path: Path, mark: str) -> None:
    def parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    with serving(tmp_path, mark) as cloud:
        client = Client(cloud.url)
        one, two = client.launch("#!/bin/sh\necho $$ > me\n" + HIDING + "exec sleep 1000\n", 2)
        pids = {id_: [pid_in(tmp_path / next(tmp_path.glob("fakecloud-*")) / id_ / name)
                      for name in ("me", "hidden")] for id_ in (one, two)}
        keeper = parent(pids[one][0])
        warden = parent(keeper)
        os.kill(keeper, signal.SIGKILL)
        until(lambda: client.states(), {one: "terminated", two: "running"}, 10)
        until(lambda: any(map(alive, pids[one])), False, 10)
        assert all(map(alive, pids[two]))
        os.kill(warden, signal.SIGKILL)
        until(lambda: client.states(), {one: "terminated", two: "terminated"}, 10)
        until(lambda: any(map(alive, pids[two])), False, 10)
        [three] = client.launch("#!/bin/sh\necho again\nexec sleep 1000\n")
        until(lambda: cloud.do(lambda: cloud.cloud.console_of(three)), b"again\n", 10)


def start(tmp_path: Path, mark: str, *words: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    process = subprocess.Popen(
        [sys.executable, str(FAKECLOUD), "ec2", "--folder", str(tmp_path), "--set", "lag_s=0",
         "--set", "launch_s=0", "--set", "throttle=null", *words],
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, MARK: mark, "PYTHONDONTWRITEBYTECODE": "1"})
    assert process.stdout is not None
    told: dict[str, str] = {}
    while "FAKECLOUD_URL" not in told:
        name, equals, value = process.stdout.readline().strip().partition("=")
        assert equals, f"it has ended with status {process.wait(10)}"
        told[name] = value
    return process, told


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_all_ends_with_the_cloud(how: signal.Signals, tmp_path: Path, mark: str) -> None:
    process, told = start(tmp_path, mark)
    try:
        client = Client(told["AWS_ENDPOINT_URL_EC2"])
        ids = client.launch("#!/bin/sh\ntrap '' TERM HUP\n" + HIDING + "sleep 1000\n", 5)
        hidden = [pid_in(tmp_path / next(tmp_path.glob("fakecloud-*")) / one / "hidden")
                  for one in ids]
        assert all(map(alive, hidden)) and len(marked(mark)) >= 2
    finally:
        process.send_signal(how)
        process.wait(20)
        process.stdout.close()  # type: ignore[union-attr]
    until(lambda: any(map(alive, hidden)), False, 20)
    assert_nothing_left(mark)
    until(lambda: list(tmp_path.iterdir()), [], 10)
    assert process.returncode == (-9 if how == signal.SIGKILL else 0)


@pytest.mark.parametrize(("words", "said"), [
    (["--market", "/nowhere"], "/nowhere: cannot be read"), (["--set", "x=1"], "no such setting"),
    (["--host", "0.0.0.0"], "loopback"), (["--port", "99999"], "port"),
    (["--key", "x"], "ID:SECRET"), (["--speed", "0"], "settings.speed"),
])
def test_clear_errors(words: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, str(FAKECLOUD), "ec2", *words], check=False, text=True,
                          capture_output=True, timeout=30)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_hostile_requests(tmp_path: Path, mark: str) -> None:
    with serving(tmp_path, mark) as cloud:
        client = Client(cloud.url)
        for body in ("", "Action", "Action=DescribeInstances", "%ff=%ff", "A=1&A=1", "Action=" +
                     "x" * 100_000, "Action=RunInstances&Version=1&" + "&".join(
                     f"TagSpecification.{i}.Tag.1.Key=x" for i in range(5000)),
                     "Action=DescribeInstances&Version=1&NextToken=" + "W" * 60_000,
                     "Action=DescribeInstances&Version=1&Filter.1.Value.1=" + "*a" * 50,
                     "Action=RunInstances&Version=1&MinCount=" + "9" * 5000):
            status, reply = client.raw(body)
            assert status in (400, 401, 403) and ET.fromstring(reply).tag == "Response", reply
        assert client.raw("Action=DescribeInstances&Version=1", **{"content-type": "text/plain"})[
            0] == 400
        heads = [b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"\r\n\r\nGET\r\n\r\n",
                 b"\0" * 100 + b"\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
                 b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                 b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"]
        host, port = client.host.split(":")
        for head in heads:
            with socket.create_connection((host, int(port)), 10) as raw:
                raw.sendall(head)
                assert raw.recv(100).startswith(b"HTTP/1.1 4")
        idle = [socket.create_connection((host, int(port)), 10) for _ in range(300)]
        for one in idle[::2]:
            one.sendall(b"GET / HT")
        for _ in range(1000):
            assert client.states() == {}
        for one in idle:
            one.close()
        for body_of_admin in (b"", b"{", b"[]", b'{"do": "fly"}', b"\xff", b'{"do": "break", '
                              b'"how": "well"}'):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(f"{cloud.url}/fakecloud", body_of_admin, timeout=5)
        [one] = client.launch("")
        metadata = cloud.do(lambda: cloud.machines.machines[one].url).rpartition("/")[2].split(":")
        put = b"PUT /latest/api/token HTTP/1.1\r\nX-aws-ec2-metadata-token-ttl-seconds: "
        for line in (put + b"\xb2", put + b"9" * 5000, put, b"DELETE / HTTP/1.0",
                     b"GET /latest/meta-data/ HTTP/1.1\r\nX-aws-ec2-metadata-token: x"):
            with socket.create_connection((metadata[0], int(metadata[1])), 10) as raw:
                raw.sendall(line + b"\r\n\r\n")
                assert raw.recv(100).startswith(b"HTTP/1.1 4")
        page = urllib.request.Request(f"{cloud.url}/fakecloud", b'{"do": "deny"}',
                                      {"Origin": "http://elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(page, timeout=5)


def test_two_hundred_instances(tmp_path: Path, mark: str) -> None:
    with serving(tmp_path, mark) as cloud:
        client = Client(cloud.url)
        ids = client.launch("#!/bin/sh\necho up\nexec sleep 1000\n", 200)

        def consoles() -> set[bytes]:
            return cloud.do(lambda: {cloud.cloud.console_of(one) for one in ids})
        until(consoles, {b"up\n"}, 40)
        assert len(marked(mark)) == 200
        client.call("TerminateInstances", **{f"InstanceId__{i}": one
                                             for i, one in enumerate(ids, 1)})
        until(lambda: set(client.states().values()), {"terminated"}, 20)
        until(lambda: marked(mark), [], 20)


def test_host_that_can_have_no_more(tmp_path: Path, mark: str,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def no_port(machines: Machines, one: Instance) -> socket.socket:
        raise OSError("no port is left")
    with serving(tmp_path, mark) as cloud:
        client = Client(cloud.url)
        [good] = client.launch("#!/bin/sh\nexec sleep 1000\n")
        monkeypatch.setattr(Machines, "_bind", no_port)
        [bad] = client.launch("#!/bin/sh\nexec sleep 1000\n")
        until(client.states, {good: "running", bad: "terminated"}, 10)


def test_console_is_bounded(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "CONSOLE_MAX", 100_000)
    with serving(tmp_path, mark) as cloud:
        client = Client(cloud.url)
        [one] = client.launch("#!/bin/sh\nhead -c 300000 /dev/zero; echo end; touch full\n"
                              "while [ -s .fakecloud/console ]; do sleep 0.05; done; echo again\n")
        until(lambda: cloud.do(lambda: cloud.cloud.console_of(one)).startswith(b"again\n"), True,
              20)


def told_by(url: str, name: str) -> Any:
    with urllib.request.urlopen(f"{url}/fakecloud{name}", timeout=5) as reply:
        return json.load(reply)


def test_administrator_door_and_a_replayed_trace(tmp_path: Path, mark: str) -> None:
    """A day of a trace in two seconds: launches, interruptions and costs are told."""
    trace = tmp_path / "us-east-1a_v100_1.json"
    trace.write_text(json.dumps({"metadata": {"gap_seconds": 3600}, "data": [4] * 12 + [1] * 12}))
    (tmp_path / "run").mkdir()
    process, told = start(tmp_path / "run", mark, "--market", str(trace), "--speed", "43200",
                          "--set", 'lead_s=7200', "--set", "lead_scaled=true")
    try:
        url = told["AWS_ENDPOINT_URL_EC2"]
        client = Client(url)
        reply: Optional[ET.Element] = client.call(
            "RunInstances", ImageId=IMAGE, InstanceType="p3.2xlarge", MinCount=4, MaxCount=4,
            InstanceMarketOptions__MarketType="spot")
        assert reply is not None
        until(lambda: sorted(client.states().values()),
              ["running", "terminated", "terminated", "terminated"], 20)
        events = told_by(url, "/events?after=0")
        assert [one["lead_s"] for one in events if one["event"] == "interrupted"] == [
            round(7200 / 43200, 3)] * 3
        rows = told_by(url, "/ledger")["totals"]["rows"]
        assert [(row["zone"], row["type"], row["instances"]) for row in rows] == [
            ("us-east-1a", "p3.2xlarge", 4)]
        assert told_by(url, "")["pools"][0]["capacity"] == 1
        order = json.dumps({"do": "set_capacity", "zone": "us-east-1a", "capacity": 0}).encode()
        with urllib.request.urlopen(f"{url}/fakecloud", order, timeout=5) as done:
            assert done.read() == b"done\n"
        until(lambda: set(client.states().values()), {"terminated"}, 20)
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("cloud", ["ec2", "k8s"])
def test_a_cloud_that_was_started_so_ends_with_its_parent(cloud: str, mark: str) -> None:
    starts = (f"import subprocess, sys, os\np = subprocess.Popen([sys.executable, "
              f"{str(FAKECLOUD)!r}, {cloud!r}, '--with-parent'], stdout=subprocess.PIPE)\n"
              "while b'FAKECLOUD_URL' not in p.stdout.readline(): pass\n"
              "print(p.pid, flush=True)\nos.kill(os.getpid(), 9)\n")
    started = subprocess.run([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, MARK: mark}, check=False)
    assert started.returncode == -signal.SIGKILL
    assert int(started.stdout) > 0
    assert_nothing_left(mark, 10)
