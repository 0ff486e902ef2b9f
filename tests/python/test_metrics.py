"""Metrics of user code with Ray's names: counted in any process, read at the head."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import troupe
from troupe._cluster import find_bin_dir
from troupe.util.metrics import Counter, Gauge, Histogram, Metric

from daemons import LocalCluster
from metric_cases import Server, serve, served
from processes import free_port, until

pytestmark = [pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 60.0


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


class TestArguments:
    def test_names_and_tags_that_cannot_be_are_refused(self) -> None:
        for name in ("", "9lives", "a-b", "a b", "troupe_nodes"):
            with pytest.raises(ValueError, match="name"):
                Counter(name)
        with pytest.raises(TypeError, match="strings"):
            Counter(3)  # type: ignore[arg-type]
        for keys in (["a"], "ab", ("a", 1)):
            with pytest.raises(TypeError, match="tuple of strings"):
                Gauge("refused", tag_keys=keys)  # type: ignore[arg-type]
        for key in ("le", "__x", "a-b", "troupe_process"):
            with pytest.raises(ValueError, match="no name for a tag"):
                Gauge("refused", tag_keys=(key,))
        with pytest.raises(ValueError, match="twice"):
            Gauge("refused", tag_keys=("a", "a"))
        with pytest.raises(TypeError, match="Counter"):
            Metric("refused")

    def test_tags_of_a_value_are_those_of_the_metric(self) -> None:
        counter = Counter("tagged", tag_keys=("a", "b"))
        with pytest.raises(ValueError, match="no value for the tag a, b"):
            counter.inc()
        with pytest.raises(ValueError, match="no tag c"):
            counter.inc(tags={"a": "1", "b": "2", "c": "3"})
        with pytest.raises(TypeError, match="string"):
            counter.inc(tags={"a": 1, "b": "2"})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match="no tag c"):
            counter.set_default_tags({"c": "1"})
        with pytest.raises(TypeError, match="string"):
            counter.set_default_tags({"a": 1})  # type: ignore[dict-item]
        assert counter.set_default_tags({"a": "x"}) is counter
        counter.inc(tags={"b": "y"})
        counter.inc(tags={"a": "z", "b": "y"})
        with pytest.raises(ValueError, match="no value for the tag b"):
            counter.inc()
        assert counter.info == {"name": "tagged", "description": "", "tag_keys": ("a", "b"),
                                "default_tags": {"a": "x"}}

    def test_values_that_cannot_be_are_refused(self) -> None:
        counter, gauge = Counter("grows"), Gauge("moves")
        for value in (0, -1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="above 0"):
                counter.inc(value)
        for value in ("1", True, [1]):
            with pytest.raises(TypeError, match="number"):
                counter.inc(value)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="number"):
                gauge.set(value)  # type: ignore[arg-type]
        gauge.set(None)
        gauge.set(-3)
        histogram = Histogram("spreads", boundaries=[1, 2])
        with pytest.raises(ValueError, match="finite"):
            histogram.observe(float("nan"))
        many = list(range(1, 300))
        for boundaries in (None, [], [0, 1], [2, 1], [1, 1], [1, float("inf")], many):
            with pytest.raises(ValueError, match="boundaries"):
                Histogram("refused", boundaries=boundaries)
        assert histogram.info["boundaries"] == [1.0, 2.0]

    def test_one_name_is_one_kind_of_metric(self) -> None:
        Histogram("only", boundaries=[1])
        Histogram("only", boundaries=[1])
        with pytest.raises(ValueError, match="a histogram with boundaries"):
            Counter("only")
        with pytest.raises(ValueError, match="another name"):
            Histogram("only", boundaries=[2])

    def test_metrics_can_be_pickled(self) -> None:
        for metric in (Counter("p1", "d", ("t",)).set_default_tags({"t": "x"}), Gauge("p2"),
                       Histogram("p3", "d", [1, 2], ("t",))):
            assert pickle.loads(pickle.dumps(metric)).info == metric.info


def scraped(port: int) -> dict[str, float]:
    """Series -> value, of those that users count."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    rows = [line.rpartition(" ") for line in lines if line and line[0] != "#"]
    return {name: float(value) for name, _, value in rows if not name.startswith("troupe_")}


@pytest.mark.integration
class TestOnACluster:
    @pytest.fixture(scope="class")
    @classmethod
    def port(cls) -> Iterator[int]:
        port = free_port()
        troupe.init(num_cpus=2, metrics_port=port)
        yield port
        troupe.shutdown()

    def test_all_processes_are_one_sum_and_stay_counted(self, port: int) -> None:
        served.inc(tags={"where": "driver"})
        server = Server.remote()
        pid = soon(server.serve.remote(0.5, 0.05))
        soon(server.serve.remote(0.25, 5))
        soon([serve.remote(10) for _ in range(20)])
        expected = {'served{where="driver"}': 1.0, 'served{where="task"}': 200.0,
                    'served{where="actor"}': 4.0, 'latency_count': 2.0, 'latency_sum': 5.05,
                    'latency_bucket{le="0.1"}': 1.0, 'latency_bucket{le="1"}': 1.0,
                    'latency_bucket{le="+Inf"}': 2.0}

        def counts() -> dict[str, float]:
            return {k: v for k, v in scraped(port).items() if k in expected}

        def levels() -> list[float]:
            found = scraped(port).items()
            return [v for k, v in found if k.startswith('level{tank="left",troupe_process=')]

        until(counts, expected)
        until(levels, [0.25])
        os.kill(pid, signal.SIGKILL)
        until(levels, [])
        assert counts() == expected

    def test_a_task_with_a_process_of_its_own_loses_nothing(self, port: int) -> None:
        alone = serve.options(runtime_env={"env_vars": {"ALONE": "1"}})
        before = scraped(port).get('served{where="task"}', 0.0)
        soon([alone.remote(3) for _ in range(2)])
        until(lambda: scraped(port)['served{where="task"}'] - before, 6.0)


@pytest.mark.integration
def test_workers_of_a_run_count() -> None:
    port = free_port()

    def work() -> None:
        from metric_cases import served

        served.inc(5, tags={"where": "run"})

    with troupe.Executor(2, cpus_per_worker=0.1, num_cpus=1, progress="off",
                         metrics_port=port) as executor:
        executor.run(work)
        until(lambda: scraped(port).get('served{where="run"}'), 10.0)


@pytest.mark.integration
def test_a_new_head_hears_all_that_living_processes_have_counted(tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    port = free_port()
    cluster = LocalCluster(tmp_path, Path(find_bin_dir()), 1, 2.0)
    cluster.head_options += ["--metrics-address", f"127.0.0.1:{port}"]
    with cluster:
        troupe.init(address=cluster.address, key_file=str(cluster.key_file))
        try:
            server = Server.remote()
            soon([server.serve.remote(1, 1) for _ in range(3)])
            until(lambda: scraped(port).get('served{where="actor"}'), 6.0)
            cluster.kill("head")
            soon(server.serve.remote(1, 1))
            cluster.start_head()
            until(lambda: scraped(port).get('served{where="actor"}') if up(port) else None, 8.0)
        finally:
            troupe.shutdown()


def up(port: int) -> bool:
    """Whether somebody serves there."""
    try:
        scraped(port)
    except OSError:
        return False
    return True
