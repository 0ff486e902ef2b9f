"""Actors and tasks of the tests of ``troupe.util.metrics``; in a module, for workers to import."""

from __future__ import annotations

import os

import troupe
from troupe.util.metrics import Counter, Gauge, Histogram

served = Counter("served", "Things done", tag_keys=("where",))


@troupe.remote(num_cpus=0.01)
def serve(times: int) -> int:
    for _ in range(times):
        served.inc(tags={"where": "task"})
    return os.getpid()


@troupe.remote(num_cpus=0.01)
class Server:
    def __init__(self) -> None:
        self.level = Gauge("level", "How full", tag_keys=("tank",))
        self.level.set_default_tags({"tank": "left"})
        self.latency = Histogram("latency", "Seconds", boundaries=[0.1, 1.0])

    def serve(self, level: float, seconds: float) -> int:
        served.inc(2, tags={"where": "actor"})
        self.level.set(level)
        self.latency.observe(seconds)
        return os.getpid()
