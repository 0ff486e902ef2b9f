"""What a process tells of its metrics, over links that lose and repeat; no cluster."""

from __future__ import annotations

import os
import random
from typing import Any, Optional

import pytest

from troupe import _metric_report
from troupe._metric_report import Family, Registry, Report, Reporter, Taken

pytestmark = pytest.mark.once
REQUESTS = ("requests", ())


class Head:
    """What the head does with words: docs/metrics.md, daemons/head/core/user_metrics.h."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.life = 0
        self.number = 0
        self.told: dict[str, float] = {}
        self.sum = 0.0
        self.ended: Optional[tuple[int, int]] = None
        self.words: list[list[Any]] = []

    def take(self, life: int, number: int, series: list[Any]) -> Taken:
        if self.ended is not None and life <= self.ended[0]:
            return Taken(self.log, life, self.ended[1], True, True, 0, "")
        self.words.append(series)
        if number > self.number:
            self.life, self.number = life, number
            for _, name, _, tags, _, (value,) in series:
                key = f"{name}{tags}"
                self.sum += value - self.told.get(key, 0.0)
                self.told[key] = value
        return Taken(self.log, life, self.number, True, False, 0, "")

    def give_up(self) -> None:
        """Takes the process for dead."""
        self.ended = (self.life, self.number)
        self.told.clear()


@pytest.fixture
def registry() -> Registry:
    made = Registry()
    made.declare("requests", Family("counter", "asked"))
    return made


def count(registry: Registry, amount: float = 1.0, tag: str = "") -> None:
    with registry.lock:
        values = registry.series("requests", (("tag", tag),) if tag else ())
        assert values is not None
        values[0] += amount


def test_only_what_the_head_lacks_is_told(registry: Registry) -> None:
    report, head = Report(registry), Head("one")
    assert not report.has_news()
    count(registry)
    count(registry, 5, "x")
    assert report.has_news()
    report.hear(head.take(*report.next()))
    assert not report.has_news()
    count(registry, 2, "x")
    report.hear(head.take(*report.next()))
    assert [[row[5] for row in word] for word in head.words] == [[[1.0], [5.0]], [[7.0]]]
    assert head.sum == 8


def test_a_word_that_is_lost_is_told_again(registry: Registry) -> None:
    report, head = Report(registry), Head("one")
    count(registry)
    report.next()
    assert report.has_news()
    report.hear(head.take(*report.next()))
    assert head.sum == 1 and not report.has_news()


def test_another_head_is_told_everything(registry: Registry) -> None:
    report = Report(registry)
    count(registry, 3)
    report.hear(Head("one").take(*report.next()))
    second = Head("two")
    report.hear(second.take(*report.next()))
    assert second.sum == 0 and report.has_news()
    report.hear(second.take(*report.next()))
    assert second.sum == 3


def test_one_that_was_taken_for_dead_counts_on(registry: Registry) -> None:
    report, head = Report(registry), Head("one")
    count(registry, 3)
    report.hear(head.take(*report.next()))
    count(registry, 1)
    head.take(*report.next())  # Taken, but its answer is lost.
    head.give_up()
    count(registry, 2)
    assert report.hear(head.take(*report.next())) is None
    assert report.next()[0] == 1
    report.hear(head.take(*report.next()))
    assert head.sum == 6


def test_refusals_are_told_once_each(registry: Registry) -> None:
    report = Report(registry)
    answer = Taken("one", 0, 0, True, False, 1, "no room")
    assert report.hear(answer) == "no room"
    assert report.hear(answer) is None
    assert report.hear(answer._replace(refused=2, reason="still")) == "still"


def test_nothing_is_told_if_nobody_can_read_it(registry: Registry) -> None:
    report = Report(registry)
    count(registry)
    report.hear(Taken("one", 0, 0, False, False, 0, ""))
    assert not report.has_news() and report.next()[2] == []
    report.hear(Taken("two", 0, 0, True, False, 0, ""))
    assert report.has_news() and len(report.next()[2]) == 1


@pytest.mark.parametrize("seed", range(100))
def test_every_count_arrives_once_whatever_is_lost(registry: Registry, seed: int) -> None:
    chance = random.Random(seed)
    report, head = Report(registry), Head("one")
    total, on_the_way = 0, []
    for _ in range(200):
        event = chance.randrange(8)
        if event < 3:
            count(registry, 1, chance.choice("ab"))
            total += 1
        elif event < 5:
            on_the_way.append(report.next())
        elif event < 7 and on_the_way:
            taken = head.take(*on_the_way[chance.randrange(len(on_the_way))])
            if chance.random() < 0.5:
                report.hear(taken)
        elif chance.random() < 0.1:
            head.give_up()
    for _ in range(3):
        report.hear(head.take(*report.next()))
    assert head.sum == total


class TestBounds:
    def test_series_of_a_process_are_bounded_with_one_warning(
        self, registry: Registry, caplog: pytest.LogCaptureFixture
    ) -> None:
        for i in range(_metric_report.SERIES_MAX):
            count(registry, 1, str(i))
        with registry.lock:
            assert registry.series("requests", (("tag", "more"),)) is None
            assert registry.series("requests", (("tag", "yet more"),)) is None
            assert registry.series("requests", (("tag", "0"),)) == [1.0]
        assert len(caplog.records) == 1
        assert f"at most {_metric_report.SERIES_MAX} series" in caplog.text

    def test_a_long_tag_is_not_counted(self, registry: Registry) -> None:
        with registry.lock:
            long = "x" * _metric_report.SERIES_BYTES_MAX
            assert registry.series("requests", (("tag", long),)) is None

    def test_what_was_sent_is_kept_only_while_it_may_be_acknowledged(
        self, registry: Registry
    ) -> None:
        report, head = Report(registry), Head("one")
        for _ in range(1000):
            count(registry)
            word = report.next()
        assert len(report._sent) <= 61
        report.hear(head.take(*word))
        assert head.sum == 1000 and not report.has_news()


class Channel:
    """The native end of a driver or worker."""

    def __init__(self, log: str) -> None:
        self.head = Head(log)
        self.answer: Optional[Taken] = None

    def tell_metrics(self, *word: Any) -> None:
        self.answer = self.head.take(*word)

    def metrics_taken(self) -> Optional[Taken]:
        return self.answer


def test_counts_wait_for_a_cluster_and_go_to_each_that_comes(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_metric_report, "_BEAT_S", 1e6)  # Only flush tells.
    channels: list[Channel] = []
    reporter = Reporter(registry, lambda: channels[-1] if channels else None)
    count(registry)
    reporter.flush()  # Nothing was started: nothing happens.
    reporter.start()
    reporter.flush()
    for log in ("one", "two"):
        channels.append(Channel(log))
        count(registry)
        reporter.flush()
    reporter.flush()
    assert [channel.head.sum for channel in channels] == [2, 3]


def test_a_forked_child_counts_from_zero(registry: Registry) -> None:
    reader, writer = os.pipe()
    count(_declared(), 5)
    child = os.fork()
    if child == 0:
        with _metric_report.registry.lock:
            values = _metric_report.registry.series("requests", ())
        os.write(writer, b"y" if values == [0.0] and not _metric_report.reporter.started else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"y"
    os.close(reader)
    os.close(writer)


def _declared() -> Registry:
    _metric_report.registry.declare("requests", Family("counter", "asked"))
    return _metric_report.registry
