"""Where tokens come from: signed assertions, refresh tokens, exchanges and impersonation."""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import math
from collections.abc import Callable
from typing import Any, Optional
from urllib.parse import parse_qsl

from fakecloud.gce.errors import GceError, OAuthError, invalid, not_found
from fakecloud.gce.tokens import Token, Tokens

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
SUBJECT_TYPES = ("urn:ietf:params:oauth:token-type:jwt",
                 "urn:ietf:params:oauth:token-type:id_token",
                 "urn:ietf:params:oauth:token-type:access_token")
SKEW_S, LIFE_MAX_S = 300.0, 3600.0


def _unpack(part: str) -> bytes:
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise OAuthError("invalid_grant", "Invalid JWT: Failed to decode.") from None


def _object(part: str) -> dict[str, Any]:
    try:
        found = json.loads(_unpack(part))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise OAuthError("invalid_grant", "Bad Request")
    return found


def _number(claims: dict[str, Any], name: str) -> float:
    """One that no check passes, if there is none."""
    value = claims.get(name)
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if good and value is not None else math.nan


class OAuth:
    """``key``: of the service account, with ``id`` and ``has_signed``; None where there is none.
    ``url``: of the server, which is what an assertion is for."""

    def __init__(self, tokens: Tokens, key: Any, url: str, now: Callable[[], float],
                 life_s: Callable[[], float], subjects: Callable[[], list[str]]) -> None:
        self._tokens, self._key, self._url = tokens, key, url
        self._now, self._life_s, self._subjects = now, life_s, subjects

    def _refused(self, grant: str) -> None:
        for name in (grant, "*"):
            left = self._tokens.refuses.get(name, 0)
            if left > 0:
                self._tokens.refuses[name] = left - 1
                raise OAuthError("invalid_grant", "Account has been deleted or revoked.")

    def token(self, body: bytes) -> dict[str, Any]:
        form = dict(parse_qsl(body.decode("utf-8", "replace")))
        grant = form.get("grant_type", "")
        if grant == JWT_BEARER:
            self._refused("service_account")
            made = self._assertion(form.get("assertion", ""))
        elif grant == "refresh_token":
            self._refused("authorized_user")
            made = self._refresh(form)
        else:
            raise OAuthError("unsupported_grant_type", f"Invalid grant_type: {grant[:80]}")
        return {"access_token": made.text, "expires_in": self._left(made),
                "scope": " ".join(made.scopes), "token_type": "Bearer"}

    def _left(self, token: Token) -> int:
        return int(token.expires_s - self._now())

    def _assertion(self, text: str) -> Token:
        parts = text.split(".")
        if len(parts) != 3:
            raise OAuthError("invalid_grant", "Bad Request")
        head, claims = _object(parts[0]), _object(parts[1])
        if head.get("alg") != "RS256":
            raise OAuthError("invalid_grant", "Invalid JWT: unsupported algorithm.")
        if claims.get("iss") != self._tokens.account:
            raise OAuthError("invalid_grant", "Invalid grant: account not found")
        signed = text.rpartition(".")[0].encode()
        if self._key is None or head.get("kid", self._key.id) != self._key.id or (
                not self._key.has_signed(signed, _unpack(parts[2]))):
            raise OAuthError("invalid_grant", "Invalid JWT Signature.")
        now_s, issued, expires = self._now(), _number(claims, "iat"), _number(claims, "exp")
        if not (issued <= now_s + SKEW_S and now_s < expires
                and expires - issued <= LIFE_MAX_S + SKEW_S):
            raise OAuthError("invalid_grant", "Invalid JWT: Token must be a short-lived token (60 "
                             "minutes) and in a reasonable timeframe. Check your iat and exp "
                             "values in the JWT claim.")
        if claims.get("aud") not in (f"{self._url}/token", "https://oauth2.googleapis.com/token"):
            raise OAuthError("invalid_grant", "Invalid JWT: Failed audience check.")
        scopes = tuple(str(claims.get("scope", "")).split())
        if not scopes:
            raise OAuthError("invalid_scope", "Invalid OAuth scope or ID token audience provided.")
        return self._tokens.issue(self._tokens.account, now_s, self._life_s(), scopes)

    def _refresh(self, form: dict[str, str]) -> Token:
        tokens = self._tokens
        if (form.get("client_id"), form.get("client_secret")) != (tokens.client_id,
                                                                 tokens.client_secret):
            raise OAuthError("invalid_client", "The OAuth client was not found.", 401)
        if form.get("refresh_token") != tokens.refresh_token:
            raise OAuthError("invalid_grant", "Bad Request")
        return tokens.issue(tokens.user, self._now(), self._life_s())

    def exchange(self, body: bytes, kind: str) -> dict[str, Any]:
        """Of a token of somebody else's for one of ours."""
        try:
            form = json.loads(body) if "json" in kind else dict(parse_qsl(body.decode()))
        except (ValueError, RecursionError):
            form = {}

        def get(name: str, camel: str) -> str:
            return str(form.get(name) or form.get(camel) or "")
        self._refused("external_account")
        if get("grant_type", "grantType") != EXCHANGE:
            raise OAuthError("unsupported_grant_type", "Invalid grant type")
        if get("audience", "audience") != self._tokens.audience:
            raise OAuthError("invalid_target", 'Invalid value for "audience".')
        if get("subject_token_type", "subjectTokenType") not in SUBJECT_TYPES:
            raise OAuthError("invalid_request", 'Invalid value for "subject_token_type".')
        if get("subject_token", "subjectToken") not in self._subjects():
            raise OAuthError("invalid_grant", "The given subject token is not valid.")
        scopes = tuple(get("scope", "scope").split())
        made = self._tokens.issue(self._tokens.federated, self._now(), self._life_s(), scopes)
        return {"access_token": made.text, "issued_token_type": ACCESS_TOKEN,
                "token_type": "Bearer", "expires_in": self._left(made)}

    def impersonate(self, account: str, header: Optional[str], body: bytes) -> dict[str, Any]:
        """The account's token, for a caller that may have one. Raises GceError."""
        tokens, now_s = self._tokens, self._now()
        token = tokens.whose(header, now_s)
        if account != tokens.account:
            raise not_found(f"projects/-/serviceAccounts/{account[:80]}")
        tokens.check(token, "iam.serviceAccounts.getAccessToken", account)
        try:
            form = json.loads(body)
            scopes = tuple(map(str, form["scope"]))
            life_s = float(str(form.get("lifetime", "3600s")).removesuffix("s"))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise GceError(400, "badRequest", "Invalid request", status=True) from None
        if not 0 < life_s <= LIFE_MAX_S:
            raise invalid("lifetime", life_s, "Expected at most 3600s.")
        made = tokens.issue(account, now_s, min(life_s, self._life_s()), scopes)
        when = datetime.datetime.fromtimestamp(made.expires_s, datetime.timezone.utc)
        return {"accessToken": made.text, "expireTime": when.strftime("%Y-%m-%dT%H:%M:%SZ")}


