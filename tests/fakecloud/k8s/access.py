"""Who asks, and what they may do: tokens, certificates, and the roles that are stored."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.k8s import catalog
from fakecloud.k8s.catalog import Resource
from fakecloud.k8s.errors import ApiError, forbidden, unauthorized
from fakecloud.k8s.store import Store

MASTERS = "system:masters"
ACCOUNT = "system:serviceaccount:"
ANONYMOUS = "system:anonymous"
OPEN_PATHS = ("/version", "/healthz", "/livez", "/readyz")
DISCOVERY = ("/api", "/apis", "/openapi", *OPEN_PATHS)


@dataclass(frozen=True)
class Asked:
    """What is asked for. ``path`` is set if it is no resource."""

    verb: str
    group: str = ""
    plural: str = ""
    sub: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


@dataclass
class User:
    name: str
    groups: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        return self.name != ANONYMOUS


@dataclass
class Token:
    user: User
    expires_s: Optional[float] = None


@dataclass
class Access:
    """``rules``: what a user may beside what roles say, as ``{"apiGroups", "resources", "verbs"}``
    with the namespace that it is good in, ``""`` for all."""

    store: Store
    tokens: dict[str, Token] = field(default_factory=dict)
    rules: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)

    # ---- who ----

    def add(self, user: str, groups: tuple[str, ...] = (), token: str = "",
            expires_s: Optional[float] = None) -> str:
        token = token or secrets.token_urlsafe(32)
        known = dict.fromkeys((*groups, "system:authenticated"))
        self.tokens[token] = Token(User(user, tuple(known)), expires_s)
        return token

    def rotate(self, user: str, now_s: float, keep_s: float = 0.0) -> str:
        """A new token; those there are go after so many seconds."""
        own = {text: one for text, one in self.tokens.items() if one.user.name == user}
        if not own:
            raise KeyError(user)
        for text, one in own.items():
            if keep_s <= 0:
                del self.tokens[text]
            else:
                one.expires_s = now_s + keep_s
        return self.add(user, next(iter(own.values())).user.groups)

    def token_of(self, user: str) -> str:
        """The newest one."""
        return [text for text, one in self.tokens.items() if one.user.name == user][-1]

    def authenticate(self, header: str, peer: Optional[dict[str, Any]], now_s: float) -> User:
        kind, _, token = header.partition(" ")
        if header and kind.lower() == "bearer":
            found = self.tokens.get(token.strip())
            if found is None or (found.expires_s is not None and found.expires_s <= now_s):
                raise unauthorized()
            return found.user
        if peer:
            pairs = [pair for part in peer.get("subject", ()) for pair in part]
            names = [value for key, value in pairs if key == "commonName"]
            groups = tuple(value for key, value in pairs if key == "organizationName")
            if names:
                return User(names[0], (*groups, "system:authenticated"))
        if header:
            raise unauthorized()
        return User(ANONYMOUS, ("system:unauthenticated",))

    # ---- what ----

    def _bound(self, user: User, binding: dict[str, Any]) -> bool:
        for one in binding.get("subjects") or []:
            kind, name = one.get("kind"), one.get("name")
            if (kind == "User" and name == user.name) or (kind == "Group" and name in user.groups):
                return True
            if kind == "ServiceAccount" and user.name == f"{ACCOUNT}{one.get('namespace')}:{name}":
                return True
        return False

    def _role(self, binding: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
        ref = binding.get("roleRef") or {}
        role = (self.store.get(catalog.CLUSTER_ROLES, "", ref.get("name", ""))
                if ref.get("kind") == "ClusterRole"
                else self.store.get(catalog.ROLES, namespace, ref.get("name", "")))
        return (role or {}).get("rules") or []

    def rules_of(self, user: User) -> list[tuple[str, dict[str, Any]]]:
        """With the namespace each is good in."""
        found = list(self.rules.get(user.name, []))
        for one in self.store.all(catalog.CLUSTER_ROLE_BINDINGS):
            if self._bound(user, one):
                found += [("", rule) for rule in self._role(one, "")]
        for one in self.store.all(catalog.ROLE_BINDINGS):
            if self._bound(user, one):
                namespace = one["metadata"]["namespace"]
                found += [(namespace, rule) for rule in self._role(one, namespace)]
        return found

    def allows(self, user: User, asked: Asked) -> bool:
        if MASTERS in user.groups:
            return True
        if asked.path:
            open_paths = DISCOVERY if user.known else OPEN_PATHS
            return any(asked.path == one or asked.path.startswith(one + "/") for one in open_paths)
        if asked.plural in ("selfsubjectaccessreviews", "selfsubjectrulesreviews"):
            return user.known
        return any(namespace in ("", asked.namespace) and _covers(rule, asked)
                   for namespace, rule in self.rules_of(user))

    def check(self, user: User, asked: Asked, resource: Optional[Resource] = None) -> None:
        if not self.allows(user, asked):
            raise self.refusal(user, asked)

    @staticmethod
    def refusal(user: User, asked: Asked) -> ApiError:
        if asked.path:
            return ApiError(403, "Forbidden",
                            f'forbidden: User "{user.name}" cannot {asked.verb} path '
                            f'"{asked.path}"', {})
        plural = f"{asked.plural}/{asked.sub}" if asked.sub else asked.plural
        where = (f'in the namespace "{asked.namespace}"' if asked.namespace
                 else "at the cluster scope")
        return forbidden(asked.group, asked.plural, asked.name,
                         f'User "{user.name}" cannot {asked.verb} resource "{plural}" in API group '
                         f'"{asked.group}" {where}')


def _covers(rule: dict[str, Any], asked: Asked) -> bool:
    plural = f"{asked.plural}/{asked.sub}" if asked.sub else asked.plural
    names = rule.get("resourceNames") or []
    groups, plurals = rule.get("apiGroups") or [], rule.get("resources") or []
    verbs = rule.get("verbs") or []
    return (("*" in verbs or asked.verb in verbs) and ("*" in groups or asked.group in groups)
            and ("*" in plurals or plural in plurals or (bool(asked.sub)
                 and f"*/{asked.sub}" in plurals)) and (not names or asked.name in names))
