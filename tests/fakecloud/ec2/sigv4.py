"""Who has signed a request: AWS Signature Version 4, in the header ``Authorization``.

Source: AWS documentation, "Create a signed AWS API request". What does not match says so, with the
two texts that were to be signed, as AWS does: a client under test is mended by reading them.
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional
from urllib.parse import quote, unquote_plus

from fakecloud.ec2.errors import Ec2Error

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_MAX_S = 300.0
_CREDENTIAL = re.compile(r"([^/]+)/([0-9]{8})/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request")


@dataclass
class Key:
    """One who may sign. ``denied``: actions, or ``*``."""

    id: str
    secret: str
    token: str = ""
    expires_s: Optional[float] = None  # Time of day.
    name: str = "user/tester"
    enabled: bool = True
    denied: set[str] = field(default_factory=set)


@dataclass
class Signed:
    """A request as it is verified; names of headers in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Identity:
    key: Key
    region: str


def _unescaped(path: str) -> str:
    return quote(path, safe="/-_.~%")


def canonical_query(query: str) -> str:
    pairs = []
    for one in query.split("&"):
        if one:
            name, _, value = one.partition("=")
            pairs.append((quote(unquote_plus(name), safe="-_.~"),
                          quote(unquote_plus(value), safe="-_.~")))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def canonical(request: Signed, names: list[str]) -> str:
    """The canonical request over these headers."""
    lines = "".join(f"{name}:{' '.join(request.headers[name].split())}\n" for name in names)
    digest = hashlib.sha256(request.body).hexdigest()
    return "\n".join([request.method, _unescaped(request.path) or "/",
                      canonical_query(request.query), lines, ";".join(names), digest])


def to_sign(canonical_request: str, date: str, scope: str) -> str:
    digest = hashlib.sha256(canonical_request.encode()).hexdigest()
    return f"{ALGORITHM}\n{date}\n{scope}\n{digest}"


def signature(secret: str, scope: str, text: str) -> str:
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _parts_of(header: str) -> dict[str, str]:
    algorithm, _, rest = header.partition(" ")
    if algorithm != ALGORITHM:
        raise Ec2Error("IncompleteSignature", f"Unsupported AWS 'algorithm': '{algorithm[:80]}'")
    parts = {}
    for one in rest.split(","):
        name, equals, value = one.strip().partition("=")
        if equals:
            parts[name] = value
    for name in ("Credential", "SignedHeaders", "Signature"):
        if not parts.get(name):
            raise Ec2Error("IncompleteSignature", f"Authorization header requires '{name}'")
    return parts


def _signed_at(date: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ")))
    except ValueError:
        raise Ec2Error("IncompleteSignature",
                       "Date must be in ISO-8601 'basic format', as in 20130524T000000Z; "
                       f"got '{date[:80]}'") from None


def _names_of(signed: str, headers: Mapping[str, str]) -> list[str]:
    names = signed.split(";")
    if names != sorted(names) or any(name not in headers for name in names):
        raise Ec2Error("SignatureDoesNotMatch",
                       "SignedHeaders names headers that are not there, or not in order")
    must = [name for name in headers if name == "host" or name.startswith("x-amz-")]
    for name in must:
        if name not in names:
            raise Ec2Error("SignatureDoesNotMatch", f"'{name}' must be a signed header")
    return names


def _known(key_id: str, keys: Mapping[str, Key], headers: Mapping[str, str], now_s: float) -> Key:
    key = keys.get(key_id)
    token = headers.get("x-amz-security-token", "")
    if key is None or not hmac.compare_digest(token.encode(), key.token.encode()):
        raise Ec2Error("InvalidClientTokenId",
                       "The security token included in the request is invalid.")
    if not key.enabled:
        raise Ec2Error("AuthFailure",
                       "AWS was not able to validate the provided access credentials")
    if key.expires_s is not None and now_s >= key.expires_s:
        raise Ec2Error("ExpiredToken", "The security token included in the request is expired")
    return key


def verify(request: Signed, keys: Mapping[str, Key], now_s: float) -> Identity:
    """Whose request it is; raises :class:`Ec2Error` if it is nobody's."""
    header = request.headers.get("authorization")
    if header is None:
        raise Ec2Error("AuthFailure",
                       "AWS was not able to validate the provided access credentials: "
                       "the request is not signed (header Authorization)")
    parts = _parts_of(header)
    scope = _CREDENTIAL.fullmatch(parts["Credential"])
    if scope is None:
        raise Ec2Error("IncompleteSignature",
                       "Credential must be KEY/YYYYMMDD/REGION/ec2/aws4_request")
    key_id, day, region, service = scope.groups()
    names = _names_of(parts["SignedHeaders"], request.headers)
    date = request.headers.get("x-amz-date", "")
    at_s = _signed_at(date)
    if service != "ec2" or day != date[:8]:
        raise Ec2Error("SignatureDoesNotMatch",
                       "Credential should be scoped to the service 'ec2' and the day of X-Amz-Date")
    if abs(at_s - now_s) > SKEW_MAX_S:
        raise Ec2Error("RequestExpired", "Request has expired.")
    key = _known(key_id, keys, request.headers, now_s)
    scope_text = f"{day}/{region}/{service}/aws4_request"
    asked = canonical(request, names)
    text = to_sign(asked, date, scope_text)
    if not hmac.compare_digest(signature(key.secret, scope_text, text).encode(),
                               parts["Signature"].encode()):
        raise Ec2Error("SignatureDoesNotMatch",
                       "The request signature we calculated does not match the signature you "
                       "provided. Check the secret access key and how the request is signed. "
                       f"The canonical string should have been:\n{asked}\n"
                       f"The string to sign should have been:\n{text}")
    return Identity(key, region)
