"""A stand-in for ``troupe._core``: its driver, whose workers are threads, and the whole module."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
import types
from typing import Any, Optional

import fake_commits
from fake_core import FakeCluster, FakeGroup, FakeWorker
from fake_errors import CoreError
from fake_ledger import SampleLedger


class Driver:
    """The interface of ``_core.Driver``: every worker is a thread that runs the worker's code."""

    instances: list[Driver] = []

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self.address = address or "fake"
        self.options = options
        self.runs: dict[str, dict[str, Any]] = {}
        self.closed = False
        Driver.instances.append(self)

    def cluster(self) -> dict[str, Any]:
        total = {"CPU": self.options.get("num_cpus") or 64.0}
        return {"nodes": [{"id": "n0", "host": "fake", "pid": 0, "alive": True,
                           "resources": total, "used": {}}]}

    def submit(self, spec: dict[str, Any]) -> str:
        run_id = f"run{len(self.runs)}"
        cluster = FakeCluster(spec["workers"], spec["min_workers"], spec["max_workers"])
        run = {"spec": spec, "cluster": cluster, "events": queue.Queue(), "state": "running",
               "ended": 0, "workers": []}
        cluster.listeners.append(run["events"].put)
        self.runs[run_id] = run
        for index in range(spec["workers"]):
            threading.Thread(
                target=self._work, args=(run_id, run, cluster.add(f"w{index}"), index), daemon=True
            ).start()
        return run_id

    def _emit(self, run: dict[str, Any], **event: Any) -> None:
        run["events"].put({"time_s": time.monotonic(), "run": "run", **event})

    def _work(self, run_id: str, run: dict[str, Any], group: FakeGroup, index: int) -> None:
        from troupe import worker as worker_module

        spec = run["spec"]
        reports = lambda payload: self._emit(  # noqa: E731
            run, kind="report", worker=group.name, rank=index, epoch=1, payload=payload)
        worker = FakeWorker(group, reports)
        assignment = {"run": run_id, "name": spec["name"], "payload": spec["payload"], "env": {},
                      "preload": [], "min_workers": spec["min_workers"],
                      "max_workers": spec["max_workers"], "index": index}
        ok, payload = worker_module.run_assignment(worker, assignment, own_process=False)
        rank = (group.view() or {}).get("rank", -1)
        with group.cluster.cond:
            run["ended"] += 1
            if run["state"] != "running":
                return
            if not ok:
                run["state"] = "failed"
                self._emit(run, kind="done", state="failed", reason="a worker failed",
                           worker=group.name, rank=rank, host="fake", payload=payload)
                return
            self._emit(run, kind="result", worker=group.name, rank=rank, payload=payload)
            if run["ended"] == spec["workers"]:
                run["state"] = "succeeded"
                self._emit(run, kind="done", state="succeeded", reason="", worker="", rank=-1,
                           host="", payload=b"")

    def next_event(self, run_id: str, timeout_s: float) -> Optional[dict[str, Any]]:
        if self.closed:
            raise CoreError("unavailable", "the driver is shut down")
        try:
            return self.runs[run_id]["events"].get(timeout=timeout_s)
        except queue.Empty:
            return None

    def status(self, run_id: str) -> dict[str, Any]:
        run = self.runs[run_id]
        spec = run["spec"]
        workers = [{"id": m.name, "rank": (m.view() or {}).get("rank", -1), "pid": 0,
                    "host": "fake", "state": "active", "version": m.version}
                   for m in run["cluster"].members]
        return {"state": run["state"], "reason": "", "epoch": 1, "target": spec["workers"],
                "min_workers": spec["min_workers"], "max_workers": spec["max_workers"],
                "workers": workers}

    def cancel(self, run_id: str) -> None:
        run = self.runs[run_id]
        with run["cluster"].cond:
            if run["state"] == "running":
                run["state"] = "cancelled"
                self._emit(run, kind="done", state="cancelled", reason="on request", worker="",
                           rank=-1, host="", payload=b"")

    def resize(self, run_id: str, workers: int) -> None:
        spec = self.runs[run_id]["spec"]
        if not spec["min_workers"] <= workers <= spec["max_workers"]:
            raise CoreError("invalid_argument", f"{workers} workers are out of bounds")

    def drain(self, run_id: str, worker_id: str, deadline_s: float) -> None:
        if worker_id not in [m.name for m in self.runs[run_id]["cluster"].members]:
            raise CoreError("not_found", f"no worker {worker_id}")
        self._emit(self.runs[run_id], kind="worker", worker=worker_id, rank=-1, host="fake", pid=0,
                   state="drained", detail="on request")

    def metrics_taken(self) -> None:
        """Nobody listens."""

    def tell_metrics(self, life: int, number: int, series: list[Any]) -> None:
        """Nobody listens."""

    def shutdown(self) -> None:
        self.closed = True


def build_module() -> types.ModuleType:
    """A module to stand in for ``troupe._core``."""
    module = types.ModuleType("troupe._core")
    module.CoreError = CoreError  # type: ignore[attr-defined]
    module.SampleLedger = SampleLedger  # type: ignore[attr-defined]
    module.CommitStore = fake_commits.CommitStore  # type: ignore[attr-defined]
    module.Driver = Driver  # type: ignore[attr-defined]
    module.xxh64 = lambda ptr, nbytes: hash(ctypes.string_at(ptr, nbytes))  # type: ignore
    module.xxh64_of = lambda pieces: hash(  # type: ignore[attr-defined]
        tuple(ctypes.string_at(ptr, nbytes) for ptr, nbytes in pieces))
    module.trace_enter = lambda track, name: None  # type: ignore[attr-defined]
    module.version = lambda: "fake"  # type: ignore[attr-defined]
    return module
