"""The fake EC2 as a whole: one event loop in one thread serves the API, the administrator and the
metadata of all instances, and moves the cloud's time on."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional, TypeVar
from urllib.parse import parse_qsl

from fakecloud.ec2 import admin, dispatch, market, markup, traces
from fakecloud.ec2.cloud import Cloud
from fakecloud.ec2.errors import BadMarket
from fakecloud.ec2.machines import Machine, Machines
from fakecloud.ec2.settings import Settings
from fakecloud.ec2.sigv4 import Key, Signed
from fakecloud.hosting import HostedCloud
from fakecloud.orders import Order
from fakecloud.service import ADMIN_PATH, BROKEN, Reply, Request
from fakecloud.web import Handler, Server, misbehave

T = TypeVar("T")
TICK_S = 0.05
LOOK_S = 0.5        # Between two looks at what instances have done.
WAYS = (*BROKEN, "lost")


class FakeEc2(HostedCloud):
    """Use as a context manager. ``settings``: as in a market file; they count before its own."""

    def __init__(self, file: Optional[market.MarketFile] = None,
                 settings: Optional[dict[str, Any]] = None, seed: int = 0,
                 host: str = "127.0.0.1", port: int = 0, keys: Optional[list[Key]] = None,
                 folder: Optional[Path] = None) -> None:
        super().__init__("fake EC2")
        file = file or market.MarketFile(market.default_market(), {})
        read = Settings()
        read.update(file.settings, "settings")
        read.update(settings or {}, "settings")
        self.cloud = Cloud(file.market, read, seed, time.time(), keys)
        self._folder = folder
        self._socket = socket.create_server((host, port))
        self._socket_name = self._socket.getsockname()[:2]
        self._broken, self._broken_metadata = "", ""

    @property
    def url(self) -> str:
        host, port = self._socket_name
        return f"http://{host}:{port}"

    def environment(self) -> dict[str, str]:
        """For a client."""
        key = next(iter(self.cloud.keys.values()))
        region = self.cloud.market.regions()[0]
        token = {"AWS_SESSION_TOKEN": key.token} if key.token else {}
        return {"AWS_ENDPOINT_URL_EC2": self.url, "AWS_ACCESS_KEY_ID": key.id,
                "AWS_SECRET_ACCESS_KEY": key.secret, **token, "AWS_DEFAULT_REGION": region,
                "AWS_REGION": region}

    # ---- in the loop's thread ----

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = Server(lambda: time.time() + self.cloud.shift_s)
        self.machines = Machines(self.cloud, server, self._metadata_handler, self._folder)
        try:
            server.listen(self._socket, self._serve)
            self._ready.set()
            look_s = 0.0
            while not self._ended:
                if time.monotonic() >= look_s:
                    self.machines.look()
                    look_s = time.monotonic() + LOOK_S
                self._now(lambda: None)
                due = self.cloud.next_due()
                wait_s = TICK_S if due is None else min(TICK_S, max(0.001, due - time.time()))
                await asyncio.sleep(wait_s)
        finally:
            self.machines.end()
            await server.end()

    def _now(self, what: Callable[[], T]) -> T:
        self.cloud.advance(time.time())
        try:
            return what()
        finally:
            self.machines.apply()

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> Optional[Reply]:
        if request.path.startswith(ADMIN_PATH):
            return self._administrate(request)
        return await misbehave(lambda: "" if self._ended else self._broken, writer,
                               lambda: self._now(lambda: self._answer(request)))

    def _answer(self, request: Request) -> Reply:
        headers: dict[str, str] = {}
        for name, value in request.headers.items():
            known = headers.get(name.lower())
            headers[name.lower()] = value if known is None else f"{known},{value}"
        request_id = str(uuid.uuid4())
        asked = Signed(request.method, request.path, request.query, headers, request.body)
        try:
            status, body = dispatch.answer(self.cloud, asked, request_id)
        except Exception:
            traceback.print_exc()   # A fault of ours: who drives the cloud is to see it.
            status, body = 500, markup.error(
                "InternalError", "The fake cloud has a fault: see what it has printed", request_id)
        return Reply(status, body, {"Content-Type": "text/xml;charset=UTF-8",
                                    "x-amzn-RequestId": request_id, "Server": "AmazonEC2"})

    def _metadata_handler(self, machine: Machine) -> Handler:
        async def handler(request: Request, writer: asyncio.StreamWriter) -> Optional[Reply]:
            return await misbehave(
                lambda: "" if self._ended else machine.broken or self._broken_metadata, writer,
                lambda: self._now(lambda: machine.metadata.answer(request)))
        return handler

    # ---- the administrator ----

    def _administrate(self, request: Request) -> Reply:
        if "Origin" in request.headers:
            return Reply(403, "a page of a browser has nothing to ask here\n")
        name = request.path.removeprefix(ADMIN_PATH).strip("/")
        if request.method == "POST" and not name:
            try:
                body = traces.load(request.body.decode("utf-8"), "order")
                self._now(lambda: self._obey(body))
            except (BadMarket, UnicodeDecodeError) as error:
                return Reply(400, f"{error}\n")
            return Reply(200, "done\n")
        if request.method != "GET":
            return Reply(405, "GET, or POST of a JSON object\n")
        return self._now(lambda: self._tell(name, request.query))

    def _tell(self, name: str, query: str) -> Reply:
        if name == "events":
            after = dict(parse_qsl(query)).get("after", "0")
            if not after.isascii() or not after.isdigit() or len(after) > 12:
                return Reply(400, "after is the number of an event\n")
            body: Any = self.cloud.ledger.since(int(after))
        elif name in ("", "state"):
            body = admin.state(self.cloud)
        elif name == "ledger":
            body = admin.ledger(self.cloud)
        else:
            return Reply(404, "there are /fakecloud, /fakecloud/events and /fakecloud/ledger\n")
        return Reply(200, json.dumps(body) + "\n", {"Content-Type": "application/json"})

    def _obey(self, body: Any) -> None:
        admin.obey(self.cloud, body, {"break": self._break})

    def _break(self, order: Order) -> None:
        """Of the API, of all metadata ("of": "metadata") or of one instance's."""
        how, of = order.text("how", ""), order.text("of", "api")
        instance = order.text("instance", "")
        order.done()
        if how not in WAYS or of not in ("api", "metadata"):
            raise BadMarket(f"break: how is one of {WAYS}, of is api or metadata")
        if instance:
            machine = self.machines.machines.get(instance)
            if machine is None:
                raise BadMarket(f"break: there is no instance {instance[:80]!r}")
            machine.broken = how
        elif of == "api":
            self._broken = how
        else:
            self._broken_metadata = how
