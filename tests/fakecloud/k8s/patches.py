"""The three kinds of patches: JSON patch, JSON merge patch, strategic merge patch."""

from __future__ import annotations

import copy
from typing import Any, Optional

from fakecloud.k8s.errors import ApiError, bad_request
from fakecloud.k8s.schema import TYPES

JSON, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
KINDS = [JSON, MERGE, STRATEGIC]

# Lists that are merged by a key of their elements, by the type that has them. Others are replaced.
MERGE_KEYS = {
    ("PodSpec", "containers"): "name", ("PodSpec", "initContainers"): "name",
    ("PodSpec", "ephemeralContainers"): "name", ("PodSpec", "volumes"): "name",
    ("PodSpec", "imagePullSecrets"): "name", ("PodSpec", "hostAliases"): "ip",
    ("PodSpec", "topologySpreadConstraints"): "topologyKey",
    ("PodSpec", "schedulingGates"): "name", ("PodSpec", "resourceClaims"): "name",
    ("Container", "env"): "name", ("Container", "ports"): "containerPort",
    ("Container", "volumeMounts"): "mountPath", ("Container", "volumeDevices"): "devicePath",
    ("ObjectMeta", "ownerReferences"): "uid", ("PodStatus", "conditions"): "type",
    ("PodStatus", "podIPs"): "ip", ("NodeStatus", "conditions"): "type",
    ("NodeStatus", "addresses"): "type", ("DeploymentStatus", "conditions"): "type",
    ("NamespaceStatus", "conditions"): "type", ("ServiceAccount", "secrets"): "name",
    ("PodDisruptionBudgetStatus", "conditions"): "type"}
MERGED_SETS = {("ObjectMeta", "finalizers"), ("NodeSpec", "podCIDRs")}


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


# ---- JSON patch ----

def _unprocessable(why: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our "
                    f"request: {why}", {})


def _steps(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise bad_request(f"error decoding patch: invalid path {str(pointer)[:80]!r}")
    return [one.replace("~1", "/").replace("~0", "~") for one in pointer.split("/")[1:]]


def _index(holder: list[Any], step: str, more: int = 0) -> int:
    if not step.isdigit() or int(step) >= len(holder) + more:
        raise _unprocessable(f"Unable to access invalid index: {step}")
    return int(step)


def _find(root: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(root, list):
            root = root[_index(root, step)]
        elif isinstance(root, dict) and step in root:
            root = root[step]
        else:
            raise _unprocessable(f"key {step} does not exist")
    return root


def _put(root: Any, steps: list[str], value: Any, how: str) -> Any:
    if not steps:
        return value
    holder, last = _find(root, steps[:-1]), steps[-1]
    if isinstance(holder, list):
        if how == "replace":
            holder[_index(holder, last)] = value
        else:
            holder.insert(len(holder) if last == "-" else _index(holder, last, 1), value)
    elif isinstance(holder, dict) and (how == "add" or last in holder):
        holder[last] = value
    else:
        raise _unprocessable(f"{how} operation does not apply: doc is missing key: {last}")
    return root


def _take(root: Any, steps: list[str]) -> Any:
    value = _find(root, steps)
    holder = _find(root, steps[:-1])
    if isinstance(holder, list):
        holder.pop(int(steps[-1]))
    elif isinstance(holder, dict):
        holder.pop(steps[-1])
    return value


def json_patch(target: Any, operations: Any) -> Any:
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: json: cannot unmarshal object into Go value of "
                          "type jsonpatch.Patch")
    root = copy.deepcopy(target)
    for one in operations:
        if not isinstance(one, dict):
            raise bad_request("error decoding patch: an operation is no object")
        how, steps = one.get("op"), _steps(one.get("path"))
        if how in ("add", "replace"):
            root = _put(root, steps, copy.deepcopy(one.get("value")), how)
        elif how == "remove" and steps:
            _take(root, steps)
        elif how == "test":
            if _find(root, steps) != one.get("value"):
                raise _unprocessable(f"testing path {one['path']} value failed")
        elif how in ("move", "copy"):
            begin = _steps(one.get("from"))
            value = _take(root, begin) if how == "move" else copy.deepcopy(_find(root, begin))
            root = _put(root, steps, value, "add")
        else:
            raise _unprocessable(f"Unexpected kind: {how}")
    return root


# ---- strategic merge patch ----

def strategic(target: Any, patch: Any, kind: str) -> Any:
    """``kind``: the type, as ``fields.txt`` names it."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    result = dict(target) if isinstance(target, dict) else {}
    kept = patch.get("$retainKeys")
    if isinstance(kept, list):
        result = {key: value for key, value in result.items() if key in kept}
    for key, value in patch.items():
        if key.startswith("$setElementOrder/") or key in ("$retainKeys", "$patch"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [one for one in result.get(name, []) if one not in value]
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = _merge_field(result.get(key), value, kind, key)
    for key, order in patch.items():
        if key.startswith("$setElementOrder/"):
            _reorder(result, key.partition("/")[2], order, kind)
    return result


def _merge_field(target: Any, value: Any, kind: str, key: str) -> Any:
    inner = TYPES.get(kind, {}).get(key, "any")
    if isinstance(value, dict):
        if inner.startswith("{"):
            return merge(target, value)
        return strategic(target, value, inner)
    if not isinstance(value, list):
        return value
    if (kind, key) in MERGED_SETS:
        return [*(target or []), *(one for one in value if one not in (target or []))]
    by = MERGE_KEYS.get((kind, key))
    if by is None:
        return copy.deepcopy(value)
    return _merge_list(target or [], value, inner.strip("[]"), by)


def _merge_list(target: list[Any], patch: list[Any], kind: str, by: str) -> list[Any]:
    if any(isinstance(one, dict) and one.get("$patch") == "replace" and len(one) == 1
           for one in patch):
        return [one for one in patch if one.get("$patch") != "replace"]
    result = list(target)
    for one in patch:
        if not isinstance(one, dict) or by not in one:
            raise bad_request(f"map: {one} does not contain declared merge key: {by}")
        at: Optional[int] = next((number for number, known in enumerate(result)
                                  if known.get(by) == one[by]), None)
        if one.get("$patch") == "delete":
            if at is not None:
                result.pop(at)
        elif at is None:
            result.append(strategic({}, one, kind))
        else:
            result[at] = strategic(result[at], one, kind)
    return result


def _reorder(result: dict[str, Any], name: str, order: Any, kind: str) -> None:
    """Those that the order names come in it; the others stay behind them."""
    by = MERGE_KEYS.get((kind, name))
    if name not in result or not isinstance(order, list):
        return
    wanted = [one.get(by) if isinstance(one, dict) and by else one for one in order]

    def place(one: Any) -> int:
        value = one.get(by) if isinstance(one, dict) and by else one
        return wanted.index(value) if value in wanted else len(wanted)
    result[name] = sorted(result[name], key=place)


def apply(content_type: str, target: dict[str, Any], patch: Any, kind: str) -> Any:
    if content_type == JSON:
        return json_patch(target, patch)
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: json: cannot unmarshal array into Go value of "
                          "type map[string]interface {}")
    if content_type == MERGE:
        return merge(target, patch)
    return strategic(target, patch, kind)
