"""The metadata of one instance, and the credentials of its role."""

from __future__ import annotations

import base64
import json
from typing import Optional

from fakecloud.aws import AwsMetadata, iso
from fakecloud.ec2 import catalog
from fakecloud.ec2.cloud import Cloud
from fakecloud.ec2.instances import ACCOUNT, Instance
from fakecloud.ec2.sigv4 import Key

ROLES = "iam/security-credentials/"
FRESH_S = 300.0         # Credentials are replaced so long before they expire.
KEYS_MAX = 3            # Of an instance, at a time.


class InstanceMetadata(AwsMetadata):
    """Without a server of its own; times are those of the cloud."""

    def __init__(self, cloud: Cloud, one: Instance) -> None:
        super().__init__(port=None)
        self._cloud, self._instance = cloud, one
        self._keys: list[Key] = []
        spec = one.spec
        self._items = {
            "ami-id": spec.image, "ami-launch-index": str(one.index), "instance-id": one.id,
            "instance-type": spec.type.name, "instance-life-cycle": one.lifecycle,
            "local-ipv4": one.address, "local-hostname": "ip-" + one.address.replace(".", "-"),
            "reservation-id": one.reservation, "placement/availability-zone": one.zone,
            "placement/availability-zone-id": catalog.zone_id(one.zone),
            "placement/region": one.region,
            **{f"tags/instance/{key}": value for key, value in one.tags.items()}}
        if spec.profile:
            self._items["iam/info"] = json.dumps({
                "Code": "Success", "LastUpdated": iso(self.now()),
                "InstanceProfileArn": f"arn:aws:iam::{ACCOUNT}:instance-profile/{spec.profile}",
                "InstanceProfileId": "AIPAFAKECLOUD00000000"})
            self._items[ROLES + spec.profile] = ""
        self._documents["/latest/dynamic/instance-identity/document"] = json.dumps({
            "accountId": ACCOUNT, "architecture": "x86_64", "availabilityZone": one.zone,
            "imageId": spec.image, "instanceId": one.id, "instanceType": spec.type.name,
            "pendingTime": iso(self.now()), "privateIp": one.address, "region": one.region,
            "version": "2017-09-30"})
        if spec.user_data:
            self._documents["/latest/user-data"] = base64.b64decode(spec.user_data)

    def now(self) -> float:
        return self._cloud.now_s + self._cloud.shift_s

    def item(self, name: str) -> Optional[str]:
        if self._instance.spec.profile and name == ROLES + self._instance.spec.profile:
            return self._credentials()
        return super().item(name)

    def _credentials(self) -> str:
        key = self._keys[-1] if self._keys else None
        left_s = 0.0 if key is None or key.expires_s is None else key.expires_s - self.now()
        if key is None or left_s <= min(FRESH_S, self._cloud.settings.role_s / 10):
            key = self._new_key()
        assert key.expires_s is not None
        return json.dumps({
            "Code": "Success", "LastUpdated": iso(self.now()), "Type": "AWS-HMAC",
            "AccessKeyId": key.id, "SecretAccessKey": key.secret, "Token": key.token,
            "Expiration": iso(key.expires_s)})

    def _new_key(self) -> Key:
        cloud = self._cloud
        secrets = [cloud.new_id("x")[2:] for _ in range(8)]
        key = Key("ASIA" + secrets[0][:16].upper(), secrets[1] + secrets[2], "".join(secrets[3:]),
                  self.now() + cloud.settings.role_s,
                  f"assumed-role/{self._instance.spec.profile}/{self._instance.id}")
        self._keys.append(key)
        cloud.keys[key.id] = key
        while len(self._keys) > KEYS_MAX:
            cloud.keys.pop(self._keys.pop(0).id, None)
        return key

    def forget(self) -> None:
        """Its credentials end with it."""
        for key in self._keys:
            self._cloud.keys.pop(key.id, None)
        self._keys.clear()
