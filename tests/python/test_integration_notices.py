"""A node finds the notices of its cloud, drains in time and is replaced; a broken service is none.

The clouds are those of ``tests/fakecloud``; ``curl`` is their other client.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe._cluster import find_bin_dir

import daemons
from conftest import EXAMPLES, PYAPI
from daemons import LocalCluster
from fakecloud import CLOUDS, AwsMetadata, AzureMetadata, GcpMetadata, MetadataService
from fakecloud.service import BROKEN
from processes import MARK, assert_nothing_left, free_port, until

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0
TRAINING = """\
import os
import pathlib
import time
import troupe

def work():
    import torch
    import troupe.torch as hvd

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    state = hvd.elastic.TorchState(model, optimizer, step=0, seen=[])

    @hvd.elastic.run
    def loop(state):
        while "spot-3" not in state.seen:
            nodes = hvd.allgather_object(os.environ["TROUPE_WORKER_NODE"])
            state.seen = sorted({*state.seen, *nodes})
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            state.step += 1
            state.commit()
            for node in state.seen:
                pathlib.Path("seen-" + node).touch()
            time.sleep(0.02)
        return state.step

    return loop(state)

with troupe.Executor(1, workers=2, max_workers=2, progress="off") as executor:
    handle = executor.submit(work)
    handle.result(timeout=120)
    for epoch in handle.epochs():
        print("planned", epoch["planned"], epoch["reason"])
"""
# Gives spot-1 a cloud, and the other nodes none.
SUPPLIER = """\
#!{python}
import json, subprocess, sys
request = json.loads(sys.stdin.read())
if request["verb"] == "create":
    cloud = "aws" if request["tags"]["troupe-node"] == "spot-1" else "none"
    script = "export TROUPE_NOTICES=" + cloud + " TROUPE_METADATA_URL={url}\\n"
    request["user_data"] = script + request["user_data"]
done = subprocess.run([sys.executable, "{program}"], input=json.dumps(request), text=True)
sys.exit(done.returncode)
"""


class Someone:
    def where(self) -> str:
        return os.environ["TROUPE_WORKER_NODE"]


Place = troupe.remote(max_restarts=-1, max_task_retries=-1, num_cpus=1)(Someone)  # Anywhere.
Stays = troupe.remote(num_cpus=1)(Someone)  # It has only this life.


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster without nodes; each test starts its own."""
    with tempfile.TemporaryDirectory(prefix="not-") as folder:  # Short, for sockets.
        with LocalCluster(Path(folder), Path(find_bin_dir()), 0, 1.0) as cluster:
            troupe.init(address=cluster.address, key_file=str(cluster.key_file))
            try:
                yield cluster
            finally:
                troupe.shutdown()


