"""The metadata server of one instance, or of whoever is outside of all. Pure: who serves it waits.

Source: Compute Engine documentation, "About VM metadata" and "Query metadata".
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Optional, Union
from urllib.parse import parse_qsl

from fakecloud.gce.catalog import PROJECT_NUMBER
from fakecloud.gce.cloud import Cloud
from fakecloud.gce.instances import Instance
from fakecloud.gce.tokens import Token, Tokens
from fakecloud.gcp import FLAVOR
from fakecloud.service import Reply, Request

ROOT = "/computeMetadata/v1"
FRESH_S = 300.0         # Tokens are replaced so long before they expire.
WAIT_MAX_S = 3600.0
Tree = Union[str, dict[str, Any]]


@dataclass
class Waiting:
    """Nothing is answered while the ETag is this one, for so long at most."""

    etag: str
    limit_s: float


def _camel(name: str) -> str:
    head, *rest = name.split("-")
    return head + "".join(word.capitalize() for word in rest)


def _as_json(tree: Tree, path: str = "") -> Any:
    """Names of attributes and of projects' keys stay as they are."""
    if isinstance(tree, str):
        number = path.endswith(("/id", "/numeric-project-id")) and tree.isdigit()
        return int(tree) if number else tree
    plain = path.endswith(("/attributes", "/service-accounts"))
    if path.endswith("/service-accounts/default") or "/service-accounts/" in path:
        return {"aliases": ["default"], "email": tree["email"],
                "scopes": tree["scopes"].splitlines()}
    if path.endswith(("/disks", "/network-interfaces", "/access-configs")):
        return [_as_json(one, f"{path}/{name}") for name, one in tree.items()]
    return {name if plain else _camel(name): _as_json(one, f"{path}/{name}")
            for name, one in tree.items()}


def _as_lines(tree: Tree, path: str) -> str:
    if isinstance(tree, str):
        return f"{path} {tree}\n"
    return "".join(_as_lines(one, f"{path}/{name}" if path else name)
                   for name, one in tree.items())


