"""Access tokens: who has one, for how long, and what they may not do. Pure."""

from __future__ import annotations

import fnmatch
import random
from dataclasses import dataclass
from typing import Any, Optional

from fakecloud.gce.errors import forbidden, unauthenticated

TOKENS_MAX = 10_000
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",
          "https://www.googleapis.com/auth/compute")
IAM = "https://www.googleapis.com/auth/iam"
READ_ONLY = ("https://www.googleapis.com/auth/compute.readonly",
             "https://www.googleapis.com/auth/cloud-platform.read-only")
WRITES = ("insert", "bulkInsert", "delete", "stop", "start", "setLabels", "setMetadata", "setTags",
          "simulateMaintenanceEvent")


@dataclass
class Token:
    text: str
    user: str
    expires_s: float
    scopes: tuple[str, ...]


class Tokens:
    def __init__(self, project: str, seed: int = 0) -> None:
        self._rng = random.Random(f"tokens of {seed}")
        self.account = f"fleet@{project}.iam.gserviceaccount.com"
        self.default_account = "123456789012-compute@developer.gserviceaccount.com"
        self.user = "someone@example.com"
        self.federated = ("principal://iam.googleapis.com/projects/123456789012/locations/global/"
                          "workloadIdentityPools/pool/subject/someone")
        self.audience = ("//iam.googleapis.com/projects/123456789012/locations/global/"
                         "workloadIdentityPools/pool/providers/provider")
        self.client_id, self.client_secret = "fakecloud.apps.googleusercontent.com", "not-a-secret"
        self.refresh_token = "1//fakecloud-refresh"
        self.refuses: dict[str, int] = {}       # Grants that are refused, and how often.
        self.denied: list[tuple[str, str]] = []     # Pattern of a user, and of a permission.
        self._tokens: dict[str, Token] = {}

    def issue(self, user: str, now_s: float, life_s: float,
              scopes: tuple[str, ...] = SCOPES[:1]) -> Token:
        made = Token(f"ya29.fake-{self._rng.getrandbits(160):040x}", user, now_s + life_s, scopes)
        self._tokens[made.text] = made
        while len(self._tokens) > TOKENS_MAX:
            self._tokens.pop(next(iter(self._tokens)))
        return made

    def expire(self, user: str, now_s: float) -> int:
        """All tokens of the user, or of everybody; how many."""
        found = [one for one in self._tokens.values() if user in ("", one.user)]
        for one in found:
            one.expires_s = now_s
        return len(found)

    def whose(self, header: Optional[str], now_s: float) -> Token:
        """Of an ``Authorization``. Raises GceError."""
        kind, _, text = (header or "").partition(" ")
        if not header:
            raise unauthenticated(missing=True)
        one = self._tokens.get(text.strip())
        if kind.lower() != "bearer" or one is None or one.expires_s <= now_s:
            raise unauthenticated(missing=False)
        return one

    def user_of(self, text: str) -> str:
        """Empty for a token that there has never been."""
        one = self._tokens.get(text.strip())
        return one.user if one else ""

    def check(self, token: Token, permission: str, path: str) -> None:
        """Raises GceError. ``permission``: as in compute.instances.delete."""
        verb = permission.rpartition(".")[2]
        good = {*SCOPES} if verb in (*WRITES, "create") else {*SCOPES, *READ_ONLY}
        if permission.startswith("iam."):
            good = {SCOPES[0], IAM}
        if not good & set(token.scopes):
            error = forbidden(permission, path)
            error.message = "Request had insufficient authentication scopes."
            error._one.update(message="Insufficient Permission", reason="insufficientPermissions")
            error._status = True
            raise error
        for user, pattern in self.denied:
            if fnmatch.fnmatchcase(token.user, user) and fnmatch.fnmatchcase(permission, pattern):
                raise forbidden(permission, path)

    def as_json(self) -> list[dict[str, Any]]:
        return [{"user": one.user, "expires_s": round(one.expires_s, 3), "scopes": one.scopes}
                for one in self._tokens.values()]
