"""What a container is started with: its command, its variables, its files. Pure."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.k8s import catalog
from fakecloud.k8s.selectors import Object, field_of
from fakecloud.k8s.store import Store

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WITHOUT_COMMAND = ["sleep", "infinity"]     # There is no image that could say what runs.
ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class NotReady(Exception):
    """``reason``: as a container that waits tells it; "" if it waits for a volume."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


@dataclass
class Mount:
    path: str
    files: Optional[dict[str, tuple[bytes, int]]] = None    # Name -> content and mode.
    volume: str = ""            # A folder of the pod's own.
    host: str = ""
    sub: str = ""
    read_only: bool = False


@dataclass
class Launch:
    argv: list[str]
    env: dict[str, str]
    folder: str                 # "" for the pod's own.
    mounts: list[Mount] = field(default_factory=list)


def expand(text: str, env: dict[str, str]) -> str:
    """``$(NAME)``; what is unknown stays."""
    def one(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return env.get(found[1], found[0])
    return _VARIABLE.sub(one, text)


def _data(store: Store, resource: catalog.Resource, namespace: str,
          name: str) -> Optional[dict[str, bytes]]:
    one = store.get(resource, namespace, name)
    if one is None:
        return None
    if resource is catalog.SECRETS:
        return {key: base64.b64decode(value) for key, value in (one.get("data") or {}).items()}
    found = {key: value.encode() for key, value in (one.get("data") or {}).items()}
    found.update({key: base64.b64decode(value)
                  for key, value in (one.get("binaryData") or {}).items()})
    return found


_KINDS = {"secret": (catalog.SECRETS, "secret", "Secret"),
          "configMap": (catalog.CONFIG_MAPS, "configmap", "ConfigMap")}


def _key_ref(store: Store, namespace: str, kind: str, ref: Object) -> Optional[str]:
    resource, lower, upper = _KINDS[kind]
    data = _data(store, resource, namespace, ref.get("name", ""))
    if data is None:
        if ref.get("optional"):
            return None
        raise NotReady("CreateContainerConfigError", f'{lower} "{ref.get("name", "")}" not found')
    if ref["key"] not in data:
        if ref.get("optional"):
            return None
        raise NotReady("CreateContainerConfigError",
                       f"couldn't find key {ref['key']} in {upper} {namespace}/{ref['name']}")
    return data[ref["key"]].decode("utf-8", "surrogateescape")


def field_value(pod: Object, path: str) -> str:
    found = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if found:
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        own = pod["metadata"].get(path.partition(".")[2]) or {}
        return "\n".join(f'{key}="{value}"' for key, value in sorted(own.items()))
    return field_of(pod, path)


def _variables(store: Store, pod: Object, container: Object, env: dict[str, str]) -> None:
    namespace = pod["metadata"]["namespace"]
    for one in container.get("envFrom") or []:
        for kind, key in (("configMap", "configMapRef"), ("secret", "secretRef")):
            if key not in one:
                continue
            ref = one[key]
            data = _data(store, _KINDS[kind][0], namespace, ref.get("name", ""))
            if data is None and not ref.get("optional"):
                raise NotReady("CreateContainerConfigError",
                               f'{_KINDS[kind][1]} "{ref.get("name", "")}" not found')
            env.update({one.get("prefix", "") + name: value.decode("utf-8", "surrogateescape")
                        for name, value in (data or {}).items()})
    for one in container.get("env") or []:
        source = one.get("valueFrom") or {}
        value: Optional[str] = expand(one.get("value", ""), env)
        if "fieldRef" in source:
            value = field_value(pod, source["fieldRef"]["fieldPath"])
        elif "resourceFieldRef" in source:
            kind, _, name = source["resourceFieldRef"]["resource"].partition(".")
            value = str(((container.get("resources") or {}).get(kind) or {}).get(name, "0"))
        elif "secretKeyRef" in source:
            value = _key_ref(store, namespace, "secret", source["secretKeyRef"])
        elif "configMapKeyRef" in source:
            value = _key_ref(store, namespace, "configMap", source["configMapKeyRef"])
        if value is not None:
            env[one["name"]] = value


# ---- volumes ----

def _items(data: dict[str, bytes], source: Object, mode: int,
           where: str) -> dict[str, tuple[bytes, int]]:
    if not source.get("items"):
        return {name: (value, mode) for name, value in data.items()}
    found = {}
    for one in source["items"]:
        if one["key"] not in data:
            if source.get("optional"):
                continue
            raise NotReady("", f'references non-existent {where} key: {one["key"]}')
        found[one["path"]] = (data[one["key"]], one.get("mode", mode))
    return found


def _from_store(store: Store, pod: Object, kind: str, source: Object,
                mode: int) -> dict[str, tuple[bytes, int]]:
    name = source.get("secretName") or source.get("name", "")
    data = _data(store, _KINDS[kind][0], pod["metadata"]["namespace"], name)
    if data is None:
        if source.get("optional"):
            return {}
        raise NotReady("", f'{_KINDS[kind][1]} "{name}" not found')
    return _items(data, source, mode, _KINDS[kind][1])


def _downward(pod: Object, items: list[Object], mode: int) -> dict[str, tuple[bytes, int]]:
    return {one["path"]: (field_value(pod, (one.get("fieldRef") or {}).get(
        "fieldPath", "")).encode(), one.get("mode", mode)) for one in items}


def _files(store: Store, pod: Object, volume: Object,
           account: dict[str, bytes]) -> Optional[dict[str, tuple[bytes, int]]]:
    for kind in ("secret", "configMap"):
        if kind in volume:
            return _from_store(store, pod, kind, volume[kind], volume[kind]["defaultMode"])
    if "downwardAPI" in volume:
        source = volume["downwardAPI"]
        return _downward(pod, source.get("items") or [], source["defaultMode"])
    if "projected" not in volume:
        return None
    found: dict[str, tuple[bytes, int]] = {}
    mode = volume["projected"]["defaultMode"]
    for source in volume["projected"].get("sources") or []:
        for kind in ("secret", "configMap"):
            if kind in source and not (kind == "configMap"
                                       and source[kind].get("name") == "kube-root-ca.crt"):
                found.update(_from_store(store, pod, kind, source[kind], mode))
            elif kind in source:
                found["ca.crt"] = (account.get("ca.crt", b""), mode)
        if "downwardAPI" in source:
            found.update(_downward(pod, source["downwardAPI"].get("items") or [], mode))
        if "serviceAccountToken" in source:
            found[source["serviceAccountToken"]["path"]] = (account.get("token", b""), mode)
    return found


def _mounts(store: Store, pod: Object, container: Object,
            account: dict[str, bytes]) -> list[Mount]:
    volumes = {one["name"]: one for one in pod["spec"].get("volumes") or []}
    found = []
    for one in container.get("volumeMounts") or []:
        volume = volumes[one["name"]]
        mount = Mount(one["mountPath"], volume=one["name"], sub=one.get("subPath", ""),
                      read_only=bool(one.get("readOnly")))
        if "hostPath" in volume:
            mount.host = volume["hostPath"]["path"]
        else:
            mount.files = _files(store, pod, volume, account)
            mount.read_only |= mount.files is not None
        found.append(mount)
    return found


def launch(store: Store, pod: Object, container: Object, more: dict[str, str],
           account: dict[str, bytes]) -> Launch:
    """``more``: variables of every container. Raises NotReady."""
    env = {"PATH": SEARCH_PATH, "HOSTNAME": pod["spec"].get("hostname")
           or pod["metadata"]["name"], **more}
    mounts = _mounts(store, pod, container, account)
    _variables(store, pod, container, env)
    argv = [*(container.get("command") or []), *(container.get("args") or [])]
    argv = [expand(one, env) for one in argv] or list(WITHOUT_COMMAND)
    return Launch(argv, env, container.get("workingDir", ""), mounts)


def account_volume(name: str) -> tuple[Any, Any]:
    """The volume and the mount by which the token of its service account comes into a pod."""
    volume = {"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt",
                       "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {
            "apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}
    return volume, {"name": name, "readOnly": True, "mountPath": ACCOUNT_PATH}
