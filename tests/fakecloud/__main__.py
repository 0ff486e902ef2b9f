"""``python3 tests/fakecloud CLOUD``: serves one cloud's metadata until a signal ends it.

``python3 tests/fakecloud ec2`` serves a fake EC2, ``python3 tests/fakecloud k8s`` a Kubernetes,
``python3 tests/fakecloud gce`` a Compute Engine.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fakecloud import CLOUDS
from fakecloud.ec2 import cli
from fakecloud.gce import cli as gce_cli
from fakecloud.k8s import cli as k8s_cli


def main() -> None:
    if sys.argv[1:2] == ["ec2"]:
        return cli.main(sys.argv[2:])
    if sys.argv[1:2] == ["k8s"]:
        return k8s_cli.main(sys.argv[2:])
    if sys.argv[1:2] == ["gce"]:
        return gce_cli.main(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="fakecloud", description="A cloud's metadata service on this machine.",
        epilog="A whole EC2, a Compute Engine and a Kubernetes are others: see fakecloud ec2 "
               "--help, gce --help and k8s --help. Tell it what to do with POST /fakecloud, a JSON "
               "object: "
               '{"do": "interrupt", "lead_s": 120}, {"do": "calm"}, '
               '{"do": "break", "how": "slow"}.')
    parser.add_argument("cloud", choices=sorted(CLOUDS))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1338)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with CLOUDS[arguments.cloud](arguments.host, arguments.port) as service:
        print(f"TROUPE_METADATA_URL={service.url}", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            pass


main()
