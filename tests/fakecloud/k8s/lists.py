"""Lists: selectors, pages that belong together, and versions that are asked for."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Optional

from fakecloud.k8s import errors, selectors
from fakecloud.k8s.catalog import Resource
from fakecloud.k8s.errors import ApiError, bad_request
from fakecloud.k8s.selectors import Object
from fakecloud.k8s.store import Key, Store


def number_in(query: dict[str, str], name: str) -> Optional[int]:
    text = query.get(name, "")
    if not text:
        return None
    if not text.isdigit() or not text.isascii() or len(text) > 18:
        raise bad_request(f"invalid {name}: {text[:40]!r}")
    return int(text)


def flag_in(query: dict[str, str], name: str) -> bool:
    """Whatever it is set to but these two counts as true."""
    return query.get(name, "false").lower() not in ("false", "0")


def version_in(query: dict[str, str], name: str = "resourceVersion") -> Optional[int]:
    text = query.get(name, "")
    if text and not (text.isdigit() and text.isascii() and len(text) <= 18):
        raise ApiError(400, "BadRequest", f'Invalid value: "{text[:40]}": strconv.ParseUint: '
                       f'parsing "{text[:40]}": invalid syntax')
    return int(text) if text else None


def _token(version: int, start: Key) -> str:
    body = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": "\0".join(start)})
    return base64.urlsafe_b64encode(body.encode()).decode().rstrip("=")


def _read_token(text: str) -> tuple[int, Key]:
    try:
        body = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        namespace, _, name = body["start"].partition("\0")
        return int(body["rv"]), (namespace, name)
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        raise bad_request("continue key is not valid: the continue token is not one of this "
                          "server") from None


def _at_version(store: Store, resource: Resource, query: dict[str, str],
                stale: Optional[int]) -> tuple[int, Optional[dict[Key, Object]]]:
    """The version of the list; None: of now."""
    asked, match = version_in(query), query.get("resourceVersionMatch", "")
    if match and asked is None:
        raise errors.invalid("", "ListOptions", "", [(
            "FieldValueForbidden", "Forbidden: resourceVersionMatch is forbidden unless "
            "resourceVersion is provided", "resourceVersionMatch")])
    if asked and asked > store.version:
        raise errors.too_large(asked, store.version)
    if match == "Exact" and asked:
        return asked, store.at(resource, asked)
    if asked == 0 and stale is not None:
        # A cache of the server may be behind, and says so by its version.
        version = max(stale, store.compacted)
        return version, store.at(resource, version)
    return store.version, None


def listed(store: Store, resource: Resource, namespace: str, query: dict[str, str],
           stale: Optional[int] = None) -> Object:
    """``stale``: how old what is told to resourceVersion=0 is."""
    match = selectors.matcher(query.get("labelSelector", ""), query.get("fieldSelector", ""),
                              resource.plural)
    limit, start = number_in(query, "limit") or 0, None
    if query.get("continue"):
        if version_in(query):
            raise bad_request("specifying resource version is not allowed when using continue")
        version, start = _read_token(query["continue"])
        if version < 0:
            version, found = store.version, None
        else:
            try:
                found = store.at(resource, version)
            except ApiError:
                raise errors.continue_expired(_token(-1, start)) from None
    else:
        version, found = _at_version(store, resource, query, stale)
    items = (store.all(resource, namespace) if found is None else
             [found[key] for key in sorted(found) if namespace in ("", key[0])])
    if start is not None:
        items = [one for one in items if (one["metadata"].get("namespace", ""),
                                          one["metadata"]["name"]) > start]
    kept = [one for one in items if match is None or match(one)]
    own: dict[str, Any] = {"resourceVersion": str(version)}
    if limit and len(kept) > limit:
        last = kept[limit - 1]["metadata"]
        own["continue"] = _token(version, (last.get("namespace", ""), last["name"]))
        if match is None:
            own["remainingItemCount"] = len(kept) - limit
        kept = kept[:limit]
    return {"kind": resource.kind + "List", "apiVersion": resource.api_version, "metadata": own,
            "items": kept}
