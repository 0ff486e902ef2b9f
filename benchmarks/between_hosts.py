"""All-reduce between hosts: ``all-reduce`` with every member in a network namespace of its own.

The links cross virtual network devices and a bridge, with raw Gloo beside them in the same run.
Prints the JSON lines of ``all-reduce``, with ``"net": "virtual"``, or ``"virtual 8 Gbit/s"`` with
``--gbits 8``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))

import network  # noqa: E402  (the tests' virtual hosts)

SIZES = (1 << 10, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)


def main() -> int:
    """Runs the benchmark; says so and succeeds where there can be no namespaces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program",
                        default=str(ROOT / "build" / "release" / "bin" / "troupe-bench-all-reduce"))
    parser.add_argument("--members", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--seconds", type=float, default=0.5, help="per way and size")
    parser.add_argument("--gbits", type=float, help="what each host's link carries; else no limit")
    options = parser.parse_args()
    if reason := network.missing():
        print(f"between_hosts: nothing measured: {reason}", file=sys.stderr)
        return 0
    for members in options.members:
        with network.Network(members) as net:
            for host in range(members if options.gbits else 0):
                network.limit_rate(net.space(host), options.gbits)
            command = [options.program, "--members", str(members), "--seconds",
                       str(options.seconds), "--sizes", ",".join(map(str, options.sizes)),
                       "--namespaces", net.prefix, "--subnet", net.subnet]
            done = subprocess.run(command, timeout=600, stdout=subprocess.PIPE, text=True)
            if done.returncode != 0:
                return 1
            for line in done.stdout.splitlines():
                figure = json.loads(line)
                if options.gbits:
                    figure["net"] += f" {options.gbits:g} Gbit/s"
                print(json.dumps(figure), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
