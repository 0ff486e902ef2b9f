"""Launch templates: the data of each version is kept as the tree that was sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Optional

from fakecloud.ec2.call import Call, check_user_data, passes, tag_set
from fakecloud.ec2.errors import Ec2Error, bad_value, missing
from fakecloud.ec2.forms import Form, Tree
from fakecloud.ec2.instances import ACCOUNT
from fakecloud.ec2.markup import stamp

TEMPLATES_MAX = 5_000
VERSIONS_MAX = 10_000
_NAME = re.compile(r"[a-zA-Z0-9().\-/_]{3,128}")
# Of a template's data, without an effect here.
IGNORED = ("EbsOptimized", "BlockDeviceMapping", "NetworkInterface", "Monitoring",
           "DisableApiTermination", "DisableApiStop", "CreditSpecification", "CpuOptions",
           "CapacityReservationSpecification", "HibernationOptions", "EnclaveOptions",
           "PrivateDnsNameOptions", "MaintenanceOptions", "KernelId", "RamDiskId",
           "LicenseSpecification", "NetworkPerformanceOptions")


@dataclass
class Version:
    number: int
    data: Tree
    description: str
    created_s: float


@dataclass
class Template:
    id: str
    name: str
    region: str
    created_s: float
    tags: dict[str, str] = field(default_factory=dict)
    versions: dict[int, Version] = field(default_factory=dict)
    default: int = 1
    latest: int = 1

    def as_xml(self, shift_s: float) -> dict[str, Any]:
        return {"launchTemplateId": self.id, "launchTemplateName": self.name,
                "createTime": stamp(self.created_s + shift_s),
                "createdBy": f"arn:aws:iam::{ACCOUNT}:user/tester",
                "defaultVersionNumber": self.default, "latestVersionNumber": self.latest,
                "tagSet": tag_set(self.tags) or None}

    def version(self, word: str) -> Version:
        """``word``: a number, ``$Latest`` or ``$Default``, which is also the one of ""."""
        number = {"": self.default, "$Default": self.default, "$Latest": self.latest}.get(word)
        if number is None:
            if not re.fullmatch(r"[0-9]{1,9}", word):
                raise bad_value("Version", word[:80], "Expected a number, $Latest or $Default.")
            number = int(word)
        if number not in self.versions:
            raise Ec2Error("InvalidLaunchTemplateId.VersionNotFound",
                           f"Could not find the specified version {number} for the launch "
                           f"template with ID {self.id}.")
        return self.versions[number]


def find(call: Call, form: Form) -> Template:
    """By LaunchTemplateId or LaunchTemplateName of the form."""
    id_, name = form.text("LaunchTemplateId", ""), form.text("LaunchTemplateName", "")
    if bool(id_) == bool(name):
        raise missing("LaunchTemplateId or LaunchTemplateName, one of both,")
    for one in call.cloud.templates.values():
        if one.region == call.region and (one.id == id_ or one.name == name):
            return one  # type: ignore[no-any-return]
    raise _not_found(id_, name)


def _not_found(id_: str, name: str) -> Ec2Error:
    if id_:
        return Ec2Error("InvalidLaunchTemplateId.NotFound",
                        f"The specified launch template, with template ID {id_[:80]}, "
                        "does not exist.")
    return Ec2Error("InvalidLaunchTemplateName.NotFoundException",
                    f"At least one of the launch templates specified in the request does not "
                    f"exist: {name[:128]}")


def _check_data(call: Call, form: Form) -> Tree:
    """Reads all of it, so that a wrong word is told when it is written."""
    for key in ("ImageId", "InstanceType", "KeyName", "InstanceInitiatedShutdownBehavior"):
        form.text(key, "")
    if form.text("UserData", ""):
        check_user_data(form.text("UserData"))
    form.part("IamInstanceProfile").ignore("Arn", "Name")
    form.part("Placement").ignore("AvailabilityZone", "Tenancy", "GroupName", "GroupId", "HostId",
                                  "PartitionNumber", "Affinity")
    market = form.part("InstanceMarketOptions")
    market.ignore("MarketType")
    market.part("SpotOptions").ignore("MaxPrice", "SpotInstanceType", "ValidUntil",
                                      "InstanceInterruptionBehavior", "BlockDurationMinutes")
    form.part("MetadataOptions").ignore("HttpTokens", "HttpPutResponseHopLimit", "HttpEndpoint",
                                        "HttpProtocolIpv6", "InstanceMetadataTags")
    form.texts("SecurityGroupId")
    form.texts("SecurityGroup")
    call.tags(form)
    form.ignore(*IGNORED)
    return form.tree


def _put(call: Call, template: Template, data: Tree, description: str) -> Version:
    if len(template.versions) >= VERSIONS_MAX:
        raise Ec2Error("VersionLimitExceeded", "You have reached the limit of versions")
    number = max([template.latest, *template.versions]) + 1 if template.versions else 1
    template.latest = number
    template.versions[number] = Version(number, data, description, call.cloud.now_s)
    return template.versions[number]


def create(call: Call) -> dict[str, Any]:
    name, description = call.form.text("LaunchTemplateName"), call.form.text(
        "VersionDescription", "", 255)
    if not _NAME.fullmatch(name):
        raise Ec2Error("InvalidLaunchTemplateName.MalformedException",
                       "The name of a launch template has 3 to 128 letters, digits and ().-/_")
    if not isinstance(call.form.tree.get("LaunchTemplateData"), dict):
        raise missing("LaunchTemplateData")
    data = _check_data(call, call.form.part("LaunchTemplateData"))
    tags = call.tags(call.form).get("launch-template", {})
    call.ready()

    def make() -> str:
        templates = call.cloud.templates
        if any(one.region == call.region and one.name == name for one in templates.values()):
            raise Ec2Error("InvalidLaunchTemplateName.AlreadyExistsException",
                           "Launch template name already in use.")
        if len(templates) >= TEMPLATES_MAX:
            raise Ec2Error("LaunchTemplateLimitExceeded", "You have too many launch templates")
        one = Template(call.cloud.new_id("lt"), name, call.region, call.cloud.now_s, tags)
        _put(call, one, data, description)
        templates[one.id] = one
        return one.id
    made = call.cloud.templates.get(call.once(make))
    if made is None:
        raise _not_found("", name)
    return {"launchTemplate": made.as_xml(call.cloud.shift_s)}


def create_version(call: Call) -> dict[str, Any]:
    template = find(call, call.form)
    source = call.form.text("SourceVersion", "")
    description = call.form.text("VersionDescription", "", 255)
    call.form.ignore("ResolveAlias")
    data = _check_data(call, call.form.part("LaunchTemplateData"))
    if source:
        data = {**template.version(source).data, **data}
    call.ready()
    made = call.once(lambda: _put(call, template, data, description))
    return {"launchTemplateVersion": _version_xml(call, template, made)}


def modify(call: Call) -> dict[str, Any]:
    template = find(call, call.form)
    key = "DefaultVersion" if "DefaultVersion" in call.form else "SetDefaultVersion"
    version = template.version(call.form.text(key))
    call.ready()
    template.default = version.number
    return {"launchTemplate": template.as_xml(call.cloud.shift_s)}


def delete(call: Call) -> dict[str, Any]:
    template = find(call, call.form)
    call.ready()
    del call.cloud.templates[template.id]
    return {"launchTemplate": template.as_xml(call.cloud.shift_s)}


def describe(call: Call) -> dict[str, Any]:
    ids, names = call.form.texts("LaunchTemplateId"), call.form.texts("LaunchTemplateName")
    filters = call.filters(("tag:", "tag-key", "launch-template-name", "create-time"))
    mine = [one for one in call.cloud.templates.values() if one.region == call.region]
    for id_ in ids:
        if id_ not in {one.id for one in mine}:
            raise _not_found(id_, "")
    for name in names:
        if name not in {one.name for one in mine}:
            raise _not_found("", name)
    if ids or names:
        mine = [one for one in mine if one.id in ids or one.name in names]
    mine = [one for one in mine if passes(filters, {
        "launch-template-name": one.name, "create-time": stamp(one.created_s)}, one.tags)]
    page, token = call.page(mine, 200, 200, 1)
    call.ready()
    return {"launchTemplates": [one.as_xml(call.cloud.shift_s) for one in page],
            "nextToken": token}


def describe_versions(call: Call) -> dict[str, Any]:
    words = call.form.texts("LaunchTemplateVersion")
    least, most = call.form.integer("MinVersion", 0), call.form.integer("MaxVersion", 10**9,
                                                                        most=10**9)
    call.form.ignore("ResolveAlias")
    if "LaunchTemplateId" in call.form or "LaunchTemplateName" in call.form:
        templates = [find(call, call.form)]
    elif set(words) and set(words) <= {"$Latest", "$Default"}:
        templates = [one for one in call.cloud.templates.values() if one.region == call.region]
    else:
        raise missing("LaunchTemplateId or LaunchTemplateName")
    found = []
    for one in templates:
        versions = {one.version(word).number for word in words} if words else set(one.versions)
        found += [(one, one.versions[number]) for number in sorted(versions, reverse=True)
                  if least <= number <= most]
    page, token = call.page(found, 200, 200, 1)
    call.ready()
    return {"launchTemplateVersionSet": [_version_xml(call, *one) for one in page],
            "nextToken": token}


def _version_xml(call: Call, template: Template, version: Version) -> dict[str, Any]:
    return {"launchTemplateId": template.id, "launchTemplateName": template.name,
            "versionNumber": version.number, "versionDescription": version.description or None,
            "createTime": stamp(version.created_s + call.cloud.shift_s),
            "createdBy": f"arn:aws:iam::{ACCOUNT}:user/tester",
            "defaultVersion": version.number == template.default,
            "launchTemplateData": _data_xml(version.data)}


def _lower(key: str) -> str:
    return key[0].lower() + key[1:]


def _plain(tree: Any) -> Any:
    return {_lower(key): _plain(value) for key, value in tree.items()} if isinstance(
        tree, dict) else tree


def _data_xml(data: Tree) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in data.items():
        if key == "TagSpecification":
            out["tagSpecificationSet"] = [
                {"resourceType": one.get("ResourceType"),
                 "tagSet": [_plain(tag) for tag in one.get("Tag", {}).values()]}
                for one in value.values()]
        elif isinstance(value, dict) and value and all(index.isdigit() for index in value):
            out[_lower(key) + "Set"] = [_plain(value[index]) for index in sorted(value, key=int)]
        else:
            out[_lower(key)] = _plain(value)
    return out


def resolve(call: Call, form: Form) -> Optional[tuple[Template, Version]]:
    """The LaunchTemplate of a request, if it names one."""
    if not form.tree:
        return None
    template = find(call, form)
    return template, template.version(form.text("Version", ""))
