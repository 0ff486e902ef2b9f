"""What the real server refuses with 422: causes with a reason, a message and a field."""

from __future__ import annotations

import json
import re
from typing import Any

from fakecloud.k8s import quantities
from fakecloud.k8s.errors import Cause

Object = dict[str, Any]
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    r"for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')")
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')")
VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
    "'12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')")
NAME_PART_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')")
ANNOTATIONS_MAX, SECRET_MAX = 262_144, 1 << 20
RESTARTS, PULLS = ("Always", "OnFailure", "Never"), ("Always", "Never", "IfNotPresent")
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def required(field: str, why: str = "") -> Cause:
    return "FieldValueRequired", f"Required value: {why}" if why else "Required value", field


def wrong(field: str, value: Any, why: str) -> Cause:
    return "FieldValueInvalid", f"Invalid value: {json.dumps(value)}: {why}", field


def unsupported(field: str, value: Any, good: tuple[str, ...]) -> Cause:
    told = ", ".join(json.dumps(one) for one in sorted(good))
    return ("FieldValueNotSupported",
            f"Unsupported value: {json.dumps(value)}: supported values: {told}", field)


def duplicate(field: str, value: Any) -> Cause:
    return "FieldValueDuplicate", f"Duplicate value: {json.dumps(value)}", field


def denied(field: str, why: str) -> Cause:
    return "FieldValueForbidden", f"Forbidden: {why}", field


def is_label(text: str) -> bool:
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def qualified_name(field: str, text: str) -> list[Cause]:
    prefix, slash, name = text.rpartition("/")
    found = []
    if slash and not is_subdomain(prefix):
        found.append(wrong(field, text, f"prefix part {SUBDOMAIN_RULE}"))
    if not _NAME_PART.fullmatch(name):
        found.append(wrong(field, text, NAME_PART_RULE))
    elif len(name) > 63:
        found.append(wrong(field, text, "name part must be no more than 63 characters"))
    return found


def metadata(one: Object, roles: bool = False) -> list[Cause]:
    """``roles``: names of roles may have any character that a path may have."""
    own, found = one["metadata"], []
    name = own.get("name", "")
    if not name:
        found.append(required("metadata.name", "name or generateName is required"))
    elif roles:
        if name in (".", "..") or "/" in name or "%" in name:
            found.append(wrong("metadata.name", name, "may not be '.', '..' or contain '/', '%'"))
    elif not is_subdomain(name):
        found.append(wrong("metadata.name", name, SUBDOMAIN_RULE))
    for key, value in (own.get("labels") or {}).items():
        found += qualified_name("metadata.labels", key)
        if len(value) > 63:
            found.append(wrong("metadata.labels", value, "must be no more than 63 characters"))
        elif not _VALUE.fullmatch(value):
            found.append(wrong("metadata.labels", value, VALUE_RULE))
    total = 0
    for key, value in (own.get("annotations") or {}).items():
        found += qualified_name("metadata.annotations", key.lower())
        total += len(key) + len(value.encode())
    if total > ANNOTATIONS_MAX:
        found.append(("FieldValueTooLong", f"Too long: must have at most {ANNOTATIONS_MAX} bytes",
                      "metadata.annotations"))
    for number, owner in enumerate(own.get("ownerReferences") or []):
        found += [required(f"metadata.ownerReferences[{number}].{key}", f"{key} must not be empty")
                  for key in ("apiVersion", "kind", "name", "uid") if not owner.get(key)]
    found += [wrong("metadata.finalizers", one, "name is neither a standard finalizer name nor is "
                    "it fully qualified") for one in own.get("finalizers") or []
              if "/" not in one and one not in ("foregroundDeletion", "orphan", "kubernetes")]
    return found


# ---- pods ----

def _resources(resources: Object, at: str) -> list[Cause]:
    found = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            number = quantities.amount(value)
            if "/" not in name and name not in ("cpu", "memory", "ephemeral-storage") and (
                    not name.startswith("hugepages-")):
                found.append(wrong(f"{at}.{kind}", name,
                                   "must be a standard resource type or fully qualified"))
            if number < 0:
                found.append(wrong(f"{at}.{kind}[{name}]", value,
                                   "must be greater than or equal to 0"))
            if "/" in name and number.denominator != 1:
                found.append(wrong(f"{at}.{kind}[{name}]", value, "must be an integer"))
    for name, value in requests.items():
        if name in limits and quantities.amount(value) > quantities.amount(limits[name]):
            found.append(wrong(f"{at}.requests", value,
                               f"must be less than or equal to {name} limit of {limits[name]}"))
        elif "/" in name and name in limits and (
                quantities.amount(value) != quantities.amount(limits[name])):
            found.append(wrong(f"{at}.requests", value, f"must be equal to {name} limit of "
                               f"{limits[name]}"))
        elif "/" in name and name not in limits:
            found.append(required(f"{at}.limits", "Limit must be set for non overcommitable "
                                  "resources"))
    return found


