"""A fake Kubernetes for tests, and a small client of our own for what goes over the wire."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlencode, urlsplit

from fakecloud.k8s.cluster import ADMIN
from fakecloud.k8s.service import FakeKubernetes
from processes import MARK, until

QUICK: dict[str, Any] = {"create_s": 0, "gc_s": 0.02, "automount": False, "pools": [
    {"name": "a", "count": 2, "cpu": "4", "memory": "8Gi"}]}
PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/default/secrets"
MERGE = "application/merge-patch+json"
LIMIT_S = 10.0
Object = dict[str, Any]


def pod(name: str = "p", command: str = "sleep 1000", **spec: Any) -> Object:
    """With one container, which a shell runs. What else is named is of the spec.

    A dollar that comes twice is one to Kubernetes, which the shell is not to notice."""
    shell = ["sh", "-c", command.replace("$$", "$$$$")]
    container = {"name": "main", "image": "busybox", "command": shell,
                 **spec.pop("container", {})}
    meta = spec.pop("metadata", {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                     "containers": [container], **spec}}


def needing(amounts: dict[str, str]) -> Object:
    """A container's resources."""
    return {"resources": {"requests": amounts}}


def secret(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {
        key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


class Watching:
    """A watch on a connection of its own, read line by line."""

    def __init__(self, client: Client, path: str, query: dict[str, Any]) -> None:
        self._connection = client.connect()
        self._connection.request("GET", f"{path}?{urlencode({'watch': 1, **query})}",
                                 headers=client.headers())
        self.reply = self._connection.getresponse()

    def next(self) -> Object:
        line = self.reply.readline()
        assert line.endswith(b"\n"), f"the watch has ended: {line!r}"
        found: Object = json.loads(line)
        return found

    def until(self, kind: str) -> list[Object]:
        """All events up to the first one of the kind."""
        found = [self.next()]
        while found[-1]["type"] != kind:
            found.append(self.next())
        return found

    def rest(self) -> list[Object]:
        """All that comes until it ends."""
        return [json.loads(line) for line in self.reply.read().splitlines()]

    def close(self) -> None:
        self.reply.close()      # It holds the connection, too.
        self._connection.close()


class Client:
    """One connection, kept alive. ``token``: None for none."""

    def __init__(self, cluster: FakeKubernetes, user: Optional[str] = ADMIN,
                 certificate: Optional[Path] = None) -> None:
        self.cluster = cluster
        self.token = None if user is None else cluster.do(
            lambda: cluster.cluster.access.token_of(user))
        self._context = ssl.create_default_context(cadata=cluster.authority.pem.decode())
        if certificate is not None:
            self._context.load_cert_chain(certificate)
        self._connection = self.connect()

    def connect(self) -> http.client.HTTPSConnection:
        address = urlsplit(self.cluster.url)
        assert address.hostname
        return http.client.HTTPSConnection(address.hostname, address.port, timeout=LIMIT_S,
                                           context=self._context)

    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def raw(self, method: str, path: str, body: Any = None, kind: str = "application/json",
            **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        more = {} if data is None else {"Content-Type": kind}
        try:
            self._connection.request(method, path, data, {**self.headers(), **more, **{
                name.replace("_", "-"): value for name, value in headers.items()}})
            reply = self._connection.getresponse()
            return reply.status, reply.read(), reply.headers
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def ask(self, method: str, path: str, body: Any = None, status: int = 0, **more: Any) -> Object:
        """Of this status; without one, of any that is good."""
        got, text, _ = self.raw(method, path, body, **more)
        assert got == status or (not status and got < 300), (got, text)
        found: Object = json.loads(text)
        return found

    def get(self, path: str, **query: Any) -> Object:
        return self.ask("GET", f"{path}?{urlencode(query)}" if query else path)

    def create(self, one: Object, path: str = "") -> Object:
        path = path or {"Pod": PODS, "Secret": SECRETS}[one["kind"]]
        return self.ask("POST", path, one, 201)

    def refused(self, method: str, path: str, body: Any, code: int, reason: str,
                **more: Any) -> Object:
        """The Status of what is not done."""
        found = self.ask(method, path, body, code, **more)
        assert (found["kind"], found["status"], found["reason"], found["code"]) == (
            "Status", "Failure", reason, code)
        return found

    def names(self, path: str, **query: Any) -> list[str]:
        return [one["metadata"]["name"] for one in self.get(path, **query)["items"]]

    def watch(self, path: str, **query: Any) -> Watching:
        return Watching(self, path, query)

    def phase(self, name: str) -> str:
        status, text, _ = self.raw("GET", f"{PODS}/{name}")
        return "" if status == 404 else str(json.loads(text)["status"]["phase"])

    def reaches(self, name: str, phase: str) -> Object:
        """Waits until the pod has the phase; "" until it is gone."""
        until(lambda: self.phase(name), phase, LIMIT_S)
        return {} if not phase else self.get(f"{PODS}/{name}")

    def state(self, name: str) -> Object:
        """Of its first container."""
        found: Object = self.get(f"{PODS}/{name}")["status"].get("containerStatuses", [{}])[0]
        return found

    def log(self, name: str, **query: Any) -> str:
        path = f"{PODS}/{name}/log?{urlencode(query)}"
        status, text, _ = self.raw("GET", path)
        assert status == 200, text
        return text.decode()


def condition(one: dict[str, Any], kind: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [each for each in one["status"].get("conditions", [])
                                   if each["type"] == kind]
    return found[0] if found else {}


@contextlib.contextmanager
def serving(folder: Path, mark: str = "", **settings: Any) -> Iterator[FakeKubernetes]:
    """Ends with nothing left in the folder."""
    more = {**QUICK, **settings}
    if mark:
        more["environment"] = {MARK: mark, **more.get("environment", {})}
    with FakeKubernetes(more, folder=folder) as cluster:
        yield cluster
    assert list(folder.iterdir()) == []
