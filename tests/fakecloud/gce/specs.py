"""What an instance is asked to be: bodies of requests, read as strictly as Compute Engine does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fakecloud.catalogs import InstanceType
from fakecloud.gce import catalog
from fakecloud.gce.cloud import Cloud
from fakecloud.gce.errors import NotOffered, invalid, not_found, required
from fakecloud.gce.instances import Spec

NAME = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
METADATA_BYTES, VALUE_BYTES, LABELS_MAX = 512 << 10, 256 << 10, 64
_LINK = re.compile(r"(?:https?://[^/]+/compute/(?:v1|beta)/|/)?(?:projects/([^/]+)/)?(.+)")


def link(text: str, project: str) -> tuple[str, str]:
    """Project and the rest of a full or partial URL."""
    match = _LINK.fullmatch(text)
    return (match.group(1) or project, match.group(2)) if match else (project, text)


def check_name(name: Any, where: str) -> str:
    if not name:
        raise required(where)
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise invalid(where, name, f"Must be a match of regex '{NAME}'")
    return name


def check_labels(labels: dict[str, str], where: str) -> dict[str, str]:
    def good(text: str) -> bool:
        return len(text) <= 63 and all(
            one in "-_" or one.isdigit() or (one.isalpha() and one == one.lower()) for one in text)
    if len(labels) > LABELS_MAX:
        raise invalid(where, "", f"There are more than {LABELS_MAX} labels.")
    for key, value in labels.items():
        if not key or not good(key) or not key[0].isalpha():
            raise invalid(where, "", f"Label key '{key[:80]}' violates format constraints. The key "
                          "must start with a lowercase character, can only contain lowercase "
                          "letters, numeric characters, underscores and dashes. The key can be at "
                          "most 63 characters long. International characters are allowed.")
        if not good(value):
            raise invalid(where, "", f"Label value '{value[:80]}' violates format constraints. The "
                          "value can only contain lowercase letters, numeric characters, "
                          "underscores and dashes. The value can be at most 63 characters long. "
                          "International characters are allowed.")
    return dict(labels)


def check_metadata(body: dict[str, Any], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, one in enumerate(body.get("items") or []):
        key, value = one.get("key", ""), one.get("value", "")
        at = f"{where}.items[{number}]"
        if not re.fullmatch(r"[a-zA-Z0-9-_]{1,127}", key):
            raise invalid(f"{at}.key", key, "Must be a match of regex '[a-zA-Z0-9-_]{1,128}'")
        if key in found:
            raise invalid(where, key, "Metadata has duplicate keys.")
        if len(value.encode("utf-8", "replace")) > VALUE_BYTES:
            raise invalid(f"{at}.value", "", "Value is too large: maximum size is 262144 "
                          "character(s).")
        found[key] = value
    if sum(len(key) + len(value.encode("utf-8", "replace"))
           for key, value in found.items()) > METADATA_BYTES:
        raise invalid(where, "", "Metadata is too large: maximum total size is 524288 bytes.")
    return found


@dataclass(frozen=True)
class Draft:
    """All but a place: what instances of one request have in common."""

    cloud: Cloud
    body: dict[str, Any]
    where: str
    template: str = ""

    def _image(self) -> tuple[str, int, str]:
        disks = self.body.get("disks") or []
        boot = [one for one in disks if one.get("boot")]
        if not disks:
            raise invalid(f"{self.where}.disks", "", "No disks are specified.")
        if not boot:
            raise invalid(f"{self.where}.disks[0].boot", "", "Boot disk must be the first disk "
                          "attached to the instance.")
        wanted = boot[0].get("initializeParams") or {}
        source = wanted.get("sourceImage", "")
        if not source:
            raise invalid(f"{self.where}.disks[0]", "", "A disk must have a source or a source "
                          "image.")
        image = catalog.image_named(source, self.cloud.project, self.cloud.settings.images)
        if image is None:
            project, rest = link(source, self.cloud.project)
            if not rest.startswith("global/images/"):
                raise invalid(f"{self.where}.disks[0].initializeParams.sourceImage", source,
                              "The URL is malformed.")
            raise not_found(f"projects/{project}/{rest}")
        size = int(wanted.get("diskSizeGb") or 10)
        if size < 10:
            raise invalid(f"{self.where}.disks[0].initializeParams.diskSizeGb", size,
                          "Disk size cannot be smaller than the image size (10 GB).")
        kind = (wanted.get("diskType") or "pd-standard").rpartition("/")[2]
        if not re.fullmatch(r"(pd|hyperdisk)-[a-z-]+", kind):
            raise invalid(f"{self.where}.disks[0].initializeParams.diskType", kind,
                          "The disk type does not exist.")
        return image, size, kind

    def _network(self, region: str) -> tuple[str, str, bool]:
        interfaces = self.body.get("networkInterfaces") or []
        if not interfaces:
            raise invalid(f"{self.where}.networkInterfaces", "",
                          "At least one network interface is required.")
        one, project = interfaces[0], self.cloud.project
        networks = self.cloud.settings.networks
        of, network = link(one.get("network") or "", project)
        _, subnetwork = link(one.get("subnetwork") or "", project)
        if subnetwork:
            match = re.fullmatch(r"regions/([^/]+)/subnetworks/([^/]+)", subnetwork)
            if match is None:
                raise invalid(f"{self.where}.networkInterfaces[0].subnetwork", subnetwork,
                              "The URL is malformed.")
            if match.group(1) != region:
                raise invalid(f"{self.where}.networkInterfaces[0].subnetwork", subnetwork,
                              "Region of the subnetwork does not match the instance's.")
            if match.group(2) not in networks:
                raise not_found(f"projects/{of}/{subnetwork}")
        network = network or f"global/networks/{subnetwork.rpartition('/')[2] or 'default'}"
        if network.removeprefix("global/networks/") not in networks:
            raise not_found(f"projects/{of}/{network}")
        subnetwork = subnetwork or (
            f"regions/{region}/subnetworks/{network.rpartition('/')[2]}")
        external = bool(one.get("accessConfigs"))
        return f"projects/{of}/{network}", f"projects/{of}/{subnetwork}", external

    def _scheduling(self, accelerated: bool) -> dict[str, Any]:
        body, where = self.body.get("scheduling") or {}, f"{self.where}.scheduling"
        model = body.get("provisioningModel") or ""
        if model not in ("", "STANDARD", "SPOT"):
            raise invalid(f"{where}.provisioningModel", model, "Expected STANDARD or SPOT.")
        spot = model == "SPOT" or bool(body.get("preemptible"))
        action = body.get("instanceTerminationAction") or ""
        if action not in ("", "STOP", "DELETE"):
            raise invalid(f"{where}.instanceTerminationAction", action,
                          "Expected STOP or DELETE.")
        restarts, moved = body.get("automaticRestart"), body.get("onHostMaintenance") or ""
        if spot and (restarts is True or moved == "MIGRATE"):
            raise invalid(where, "", "Scheduling must have preemptible be false when "
                          "OnHostMaintenance is set to MIGRATE." if moved == "MIGRATE" else
                          "Scheduling cannot have automaticRestart be true when preemptible is "
                          "true.")
        if action and not spot and not body.get("maxRunDuration"):
            raise invalid(f"{where}.instanceTerminationAction", action, "The instance termination "
                          "action is supported for Spot VMs and VMs with a time limit only.")
        if accelerated and not spot and moved != "TERMINATE":
            raise invalid(where, "", "Instances with guest accelerators do not support live "
                          "migration.")
        notice = body.get("preemptionNoticeDuration") or {}
        return {"spot": spot, "legacy": spot and model != "SPOT", "on_end": action or "STOP",
                "restarts": not spot and restarts is not False,
                "on_maintenance": moved or ("TERMINATE" if spot else "MIGRATE"),
                "notice_s": float(notice.get("seconds") or 0)}

    def accelerators(self) -> dict[str, int]:
        return {(one.get("acceleratorType") or "").rpartition("/")[2]:
                int(one.get("acceleratorCount") or 1)
                for one in self.body.get("guestAccelerators") or []}

    def shape(self, zone: str, type_: str) -> InstanceType:
        """The offer of the market, which may be none just now."""
        name = type_.rpartition("/")[2]
        shape = catalog.shape_of(name, self.accelerators())
        if name not in self.cloud.market.types or "+" in name or (
                shape == name and (zone, shape) not in self.cloud.market.pools):
            raise NotOffered(f"Invalid value for field '{self.where}.machineType': '{type_}'. "
                             f"Machine type with name '{name}' does not exist in zone '{zone}'.")
        if (zone, shape) not in self.cloud.market.pools:
            raise NotOffered(f"[{shape.replace('+', ', ')}] features are not compatible for "
                             f"creating instance in zone '{zone}'.")
        return self.cloud.market.pools[zone, shape].type

    def spec(self, name: str, zone: str, type_: str) -> Spec:
        body = self.body
        accounts = body.get("serviceAccounts") or [{}]
        image, disk_gb, disk_type = self._image()
        network, subnetwork, external = self._network(catalog.region_of(zone))
        tags = tuple((body.get("tags") or {}).get("items") or [])
        shape = self.shape(zone, type_)
        for number, tag in enumerate(tags):
            check_name(tag, f"{self.where}.tags.items[{number}]")
        return Spec(
            name, zone, self.cloud.project, shape, image, network, subnetwork, external,
            labels=check_labels(body.get("labels") or {}, f"{self.where}.labels"),
            metadata=check_metadata(body.get("metadata") or {}, f"{self.where}.metadata"),
            tags=tags, account=accounts[0].get("email") or "",
            scopes=tuple(accounts[0].get("scopes") or ()), disk_gb=disk_gb, disk_type=disk_type,
            description=body.get("description") or "", template=self.template,
            **self._scheduling("+" in shape.name))


def merge(own: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """What a request says over what its template does: objects by their keys, all else whole."""
    merged = dict(template)
    for key, value in own.items():
        known = merged.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            merged[key] = merge(value, known)
        elif value is not None:
            merged[key] = value
    return merged
