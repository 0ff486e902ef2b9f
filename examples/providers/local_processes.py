#!/usr/bin/env python3
"""A supplier of nodes for `provider: exec`: each node is a shell on this machine.

A model for one of your own: what it keeps in a file, a cloud or a batch system keeps for you. The
contract is in docs/fleets.md; `troupe provider check FILE` tests a supplier. A node ends with its
shell, as a machine that shuts down. State: $TROUPE_NODES_DIR, or ~/.cache/troupe-nodes.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import uuid

OFFERS = {"spot": {"market": "spot", "price_per_hour": 0.3, "most": 8},
          "base": {"market": "on_demand", "price_per_hour": 1.0, "most": 4}}
NO_CAPACITY, BAD_CONFIG = 10, 12


def fail(status, message):
    print(message, file=sys.stderr)
    sys.exit(status)


def alive(pid):
    """Whether the node's shell runs; one that has ended and was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def offers(nodes, request):
    return {"offers": [{"name": name, "market": o["market"], "price_per_hour": o["price_per_hour"]}
                       for name, o in OFFERS.items()]}


def price(nodes, request):
    return {"prices": {name: o["price_per_hour"] for name, o in OFFERS.items()}}


def listing(nodes, request):
    return {"nodes": [{key: n[key] for key in ("id", "offer", "request_id", "tags", "state")}
                      for n in nodes]}


def create(nodes, request):
    offer = OFFERS.get(request["offer"])
    if offer is None:
        fail(BAD_CONFIG, f"there is no offer {request['offer']!r}; there are: {', '.join(OFFERS)}")
    made = [n for n in nodes if n["request_id"] == request["request_id"]]
    room = offer["most"] - sum(n["offer"] == request["offer"] for n in nodes)
    if not made and room <= 0:
        fail(NO_CAPACITY, f"all {offer['most']} nodes of {request['offer']} are taken")
    for _ in range(0 if made else min(room, request["count"])):
        shell = subprocess.Popen(["sh", "-c", request["user_data"]], start_new_session=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        made.append({"id": f"local-{uuid.uuid4().hex[:8]}", "offer": request["offer"],
                     "request_id": request["request_id"], "tags": request["tags"],
                     "state": "running", "pid": shell.pid})
        nodes.append(made[-1])
    return {"nodes": [{"id": n["id"]} for n in made]}


def terminate(nodes, request):
    for node in [n for n in nodes if n["id"] in request["ids"]]:
        since = node.setdefault("stopping_since", time.time())
        node["state"] = "stopping"
        os.killpg(node["pid"], signal.SIGKILL if time.time() > since + 10 else signal.SIGTERM)
    return {}


def main():
    request = json.load(sys.stdin)
    verbs = {"offers": offers, "price": price, "list": listing, "create": create,
             "terminate": terminate}
    if request["verb"] not in verbs:
        fail(BAD_CONFIG, f"unknown verb {request['verb']!r}")
    folder = os.environ.get("TROUPE_NODES_DIR") or os.path.expanduser("~/.cache/troupe-nodes")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "nodes.json"), "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # One request at a time.
        file.seek(0)
        text = file.read()
        nodes = [n for n in json.loads(text or "[]") if alive(n["pid"])]
        reply = verbs[request["verb"]](nodes, request)
        file.seek(0)
        file.truncate()
        json.dump(nodes, file)
    print(json.dumps(reply))


if __name__ == "__main__":
    main()
