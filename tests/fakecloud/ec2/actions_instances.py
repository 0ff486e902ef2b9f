"""The actions on instances."""

from __future__ import annotations

import base64
from typing import Any

from fakecloud.ec2 import launching
from fakecloud.ec2.call import Call, passes, read_tags
from fakecloud.ec2.errors import Ec2Error, missing
from fakecloud.ec2.instances import ACCOUNT, Instance
from fakecloud.ec2.markup import stamp

FILTERS = ("tag:", "tag-key", "tag-value", "instance-state-name", "instance-state-code",
           "instance-id", "availability-zone", "instance-lifecycle", "instance-type", "image-id",
           "client-token", "reservation-id", "spot-instance-request-id", "private-ip-address",
           "launch-index", "subnet-id", "vpc-id", "owner-id", "state-reason-code", "reason")


def run(call: Call) -> dict[str, Any]:
    form, template, version = launching.merge(call, call.form)
    if form is not call.form:
        form.ignore("Action", "Version", "ClientToken", "DryRun")
        call.form = form
    wanted = launching.read(call, form, template, version)
    least = form.integer("MinCount", least=1, most=launching.PER_CALL_MAX)
    most = form.integer("MaxCount", least=1, most=launching.PER_CALL_MAX)
    if least > most:
        raise Ec2Error("InvalidParameterValue",
                       f"Value ({least}) for parameter minCount is greater than maxCount.")
    pools = launching.pools_for(call, wanted.type_name, wanted.zone)
    call.ready()

    def make() -> list[Instance]:
        cloud, spec = call.cloud, wanted.spec
        rooms = [(*cloud.room(pool, spec.spot, spec.max_price), pool) for pool in pools]
        count, why, pool = max(rooms, key=lambda one: one[0])
        if count < least:
            cloud.note("refused", zone=pool.zone, type=pool.type.name, code=why.code,
                       market="spot" if spec.spot else "on_demand", wanted=most)
            raise why
        return cloud.launch(wanted.at(pool), min(count, most))
    made = call.once(make)
    return {"reservationId": made[0].reservation, "ownerId": ACCOUNT, "groupSet": [],
            "instancesSet": [one.as_xml(call.cloud.shift_s) for one in made]}


def _filterable(one: Instance) -> dict[str, Any]:
    shown = one.as_xml()
    return {"instance-state-name": one.state, "instance-state-code": str(shown["instanceState"][
                "code"]), "instance-id": one.id, "availability-zone": one.zone,
            "instance-lifecycle": "spot" if one.spec.spot else None,
            "instance-type": one.spec.type.name, "image-id": one.spec.image,
            "client-token": one.spec.client_token, "reservation-id": one.reservation,
            "spot-instance-request-id": one.spot_request or None,
            "private-ip-address": shown.get("privateIpAddress"), "launch-index": str(one.index),
            "subnet-id": shown.get("subnetId"), "vpc-id": shown.get("vpcId"), "owner-id": ACCOUNT,
            "state-reason-code": one.reason or None, "reason": one.transition}


def describe(call: Call) -> dict[str, Any]:
    ids = call.form.texts("InstanceId")
    filters = call.filters(FILTERS)
    if ids and "MaxResults" in call.form:
        raise Ec2Error("InvalidParameterCombination",
                       "The parameter instancesSet cannot be used with the parameter maxResults")
    found = call.instances_by_id(ids) if ids else call.seen()
    found.sort(key=lambda one: one.number)
    if filters:
        found = [one for one in found if passes(filters, _filterable(one), one.tags)]
    page, token = call.page(found, 1000, number=lambda one: one.number)
    call.ready()
    reservations: dict[str, list[Instance]] = {}
    for one in page:
        reservations.setdefault(one.reservation, []).append(one)
    shift_s = call.cloud.shift_s
    return {"reservationSet": [
        {"reservationId": id_, "ownerId": ACCOUNT, "groupSet": [],
         "instancesSet": [one.as_xml(shift_s) for one in ones]}
        for id_, ones in reservations.items()], "nextToken": token}


def terminate(call: Call) -> dict[str, Any]:
    ids = call.form.texts("InstanceId")
    call.form.ignore("Force", "SkipOsShutdown")
    if not ids:
        raise missing("InstanceId")
    if len(ids) > 1000:
        raise Ec2Error("InvalidParameterValue", "At most 1000 instances are terminated at a time")
    found = call.instances_by_id(ids)
    call.ready()
    changes = []
    for one in found:
        before = one.state_json()
        call.cloud.terminate(one)
        changes.append({"instanceId": one.id, "currentState": one.state_json(),
                        "previousState": before})
    return {"instancesSet": changes}


def console(call: Call) -> dict[str, Any]:
    one = call.instances_by_id([call.form.text("InstanceId")])[0]
    call.form.flag("Latest")
    call.ready()
    output = call.cloud.console_of(one.id)
    return {"instanceId": one.id, "timestamp": stamp(call.cloud.now_s + call.cloud.shift_s),
            "output": base64.b64encode(output).decode()}


def _tagged(call: Call, id_: str) -> dict[str, str]:
    """The tags of a resource, to be changed."""
    if id_.startswith("i-"):
        return call.instances_by_id([id_])[0].tags
    for resources in (call.cloud.templates, call.cloud.fleets):
        found = resources.get(id_)
        if found is not None and found.region == call.region:
            return found.tags  # type: ignore[no-any-return]
    raise Ec2Error("InvalidID", f"The ID '{id_[:80]}' is not valid")


def create_tags(call: Call) -> dict[str, Any]:
    ids, tags = call.form.texts("ResourceId"), read_tags(call.form)
    if not ids or not tags:
        raise missing("Tag" if ids else "ResourceId")
    found = [_tagged(call, id_) for id_ in ids]
    for one in found:
        if len({**one, **tags}) > 50:
            raise Ec2Error("TagLimitExceeded", "A resource has at most 50 tags")
    call.ready()
    for one in found:
        one.update(tags)
    return {"return": True}


def delete_tags(call: Call) -> dict[str, Any]:
    ids = call.form.texts("ResourceId")
    wanted = [(one.text("Key"), one.text("Value", "") if "Value" in one else None)
              for one in call.form.parts("Tag")]
    found = [_tagged(call, id_) for id_ in ids]
    call.ready()
    for one in found:
        names = [key for key, value in wanted if value is None or one.get(key) == value]
        for key in names if wanted else [key for key in one if not key.startswith("aws:")]:
            one.pop(key, None)
    return {"return": True}
