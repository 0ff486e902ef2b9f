"""What a launch asks for: the parameters of RunInstances, or of a launch template's data."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Optional

from fakecloud.ec2 import catalog, templates
from fakecloud.ec2.call import Call, check_user_data
from fakecloud.ec2.errors import Ec2Error, bad_value, missing
from fakecloud.ec2.forms import Form
from fakecloud.ec2.instances import LaunchSpec
from fakecloud.ec2.market import Pool

PER_CALL_MAX = 1_000


@dataclass(frozen=True)
class Wanted:
    """``zone`` is empty if any will do. ``spec`` has neither zone nor type yet."""

    spec: LaunchSpec
    type_name: str
    zone: str = ""

    def at(self, pool: Pool, **more: Any) -> LaunchSpec:
        return replace(self.spec, type=pool.type, zone=pool.zone, **more)


def merge(call: Call, form: Form) -> tuple[Form, str, int]:
    """The form over the data of the launch template it names, with that template's id and version;
    what the request itself says counts."""
    found = templates.resolve(call, form.part("LaunchTemplate"))
    if found is None:
        return form, "", 0
    template, version = found
    own = {key: value for key, value in form.tree.items() if key != "LaunchTemplate"}
    return Form({**version.data, **own}, form.path), template.id, version.number


def zone_of(call: Call, form: Form, zone: str) -> str:
    """Of SubnetId or AvailabilityZone; empty if neither is given."""
    subnet = form.text("SubnetId", "")
    zones = call.cloud.market.zones(call.region)
    if subnet:
        by_subnet = {catalog.subnet_of(one): one for one in zones}
        if subnet not in by_subnet:
            raise Ec2Error("InvalidSubnetID.NotFound",
                           f"The subnet ID '{subnet[:80]}' does not exist")
        if zone and zone != by_subnet[subnet]:
            raise Ec2Error("InvalidParameterCombination",
                           f"The subnet {subnet} is not in {zone}")
        return by_subnet[subnet]
    if zone and zone not in zones:
        raise Ec2Error("InvalidParameterValue", f"Invalid availability zone: [{zone[:80]}]")
    return zone


def price_of(form: Form, key: str) -> Optional[float]:
    price = form.number(key)
    if price is not None and price <= 0:
        raise bad_value(form.name(key), form.text(key), "Expected dollars per hour.")
    return price


def _market_of(form: Form) -> tuple[bool, Optional[float]]:
    options = form.part("InstanceMarketOptions")
    kind = options.text("MarketType", "")
    if kind not in ("", "spot"):
        raise bad_value(options.name("MarketType"), kind[:80], "Expected spot.")
    spot = options.part("SpotOptions")
    if spot.tree and not kind:
        raise missing(options.name("MarketType"))
    max_price = price_of(spot, "MaxPrice")
    spot.ignore("ValidUntil", "BlockDurationMinutes")
    for key, only in (("SpotInstanceType", "one-time"),
                      ("InstanceInterruptionBehavior", "terminate")):
        value = spot.text(key, only)
        if value != only:
            raise Ec2Error("Unsupported", f"This cloud does {only} of {key}, not {value[:80]}")
    return kind == "spot", max_price


def _profile_of(form: Form) -> str:
    profile = form.part("IamInstanceProfile")
    arn, name = profile.text("Arn", ""), profile.text("Name", "")
    if arn and not re.fullmatch(r"arn:aws:iam::[0-9]{12}:instance-profile/[\w+=,.@/-]+", arn):
        raise bad_value("iamInstanceProfile.arn", arn[:80], "Invalid IAM Instance Profile ARN")
    if arn and name:
        raise Ec2Error("InvalidParameterCombination",
                       "The parameter 'iamInstanceProfile.name' may not be used in combination "
                       "with 'iamInstanceProfile.arn'")
    name = arn.rpartition("/")[2] if arn else name
    if name and not re.fullmatch(r"[\w+=,.@-]{1,128}", name):
        raise bad_value("iamInstanceProfile.name", name[:80], "Invalid IAM Instance Profile name")
    return name


def _image_of(call: Call, form: Form) -> str:
    image = form.text("ImageId")
    if not re.fullmatch(r"ami-([0-9a-f]{8}|[0-9a-f]{17})", image):
        raise Ec2Error("InvalidAMIID.Malformed",
                       f'Invalid id: "{image[:80]}" (expecting "ami-...")')
    known = call.cloud.settings.images
    if known is not None and image not in known:
        raise Ec2Error("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
    return image


def type_named(call: Call, name: str) -> catalog.InstanceType:
    found = call.cloud.market.types.get(name)
    if found is None:
        raise Ec2Error("InvalidParameterValue",
                       f"Invalid value '{name[:80]}' for InstanceType.")
    return found


def read(call: Call, form: Form, template: str = "", version: int = 0) -> Wanted:
    """``form``: merged."""
    type_name = form.text("InstanceType", "m5.large")
    type_ = type_named(call, type_name)
    placement = form.part("Placement")
    placement.ignore("Tenancy", "GroupName", "GroupId", "HostId", "PartitionNumber", "Affinity")
    zone = zone_of(call, form, placement.text("AvailabilityZone", ""))
    spot, max_price = _market_of(form)
    behavior = form.choice("InstanceInitiatedShutdownBehavior", ("stop", "terminate"), "stop")
    options = form.part("MetadataOptions")
    options.choice("HttpTokens", ("required", "optional"), "required")
    options.ignore("HttpPutResponseHopLimit", "HttpEndpoint", "HttpProtocolIpv6",
                   "InstanceMetadataTags")
    form.ignore(*templates.IGNORED, "PrivateIpAddress", "AdditionalInfo")
    groups = (*form.texts("SecurityGroupId"), *form.texts("SecurityGroup"))
    user_data = check_user_data(form.text("UserData", ""))
    spec = LaunchSpec(
        image=_image_of(call, form), type=type_, zone="", spot=spot, max_price=max_price,
        user_data=user_data, tags=call.tags(form), profile=_profile_of(form),
        terminate_on_shutdown=behavior == "terminate", key_name=form.text("KeyName", ""),
        groups=groups, client_token=call.token, template=template, template_version=version)
    return Wanted(spec, type_name, zone)


def pools_for(call: Call, type_name: str, zone: str) -> list[Pool]:
    """Where the type is offered; an error if that is nowhere."""
    pools = call.cloud.market.pools
    zones = call.cloud.market.zones(call.region)
    offered = [one for one in zones if (one, type_name) in pools]
    if zone in offered:
        return [pools[zone, type_name]]
    if zone or not offered:
        advice = f" or choosing {', '.join(offered)}" if offered else ""
        raise Ec2Error("Unsupported",
                       f"Your requested instance type ({type_name}) is not supported in your "
                       f"requested Availability Zone ({zone or call.region}). Please retry your "
                       f"request by not specifying an Availability Zone{advice}.")
    return [pools[one, type_name] for one in offered]
