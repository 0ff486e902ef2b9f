"""What Compute Engine refuses: as an answer to a request, or as the end of an operation."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED",
           404: "NOT_FOUND", 409: "ALREADY_EXISTS", 412: "FAILED_PRECONDITION",
           429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}


class GceError(Exception):
    """Is sent to the client as it is. ``status`` is told by some refusals only."""

    def __init__(self, code: int, reason: str, message: str, domain: str = "global",
                 status: bool = False, details: Any = None, **more: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message
        self._one = {"message": message, "domain": domain, "reason": reason, **more}
        self._status, self._details = status, details

    def as_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"code": self.code, "message": self.message, "errors": [self._one]}
        if self._status:
            body["status"] = _STATUS.get(self.code, "UNKNOWN")
        if self._details:
            body["details"] = self._details
        return {"error": body}


class NotOffered(GceError):
    """The zone has no such machines, while another one may have."""

    def __init__(self, message: str) -> None:
        super().__init__(400, "invalid", message)


class OAuthError(Exception):
    """Of the places where tokens come from."""

    def __init__(self, error: str, description: str, code: int = 400) -> None:
        super().__init__(f"{error}: {description}")
        self.code = code
        self.body = json.dumps({"error": error, "error_description": description})


def not_found(path: str) -> GceError:
    return GceError(404, "notFound", f"The resource '{path}' was not found")


def invalid(name: str, value: object, why: str) -> GceError:
    return GceError(400, "invalid",
                    f"Invalid value for field '{name}': '{str(value)[:200]}'. {why}".rstrip())


def required(name: str) -> GceError:
    return GceError(400, "required", f"Required field '{name}' not specified")


def bad_request(message: str) -> GceError:
    details = [{"@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": [{"description": message}]}]
    return GceError(400, "badRequest", message, status=True, details=details)


def exists(path: str) -> GceError:
    return GceError(409, "alreadyExists", f"The resource '{path}' already exists")


def forbidden(permission: str, path: str) -> GceError:
    return GceError(403, "forbidden", f"Required '{permission}' permission for '{path}'")


def unauthenticated(missing: bool) -> GceError:
    told = "is missing required" if missing else "had invalid"
    expected = ("Expected OAuth 2 access token, login cookie or other valid authentication "
                "credential. See "
                "https://developers.google.com/identity/sign-in/web/devconsole-project.")
    credential = "authentication credential." if missing else "authentication credentials."
    return GceError(
        401, "required" if missing else "authError", f"Request {told} {credential} {expected}",
        status=True, location="Authorization", locationType="header",
        details=[{"@type": "type.googleapis.com/google.rpc.ErrorInfo",
                  "reason": "CREDENTIALS_MISSING" if missing else "ACCESS_TOKEN_EXPIRED",
                  "domain": "googleapis.com"}])


def throttled(code: int, method: str) -> GceError:
    message = ("Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of "
               "service 'compute.googleapis.com' for consumer 'project_number:123456789012'.")
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason":
                "RATE_LIMIT_EXCEEDED", "domain": "googleapis.com",
                "metadata": {"service": "compute.googleapis.com", "method": method}}]
    return GceError(code, "rateLimitExceeded", message, "usageLimits", code == 429, details)


@dataclass
class OpError:
    """Why an operation has failed. ``http``: the status it would have been as an answer."""

    code: str
    message: str
    http: int = 400
    details: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        more = {"errorDetails": self.details} if self.details else {}
        return {"code": self.code, "message": self.message, **more}


HTTP_MESSAGES = {400: "BAD REQUEST", 403: "FORBIDDEN", 404: "NOT FOUND", 409: "CONFLICT",
                 412: "PRECONDITION FAILED", 500: "INTERNAL SERVER ERROR",
                 503: "SERVICE UNAVAILABLE"}


def exhausted(project: str, zone: str, type_: str, detailed: bool) -> OpError:
    where = f"projects/{project}/zones/{zone}"
    if not detailed:
        return OpError("ZONE_RESOURCE_POOL_EXHAUSTED",
                       f"The zone '{where}' does not have enough resources available to fulfill "
                       "the request.  Try a different zone, or try again later.", 503)
    info = {"reason": "resource_availability", "domain": "compute.googleapis.com",
            "metadatas": {"zone": zone, "vmType": type_, "zonesAvailable": "", "attachment": ""}}
    return OpError("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
                   f"The zone '{where}' does not have enough resources available to fulfill the "
                   "request.  '(resource type:compute)'.", 503, [{"errorInfo": info}])


def over_quota(metric: str, limit: float, region: str) -> OpError:
    info = {"metricName": f"compute.googleapis.com/{metric.lower()}",
            "limitName": f"{metric.replace('_', '-')}-per-project-region",
            "dimensions": {"region": region}, "limit": limit}
    return OpError("QUOTA_EXCEEDED",
                   f"Quota '{metric}' exceeded.  Limit: {limit:.1f} in region {region}.", 403,
                   [{"quotaInfo": info}])
