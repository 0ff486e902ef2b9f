"""A fake EC2 under a virtual clock, for tests: no process runs, and no request is signed."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from fakecloud.ec2 import admin, dispatch
from fakecloud.ec2.catalog import TYPES
from fakecloud.ec2.cloud import Cloud
from fakecloud.ec2.errors import Ec2Error
from fakecloud.ec2.market import Market, Pool
from fakecloud.ec2.settings import Settings
from fakecloud.ec2.sigv4 import Identity
from fakecloud.ec2.traces import Point

START_S = 1_000_000.0
IMAGE = "ami-0123456789abcdef0"
CALM = {"launch_s": 10, "lag_s": 0, "shutdown_s": 5, "throttle": None}


class World:
    """A cloud, and its API without signatures."""

    def __init__(self, pools: Optional[dict[str, list[Point]]] = None, seed: int = 7,
                 **settings: Any) -> None:
        read = Settings()
        read.update({**CALM, **settings}, "settings")
        pools = pools or {"us-east-1a/m5.large": [Point(0, 4, 0.03)],
                          "us-east-1b/m5.large": [Point(0, 2, 0.02)],
                          "us-west-2a/m5.large": [Point(0, 9, 0.01)]}
        made = [Pool(*self._place(name), points) for name, points in pools.items()]
        self.cloud = Cloud(Market(made), read, seed, START_S)
        self.key = next(iter(self.cloud.keys.values()))

    @staticmethod
    def _place(name: str) -> tuple[str, Any]:
        zone, _, type_ = name.partition("/")
        return zone, TYPES[type_]

    def call(self, action: str, region: str = "us-east-1", **form: Any) -> dict[str, Any]:
        """``A__B=x`` is ``A.B=x``."""
        plain = {key.replace("__", "."): str(value) for key, value in form.items()}
        return dispatch.perform(self.cloud, {"Action": action, "Version": "2016-11-15", **plain},
                                Identity(self.key, region))[1]

    def code(self, action: str, **form: Any) -> str:
        with pytest.raises(Ec2Error) as caught:
            self.call(action, **form)
        return caught.value.code

    def run(self, count: int = 1, spot: bool = True, **form: Any) -> list[str]:
        market = {"InstanceMarketOptions__MarketType": "spot"} if spot else {}
        reply = self.call("RunInstances", **{
            "ImageId": IMAGE, "InstanceType": "m5.large", "MinCount": count, "MaxCount": count,
            **market, **form})
        return [one["instanceId"] for one in reply["instancesSet"]]

    def after(self, seconds: float) -> None:
        self.cloud.advance(self.cloud.now_s + seconds)

    def order(self, **body: Any) -> None:
        admin.obey(self.cloud, body, {})

    def states(self) -> dict[str, str]:
        return {one.id: one.state for one in self.cloud.instances.values()}

    def effects(self) -> list[str]:
        return [one.do for one in self.cloud.take_effects()]


def fleet(*overrides: dict[str, Any], target: int = 3, kind: str = "spot",
          **more: Any) -> dict[str, Any]:
    form: dict[str, Any] = {
        "Type": "instant", "TargetCapacitySpecification__TotalTargetCapacity": target,
        "TargetCapacitySpecification__DefaultTargetCapacityType": kind,
        "LaunchTemplateConfigs__1__LaunchTemplateSpecification__LaunchTemplateName": "node",
        "LaunchTemplateConfigs__1__LaunchTemplateSpecification__Version": "$Latest", **more}
    for number, one in enumerate(overrides, 1):
        for key, value in one.items():
            form[f"LaunchTemplateConfigs__1__Overrides__{number}__{key}"] = value
    return form


def with_template(world: World) -> World:
    world.call("CreateLaunchTemplate", LaunchTemplateName="node",
               LaunchTemplateData__ImageId=IMAGE, LaunchTemplateData__InstanceType="m5.large",
               LaunchTemplateData__TagSpecification__1__ResourceType="instance",
               LaunchTemplateData__TagSpecification__1__Tag__1__Key="pool",
               LaunchTemplateData__TagSpecification__1__Tag__1__Value="spot")
    return world


A, B = {"AvailabilityZone": "us-east-1a"}, {"AvailabilityZone": "us-east-1b"}
