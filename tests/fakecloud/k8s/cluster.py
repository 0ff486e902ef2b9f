"""The cluster as a whole under its own clock: objects, who may what, nodes, pods, and time. Pure:
what is to be done on this host is left as effects of the kubelet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Optional

from fakecloud.k8s import catalog
from fakecloud.k8s.access import ACCOUNT, MASTERS, Access
from fakecloud.k8s.admission import Admission
from fakecloud.k8s.controllers import Controllers
from fakecloud.k8s.errors import ApiError, bad_request, conflict
from fakecloud.k8s.faults import Faults
from fakecloud.k8s.kubelet import Kubelet
from fakecloud.k8s.ledger import Ledger
from fakecloud.k8s.nodes import Nodes
from fakecloud.k8s.registry import Registry, stamp
from fakecloud.k8s.selectors import Object
from fakecloud.k8s.settings import Settings
from fakecloud.k8s.store import Store

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
ADMIN, MEMBER, NOBODY = "kubernetes-admin", "troupe", "nobody"
ALL = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


class Cluster:
    def __init__(self, settings: Optional[Settings] = None, seed: int = 0,
                 now_s: float = 1_000_000.0) -> None:
        self.settings = settings or Settings()
        self.now_s, self.address = now_s, "127.0.0.1:6443"
        self.rng = random.Random(seed)
        self.store = Store(self.settings.history)
        self.access = Access(self.store)
        self.registry = Registry(self.store, lambda: self.now_s, self.rng)
        self.admission = Admission(self.registry, self.settings, self.rng)
        self.registry.admit = self.admission.admit
        self.registry.admit_update = self.admission.admit_update
        self.faults = Faults(self.rng.random, lambda: self.store.version)
        self.ledger = Ledger(self.store, lambda: self.now_s)
        self.kubelet = Kubelet(self.registry, self.settings, self.rng,
                               lambda node: self.nodes.alive(node))
        self.nodes = Nodes(self.registry, self.settings, self.kubelet, self.rng)
        self.controllers = Controllers(self.registry, self.settings, self.nodes, self.admission,
                                       self.rng)
        self.authority = b""
        self._account_tokens: dict[tuple[str, str], str] = {}
        self.kubelet.account = self._account_files
        for name in (*NAMESPACES, *self.settings.namespaces):
            self.registry.create(catalog.NAMESPACES, "", {"metadata": {"name": name}})
        self.controllers.step(self.now_s)
        self.nodes.begin(self.now_s)

    # ---- users ----

    def begin_users(self, namespace: str = "default") -> None:
        """Those that every cluster here has: one who may all, one who may all in a namespace, and
        one who may nothing."""
        self.access.add(ADMIN, (MASTERS,))
        self.access.add(MEMBER)
        self.access.rules[MEMBER] = [(namespace, ALL)]
        self.access.add(NOBODY)

    def account_of(self, namespace: str, name: str) -> str:
        """The token of a service account, made when it is first wanted."""
        key = (namespace, name)
        if key not in self._account_tokens:
            self._account_tokens[key] = self.access.add(
                f"{ACCOUNT}{namespace}:{name}",
                ("system:serviceaccounts", f"system:serviceaccounts:{namespace}"))
        return self._account_tokens[key]

    def account_token(self, namespace: str, name: str, body: Any) -> Object:
        """What a TokenRequest is answered."""
        spec = (body.get("spec") or {}) if isinstance(body, dict) else {}
        seconds = spec.get("expirationSeconds", 3600)
        if not isinstance(seconds, int) or seconds < 1:
            raise bad_request("expirationSeconds is a number of at least 1")
        ends_s = self.now_s + seconds
        token = self.access.add(
            f"{ACCOUNT}{namespace}:{name}",
            ("system:serviceaccounts", f"system:serviceaccounts:{namespace}"), "", ends_s)
        return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
                "metadata": {"name": name, "namespace": namespace}, "spec": spec,
                "status": {"token": token, "expirationTimestamp": stamp(ends_s)}}

    def _account_files(self, pod: Object) -> dict[str, bytes]:
        namespace = pod["metadata"]["namespace"]
        name = pod["spec"].get("serviceAccountName", "default")
        return {"token": self.account_of(namespace, name).encode(), "ca.crt": self.authority}

    # ---- time ----

    def advance(self, now_s: float) -> None:
        self.now_s = max(self.now_s, now_s)
        self.nodes.step(self.now_s)
        self.controllers.step(self.now_s)
        self.kubelet.step(self.now_s)

    def next_due(self) -> Optional[float]:
        times = [self.kubelet.next_due(), self.controllers.next_due(), self.nodes.next_due()]
        return min((one for one in times if one is not None), default=None)

    # ---- pods ----

    def bind(self, pod: Object, node: str) -> None:
        if pod["spec"].get("nodeName"):
            raise conflict("", "pods/binding", pod["metadata"]["name"],
                           f"pod {pod['metadata']['name']} is already assigned to node "
                           f"\"{pod['spec']['nodeName']}\"")
        self.registry.need(catalog.NODES, "", node)
        self.controllers.bind(pod, node)

    def evict(self, pod: Object, options: Object, dry: bool = False) -> None:
        """Raises 429 if a budget forbids it."""
        self.controllers.check_budgets(pod, dry)
        if dry:
            return
        pod = self.controllers.disrupt(pod, "EvictionByEvictionAPI",
                                       "Eviction API: evicting")
        self.registry.delete(catalog.PODS, pod, options)

    def try_(self, what: Callable[[], object]) -> str:
        """What an administrator's order does, and why it did not."""
        try:
            what()
        except ApiError as error:
            return error.message
        return ""