def _env(env: list[Object], at: str) -> list[Cause]:
    found = []
    for number, one in enumerate(env):
        here = f"{at}[{number}]"
        name, source = one.get("name", ""), one.get("valueFrom")
        if not name:
            found.append(required(f"{here}.name"))
        elif "=" in name or not name.isprintable():
            found.append(wrong(f"{here}.name", name, "a valid environment variable name must "
                               "consist only of printable ASCII characters other than '='"))
        if source is not None:
            if one.get("value"):
                found.append(wrong(f"{here}.valueFrom", "",
                                   "may not be specified when `value` is not empty"))
            if len(source) != 1:
                why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, " \
                      "`secretKeyRef` or `fileKeyRef`"
                found.append(wrong(f"{here}.valueFrom", "", why))
            for kind in ("secretKeyRef", "configMapKeyRef"):
                if kind in source and not source[kind].get("key"):
                    found.append(required(f"{here}.valueFrom.{kind}.key"))
    return found


def _mounts(container: Object, at: str, volumes: set[str]) -> list[Cause]:
    found, paths = [], set()
    for number, one in enumerate(container.get("volumeMounts") or []):
        here = f"{at}.volumeMounts[{number}]"
        name, path = one.get("name", ""), one.get("mountPath", "")
        if not name:
            found.append(required(f"{here}.name"))
        elif name not in volumes:
            found.append(("FieldValueNotFound", f"Not found: {json.dumps(name)}", f"{here}.name"))
        if not path:
            found.append(required(f"{here}.mountPath"))
        elif path in paths:
            found.append(wrong(f"{here}.mountPath", path, "must be unique"))
        paths.add(path)
    return found


def _containers(pod: Object, kind: str, volumes: set[str], names: set[str]) -> list[Cause]:
    found = []
    for number, one in enumerate(pod.get(kind) or []):
        here = f"spec.{kind}[{number}]"
        name = one.get("name", "")
        if not name:
            found.append(required(f"{here}.name"))
        elif not is_label(name):
            found.append(wrong(f"{here}.name", name, LABEL_RULE))
        elif name in names:
            found.append(duplicate(f"{here}.name", name))
        names.add(name)
        if not one.get("image"):
            found.append(required(f"{here}.image"))
        elif one["image"] != one["image"].strip():
            found.append(wrong(f"{here}.image", one["image"], "must not have leading or trailing "
                               "whitespace"))
        if one.get("imagePullPolicy", "Always") not in PULLS:
            found.append(unsupported(f"{here}.imagePullPolicy", one["imagePullPolicy"], PULLS))
        found += _env(one.get("env") or [], f"{here}.env")
        found += _mounts(one, here, volumes)
        found += _resources(one.get("resources") or {}, f"{here}.resources")
    return found


def _tolerations(pod: Object) -> list[Cause]:
    found = []
    for number, one in enumerate(pod.get("tolerations") or []):
        here = f"spec.tolerations[{number}]"
        operator = one.get("operator", "Equal")
        if operator not in ("Equal", "Exists"):
            found.append(unsupported(f"{here}.operator", operator, ("Equal", "Exists")))
        elif operator == "Exists" and one.get("value"):
            found.append(wrong(f"{here}.operator", one["value"],
                               "value must be empty when `operator` is 'Exists'"))
        if not one.get("key") and operator != "Exists":
            found.append(wrong(f"{here}.operator", operator, "operator must be Exists when `key` "
                               "is empty, which means \"match all values and all keys\""))
        if one.get("effect") and one["effect"] not in TAINT_EFFECTS:
            found.append(unsupported(f"{here}.effect", one["effect"], TAINT_EFFECTS))
        if "tolerationSeconds" in one and one.get("effect") != "NoExecute":
            found.append(wrong(f"{here}.effect", one.get("effect", ""),
                               "effect must be 'NoExecute' when `tolerationSeconds` is set"))
    return found


def _node_terms(pod: Object) -> list[Cause]:
    affinity = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution")
    if affinity is None:
        return []
    at = ("spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
          ".nodeSelectorTerms")
    terms = affinity.get("nodeSelectorTerms") or []
    if not terms:
        return [required(at, "must have at least one node selector term")]
    good = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
    found = []
    for number, term in enumerate(terms):
        for index, one in enumerate(term.get("matchExpressions") or []):
            here = f"{at}[{number}].matchExpressions[{index}]"
            if one.get("operator") not in good:
                found.append(wrong(f"{here}.operator", one.get("operator", ""),
                                   "not a valid selector operator"))
            elif one["operator"] in ("In", "NotIn") and not one.get("values"):
                found.append(required(f"{here}.values", "must be specified when `operator` is 'In' "
                                      "or 'NotIn'"))
    return found


