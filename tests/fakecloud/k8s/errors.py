"""What the API refuses: each becomes a Status object, in the words of the real server."""

from __future__ import annotations

from typing import Any, Optional

Cause = tuple[str, str, str]    # Reason, message, field.


class ApiError(Exception):
    """Is sent to the client as it is. ``plain``: as text, not as a Status."""

    def __init__(self, code: int, reason: str, message: str,
                 details: Optional[dict[str, Any]] = None, headers: Optional[dict[str, str]] = None,
                 plain: bool = False, metadata: Optional[dict[str, Any]] = None) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message
        self.details, self.headers, self.plain = details, headers or {}, plain
        self.metadata = metadata or {}

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status", "apiVersion": "v1", "metadata": self.metadata, "status": "Failure",
            "message": self.message, "reason": self.reason}
        if self.details:
            body["details"] = self.details
        body["code"] = self.code
        return body


def details_of(group: str, kind: str, name: str = "", **more: Any) -> dict[str, Any]:
    found = {"name": name, "group": group, "kind": kind, **more}
    return {key: value for key, value in found.items() if value not in ("", None)}


def qualified(group: str, plural: str) -> str:
    return f"{plural}.{group}" if group else plural


def not_found(group: str, plural: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{qualified(group, plural)} "{name}" not found',
                    details_of(group, plural, name))


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(group: str, plural: str, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{qualified(group, plural)} "{name}" already exists',
                    details_of(group, plural, name))


def conflict(group: str, plural: str, name: str, why: str = "") -> ApiError:
    why = why or ("the object has been modified; please apply your changes to the latest version "
                  "and try again")
    return ApiError(409, "Conflict",
                    f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}',
                    details_of(group, plural, name))


def invalid(group: str, kind: str, name: str, causes: list[Cause]) -> ApiError:
    told = [f"{field}: {message}" for _, message, field in causes]
    text = told[0] if len(told) == 1 else "[" + ", ".join(told) + "]"
    named = [{"reason": reason, "message": message, "field": field}
             for reason, message, field in causes]
    whole = f"{kind}.{group}" if group else kind
    return ApiError(422, "Invalid", f'{whole} "{name}" is invalid: {text}',
                    details_of(group, kind, name, causes=named))


def forbidden(group: str, plural: str, name: str, why: str, **details: Any) -> ApiError:
    named = f' "{name}"' if name else ""
    return ApiError(403, "Forbidden", f"{qualified(group, plural)}{named} is forbidden: {why}",
                    details_of(group, plural, name, **details))


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def method_not_allowed(group: str, plural: str, verb: str) -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the "
                    "requested resource", details_of(group, plural))


def too_old(asked: int, oldest: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def too_large(asked: int, now: int) -> ApiError:
    return ApiError(504, "Timeout",
                    f"Timeout: Too large resource version: {asked}, current: {now}",
                    {"causes": [{"reason": "ResourceVersionTooLarge",
                                 "message": "Too large resource version"}],
                     "retryAfterSeconds": 1})


def continue_expired(again: str) -> ApiError:
    """``again``: a token that reads on, from the state of now."""
    return ApiError(410, "Expired", "The provided continue parameter is too old to display a "
                    "consistent list result. You can start a new list without the continue "
                    "parameter, or use the continue token in this response to retrieve the "
                    "remainder of the results. Continuing with the provided token results in an "
                    "inconsistent list - objects that were created, modified, or deleted between "
                    "the time the first chunk was returned and now may show up in the list.",
                    metadata={"continue": again})


def unsupported_media(allowed: list[str]) -> ApiError:
    return ApiError(415, "UnsupportedMediaType", "the body of the request was in an unknown format "
                    f"- accepted media types include: {', '.join(allowed)}")


def cannot_evict(budget: str, wanted: int, healthy: int) -> ApiError:
    return ApiError(429, "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    {"causes": [{"reason": "DisruptionBudget", "message":
                                 f"The disruption budget {budget} needs {wanted} healthy pods and "
                                 f"has {healthy} currently"}]})
