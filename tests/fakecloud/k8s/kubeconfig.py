"""Files by which clients find the cluster: a kubeconfig, or the folder of a service account."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fakecloud.k8s.access import MASTERS
from fakecloud.k8s.cluster import ADMIN

if TYPE_CHECKING:
    from fakecloud.k8s.service import FakeKubernetes


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def document(cluster: FakeKubernetes, user: str = ADMIN, how: str = "token",
             namespace: str = "") -> dict[str, Any]:
    """As an object; JSON is YAML too. ``how``: by ``token``, by ``certificate``, or by ``exec``: a
    plugin, curl, that asks the administrator's door for a token."""
    if how == "certificate":
        groups = (MASTERS,) if user == ADMIN else ()
        certificate, key = cluster.authority.client(user, groups)
        who: dict[str, Any] = {"client-certificate-data": _text(certificate),
                               "client-key-data": _text(key)}
    elif how == "exec":
        who = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "curl",
                        "args": ["-sf", f"{cluster.admin_url}/credential?user={user}&seconds=600"],
                        "interactiveMode": "Never"}}
    else:
        who = {"token": cluster.cluster.access.token_of(user)}
    context = {"cluster": "fakecloud", "user": user,
               "namespace": namespace or cluster.namespace}
    return {"apiVersion": "v1", "kind": "Config", "current-context": "fakecloud",
            "clusters": [{"name": "fakecloud", "cluster": {
                "server": cluster.url,
                "certificate-authority-data": _text(cluster.authority.pem)}}],
            "users": [{"name": user, "user": who}],
            "contexts": [{"name": "fakecloud", "context": context}]}


def write(path: Path, content: dict[str, Any]) -> None:
    path.touch(0o600)
    path.write_text(json.dumps(content, indent=2) + "\n")


def write_account(folder: Path, cluster: FakeKubernetes, name: str = "default") -> None:
    """What a pod has of its service account: token, ca.crt and namespace."""
    folder.mkdir(parents=True, exist_ok=True)
    token = cluster.do(lambda: cluster.cluster.account_of(cluster.namespace, name))
    for file, content in (("token", token.encode()), ("ca.crt", cluster.authority.pem),
                          ("namespace", cluster.namespace.encode())):
        path = folder / file
        path.touch(0o600)
        path.write_bytes(content)
