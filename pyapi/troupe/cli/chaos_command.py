"""``troupe chaos``: faults on a live cluster, and what they did to a run."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping
from typing import Any, Optional

from troupe.cli import _chaos_watch, cluster_commands
from troupe.cli._chaos_watch import Effect, Look, Watch
from troupe.cli._errors import FAILED, NOT_FOUND, CommandError
from troupe.cli._shown import seconds_of
from troupe.errors import TroupeError

FAULTS = {
    "kill": "a worker is killed, without a word",
    "stop": "a worker stands still (SIGSTOP)",
    "notice": "a node is told that it will be taken back, with --lead",
    "node": "a node's daemon is killed, with all that it has started",
    "zone": "all nodes with the label zone=--zone are killed at once",
    "partition": "a node and the others do not reach each other (needs root there)",
    "disk": "a node's disk has to write without end",
}
_TAKES = ("kill", "node", "zone", "notice")  # Members.
_CALM_S = 3.0  # Watched before a fault.
_AGENT_LIMIT_S = 60.0


def add_command(commands: Any) -> None:
    """Adds ``chaos``."""
    chaos = cluster_commands.asking(commands.add_parser(
        "chaos", help="make faults on a live cluster, and tell what they did to its run",
        description="Makes one fault after the other, each on a node or worker that is drawn, and "
                    "waits until the run is whole again. Faults: "
                    + "; ".join(f"{name}: {text}" for name, text in FAULTS.items()) + ".",
        epilog="exit status: 0 the run went on after each fault; 1 it did not; 3 no cluster "
               "answers; 4 there is no such run, node or zone"))
    chaos.add_argument("faults", nargs="+", choices=sorted(FAULTS), metavar="FAULT")
    chaos.add_argument("--run", metavar="NAME", help="which run to watch (the only one)")
    chaos.add_argument("--count", type=int, default=1, metavar="N",
                       help="how often all of them (1)")
    chaos.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (0)")
    chaos.add_argument("--node", metavar="NODE", help="instead of one that is drawn")
    chaos.add_argument("--zone", metavar="ZONE", help="of the fault zone")
    chaos.add_argument("--lead", type=seconds_of, default=30.0, metavar="TIME",
                       help="of a notice (30s)")
    chaos.add_argument("--for", dest="lasts", type=seconds_of, default=5.0, metavar="TIME",
                       help="how long stop, partition and disk last (5s)")
    chaos.add_argument("--folder", default="", metavar="DIR",
                       help="what disk writes to, on the node (its temporary folder)")
    chaos.add_argument("--settle", type=seconds_of, default=120.0, metavar="TIME",
                       help="how long the run may take to be whole again (2m)")
    chaos.set_defaults(action=cluster_commands.guarded(_chaos))


def _chaos(arguments: argparse.Namespace) -> None:
    if "zone" in arguments.faults and not arguments.zone:
        raise CommandError("the fault zone needs --zone", 2)
    if arguments.count < 1 or min(arguments.lead, arguments.lasts, arguments.settle) < 0:
        raise CommandError("--count wants 1 or more, and times are not negative", 2)
    import troupe

    address, key_file = cluster_commands.target(arguments)
    driver = cluster_commands.driver_at(address, key_file)
    troupe.init(address, key_file=key_file, log_to_driver=False)
    drill = _Drill(arguments, driver)
    effects: list[Effect] = []
    try:
        for fault in arguments.faults * arguments.count:
            effects.append(drill.hold(fault))
            _tell(effects[-1], arguments.output, first=len(effects) == 1)
            if not effects[-1].went_on:
                break
    finally:
        drill.heal()
        troupe.shutdown()
        driver.shutdown()
    if not all(effect.went_on for effect in effects):
        raise CommandError("the run did not go on; `troupe status` and `troupe logs` tell more",
                           FAILED)


class _Drill:
    """Draws where a fault goes, makes it, and watches."""

    def __init__(self, arguments: argparse.Namespace, driver: Any) -> None:
        self.arguments, self.driver = arguments, driver
        self.draw = random.Random(arguments.seed)
        self.agents: dict[str, Any] = {}
        self.cut: list[tuple[Any, list[str]]] = []
        self.run = str(self._find(arguments.run)["run"])

    def hold(self, fault: str) -> Effect:
        """Makes one, and returns what came of it.

        Raises:
            CommandError: it cannot be made, or the run has ended before.
        """
        watch = Watch()
        target = self._target(fault)
        self._agents({target["node"]} if fault != "zone" else self._in_zone())
        calm = _chaos_watch.wait(watch.before, self._look, time.sleep, lambda: False,
                                 time.monotonic, time.monotonic() + _CALM_S)
        if not calm and (not watch.before or self._look() is None):
            raise CommandError("the run has ended")
        at = time.monotonic()
        told = self._make(fault, target)
        lasts = {"stop": self.arguments.lasts, "partition": self.arguments.lasts,
                 "disk": self.arguments.lasts, "notice": self.arguments.lead}.get(fault, 1.0)
        members = watch.before[-1].members
        _chaos_watch.wait(watch.after, self._look, time.sleep,
                          lambda: watch.settled(members, lasts + 1.0, fault in _TAKES),
                          time.monotonic,
                          at + lasts + self.arguments.settle)
        if not watch.after:
            raise CommandError(f"the run has ended with {fault} of {told}")
        self.heal()
        return watch.effect(fault, told, at)

    def heal(self) -> None:
        """Takes partitions back that are still there."""
        import troupe

        for agent, addresses in self.cut:
            try:
                troupe.get(agent.join_again.remote(addresses), timeout=_AGENT_LIMIT_S)
            except TroupeError as error:
                print(f"troupe: a partition may be left: {error}; it ends with `ip route del "
                      f"blackhole` of {', '.join(addresses)} there", file=sys.stderr)
        self.cut = []

    # ---- where ----

    def _state(self) -> Mapping[str, Any]:
        return dict(self.driver.state())

    def _find(self, name: Optional[str]) -> Mapping[str, Any]:
        runs = [r for r in self._state()["groups"] if r["state"] == "running"]
        found = [r for r in runs if name in (None, r["run"], r["name"])]
        if len(found) == 1:
            return dict(found[0])
        names = ", ".join(f"{r['name']} ({r['run']})" for r in runs) or "none"
        raise CommandError(f"which run is to be watched? --run NAME; running: {names}", NOT_FOUND)

    def _look(self) -> Optional[Look]:
        at = time.monotonic()
        for run in self._state()["groups"]:
            if run["run"] == self.run:
                return _chaos_watch.look_at(run, at) if run["state"] == "running" else None
        return None

    def _workers(self) -> list[Mapping[str, Any]]:
        state = self._state()
        found = next((r for r in state["groups"] if r["run"] == self.run), None)
        alive = {n["id"] for n in state["nodes"] if n["state"] == "alive"}
        wanted = self.arguments.node
        return [w for w in (found["workers"] if found else [])
                if w["state"] == "active" and w["node"] in alive and wanted in (None, w["node"])]

    def _target(self, fault: str) -> Mapping[str, Any]:
        """A worker; for faults of nodes, one on the node that is meant."""
        workers = self._workers()
        if not workers:
            where = f" on node {self.arguments.node}" if self.arguments.node else ""
            raise CommandError(f"the run has no worker{where}", NOT_FOUND)
        return self.draw.choice(sorted(workers, key=lambda w: str(w["id"])))

    def _in_zone(self) -> set[str]:
        zone = self.arguments.zone
        found = {str(n["id"]) for n in self._state()["nodes"]
                 if n["state"] == "alive" and n["labels"].get("zone") == zone}
        if not found:
            raise CommandError(f"no node has the label zone={zone}", NOT_FOUND)
        return found

    def _agents(self, nodes: set[str]) -> None:
        """One on each node, before the fault: to start it takes a moment."""
        import troupe
        from troupe.cli._chaos_agent import ChaosAgent

        alive = {str(n["id"]) for n in self._state()["nodes"] if n["state"] == "alive"}
        self.agents = {n: agent for n, agent in self.agents.items() if n in alive}
        fresh = sorted(nodes - self.agents.keys())
        for node in fresh:
            self.agents[node] = troupe.remote(num_cpus=0, node=node)(ChaosAgent).remote()
        troupe.get([self.agents[node].ready.remote() for node in fresh], timeout=_AGENT_LIMIT_S)

    # ---- what ----

    def _make(self, fault: str, target: Mapping[str, Any]) -> str:
        """Whom it has met, for people."""
        import troupe

        node, lasts = str(target["node"]), self.arguments.lasts
        worker = f"worker {target['id']} on {node}"
        if fault == "notice":
            self.driver.drain_node(node, self.arguments.lead, "chaos: preempt")
            return f"node {node}, {self.arguments.lead:g} s ahead"
        if fault == "zone":
            nodes = sorted(self._in_zone() & self.agents.keys())
            for name in nodes:
                self.agents.pop(name).kill_node.remote()
            return f"zone {self.arguments.zone}: {', '.join(nodes)}"
        agent = self.agents[node]
        if fault == "node":
            self.agents.pop(node).kill_node.remote()
            return f"node {node}"
        if fault == "kill":
            call = agent.kill.remote(target["pid"])
        elif fault == "stop":
            call = agent.stop.remote(target["pid"], lasts)
        elif fault == "disk":
            call = agent.load_disk.remote(self.arguments.folder, lasts)
        else:
            addresses = self._others_of(node)
            self.cut.append((agent, addresses))
            call = agent.cut.remote(addresses, lasts)
        try:
            troupe.get(call, timeout=_AGENT_LIMIT_S)
        except TroupeError as error:
            raise CommandError(f"{fault} of {worker}: {error.__cause__ or error}") from error
        return worker if fault in ("kill", "stop") else f"node {node}, {lasts:g} s"

    def _others_of(self, node: str) -> list[str]:
        """Addresses of the other nodes that have workers of the run."""
        import troupe

        others = {str(w["node"]) for w in self._workers()} - {node}
        self._agents(others | {node})
        own, *theirs = troupe.get([self.agents[n].addresses.remote()
                                   for n in [node, *sorted(others)]], timeout=_AGENT_LIMIT_S)
        found = sorted({address for host in theirs for address in host} - set(own))
        if not found:
            raise CommandError("partition: all workers of the run are on one host")
        return found


def _tell(effect: Effect, output: str, first: bool) -> None:
    if output == "json":
        print(json.dumps(effect.as_json()), flush=True)
        return
    if first:
        print(f"{'FAULT':<10} {'STOOD S':>8} {'CALM S':>7} {'WHOLE S':>8} {'EPOCHS':>6} "
              f"{'REPLAYED':>8} {'AGAIN':>6} {'RETURNED':>8}  OF")
    whole = "never" if effect.whole_s is None else f"{effect.whole_s:.2f}"
    print(f"{effect.fault:<10} {effect.stood_s:>8.2f} {effect.calm_s:>7.2f} {whole:>8} "
          f"{effect.epochs:>6} {effect.steps_replayed:>8} {effect.steps_recomputed:>6} "
          f"{effect.samples_returned:>8}  {effect.target}"
          + ("" if effect.went_on else "; THE RUN STANDS"), flush=True)