@contextlib.contextmanager
def node(cluster: LocalCluster, name: str, *words: str,
         **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A node of one CPU while the block runs."""
    command = [*cluster.node_command(name, "127.0.0.1", 1.0), "--spares", "0", *words]
    cluster.start(name, ["env", *(f"{k}={v}" for k, v in variables.items()), *command])
    process = cluster.running[name]
    try:
        until(lambda: daemons.states().get(name) in ("alive", "draining"), True)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)


def told(name: str, what: str = "notice") -> dict[str, Any]:
    """What the head knows of the node's end; ``what`` may be "warning"."""
    nodes = {one["id"]: one for one in daemons.state()["nodes"]}
    return dict(nodes[name][what] or {})


def where(actor: Any) -> str:
    return str(troupe.get(actor.where.remote(), timeout=SOON_S))


def cloud_words(service: MetadataService) -> tuple[str, ...]:
    return ("--notices", service.name, "--metadata-url", service.url)


# ---- the fake clouds, as another client sees them ----


def curl(url: str, *words: str) -> tuple[int, str]:
    """Status and body."""
    done = subprocess.run(["curl", "--silent", "--noproxy", "*", "--max-time", "20", "--write-out",
                           "\n%{http_code}", *words, url], capture_output=True, text=True,
                          timeout=60)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


def test_the_fake_of_aws_is_strict() -> None:
    with AwsMetadata() as cloud:
        token_at, ttl = f"{cloud.url}/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds"
        item = f"{cloud.url}/latest/meta-data/spot/instance-action"
        assert curl(token_at, "-X", "PUT")[0] == 400
        for wrong in ("0", "21601", "soon"):
            assert curl(token_at, "-X", "PUT", "-H", f"{ttl}: {wrong}")[0] == 400
        assert curl(f"{cloud.url}/2021-03-23/api/token", "-X", "PUT", "-H", f"{ttl}: 60")[0] == 403
        assert curl(token_at, "-X", "PUT", "-H", f"{ttl}: 60", "-H", "X-Forwarded-For: x")[0] == 403
        status, token = curl(token_at, "-X", "PUT", "-H", f"{ttl}: 60")
        assert status == 200
        header = f"X-aws-ec2-metadata-token: {token}"
        assert curl(item)[0] == 401
        assert curl(item, "-H", header + "x")[0] == 401
        assert curl(item, "-H", header)[0] == 404
        assert curl(f"{cloud.url}/fakecloud", "-d", '{"do": "interrupt", "lead_s": 60}')[0] == 200
        status, body = curl(item, "-H", header)
        assert status == 200 and json.loads(body)["action"] == "terminate"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", json.loads(body)["time"])
        cloud.forget_tokens()
        assert curl(item, "-H", header)[0] == 401
        cloud.throttle(1)
        assert curl(item, "-H", header)[0] == 503
        assert curl(f"{cloud.url}/fakecloud", "-d", '{"do": "explode"}')[0] == 400


def test_the_fake_of_google_is_strict_and_holds_its_answer(tmp_path: Path) -> None:
    with GcpMetadata() as cloud:
        item = f"{cloud.url}/computeMetadata/v1/instance/preempted"
        flavor = ("-H", "Metadata-Flavor: Google")
        assert curl(item)[0] == 403
        headers = tmp_path / "headers"
        assert curl(item, *flavor, "-D", str(headers)) == (200, "FALSE")
        said = headers.read_text()
        assert "Metadata-Flavor: Google" in said
        etag = re.search(r"ETag: (\w+)", said)
        assert etag is not None
        hanging = f"{item}?wait_for_change=true&last_etag={etag[1]}&timeout_sec="
        assert curl(hanging + "0", *flavor) == (200, "FALSE")
        with subprocess.Popen(["curl", "--silent", "--noproxy", "*", "--max-time", "20", *flavor,
                               hanging + "15"], stdout=subprocess.PIPE, text=True) as waiting:
            until(lambda: len(cloud.requests) >= 4, True)
            assert waiting.poll() is None
            cloud.interrupt()
            assert waiting.communicate(timeout=20)[0] == "TRUE"
        assert curl(f"{cloud.url}/computeMetadata/v1/instance/nothing", *flavor)[0] == 404


def test_the_fake_of_azure_is_strict() -> None:
    with AzureMetadata() as cloud:
        at = f"{cloud.url}/metadata/scheduledevents?api-version=2020-07-01"
        header = ("-H", "Metadata: true")
        assert curl(at)[0] == 400
        assert curl(at.replace("2020-07-01", "1"), *header)[0] == 400
        before = json.loads(curl(at, *header)[1])
        cloud.interrupt(lead_s=40)
        after = json.loads(curl(at, *header)[1])
        assert after["DocumentIncarnation"] > before["DocumentIncarnation"]
        event = after["Events"][0]
        assert (event["EventType"], event["Resources"]) == ("Preempt", ["vm0"])
        assert curl(at, *header, "-d", "{}")[0] == 400
        assert curl(at, *header, "-d", '{"StartRequests": [{"EventId": "x"}]}')[0] == 400
        ack = json.dumps({"StartRequests": [{"EventId": event["EventId"]}]})
        assert curl(at, *header, "-d", ack)[0] == 200
        event = json.loads(curl(at, *header)[1])["Events"][0]
        assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")


# ---- nodes ----


@pytest.mark.parametrize("name", sorted(CLOUDS))
def test_what_runs_on_a_node_leaves_when_its_cloud_takes_it_back(
        cluster: LocalCluster, name: str) -> None:
    port = free_port()
    with CLOUDS[name]() as cloud, node(
            cluster, f"{name}-1", *cloud_words(cloud), "--metrics-address", f"127.0.0.1:{port}"):
        actor = Place.remote()
        assert where(actor) == f"{name}-1"
        with node(cluster, f"{name}-2"):
            cloud.interrupt(lead_s=30)
            until(lambda: told(f"{name}-1").get("kind"), "preempt", SOON_S)
            notice = told(f"{name}-1")
            assert notice["source"] == name
            assert 0 < notice["left_s"] <= 30, notice
            until(lambda: where(actor), f"{name}-2", SOON_S)
            until(lambda: "has drained" in cluster.log(f"{name}-1"), True, 20)
            assert told(f"{name}-1")["left_s"] > 0  # And there was time left.
            if isinstance(cloud, AzureMetadata):
                until(lambda: len(cloud.started), 1, 20)
            shown = subprocess.run(
                [sys.executable, "-m", "troupe", "nodes", "--address", cluster.address,
                 "--key-file", str(cluster.key_file)], capture_output=True, text=True, timeout=60,
                env={**os.environ, "PYTHONPATH": str(PYAPI)}).stdout
            assert re.search(rf"{name}-1 .* draining .* preempt \({name}\) in \d+s", shown), shown
            metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read()
            assert (f'troupe_preemption_notices_total{{kind="preempt",source="{name}"}} 1'
                    in metrics.decode())
            troupe.kill(actor)


def test_a_rebalance_is_told_and_drains_nothing_and_goes_away(cluster: LocalCluster) -> None:
    with AwsMetadata() as cloud:
        cloud.rebalance()
        with node(cluster, "risky", *cloud_words(cloud)):
            actor = Place.remote()
            until(lambda: told("risky", "warning").get("kind"), "rebalance", SOON_S)
            assert where(actor) == "risky" and told("risky") == {}
            cloud.calm()
            until(lambda: told("risky", "warning"), {}, SOON_S)
            assert where(actor) == "risky" and daemons.states()["risky"] == "alive"
            troupe.kill(actor)


def test_a_wrong_time_is_now(cluster: LocalCluster) -> None:
    with AwsMetadata() as cloud:
        cloud.shift_clock(-7200)
        cloud.interrupt(time="2015-01-05T18:02:00Z")
        with node(cluster, "late", *cloud_words(cloud)):
            until(lambda: told("late").get("kind"), "preempt", SOON_S)
            assert told("late")["left_s"] <= 2


def test_a_notice_that_is_taken_back_is_said(cluster: LocalCluster) -> None:
    with AzureMetadata() as cloud:
        cloud.interrupt(lead_s=600)
        with node(cluster, "again", *cloud_words(cloud)):
            until(lambda: told("again").get("kind"), "preempt", SOON_S)
            cloud.calm()
            until(lambda: "was taken back" in cluster.log("again"), True, 30)


def test_a_broken_service_is_no_preemption_and_holds_nothing_up(cluster: LocalCluster) -> None:
    ways = [how for how in BROKEN if how]
    with contextlib.ExitStack() as stack:
        clouds = {}
        for how in ways:
            clouds[how] = stack.enter_context(GcpMetadata())
            clouds[how].break_(how)
            stack.enter_context(node(cluster, f"with-{how}", *cloud_words(clouds[how])))
        actors = [Place.remote() for _ in ways]
        assert sorted(where(actor) for actor in actors) == sorted(f"with-{how}" for how in ways)
        for how in ways:
            log = f"with-{how}"
            until(lambda log=log: "is of no use now" in cluster.log(log), True, SOON_S)
        asked = {how: len(cloud.requests) for how, cloud in clouds.items()}
        until(lambda: all(len(clouds[how].requests) > asked[how] for how in ways), True, 60)
        for how in ways:
            log = cluster.log(f"with-{how}")
            assert log.count("is of no use now") == 1, log  # Once, not at every question.
            assert told(f"with-{how}") == {} and daemons.states()[f"with-{how}"] == "alive"
            assert not any("elsewhere" in one.path for one in clouds[how].requests)
        assert "status 302, which is not followed" in cluster.log("with-redirect")
        assert "longer than" in cluster.log("with-huge")
        cluster.running["with-hanging"].terminate()
        assert cluster.running["with-hanging"].wait(20) == 0
        ways.remove("hanging")
        for cloud in clouds.values():
            cloud.interrupt()
            cloud.break_("")
        for how in ways:
            until(lambda how=how: told(f"with-{how}").get("kind"), "preempt", SOON_S)
        for actor in actors:
            troupe.kill(actor)


def test_no_proxy_of_the_environment_is_asked(cluster: LocalCluster) -> None:
    with GcpMetadata() as cloud, GcpMetadata() as proxy:
        cloud.interrupt()
        with node(cluster, "direct", *cloud_words(cloud), http_proxy=proxy.url,
                  HTTP_PROXY=proxy.url, all_proxy=proxy.url, no_proxy=""):
            until(lambda: told("direct").get("kind"), "preempt", SOON_S)
            assert proxy.requests == []


# ---- signals, jobs, and people ----


def test_a_node_that_is_told_to_end_drains_first(cluster: LocalCluster) -> None:
    with node(cluster, "first", "--term-notice", "600") as process:
        actor = Place.remote()
        assert where(actor) == "first"
        with node(cluster, "second"):
            process.send_signal(signal.SIGTERM)
            assert process.wait(SOON_S) == 0  # When it has drained, not when the time is up.
            assert "has drained" in cluster.log("first")
            assert where(actor) == "second"
            troupe.kill(actor)


def test_a_second_signal_ends_a_node_that_cannot_drain(cluster: LocalCluster) -> None:
    with node(cluster, "held", "--term-notice", "600") as process:
        actor = Stays.remote()
        assert where(actor) == "held"
        process.send_signal(signal.SIGTERM)
        until(lambda: told("held").get("source"), "SIGTERM")
        assert where(actor) == "held"  # It has no other life; its calls go on.
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_job_of_slurm_drains_before_its_end_and_at_its_signal(cluster: LocalCluster) -> None:
    end = str(int(time.time()) + 3000)
    with node(cluster, "job", "--notices", "slurm", SLURM_JOB_END_TIME=end) as process:
        actor = Place.remote()
        assert where(actor) == "job" and told("job") == {}
        with node(cluster, "next"):
            process.send_signal(signal.SIGUSR1)
            until(lambda: told("job").get("kind"), "walltime")
            assert 2900 < told("job")["left_s"] <= 3000
            assert process.wait(SOON_S) == 0
            assert "has drained" in cluster.log("job")
            assert where(actor) == "next"
            troupe.kill(actor)
    with node(cluster, "short", "--notices", "slurm", "--walltime-notice", "3600",
              SLURM_JOB_END_TIME=end):
        until(lambda: told("short").get("source"), "slurm")


def test_a_source_that_is_none_is_refused() -> None:
    for words, why in ((["--notices", "gpc"], "one of aws"),
                       (["--notices", "aws", "--metadata-url", "ftp://x"], "begins with http")):
        done = subprocess.run([os.path.join(find_bin_dir(), "troupe-node"), "--head", "ipc://x",
                               *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and why in done.stderr


def test_an_operator_says_why_a_node_is_drained(cluster: LocalCluster) -> None:
    def drain(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "troupe", "drain", "--address", cluster.address, "--key-file",
             str(cluster.key_file), *words], capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONPATH": str(PYAPI)})

    with node(cluster, "old"):
        assert drain("old", "--deadline", "soon").returncode == 2
        done = drain("old", "--deadline", "2m", "--reason", "new disk")
        assert done.returncode == 0 and "within 120 s" in done.stdout, done.stderr
        reasons = {one["id"]: one["reason"] for one in daemons.state()["nodes"]}
        assert reasons["old"] == "asked by `troupe drain`: new disk"


# ---- troupe up ----


def test_the_node_of_a_fleet_that_finds_a_notice_is_replaced_at_once(
        request: pytest.FixtureRequest) -> None:
    mark = f"{os.getpid()}-{request.node.name}"
    with tempfile.TemporaryDirectory(prefix="fleet-") as text, AwsMetadata() as cloud:
        folder = Path(text)
        (folder / "train.py").write_text(TRAINING)
        supplier = folder / "supplier"
        supplier.write_text(SUPPLIER.format(
            python=sys.executable, url=cloud.url,
            program=EXAMPLES / "providers" / "local_processes.py"))
        supplier.chmod(0o755)
        (folder / "fleet.yaml").write_text(
            "provider: exec\nexec: {command: ./supplier, interval: 300ms, timeout: 20s}\n"
            "training: {command: [python3, train.py], min_workers: 2, max_workers: 2}\n"
            "autoscaler: {tick: 100ms}\n"
            "pools: [{name: spot, market: spot, max_workers: 4}]\n")
        env = {**os.environ, MARK: mark, "TMPDIR": text, "PYTHONPATH": str(PYAPI),
               "PYTHONUNBUFFERED": "1", "TROUPE_NODES_DIR": str(folder / "nodes")}
        with subprocess.Popen([sys.executable, "-m", "troupe", "up", "fleet.yaml"], cwd=text,
                              env=env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as up:
            try:
                until(lambda: up.poll() is not None or len(list(folder.glob("seen-*"))) >= 2, True,
                      90)
                assert up.poll() is None, up.communicate()[0]
                cloud.interrupt(lead_s=100)
                out, _ = up.communicate(timeout=90)
            finally:
                up.kill()
        assert up.returncode == 0, out
        said = re.search(r"node spot-1 drains within (\d+).* s: preempt \(aws: terminate at", out)
        assert said and int(said[1]) > 60, out
        assert "terminate spot-1: it is drained" in out
        assert out.index("launch spot-3") < out.index("terminate spot-1")
        # The group has lost no step: spot-1 left it at a boundary, and the other one came at one.
        planned = re.findall(r"planned (\w+) (.*)", out)
        assert planned[0] == ("False", "group formed"), out
        assert all(how == "True" for how, _ in planned[1:]), out
        assert ("True", "drain") in planned, out
        assert_nothing_left(mark)