def credentials(tokens: Tokens, key: Any, project: str, url: str,
                subject_file: str) -> dict[str, dict[str, Any]]:
    """The files that clients read, by their kind."""
    user: dict[str, Any] = {"type": "authorized_user", "client_id": tokens.client_id,
            "client_secret": tokens.client_secret, "refresh_token": tokens.refresh_token,
            "token_uri": f"{url}/token", "quota_project_id": project}
    impersonation = f"{url}/v1/projects/-/serviceAccounts/{tokens.account}:generateAccessToken"
    external: dict[str, Any] = {"type": "external_account", "audience": tokens.audience,
                "subject_token_type": SUBJECT_TYPES[0], "token_url": f"{url}/v1/token",
                "credential_source": {"file": subject_file}}
    found: dict[str, dict[str, Any]] = {
        "authorized_user": user, "external_account": external,
             "external_account_impersonated": {
                 **external, "service_account_impersonation_url": impersonation},
             "impersonated_service_account": {
                 "type": "impersonated_service_account", "delegates": [],
                 "service_account_impersonation_url": impersonation, "source_credentials": user}}
    if key is not None:
        found["service_account"] = {
            "type": "service_account", "project_id": project, "private_key_id": key.id,
            "private_key": key.pem, "client_email": tokens.account, "client_id": "1" * 21,
            "auth_uri": f"{url}/auth", "token_uri": f"{url}/token",
            "universe_domain": "googleapis.com"}
    return found