def pod(one: Object) -> list[Cause]:
    spec, found = one.get("spec") or {}, []
    volumes: set[str] = set()
    for number, volume in enumerate(spec.get("volumes") or []):
        here, name = f"spec.volumes[{number}]", volume.get("name", "")
        if not name:
            found.append(required(f"{here}.name"))
        elif not is_label(name):
            found.append(wrong(f"{here}.name", name, LABEL_RULE))
        elif name in volumes:
            found.append(duplicate(f"{here}.name", name))
        volumes.add(name)
        if len(volume) > 2:
            found.append(denied(f"{here}.{sorted(set(volume) - {'name'})[1]}",
                                "may not specify more than 1 volume type"))
        if "secret" in volume and not volume["secret"].get("secretName"):
            found.append(required(f"{here}.secret.secretName"))
    if not spec.get("containers"):
        found.append(required("spec.containers"))
    names: set[str] = set()
    found += _containers(spec, "initContainers", volumes, names)
    found += _containers(spec, "containers", volumes, names)
    if spec.get("restartPolicy") not in RESTARTS:
        found.append(unsupported("spec.restartPolicy", spec.get("restartPolicy"), RESTARTS))
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        found.append(wrong("spec.terminationGracePeriodSeconds",
                           spec["terminationGracePeriodSeconds"],
                           "must be greater than or equal to 0"))
    if not 1 <= spec.get("activeDeadlineSeconds", 1) <= (1 << 31) - 1:
        found.append(wrong("spec.activeDeadlineSeconds", spec["activeDeadlineSeconds"],
                           "must be between 1 and 2147483647, inclusive"))
    for key, value in (spec.get("nodeSelector") or {}).items():
        found += qualified_name("spec.nodeSelector", key)
        if not _VALUE.fullmatch(value) or len(value) > 63:
            found.append(wrong("spec.nodeSelector", value, VALUE_RULE))
    if spec.get("hostname") and not is_label(spec["hostname"]):
        found.append(wrong("spec.hostname", spec["hostname"], LABEL_RULE))
    return found + _tolerations(spec) + _node_terms(spec)


def _pod_kept(spec: Object) -> Object:
    """What an update may not change."""
    kept = {key: value for key, value in spec.items() if key not in (
        "activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")}
    for kind in ("containers", "initContainers"):
        if kind in kept:
            kept[kind] = [{**one, "image": ""} for one in kept[kind]]
    return kept


def pod_update(new: Object, old: Object) -> list[Cause]:
    before, after = old["spec"], new["spec"]
    rule = ("pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
            "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to "
            "be set to 1 if it was previously negative)\n")
    if _pod_kept(before) != _pod_kept(after) or before.get(
            "terminationGracePeriodSeconds") != after.get("terminationGracePeriodSeconds"):
        names = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        return [denied("spec", rule + "  core.PodSpec{\n" + "".join(
            f"-   {key}: {json.dumps(before.get(key))}\n+   {key}: {json.dumps(after.get(key))}\n"
            for key in names) + "  }\n")]
    if any(one not in (after.get("tolerations") or []) for one in before.get("tolerations") or []):
        return [denied("spec.tolerations", "existing toleration can not be modified except its "
                       "tolerationSeconds")]
    return []


# ---- the others ----

def secret(one: Object) -> list[Cause]:
    found = [wrong(f"data[{key}]", key, "a valid config key must consist of alphanumeric "
                   "characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', "
                   "regex used for validation is '[-._a-zA-Z0-9]+')")
             for key in one.get("data") or {} if not _DATA_KEY.fullmatch(key)]
    if sum(len(value) * 3 // 4 for value in (one.get("data") or {}).values()) > SECRET_MAX:
        found.append(("FieldValueTooLong", f"Too long: must have at most {SECRET_MAX} bytes",
                      "data"))
    return found


def secret_update(new: Object, old: Object) -> list[Cause]:
    found = []
    if new.get("type") != old.get("type"):
        found.append(wrong("type", new.get("type", ""), "field is immutable"))
    if old.get("immutable"):
        if not new.get("immutable"):
            found.append(denied("immutable", "field is immutable when `immutable` is set"))
        if new.get("data") != old.get("data"):
            found.append(denied("data", "field is immutable when `immutable` is set"))
    return found


def node(one: Object) -> list[Cause]:
    found = []
    seen = set()
    for number, taint in enumerate((one.get("spec") or {}).get("taints") or []):
        here = f"spec.taints[{number}]"
        if taint.get("effect") not in TAINT_EFFECTS:
            found.append(unsupported(f"{here}.effect", taint.get("effect", ""), TAINT_EFFECTS))
        found += qualified_name(f"{here}.key", taint.get("key", ""))
        if (taint.get("key"), taint.get("effect")) in seen:
            found.append(duplicate(here, taint))
        seen.add((taint.get("key"), taint.get("effect")))
    return found


def role(one: Object) -> list[Cause]:
    return [required(f"rules[{number}].verbs", "verbs must contain at least one value")
            for number, rule in enumerate(one.get("rules") or []) if not rule.get("verbs")]


def binding_update(new: Object, old: Object) -> list[Cause]:
    if new.get("roleRef") != old.get("roleRef"):
        return [wrong("roleRef", new.get("roleRef"), "cannot change roleRef")]
    return []


CREATE = {"pods": pod, "secrets": secret, "configmaps": secret, "nodes": node, "roles": role,
          "clusterroles": role}
UPDATE = {"pods": pod_update, "secrets": secret_update, "configmaps": secret_update,
          "rolebindings": binding_update, "clusterrolebindings": binding_update}
