"""What changes or refuses objects before they are stored: priorities, accounts, limits, quotas."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from fakecloud.k8s import catalog, defaults, launch, quantities
from fakecloud.k8s.catalog import Resource
from fakecloud.k8s.errors import ApiError, forbidden
from fakecloud.k8s.faults import quota_exceeded
from fakecloud.k8s.registry import LETTERS, Registry, is_over
from fakecloud.k8s.selectors import Object
from fakecloud.k8s.settings import Settings

SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000,
                     "system-node-critical": 2_000_001_000}


class Admission:
    def __init__(self, registry: Registry, settings: Settings, rng: Any) -> None:
        self.registry, self.settings, self._rng = registry, settings, rng
        self.store = registry.store

    def admit(self, resource: Resource, one: Object) -> Object:
        if resource is not catalog.PODS:
            return one
        one = self._limits(self.admit_update(resource, self._priority(self._account(one))))
        self._quota(one)
        return one

    def admit_update(self, resource: Resource, one: Object) -> Object:
        if resource is not catalog.PODS:
            return one
        return {**one, "spec": defaults.tolerations(one["spec"], self.settings.toleration_s)}

    def _account(self, pod: Object) -> Object:
        own, spec = pod["metadata"], dict(pod["spec"])
        name = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        account = self.store.get(catalog.SERVICE_ACCOUNTS, own["namespace"], name)
        if account is None:
            raise forbidden("", "pods", own.get("name", ""), "error looking up service account "
                            f'{own["namespace"]}/{name}: serviceaccount "{name}" not found')
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        wanted = spec.get("automountServiceAccountToken",
                          account.get("automountServiceAccountToken", True))
        if wanted and self.settings.automount and spec.get("containers"):
            volume, mount = launch.account_volume(
                "kube-api-access-" + "".join(self._rng.choice(LETTERS) for _ in range(5)))
            spec["volumes"] = [*(spec.get("volumes") or []), volume]
            for kind in ("containers", "initContainers"):
                if kind in spec:
                    spec[kind] = [self._mounted(one, mount) for one in spec[kind]]
        return {**pod, "spec": spec}

    @staticmethod
    def _mounted(container: Object, mount: Object) -> Object:
        mounts = container.get("volumeMounts") or []
        if any(one.get("mountPath") == mount["mountPath"] for one in mounts):
            return container
        return {**container, "volumeMounts": [*mounts, mount]}

    def _priority(self, pod: Object) -> Object:
        spec, name = pod["spec"], pod["spec"].get("priorityClassName", "")
        value, policy = 0, "PreemptLowerPriority"
        if name in SYSTEM_PRIORITIES:
            value = SYSTEM_PRIORITIES[name]
        elif name:
            found = self.store.get(catalog.PRIORITY_CLASSES, "", name)
            if found is None:
                raise forbidden("", "pods", pod["metadata"].get("name", ""),
                                f"no PriorityClass with name {name} was found")
            value = found.get("value", 0)
            policy = found.get("preemptionPolicy", policy)
        else:
            for one in self.store.all(catalog.PRIORITY_CLASSES):
                if one.get("globalDefault"):
                    value, name = one.get("value", 0), one["metadata"]["name"]
                    policy = one.get("preemptionPolicy", policy)
        if "priority" in spec and spec["priority"] != value:
            raise forbidden("", "pods", pod["metadata"].get("name", ""), "the integer value of "
                            f"priority ({spec['priority']}) must not be provided in pod spec; "
                            f"priority admission controller computed {value} from the given "
                            "PriorityClass name")
        new = {**spec, "priority": value, "preemptionPolicy": spec.get("preemptionPolicy", policy)}
        if name:
            new["priorityClassName"] = name
        return {**pod, "spec": new}

    # ---- limit ranges ----

    def _limits(self, pod: Object) -> Object:
        ranges = self.store.all(catalog.LIMIT_RANGES, pod["metadata"]["namespace"])
        rules = [rule for one in ranges for rule in (one.get("spec") or {}).get("limits") or []
                 if rule.get("type") == "Container"]
        if not rules:
            return pod
        spec = dict(pod["spec"])
        spec["containers"] = [self._filled(one, rules) for one in spec["containers"]]
        told = [text for one in spec["containers"] for rule in rules
                for text in self._broken(one, rule)]
        if told:
            text = told[0] if len(told) == 1 else "[" + ", ".join(told) + "]"
            raise forbidden("", "pods", pod["metadata"].get("name", ""), text)
        return {**pod, "spec": spec}

    @staticmethod
    def _filled(container: Object, rules: list[Object]) -> Object:
        own = container.get("resources") or {}
        limits, requests = dict(own.get("limits") or {}), dict(own.get("requests") or {})
        for rule in rules:
            for name, value in (rule.get("defaultRequest") or rule.get("default") or {}).items():
                requests.setdefault(name, limits.get(name, value))
            for name, value in (rule.get("default") or {}).items():
                limits.setdefault(name, value)
        return {**container, "resources": {**own, "limits": limits, "requests": requests}}

    @staticmethod
    def _broken(container: Object, rule: Object) -> list[str]:
        own, found = container.get("resources") or {}, []
        for name, most in (rule.get("max") or {}).items():
            value = (own.get("limits") or {}).get(name)
            if value is None:
                found.append(f"maximum {name} usage per Container is {most}.  No limit is "
                             "specified")
            elif quantities.amount(value) > quantities.amount(most):
                found.append(f"maximum {name} usage per Container is {most}, but limit is {value}")
        for name, least in (rule.get("min") or {}).items():
            value = (own.get("requests") or {}).get(name)
            if value is None:
                found.append(f"minimum {name} usage per Container is {least}.  No request is "
                             "specified")
            elif quantities.amount(value) < quantities.amount(least):
                found.append(f"minimum {name} usage per Container is {least}, but request is "
                             f"{value}")
        return found

    # ---- quotas ----

    @staticmethod
    def _usage(pod: Object) -> dict[str, Fraction]:
        found = {"pods": Fraction(1), "count/pods": Fraction(1)}
        for one in pod["spec"]["containers"]:
            for kind, prefix in (("requests", "requests."), ("limits", "limits.")):
                amounts = (one.get("resources") or {}).get(kind) or {}
                quantities.add(found, {prefix + name: value for name, value in amounts.items()})
                if kind == "requests":
                    quantities.add(found, {name: value for name, value in amounts.items()
                                           if name in ("cpu", "memory")})
        return found

    def used(self, namespace: str) -> dict[str, Fraction]:
        total: dict[str, Fraction] = {}
        for pod in self.store.all(catalog.PODS, namespace):
            if not is_over(pod):
                for name, value in self._usage(pod).items():
                    total[name] = total.get(name, Fraction(0)) + value
        return total

    def _quota(self, pod: Object) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"].get("name", "")
        quotas = self.store.all(catalog.QUOTAS, namespace)
        if not quotas:
            return
        used, asked = self.used(namespace), self._usage(pod)
        for quota in quotas:
            hard = (quota.get("spec") or {}).get("hard") or {}
            lacking = [key for key in hard if key not in asked and key.split(".")[0] in (
                "requests", "limits", "cpu", "memory")]
            if lacking:
                raise forbidden("", "pods", name, f"failed quota: {quota['metadata']['name']}: "
                                f"must specify {','.join(sorted(lacking))} for: "
                                + ",".join(one["name"] for one in pod["spec"]["containers"]))
            over = sorted(
                key for key, most in hard.items() if key in asked and used.get(
                    key, Fraction(0)) + asked[key] > quantities.amount(most))
            if over:
                def told(amounts: dict[str, Any], keys: list[str] = over) -> str:
                    return ",".join(f"{key}={amounts.get(key, 0)}" for key in keys)
                raise quota_exceeded(
                    quota["metadata"]["name"], name,
                    told({key: quantities.text(asked[key]) for key in over}),
                    told({key: quantities.text(used.get(key, Fraction(0))) for key in over}),
                    told(hard))

    def tell_used(self) -> None:
        """Into the quotas' status."""
        for quota in self.store.all(catalog.QUOTAS):
            hard = (quota.get("spec") or {}).get("hard") or {}
            used = self.used(quota["metadata"]["namespace"])
            status = {"hard": hard, "used": {key: quantities.text(used.get(key, Fraction(0)))
                                             for key in hard}}
            if quota.get("status") != status:
                try:
                    self.registry.write(catalog.QUOTAS, {**quota, "status": status})
                except ApiError:
                    pass    # It has just changed, and comes again.
