"""Lists: filtered, in order, page by page; of one scope or of all."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Optional

from fakecloud.gce import filters
from fakecloud.gce.errors import GceError, invalid
from fakecloud.gce.operations import BASE

PAGE, PAGE_MAX = 500, 500
_TRUE = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}


@dataclass
class Asked:
    filter: filters.Test
    most: int
    after: str
    newest_first: bool
    partial: bool


def asked(query: dict[str, str]) -> Asked:
    """Raises GceError."""
    most = query.get("maxResults", str(PAGE))
    if not most.isascii() or not most.isdigit() or int(most) > PAGE_MAX:
        raise invalid("maxResults", most, f"Acceptable values are 0 to {PAGE_MAX}, inclusive.")
    order = query.get("orderBy", "")
    if order not in ("", "name", "name asc", "creationTimestamp desc"):
        raise invalid("orderBy", order, "Expected name or creationTimestamp desc.")
    partial = query.get("returnPartialSuccess", "false")
    if partial not in _TRUE:
        raise invalid("returnPartialSuccess", partial, "Expected true or false.")
    after = ""
    if query.get("pageToken"):
        try:
            after = base64.urlsafe_b64decode(query["pageToken"].encode()).decode()
        except (binascii.Error, ValueError):
            after = ""
        if "\0" not in after:
            raise invalid("pageToken", query["pageToken"], "The page token is invalid.")
    return Asked(filters.parse(query.get("filter")), int(most) or PAGE, after,
                 order == "creationTimestamp desc", _TRUE[partial])


def _key(scope: str, one: dict[str, Any]) -> str:
    return f"{scope}\0{one['name']}"


def page(wanted: Asked, rows: list[tuple[str, dict[str, Any]]]
         ) -> tuple[list[tuple[str, dict[str, Any]]], Optional[str]]:
    """Of rows with their scope; and the token of the next page."""
    found = [one for one in rows if wanted.filter(one[1])]
    found.sort(key=lambda one: _key(*one))
    if wanted.newest_first:
        found.sort(key=lambda one: str(one[1].get("creationTimestamp", "")), reverse=True)
    if wanted.after and wanted.newest_first:
        keys = [_key(*one) for one in found]
        found = found[keys.index(wanted.after) + 1:] if wanted.after in keys else []
    elif wanted.after:
        found = [one for one in found if _key(*one) > wanted.after]
    token = None
    if len(found) > wanted.most:
        found = found[:wanted.most]
        token = base64.urlsafe_b64encode(_key(*found[-1]).encode()).decode()
    return found, token


def of_scope(kind: str, path: str, wanted: Asked, scope: str,
             bodies: list[dict[str, Any]]) -> dict[str, Any]:
    found, token = page(wanted, [(scope, one) for one in bodies])
    reply: dict[str, Any] = {"kind": f"compute#{kind}List", "id": path, "selfLink": BASE + path}
    if found:
        reply["items"] = [one for _, one in found]
    if token:
        reply["nextPageToken"] = token
    return reply


def _warning(scope: str, code: str, message: str) -> dict[str, Any]:
    return {"warning": {"code": code, "message": message,
                        "data": [{"key": "scope", "value": scope}]}}


def of_all(kind: str, field: str, path: str, wanted: Asked, scopes: list[str],
           rows: list[tuple[str, dict[str, Any]]], lost: set[str]) -> dict[str, Any]:
    """``lost``: scopes that do not answer."""
    if lost and not wanted.partial:
        raise GceError(503, "backendError", "The following scopes are unreachable: "
                       + ", ".join(sorted(lost)), status=True)
    found, token = page(wanted, [one for one in rows if one[0] not in lost])
    items: dict[str, Any] = {}
    for scope in scopes:
        own = [one for where, one in found if where == scope]
        if scope in lost:
            items[scope] = _warning(scope, "UNREACHABLE",
                                    f"The scope '{scope}' is unreachable.")
        elif own:
            items[scope] = {field: own}
        else:
            items[scope] = _warning(scope, "NO_RESULTS_ON_PAGE", "There are no results for scope "
                                    f"'{scope}' on this page.")
    reply: dict[str, Any] = {"kind": f"compute#{kind}AggregatedList", "id": path, "items": items,
                             "selfLink": BASE + path}
    if lost:
        project = "/".join(path.split("/")[:2])
        reply["unreachables"] = [f"{project}/{one}" for one in sorted(lost)]
    if token:
        reply["nextPageToken"] = token
    return reply
