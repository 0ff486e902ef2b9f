"""Instances of Compute Engine on this host; see :mod:`fakecloud.machines`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Optional

from fakecloud import machines
from fakecloud.gce.cloud import Cloud
from fakecloud.gce.instances import Instance
from fakecloud.gce.metadata import InstanceMetadata
from fakecloud.gce.tokens import Tokens
from fakecloud.machines import Machine
from fakecloud.timeline import Effect
from fakecloud.web import Handler, Server

SCRIPT = "startup-script"


class Machines(machines.Machines[Instance]):
    def __init__(self, cloud: Cloud, tokens: Tokens, server: Server,
                 handler_of: Callable[[Machine], Handler], base: Optional[Path] = None) -> None:
        super().__init__(cloud, server, handler_of, base)
        self._cloud, self._tokens = cloud, tokens

    def _life(self, instance: str) -> Instance:
        return self._cloud.by_id[instance]

    def _metadata_of(self, one: Instance) -> InstanceMetadata:
        return InstanceMetadata(self._cloud, self._tokens, one)

    def _boot_script(self, one: Instance) -> bytes:
        """The guest's agent gives a script without a first line of its own to a shell."""
        script = one.metadata.get(SCRIPT, "").encode()
        return b"#!/bin/bash\n" + script if script and not script.startswith(b"#!") else script

    def _environment(self, one: Instance, machine: Machine) -> dict[str, str]:
        host = machine.url.removeprefix("http://")
        return {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host,
                **self._cloud.settings.environment}

    def _create(self, effect: Effect) -> None:
        if effect.instance in self._cloud.by_id:    # Else it has ended in the same moment.
            super()._create(effect)

    def _boot(self, effect: Effect) -> None:
        """A second time, too: its folder is the disk, which stays."""
        if effect.instance in self._cloud.by_id and effect.instance in self.machines:
            shutil.rmtree(self.machines[effect.instance].inner(""), ignore_errors=True)
            super()._boot(effect)