class InstanceMetadata:
    """``one``: None for what is outside of all instances."""

    def __init__(self, cloud: Cloud, tokens: Tokens, one: Optional[Instance]) -> None:
        self._cloud, self._tokens, self._one = cloud, tokens, one
        self._token: Optional[Token] = None

    # ---- what a machine is told; the cloud's state is what is read ----

    def interrupt(self, lead_s: float) -> None:
        """Nothing: the tree is read from the instance each time."""

    def calm(self) -> None:
        """As above."""

    def forget(self) -> None:
        """Its tokens go on until they expire, as real ones do."""

    def _account(self) -> tuple[str, tuple[str, ...]]:
        if self._one is None:
            return self._tokens.default_account, (
                "https://www.googleapis.com/auth/cloud-platform",)
        email = self._one.spec.account
        return (self._tokens.default_account if email == "default" else email,
                self._one.spec.scopes)

    def _accounts(self) -> dict[str, Any]:
        email, scopes = self._account()
        if not email:
            return {}
        one = {"aliases": "default\n", "email": email, "scopes": "\n".join(scopes) + "\n",
               "token": ""}
        return {"default": one, email: one}

    def _instance(self) -> dict[str, Any]:
        one = self._one
        if one is None:
            return {"attributes": {}, "id": "4711", "name": "outside", "preempted": "FALSE",
                    "maintenance-event": "NONE", "service-accounts": self._accounts(),
                    "zone": f"projects/{PROJECT_NUMBER}/zones/{self._cloud.zones()[0]}"}
        spec = one.spec
        return {
            "attributes": dict(one.metadata), "cpu-platform": "Intel Broadwell",
            "description": spec.description,
            "disks": {"0": {"device-name": "persistent-disk-0", "index": "0",
                            "interface": "SCSI", "mode": "READ_WRITE",
                            "type": "PERSISTENT-BALANCED"}},
            "hostname": f"{spec.name}.{spec.zone}.c.{spec.project}.internal", "id": one.id,
            "image": spec.image, "machine-type":
                f"projects/{PROJECT_NUMBER}/machineTypes/{spec.type_name}",
            "maintenance-event": one.maintenance, "name": spec.name,
            "network-interfaces": {"0": {"ip": one.address, "mac": "42:01:0a:80:00:02",
                "network": f"projects/{PROJECT_NUMBER}/networks/"
                           + spec.network.rpartition("/")[2]}},
            "preempted": "TRUE" if one.preempted else "FALSE",
            "scheduling": {"automatic-restart": str(spec.restarts).upper(),
                           "on-host-maintenance": spec.on_maintenance,
                           "preemptible": str(spec.spot).upper()},
            "service-accounts": self._accounts(), "tags": json.dumps(list(one.tags)),
            "zone": f"projects/{PROJECT_NUMBER}/zones/{spec.zone}"}

    def tree(self) -> dict[str, Any]:
        project = {"attributes": {}, "numeric-project-id": PROJECT_NUMBER,
                   "project-id": self._cloud.project}
        return {"instance": self._instance(), "project": project,
                "universe": {"universe-domain": "googleapis.com"}}

    # ---- answers ----

    def _find(self, path: str) -> Optional[Tree]:
        found: Tree = self.tree()
        for word in path.strip("/").split("/") if path.strip("/") else []:
            if not isinstance(found, dict) or word not in found:
                return None
            found = found[word]
        return found

    def _new_token(self) -> Token:
        email, scopes = self._account()
        now_s, life_s = self._cloud.now_s, self._cloud.settings.token_s
        fresh_s = min(FRESH_S, life_s / 10)
        if self._token is None or self._token.expires_s - now_s <= fresh_s:
            self._token = self._tokens.issue(email, now_s, life_s, scopes)
        return self._token

    def _render(self, path: str, found: Tree, query: dict[str, str]) -> tuple[str, str]:
        """Text and its type."""
        recursive = query.get("recursive", "").lower() == "true"
        form = query.get("alt", "json" if recursive else "text")
        if path.endswith("/token"):
            token = self._new_token()
            left_s = int(token.expires_s - self._cloud.now_s)
            return json.dumps({"access_token": token.text, "expires_in": left_s,
                               "token_type": "Bearer"}), "application/json"
        if isinstance(found, dict) and not recursive:
            text = "".join(f"{name}/\n" if isinstance(one, dict) else f"{name}\n"
                           for name, one in found.items())
            return text, "application/text"
        if form == "json":
            return json.dumps(_as_json(found, path.rstrip("/"))), "application/json"
        if isinstance(found, dict):
            return _as_lines(found, ""), "application/text"
        return found, "application/text"

    def answer(self, request: Request, waits: bool = True) -> Union[Reply, Waiting]:
        """``waits``: whether a change may be waited for."""
        if request.headers.get("Metadata-Flavor") != "Google":
            return Reply(403, "Missing Metadata-Flavor:Google header.\n", dict(FLAVOR))
        if "X-Forwarded-For" in request.headers:
            return Reply(403, "", dict(FLAVOR))
        if request.path in ("/", "/computeMetadata", "/computeMetadata/"):
            return Reply(200, "computeMetadata/\n", dict(FLAVOR))
        query = dict(parse_qsl(request.query))
        path = request.path.removeprefix(ROOT)
        found = None if path == request.path else self._find(path)
        if found is None:
            return Reply(404, "", dict(FLAVOR))
        if request.method != "GET":
            return Reply(405, "", dict(FLAVOR))
        if isinstance(found, dict) and not path.endswith("/"):
            more = f"?{request.query}" if request.query else ""
            return Reply(301, "", {**FLAVOR, "Location": f"{request.path}/{more}"})
        etag = hashlib.sha256(json.dumps([path, found]).encode()).hexdigest()[:16]
        if waits and query.get("wait_for_change", "").lower() == "true":
            try:
                limit_s = float(query.get("timeout_sec", WAIT_MAX_S))
            except ValueError:
                return Reply(400, "", dict(FLAVOR))
            if query.get("last_etag", etag) == etag:
                return Waiting(etag, max(0.0, min(WAIT_MAX_S, limit_s)))
        text, kind = self._render(path, found, query)
        return Reply(200, text, {**FLAVOR, "ETag": etag, "Content-Type": kind})
