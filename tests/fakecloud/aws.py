"""The instance metadata service of AWS, version 2 (IMDSv2).

Source: EC2 user guide, "Use the Instance Metadata Service", "Spot Instance interruption notices",
"EC2 instance rebalance recommendations", "Scheduled events".
"""

from __future__ import annotations

import json
import re
import secrets
import time
from typing import Any, Optional, Union

from fakecloud.service import MetadataService, Reply, Request

TOKEN_PATH = "/latest/api/token"
ITEMS_PATH = "/latest/meta-data/"
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "X-aws-ec2-metadata-token"
TTL_MAX_S = 21600
TOKENS_MAX = 1024


def iso(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


class AwsMetadata(MetadataService):
    """See :class:`fakecloud.service.MetadataService`."""

    name = "aws"

    def __init__(self, host: str = "127.0.0.1", port: Optional[int] = 0) -> None:
        super().__init__(host, port)
        self._tokens: dict[str, float] = {}
        self._items: dict[str, str] = {
            "instance-id": "i-0123456789abcdef0", "instance-type": "m5.large",
            "instance-life-cycle": "spot", "placement/availability-zone": "us-east-1a",
            "local-ipv4": "127.0.0.1"}
        self._documents: dict[str, Union[str, bytes]] = {}  # By their path, beside the items.

    def interrupt(self, lead_s: float = 120.0, action: str = "terminate", time: str = "") -> None:
        """``time``: as it stands in the notice, if it is to be a wrong one."""
        when = time or iso(self.now() + lead_s)
        self._items["spot/instance-action"] = json.dumps({"action": action, "time": when})
        if action == "terminate":
            self._items["spot/termination-time"] = when

    def rebalance(self) -> None:
        """The machine is at risk."""
        self._items["events/recommendations/rebalance"] = json.dumps(
            {"noticeTime": iso(self.now())})

    def maintain(self, lead_s: float = 3600.0) -> None:
        """Its host is restarted after so many seconds."""
        when = time.strftime("%d %b %Y %H:%M:%S GMT", time.gmtime(self.now() + lead_s))
        self._items["events/maintenance/scheduled"] = json.dumps([
            {"NotBefore": when, "Code": "system-reboot", "Description": "scheduled reboot",
             "EventId": "instance-event-0d59937288b749b32", "NotAfter": when, "State": "active"}])

    def calm(self) -> None:
        for item in [item for item in self._items if item.startswith(("spot/", "events/"))]:
            del self._items[item]

    def forget_tokens(self) -> None:
        """As after a restart of the service."""
        self._tokens.clear()

    def answer(self, request: Request) -> Reply:
        if request.path.endswith("/api/token"):
            return self._token(request)
        if request.method != "GET":
            return Reply(405)
        if self._tokens.get(request.headers.get(TOKEN_HEADER, ""), 0.0) < time.monotonic():
            return Reply(401)
        found = self._documents.get(request.path)
        if found is None and request.path.startswith(ITEMS_PATH):
            found = self.item(request.path.removeprefix(ITEMS_PATH))
        if found is None:
            return Reply(404)
        headers: dict[str, Any] = {"Content-Type": "text/plain"}
        return Reply(200, found, headers)

    def item(self, name: str) -> Optional[str]:
        """The value of an item, or what is in a folder, whose name ends in a slash."""
        if name and not name.endswith("/"):
            return self._items.get(name)
        inside = {key.removeprefix(name).partition("/")[::2] for key in self._items
                  if key.startswith(name)}
        return "\n".join(sorted({one + ("/" if rest else "") for one, rest in inside})) or None

    def _token(self, request: Request) -> Reply:
        if request.path != TOKEN_PATH or "X-Forwarded-For" in request.headers:
            return Reply(403)
        if request.method != "PUT":
            return Reply(405)
        ttl = request.headers.get(TTL_HEADER, "")
        if not re.fullmatch("[0-9]{1,9}", ttl) or not 1 <= int(ttl) <= TTL_MAX_S:
            return Reply(400)
        token = secrets.token_urlsafe(40)
        while len(self._tokens) >= TOKENS_MAX:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[token] = time.monotonic() + int(ttl)
        return Reply(200, token, {TTL_HEADER: ttl})
