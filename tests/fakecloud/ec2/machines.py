"""Instances of EC2 on this host; see :mod:`fakecloud.machines`."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Optional

from fakecloud import machines
from fakecloud.ec2.cloud import Cloud
from fakecloud.ec2.instances import Instance
from fakecloud.ec2.metadata import InstanceMetadata
from fakecloud.machines import Machine, script_of
from fakecloud.timeline import Effect
from fakecloud.web import Handler, Server

__all__ = ["Machine", "Machines", "script_of"]


class Machines(machines.Machines[Instance]):
    def __init__(self, cloud: Cloud, server: Server,
                 handler_of: Callable[[Machine], Handler], base: Optional[Path] = None) -> None:
        super().__init__(cloud, server, handler_of, base)
        self._cloud = cloud

    def _life(self, instance: str) -> Instance:
        return self._cloud.instances[instance]

    def _metadata_of(self, one: Instance) -> InstanceMetadata:
        return InstanceMetadata(self._cloud, one)

    def _boot_script(self, one: Instance) -> bytes:
        return base64.b64decode(one.spec.user_data)

    def _environment(self, one: Instance, machine: Machine) -> dict[str, str]:
        return self._cloud.settings.environment

    def _notice(self, effect: Effect) -> None:
        lead_s = effect.at_s - self._cloud.now_s
        self.machines[effect.instance].metadata.interrupt(lead_s)

    def _rebalance(self, effect: Effect) -> None:
        self.machines[effect.instance].metadata.rebalance()
