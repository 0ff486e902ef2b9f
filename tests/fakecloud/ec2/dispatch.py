"""A signed request in, a status and XML out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fakecloud.ec2 import (
    actions_fleets,
    actions_instances,
    actions_market,
    forms,
    markup,
    sigv4,
    templates,
)
from fakecloud.ec2.call import Call
from fakecloud.ec2.cloud import Cloud
from fakecloud.ec2.errors import Ec2Error, missing
from fakecloud.ec2.instances import ACCOUNT
from fakecloud.ec2.sigv4 import Identity, Signed

VERSION = "2016-11-15"
ACTIONS: dict[str, Callable[[Call], dict[str, Any]]] = {
    "RunInstances": actions_instances.run,
    "DescribeInstances": actions_instances.describe,
    "TerminateInstances": actions_instances.terminate,
    "GetConsoleOutput": actions_instances.console,
    "CreateTags": actions_instances.create_tags,
    "DeleteTags": actions_instances.delete_tags,
    "CreateFleet": actions_fleets.create,
    "DescribeFleets": actions_fleets.describe,
    "DescribeFleetInstances": actions_fleets.describe_instances,
    "CreateLaunchTemplate": templates.create,
    "CreateLaunchTemplateVersion": templates.create_version,
    "ModifyLaunchTemplate": templates.modify,
    "DeleteLaunchTemplate": templates.delete,
    "DescribeLaunchTemplates": templates.describe,
    "DescribeLaunchTemplateVersions": templates.describe_versions,
    "DescribeSpotPriceHistory": actions_market.prices,
    "DescribeInstanceTypes": actions_market.types,
    "DescribeInstanceTypeOfferings": actions_market.offerings,
    "DescribeAvailabilityZones": actions_market.zones,
    "DescribeRegions": actions_market.regions,
}


def _form_of(request: Signed) -> dict[str, str]:
    if request.method not in ("GET", "POST") or request.path != "/":
        raise Ec2Error("InvalidAction", "Requests are GET or POST of /")
    try:
        body = request.body.decode("utf-8") if request.method == "POST" else ""
    except UnicodeDecodeError:
        raise Ec2Error("MalformedQueryString", "The body is not UTF-8") from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/x-www-form-urlencoded":
        raise Ec2Error("MalformedQueryString",
                       "Expected a body of application/x-www-form-urlencoded, "
                       f"got {kind[:80] or 'no Content-Type'}")
    return {**forms.parse(request.query), **forms.parse(body)}


def _allow(cloud: Cloud, identity: Identity, action: str) -> None:
    for denied in (cloud.denied, identity.key.denied):
        if action in denied or "*" in denied:
            raise Ec2Error(
                "UnauthorizedOperation",
                f"You are not authorized to perform this operation. User: arn:aws:iam::{ACCOUNT}:"
                f"{identity.key.name} is not authorized to perform: ec2:{action} because no "
                f"identity-based policy allows the ec2:{action} action")


def _refuse(cloud: Cloud, action: str) -> None:
    """As the administrator has ordered it."""
    for i, (name, code, message, count) in enumerate(cloud.refusals):
        if name in (action, "*"):
            del cloud.refusals[i]
            if count > 1:
                cloud.refusals.insert(i, (name, code, message, count - 1))
            raise Ec2Error(code, message)


def perform(cloud: Cloud, form: dict[str, str], identity: Identity) -> tuple[str, dict[str, Any]]:
    """The action's name and its result; raises :class:`Ec2Error`."""
    action = form.get("Action", "")
    if not action:
        raise Ec2Error("MissingAction", "The request must contain the parameter Action")
    if action not in ACTIONS:
        raise Ec2Error("InvalidAction",
                       f"The action {action[:80]} is not valid for this web service.")
    if "Version" not in form:
        raise missing("Version")
    if identity.region not in cloud.market.regions():
        raise Ec2Error("AuthFailure", f"There is no region {identity.region[:80]} on this market; "
                       f"there are {', '.join(cloud.market.regions())}")
    cloud.throttle.check(identity.region, action, cloud.settings.throttle, cloud.now_s)
    _allow(cloud, identity, action)
    _refuse(cloud, action)
    call = Call(cloud, action, form, forms.tree_of(form), identity.region, identity.key.id)
    return action, ACTIONS[action](call)


def answer(cloud: Cloud, request: Signed, request_id: str) -> tuple[int, str]:
    action = ""
    try:
        identity = sigv4.verify(request, cloud.keys, cloud.now_s + cloud.shift_s)
        form = _form_of(request)
        action = form.get("Action", "")[:80]
        action, result = perform(cloud, form, identity)
        return 200, markup.response(action, request_id, result)
    except Ec2Error as error:
        if error.code != "DryRunOperation":
            cloud.note("error", action=action or None, code=error.code)
        return error.status, markup.error(error.code, error.message, request_id)
