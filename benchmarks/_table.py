"""Runs every benchmark and prints one table: our figure, the reference of the same run, the goal.

Started by scripts/bench.sh. Every benchmark prints JSON lines; they are kept in ``--results``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

LIMIT_S = 900.0
SMALL = 65536
GBITS = 8  # Between hosts where the network is slower than the CPU.
LIMITED_SIZES = (1 << 20, 16 << 20, 96 << 20)
Line = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A figure of ours, by the fields of its JSON line, with what it is held against."""

    title: str
    ours: Line
    reference: Optional[Line] = None
    reach: str = ""
    most: Optional[float] = None  # p50 may be at most this
    least: Optional[float] = None  # or must be at least this
    ratio: Optional[float] = None  # p50 may be at most this many times the reference's
    least_ratio: Optional[float] = None  # or must be at least as many times


def recovery_rows() -> list[Row]:
    """What happens to those that stay when a member dies, leaves or joins."""
    rows = []
    large = {"bytes": 4 << 20, "heap_mib": 0}
    for n, limit in ((2, None), (4, 5.0), (8, 15.0)):
        rows.append(Row(
            f"kill to first all-reduce, N={n}",
            {"bench": "kill_to_first_allreduce", "n": n, **large},
            {"bench": "naive_gloo_kill_to_first_allreduce", "n": n} if n > 2 else None,
            f"<= {limit:g} ms" if limit else "", limit))
        rows.append(Row(f"kill to the 4 MB all-reduce done again, N={n}",
                        {"bench": "kill_to_allreduce_redone", "n": n, **large}))
    rows += [
        Row("kill to first all-reduce, N=4, 1 GiB heap each",
            {"bench": "kill_to_first_allreduce", "n": 4, "heap_mib": 1024},
            {"bench": "kill_to_first_allreduce", "n": 4, **large}, "<= 2 x small heap",
            ratio=2.0),
        Row("planned leave, pause, N=8", {"bench": "leave_pause", "n": 8, **large}, None,
            "<= 2 ms", 2.0),
        Row("join, pause, N=4", {"bench": "join_pause", "n": 4, **large}, None, "<= 3 ms", 3.0),
        Row("kill to full size, C++, N=4", {"bench": "kill_to_full_size", "n": 4, **large}, None,
            "<= 300 ms", 300.0),
    ]
    for bench, title in (("kill_to_first_allreduce", "kill in a 64 KB all-reduce to the first one"),
                         ("leave_pause", "planned leave between 64 KB all-reduces, pause")):
        small: Line = {"bench": bench, "bytes": SMALL, "heap_mib": 0}
        for n in (8, 16, 32):
            rows.append(Row(f"{title}, N={n}", {**small, "n": n}, {**small, "n": n // 2},
                            "<= 2 x N/2", ratio=2.0))
    rows += control_rows() + fault_rows()
    for model, title in (("mlp", "MLP"), ("resnet50", "ResNet-50-shaped")):
        rows.append(Row(f"kill to next step, PyTorch {title}, N=4",
                        {"bench": "troupe_kill_to_next_step", "model": model},
                        {"bench": "torchelastic_kill_to_next_step", "model": model},
                        "<= 20 ms + a step"))
        rows.append(Row(f"the same, a script of torch.distributed, {title}",
                        {"bench": "torch_distributed_kill_to_next_step", "model": model},
                        {"bench": "torchelastic_kill_to_next_step", "model": model},
                        "<= 100 ms + a step"))
        rows.append(Row(f"the same beside elastic Horovod, {title}",
                        {"bench": "troupe_kill_to_next_step", "model": model},
                        {"bench": "horovod_kill_to_next_step", "model": model}))
    return rows


def control_rows() -> list[Row]:
    """What a killed head or Redis costs, and the state that a joiner gets."""
    rows = []
    for kind, title in (("head", "head"), ("redis", "Redis")):
        rows += [
            Row(f"{title} killed: longest step until control is back; reference: longest before",
                {"bench": f"{kind}_restart_step"}, {"bench": f"{kind}_restart_step_before"}),
            Row(f"{title} killed: until a resize is in force", {"bench": f"{kind}_restart_control"},
                None, "<= 3 s", 3000.0),
        ]
    stream: Line = {"bench": "state_transfer", "way": "raw_stream"}
    for way, title in (("memory", "through memory"), ("links", "over links"),
                       ("links_two_sources", "over links from two sources")):
        rows.append(Row(f"1 GiB of state to a joiner, {title}; reference: a raw TCP stream",
                        {"bench": "state_transfer", "way": way}, stream, "<= 1.25 x", ratio=1.25))
    rows.append(Row(
        "a join with 256 MiB of state, added to a step; reference: members wait for the transfer",
        {"bench": "join_state", "way": "beside"}, {"bench": "join_state", "way": "before"},
        "<= a step"))
    return rows


def fault_rows() -> list[Row]:
    """What floods of output and cut routes cost."""
    return [
        Row("kill to next step while a worker prints at full speed, N=4; reference: without",
            {"bench": "flood_kill_to_next_step", "way": "flood"},
            {"bench": "flood_kill_to_next_step", "way": "quiet"}, "<= 2 x", ratio=2.0),
        Row("status while 4 workers print at full speed; reference: without",
            {"bench": "status_latency", "way": "flood"},
            {"bench": "status_latency", "way": "quiet"}),
        Row("1 GB of results from 4 ranks", {"bench": "results"}),
        Row("route between two hosts cut: until it is told", {"bench": "route_cut_report"}),
        Row("route between two hosts cut: until the next step", {"bench": "route_cut_step"}),
        Row("the route is back: until both train", {"bench": "route_back_step"}),
    ]


def actor_rows() -> list[Row]:
    """What actors cost beside their calls."""
    return [
        Row("actor calls, 4 callers and 4 actors", {"bench": "actor_calls_n_n"}),
        Row("actors in a process, made and called", {"bench": "fiber_actor_creation"}, None,
            ">= 10000/s", least=10_000),
        Row("actors with a process each, the same", {"bench": "process_actor_creation"}, None,
            ">= 50/s per core", least=50.0 * (os.cpu_count() or 1)),
        Row("placement groups made and removed, through the head",
            {"bench": "group_create_remove"}, None, ">= 5000/s", least=5000),
        Row("100 MB as an argument", {"bench": "actor_array_argument"},
            {"bench": "memcpy_100mb"}, ">= 0.5 x", least_ratio=0.5),
        Row("100 MB put and passed", {"bench": "actor_array_put"},
            {"bench": "memcpy_100mb"}, ">= 0.5 x", least_ratio=0.5),
        Row("1 GB put and got by one process; reference: memcpy", {"bench": "put_get_1gb"},
            {"bench": "memcpy_1gb"}),
        Row("1 GB put and got by one process; reference: memcpy to fresh memory",
            {"bench": "put_get_1gb"}, {"bench": "memcpy_1gb_fresh"}, ">= 1 x", least_ratio=1.0),
        Row("512 MB to an actor of another host", {"bench": "object_pull"}),
        Row("a call while its host pulls 512 MB; reference: pulls nothing",
            {"bench": "call_beside_pull", "way": "pull"},
            {"bench": "call_beside_pull", "way": "nothing"}),
        Row("64 MB of weights from one to 4 actors; reference: memcpy",
            {"bench": "weights", "way": "broadcast"}, {"bench": "weights", "way": "memcpy"}),
        Row("all-reduce of 16 MB by 2 actors; reference: by executor.run",
            {"bench": "all_reduce_of_actors", "way": "actors"},
            {"bench": "all_reduce_of_actors", "way": "executor"}, "<= 1.02 x", ratio=1.02),
        Row("a Python actor, made and called; reference: no process ahead",
            {"bench": "actor_created", "way": "warm"}, {"bench": "actor_created", "way": "cold"},
            "<= 10 ms", 10.0),
        Row("a group of 4 Python actors, until its first all-reduce; reference: the same",
            {"bench": "actor_group_first_allreduce", "way": "warm"},
            {"bench": "actor_group_first_allreduce", "way": "cold"}, "<= 100 ms", 100.0),
        Row("embedded cluster, start", {"bench": "runtime_start"}, None, "<= 500 ms", 500.0),
        Row("head, memory at rest", {"bench": "head_rss"}, None, "<= 50 MB", 50.0),
        Row("node, memory at rest", {"bench": "node_rss"}, None, "<= 30 MB", 30.0),
    ]


def reduction_rows() -> list[Row]:
    """In-place sums, by instruction set, next to memcpy of the same bytes."""
    rows = []
    for size, title in ((256 << 10, "256 KiB"), (64 << 20, "64 MiB")):
        for dtype in ("float32", "float16", "bfloat16"):
            for simd in ("scalar", "avx2", "avx512"):
                rows.append(Row(
                    f"sum of {dtype}, {title}, {simd}",
                    {"bench": "reduce", "dtype": dtype, "op": "sum", "simd": simd, "bytes": size},
                    {"bench": "memcpy", "dtype": dtype, "bytes": size}))
    return rows


def all_reduce_rows() -> list[Row]:
    """All-reduce between processes of one host, through memory and over links."""
    rows = []
    for n, most in ((2, 50.0), (4, 300.0)):
        base: Line = {"bench": "all_reduce", "net": "loopback", "n": n}
        for size, title in ((4096, "4 KB"), (1 << 20, "1 MB"), (16 << 20, "16 MB"),
                            (102236160, "102 MB")):
            memory = {**base, "way": "memory", "bytes": size}
            ring = {**memory, "way": "gloo_ring"}
            small = size == 4096
            rows.append(Row(f"all-reduce of {title}, N={n}, through memory; reference: Gloo ring",
                            memory, ring, f"<= {most:g} us" if small else "",
                            most if small else None))
            if size == 102236160:
                rows.append(Row(
                    f"all-reduce of {title}, N={n}, through memory; reference: its limit",
                    memory, {**memory, "way": "limit"}))
            rows.append(Row(f"all-reduce of {title}, N={n}, over links; reference: Gloo ring",
                            {**memory, "way": "links"}, ring, "<= 1.05 x", ratio=1.05))
    return rows


def between_hosts_rows() -> list[Row]:
    """All-reduce over links between network namespaces."""
    rows = []
    titles = {1 << 10: "1 KB", 64 << 10: "64 KB", 1 << 20: "1 MB", 16 << 20: "16 MB",
              96 << 20: "96 MB", 256 << 20: "256 MB"}
    sizes = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
    for n, rate, of in ((2, "", sizes), (4, "", sizes), (2, f" {GBITS} Gbit/s", LIMITED_SIZES)):
        for size in of:
            title = titles[size]
            ours: Line = {"bench": "all_reduce", "net": f"virtual{rate}", "n": n, "bytes": size,
                          "way": "links"}
            where = f"{n} hosts" + (f" at{rate}" if rate else "")
            rows.append(Row(f"all-reduce of {title} between {where}; reference: Gloo ring", ours,
                            {**ours, "way": "gloo_ring"}, "<= 1.05 x", ratio=1.05))
    return rows


def gradient_rows() -> list[Row]:
    """A backward pass with its reduction next to DDP, and what a commit costs a step."""
    rows = []
    for n in (2, 4):
        ours: Line = {"bench": "gradients", "way": "troupe", "n": n}
        title = f"backward and reduction, ResNet-50-shaped, N={n}"
        rows += [
            Row(f"{title}, next to DDP", ours, {**ours, "way": "ddp"}, "<= 0.5 x", ratio=0.5),
            Row(f"{title}, next to DDP with bucket views", ours, {**ours, "way": "ddp_view"},
                "<= 0.5 x", ratio=0.5),
            Row(f"{title}, DDP on the backend \"troupe\" next to DDP on Gloo",
                {**ours, "way": "ddp_troupe"}, {**ours, "way": "ddp"}, "<= 0.5 x", ratio=0.5),
            Row(f"{title}, the same with bucket views", {**ours, "way": "ddp_view_troupe"},
                {**ours, "way": "ddp_view"}, "<= 0.5 x", ratio=0.5),
            Row(f"{title}, next to its limit", ours, {**ours, "way": "limit"}, "<= 1.3 x",
                ratio=1.3),
            Row(f"{title}, buckets chosen by time; reference: fixed buckets",
                {**ours, "way": "troupe_auto"}, ours),
            Row(f"SGD step with a copied commit next to one without, ResNet-50-shaped, N={n}",
                {"bench": "elastic_step", "way": "commit_copied", "n": n},
                {"bench": "elastic_step", "way": "no_commit", "n": n}),
            Row(f"SGD step with a commit next to one without, ResNet-50-shaped, N={n}",
                {"bench": "elastic_step", "way": "commit", "n": n},
                {"bench": "elastic_step", "way": "no_commit", "n": n}, "<= 1.01 x", ratio=1.01),
        ]
    return rows


def overlap_rows() -> list[Row]:
    """Reduction behind the backward pass, over links of a given rate."""
    rows = [Row("backward and reduction, 96 MB, 2 hosts, 8 Gbit/s; reference: DDP, bucket views",
                {"bench": "overlap", "way": "overlapped"}, {"bench": "overlap", "way": "ddp"})]
    rows.append(Row("of that reduction hidden behind backward; reference: DDP",
                    {"bench": "overlap_hidden", "way": "overlapped"},
                    {"bench": "overlap_hidden", "way": "ddp"}))
    return rows


ROWS = [
    *recovery_rows(),
    *all_reduce_rows(),
    *between_hosts_rows(),
    *reduction_rows(),
    Row("commit(), 204 MB, durable; reference: to memory", {"bench": "commit_durable"},
        {"bench": "commit_to_memory"}),
    Row("commit(), 204 MB, durable; reference: torch.save", {"bench": "commit_durable"},
        {"bench": "torch_save"}),
    *gradient_rows(),
    *overlap_rows(),
    Row("a decision of the autoscaler, 10,000 nodes", {"bench": "decide"}, None, "<= 50 ms", 50.0),
    Row("the same with 1,000 launches", {"bench": "decide_losses"}, None, "<= 50 ms", 50.0),
    Row("placement, 10,000 nodes, 100,000 leases", {"bench": "placement_rate"}, None,
        ">= 100000/s", least=100_000),
    Row("placement, 99th percentile", {"bench": "placement_p99"}, None, "<= 100 us", 100.0),
    Row("placement, memory per lease", {"bench": "placement_bytes"}, None, "<= 1024 bytes", 1024.0),
    Row("placement group of 4, created and removed", {"bench": "group_rate"}, None, ">= 5000/s",
        least=5000),
    Row("actor call, synchronous", {"bench": "actor_call_sync"}, {"bench": "raw_zmq_sync"},
        "<= 1.5 x", ratio=1.5),
    Row("actor calls, asynchronous", {"bench": "actor_call_async"}, {"bench": "raw_zmq_async"},
        ">= 300 k/s", least=300e3),
    *actor_rows(),
]


def find(lines: Sequence[Line], wanted: Line) -> Optional[Line]:
    """The first line that has all these fields."""
    return next((line for line in lines
                 if "p50" in line and all(line.get(k) == v for k, v in wanted.items())), None)


def verdict(row: Row, ours: Line, reference: Optional[Line]) -> str:
    """Whether a goal is reached; empty if there is none, or nothing to hold it against."""
    figure = float(ours["p50"])
    if "step_ms" in ours and row.reach:
        allowed = float(row.reach.split()[1])  # "<= 20 ms + a step"
        return "yes" if figure <= allowed + float(ours["step_ms"]) else "NO"
    if row.most is not None:
        return "yes" if figure <= row.most else "NO"
    if row.least is not None:
        return "yes" if figure >= row.least else "NO"
    if row.ratio is not None and reference is not None:
        return "yes" if figure <= row.ratio * float(reference["p50"]) else "NO"
    if row.least_ratio is not None and reference is not None:
        return "yes" if figure >= row.least_ratio * float(reference["p50"]) else "NO"
    return ""


def number(line: Optional[Line], field: str) -> str:
    """A figure with its unit, as a person reads it."""
    if line is None or field not in line:
        return "-"
    value, unit = float(line[field]), line.get("unit", "")
    return f"{value / 1e3:,.0f} k/s" if unit == "calls/s" else f"{value:,.1f} {unit}"


def table(lines: Sequence[Line]) -> str:
    """The table as Markdown."""
    out = ["| figure | p50 | max | reference p50 | goal | reached |",
           "| --- | --- | --- | --- | --- | --- |"]
    for row in ROWS:
        ours = find(lines, row.ours)
        if ours is None:
            continue
        reference = find(lines, row.reference) if row.reference else None
        out.append(f"| {row.title} | {number(ours, 'p50')} | {number(ours, 'max')} | "
                   f"{number(reference, 'p50')} | {row.reach} | "
                   f"{verdict(row, ours, reference)} |")
    return "\n".join(out)


def plan(bin_dir: str, trials: int) -> list[list[str]]:
    """The commands, ours and their references side by side."""
    def program(name: str, *options: object) -> list[str]:
        return [os.path.join(bin_dir, f"troupe-bench-{name}"), *map(str, options)]

    commands = []
    for n in (2, 4, 8):
        commands.append(program("recovery", "--members", n, "--trials", trials))
        if n > 2:  # plain Gloo has no group of one
            commands.append(program("naive-gloo", "--members", n, "--trials", trials // 5))
    commands.append(program("recovery", "--members", 4, "--trials", 10, "--heap-mib", 1024))
    for n in (4, 8, 16, 32):
        commands.append(program("recovery", "--members", n, "--trials", 10, "--bytes", SMALL))
    def script(name: str, *options: str) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *options]

    commands.append(script("training_recovery"))
    commands.append(script("control_restart"))
    commands.append(script("floods"))
    commands.append(script("route_cut"))
    commands.append(script("durable_commits"))
    commands.append(program("state-transfer"))
    commands.append(script("join_state"))
    for n in (2, 4):
        commands.append(program("all-reduce", "--members", n))
    hosts = script("between_hosts", "--program", program("all-reduce")[0])
    commands.append(hosts)
    commands.append([*hosts, "--members", "2", "--gbits", str(GBITS), "--seconds", "2",
                     "--sizes", *map(str, LIMITED_SIZES)])
    commands.append(script("gradients"))
    commands.append(script("overlap"))
    commands.append(program("actor-calls"))
    commands.append(program("actor-life"))
    commands.append(script("actor_arrays"))
    commands.append(script("object_pulls"))
    commands.append(script("actor_creation"))
    commands.append(script("group_collectives"))
    commands.append(program("placement"))
    commands.append(program("reductions"))
    return commands


def main() -> int:
    """Runs all; fails if a benchmark does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin-dir", required=True)
    parser.add_argument("--results", required=True, type=Path)
    parser.add_argument("--trials", type=int, default=100)
    options = parser.parse_args()
    lines: list[Line] = []
    failed = []
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("w") as results:
        for command in plan(options.bin_dir, options.trials):
            name = " ".join([os.path.basename(command[0]), *command[1:]])
            print(f"==> {name}", flush=True)
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                failed.append(f"{name}: not done after {LIMIT_S:g} s")
                continue
            if done.returncode != 0:
                failed.append(f"{name}: exit status {done.returncode}")
            for text in done.stdout.splitlines():
                print(text, flush=True)
                if text.startswith("{"):
                    results.write(text + "\n")
                    lines.append(json.loads(text))
    print("\n" + table(lines))
    for problem in failed:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
