"""Preemptions as on a real spot market, on this machine, and a report of what they have cost.

    python examples/spot/drill.py                                   # a market that is made up
    python examples/spot/drill.py --market traces/ --speed 3600 --seconds 600

A fake EC2 whose instances are processes (docs/fleets.md, "A cloud to practise on") takes instances
back, with a notice and without, while `troupe up` keeps a training of digits on those that are
there. In the end it says how accurate the model is, that no sample was lost or counted twice and no
step done again that a living worker knew of, and writes a page, ``report.html``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FAKECLOUD = HERE.parents[1] / "tests" / "fakecloud"
ADDRESS = "127.0.0.1:7733"  # Of the head, in fleet.yaml.
ACCURACY = 0.9
SETTINGS = {"launch_s": 0.3, "shutdown_s": 0.2, "lag_s": 0,
            # Seconds of a notice, and how often each: of ten instances three have none.
            "lead_s": {"choices": [[12, 5], [5, 2], [0, 3]]}}
START_LIMIT_S = 30.0


class DrillError(Exception):
    """The drill could not be held."""


def made_up_market(seconds: float, seed: int, pace_s: float) -> dict[str, Any]:
    """Three zones that dry up in turn, as a market file: capacity and price over time.

    The capacity of a zone changes every ``pace_s`` seconds, more or less.
    """
    draw = random.Random(seed)
    pools = []
    for number, zone in enumerate(("us-east-1a", "us-east-1b", "us-east-1c")):
        at, points = 0.0, [[0.0, 2, 0.035]]
        while at < 2 * seconds + 60:
            at += draw.uniform(0.6, 1.4) * pace_s
            points.append([round(at, 2), draw.choice((0, 1, 2, 2)), 0.035 + 0.001 * number])
        pools.append({"zone": zone, "type": "m5.large", "points": points})
    return {"pools": pools}


def start_cloud(arguments: argparse.Namespace, folder: Path,
                path: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """The fake EC2, and the environment of its clients."""
    markets = arguments.market
    if not markets:
        markets = [str(folder / "market.json")]
        Path(markets[0]).write_text(json.dumps(
            made_up_market(arguments.seconds, arguments.seed, arguments.pace)))
    words = [sys.executable, str(FAKECLOUD), "ec2", "--seed", str(arguments.seed),
             "--speed", str(arguments.speed), "--with-parent", "--env", f"PYTHONPATH={path}",
             "--env", f"PATH={os.environ['PATH']}"]
    words += [word for name, value in SETTINGS.items()
              for word in ("--set", f"{name}={json.dumps(value)}")]
    words += [word for market in markets for word in ("--market", market)]
    cloud = subprocess.Popen(words, text=True, stdout=subprocess.PIPE)
    environment: dict[str, str] = {}
    assert cloud.stdout is not None
    late = threading.Timer(START_LIMIT_S, cloud.kill)
    late.start()
    for line in cloud.stdout:
        name, _, value = line.strip().partition("=")
        environment[name] = value.strip("'")
        if name == "FAKECLOUD_URL":
            late.cancel()
            return cloud, environment
    late.cancel()
    cloud.wait()
    raise DrillError("the fake EC2 did not start")


def cluster_file(folder: Path) -> Path:
    """fleet.yaml with a port that is free, beside what it runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = (HERE / "fleet.yaml").read_text().replace(ADDRESS, f"127.0.0.1:{port}")
    file = folder / "fleet.yaml"
    file.write_text(text.replace("working_dir: .", f"working_dir: {HERE}"))
    return file


def hold(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Trains on the market; what it came to.

    Raises:
        DrillError: it came to nothing.
    """
    path = os.pathsep.join(
        [*filter(None, [os.environ.get("PYTHONPATH")]), str(HERE.parent)])
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cloud, environment = start_cloud(arguments, folder, path)
    url = environment["FAKECLOUD_URL"]
    environment = {**os.environ, **environment, "PYTHONPATH": path,
                   "XDG_STATE_HOME": str(folder / "state"), "DRILL_FOLDER": str(folder),
                   "DRILL_SECONDS": str(arguments.seconds)}
    troupe = [sys.executable, "-m", "troupe"]
    try:
        up = subprocess.run([*troupe, "up", str(cluster_file(folder))], env=environment,
                            timeout=arguments.seconds + 600)
        with urllib.request.urlopen(f"{url}/events", timeout=10) as reply:
            events = json.load(reply)
        with urllib.request.urlopen(f"{url}/ledger", timeout=10) as reply:
            ledger = json.load(reply)
    finally:
        cloud.send_signal(signal.SIGTERM)
        cloud.wait(timeout=30)
    results = folder / "results.json"
    if up.returncode != 0 or not results.exists():
        raise DrillError(f"the training has ended with status {up.returncode}")
    report = [*troupe, "report", "--losses", str(folder / "losses.jsonl")]
    subprocess.run([*report, "-o", "html", arguments.report], env=environment, check=True)
    told = subprocess.run([*report, "-o", "json"], env=environment, check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    return {"training": json.loads(results.read_text()), "fleet": json.loads(told),
            "events": events, "ledger": ledger}


def main() -> int:
    """Holds the drill; 0 if the promises were kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--market", action="append", default=[], metavar="[ZONE[/TYPE]=]PATH",
                        help="traces or market files of the fake EC2 (one that is made up)")
    parser.add_argument("--speed", type=float, default=1.0, help="of a market (1)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training (60)")
    parser.add_argument("--pace", type=float, default=10.0, metavar="S",
                        help="between two changes of a zone of the made-up market (10)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", default="report.html", help="where the page goes")
    parser.add_argument("--json", metavar="FILE", help="keep all figures there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spot-") as folder:
        try:
            came_to = hold(arguments, Path(folder))
        except (DrillError, OSError, subprocess.SubprocessError) as error:
            print(f"drill: {error}", file=sys.stderr)
            return 1
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(came_to))
    training = came_to["training"]
    print(json.dumps(training))
    print(f"the page is {arguments.report}")
    kept = training["accuracy"] >= ACCURACY and training["same_weights"] and not any(
        training[name] for name in ("steps_lost", "samples_missing", "samples_doubled"))
    print("every promise was kept" if kept else "a promise was broken")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
