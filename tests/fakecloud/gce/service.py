"""The fake Compute Engine as a whole: one event loop in one thread serves the API, tokens, the
administrator and the metadata of all instances, and moves the cloud's time on."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Optional, TypeVar, Union
from urllib.parse import parse_qsl

from fakecloud import traces
from fakecloud.gce import admin, api, catalog
from fakecloud.gce.api import Api, Waiting
from fakecloud.gce.cloud import Cloud
from fakecloud.gce.errors import GceError, OAuthError
from fakecloud.gce.faults import Fault, Faults
from fakecloud.gce.machines import Machines
from fakecloud.gce.metadata import ROOT as METADATA
from fakecloud.gce.metadata import InstanceMetadata
from fakecloud.gce.metadata import Waiting as Unchanged
from fakecloud.gce.oauth import OAuth, credentials
from fakecloud.gce.settings import Settings
from fakecloud.gce.tokens import Tokens
from fakecloud.hosting import HostedCloud
from fakecloud.machines import Machine
from fakecloud.markets import MarketFile
from fakecloud.orders import BadOrder
from fakecloud.service import ADMIN_PATH, HUGE_BYTES, Reply, Request
from fakecloud.web import Handler, Server

T = TypeVar("T")
TICK_S = 0.05
LOOK_S = 0.5        # Between two looks at what instances have done.
POLL_S = 0.02       # Of what is waited for.
SLOW_S, HANG_S = 3.0, 3600.0
JOURNAL_MAX = 20_000
_IMPERSONATE = re.compile(r"/v1/projects/-/serviceAccounts/([^/:]+):generateAccessToken")
JSON = {"Content-Type": "application/json; charset=UTF-8"}


class FakeGce(HostedCloud):
    """Use as a context manager. ``settings``: as in a market file; they count before its own.
    ``signed``: with a service account, whose key needs the package cryptography."""

    def __init__(self, file: Optional[MarketFile] = None,
                 settings: Optional[dict[str, Any]] = None, seed: int = 0,
                 host: str = "127.0.0.1", port: int = 0, folder: Optional[Path] = None,
                 signed: bool = True) -> None:
        super().__init__("fake Compute Engine")
        file = file or MarketFile(catalog.default_market(), {})
        read = Settings()
        read.update(file.settings, "settings")
        read.update(settings or {}, "settings")
        self.cloud = Cloud(file.market, read, seed, time.time())
        self.tokens = Tokens(read.project, seed)
        self.faults = Faults(self.cloud.rng.random)
        self.admin = admin.Admin(self.cloud, self.tokens, self.faults)
        self.api = Api(self.cloud, self.tokens)
        # Needs a package that not every Python has.
        key = importlib.import_module("fakecloud.gce.keys").AccountKey() if signed else None
        self._folder = folder
        self._socket = socket.create_server((host, port))
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://{host}:{port}"
        self._key = key
        self._oauth = OAuth(self.tokens, key, self.url, lambda: self.cloud.now_s,
                            lambda: self.cloud.settings.token_s,
                            lambda: self.cloud.settings.subject_tokens)
        self._outside = InstanceMetadata(self.cloud, self.tokens, None)
        self.journal: deque[dict[str, Any]] = deque(maxlen=JOURNAL_MAX)
        self._number = 0

    def environment(self) -> dict[str, str]:
        """For a client; when it serves."""
        kind = "authorized_user" if self._key is None else "service_account"
        host = self.url.removeprefix("http://")
        return {"TROUPE_GCE_ENDPOINT": self.url,
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.url}{api.ROOT}",
                "GCE_METADATA_HOST": host, "GCE_METADATA_IP": host,
                "GOOGLE_APPLICATION_CREDENTIALS": str(self.credentials[kind]),
                "GOOGLE_CLOUD_PROJECT": self.cloud.project,
                "CLOUDSDK_CORE_PROJECT": self.cloud.project}

    def token(self, user: str = "") -> str:
        """One that is good now."""
        def issue() -> str:
            return self.tokens.issue(user or self.tokens.account, self.cloud.now_s,
                                     self.cloud.settings.token_s).text
        return self.do(issue)

    # ---- in the loop's thread ----

    def _write_credentials(self, base: Path) -> None:
        folder = base / "credentials"
        folder.mkdir(mode=0o700)
        subject = folder / "subject-token"
        subject.write_text("".join(self.cloud.settings.subject_tokens[:1]))
        self.credentials: dict[str, Path] = {}
        for kind, body in credentials(self.tokens, self._key, self.cloud.project, self.url,
                                      str(subject)).items():
            path = self.credentials[kind] = folder / f"{kind}.json"
            path.write_text(json.dumps(body, indent=1) + "\n")
            path.chmod(0o600)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = Server(time.time)
        self.machines = Machines(self.cloud, self.tokens, server, self._metadata_handler,
                                 self._folder)
        try:
            self._write_credentials(self.machines.base)
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
            self._ended = True
            self.machines.end()
            await server.end()

    def _now(self, what: Callable[[], T]) -> T:
        self.cloud.advance(time.time())
        try:
            return what()
        finally:
            self.machines.apply()

    # ---- requests ----

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> Optional[Reply]:
        if request.path.startswith(ADMIN_PATH):
            return self._administrate(request)
        if request.path.startswith(METADATA) or request.path == "/":
            return await self._metadata(self._outside, request, writer)
        method = method_of(request)
        reply = await self._faulty(
            method, writer, lambda: self._now(lambda: self._answer(method, request)))
        self._note(method, request, reply)
        return reply

    async def _faulty(self, method: str, writer: asyncio.StreamWriter,
                      answer: Callable[[], Union[Reply, Waiting]]) -> Optional[Reply]:
        """What an order to go wrong says, else the answer. None: hang up."""
        fault = self.faults.take(method) or Fault("")
        if fault.how in ("throttle", "error"):
            return refusal(fault.error(method))
        if fault.how in ("slow", "hang"):
            await self._pause(fault.seconds or (SLOW_S if fault.how == "slow" else HANG_S))
        if fault.how == "cut":
            writer.transport.abort()
            return None
        reply = answer()
        if isinstance(reply, Waiting):
            reply = await self._wait(reply)
        if fault.how == "lost":
            writer.transport.abort()
            return None
        if fault.how == "garbage":
            return Reply(200, b'{"kind": "compute#\0\xff[[[', dict(JSON))
        if fault.how == "types":
            return Reply(200, '{"kind": 7, "id": [], "name": {}, "items": "all", "status": 3}\n',
                         dict(JSON))
        if fault.how == "huge":
            return Reply(200, b'{"items": "' + b"x" * HUGE_BYTES + b'"}', dict(JSON))
        return reply

    async def _pause(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not self._ended and time.monotonic() < until_s:
            await asyncio.sleep(min(0.05, seconds))

    async def _wait(self, waiting: Waiting) -> Reply:
        until_s = time.monotonic() + waiting.limit_s
        while not self._ended and not waiting.operation.done and time.monotonic() < until_s:
            await asyncio.sleep(POLL_S)
        return self._now(lambda: self.api.render(waiting.operation))

    def _answer(self, method: str, request: Request) -> Union[Reply, Waiting]:
        kind = request.headers.get("Content-Type", "")
        try:
            if method == "oauth.token":
                return Reply(200, json.dumps(self._oauth.token(request.body)), dict(JSON))
            if method == "oauth.exchange":
                return Reply(200, json.dumps(self._oauth.exchange(request.body, kind)), dict(JSON))
            if method == "oauth.impersonate":
                match = _IMPERSONATE.fullmatch(request.path)
                account = match.group(1).replace("%40", "@") if match else ""
                made = self._oauth.impersonate(account, request.headers.get("Authorization"),
                                               request.body)
                return Reply(200, json.dumps(made), dict(JSON))
            return self.api.answer(request)
        except GceError as error:
            return refusal(error)
        except OAuthError as error:
            return Reply(error.code, error.body, dict(JSON))
        except Exception:
            traceback.print_exc()   # A fault of ours: who drives the cloud is to see it.
            return refusal(GceError(500, "internalError", "The fake cloud has a fault: see what it "
                                    "has printed", status=True))

    def _note(self, method: str, request: Request, reply: Optional[Reply]) -> None:
        self._number += 1
        text = (request.headers.get("Authorization") or "").partition(" ")[2]
        entry: dict[str, Any] = {
            "n": self._number, "t": round(time.time(), 3), "method": method,
            "verb": request.method, "path": request.path, "query": request.query,
            "status": None if reply is None else reply.status,
            "user": self.tokens.user_of(text)}
        if reply is not None and reply.status >= 400:
            try:
                error = json.loads(reply.body)["error"]
                entry["reason"] = error if isinstance(error, str) else error["errors"][0]["reason"]
            except (ValueError, KeyError, TypeError, IndexError):
                pass
        self.journal.append(entry)

    # ---- metadata ----

    def _metadata_handler(self, machine: Machine) -> Handler:
        async def handler(request: Request, writer: asyncio.StreamWriter) -> Optional[Reply]:
            return await self._metadata(machine.metadata, request, writer)
        return handler

    async def _metadata(self, metadata: InstanceMetadata, request: Request,
                        writer: asyncio.StreamWriter) -> Optional[Reply]:
        path = request.path.removeprefix(METADATA + "/")
        fault = self.faults.take(f"metadata.{path}") or Fault("")
        if fault.how in ("throttle", "error"):
            return Reply(fault.code or (429 if fault.how == "throttle" else 503), "")
        if fault.how in ("slow", "hang"):
            await self._pause(fault.seconds or (SLOW_S if fault.how == "slow" else HANG_S))
        if fault.how in ("cut", "lost"):
            writer.transport.abort()
            return None
        if fault.how in ("garbage", "types", "huge"):
            return Reply(200, "x" * (HUGE_BYTES if fault.how == "huge" else 40) + "\0{[")
        answer = self._now(lambda: metadata.answer(request))
        until_s = time.monotonic() + (answer.limit_s if isinstance(answer, Unchanged) else 0)
        while isinstance(answer, Unchanged):
            if self._ended or time.monotonic() >= until_s:
                last = self._now(partial(metadata.answer, request, waits=False))
                assert isinstance(last, Reply)
                return last
            request = known(request, answer.etag)
            await asyncio.sleep(POLL_S)
            answer = self._now(partial(metadata.answer, request))
        return answer

    # ---- the administrator ----

    def _administrate(self, request: Request) -> Reply:
        if "Origin" in request.headers:
            return Reply(403, "a page of a browser has nothing to ask here\n")
        name = request.path.removeprefix(ADMIN_PATH).strip("/")
        if request.method == "POST" and not name:
            try:
                body = traces.load(request.body.decode("utf-8"), "order")
                self._now(lambda: self._obey(body))
            except (BadOrder, UnicodeDecodeError) as error:
                return Reply(400, f"{error}\n")
            return Reply(200, "done\n")
        if request.method != "GET":
            return Reply(405, "GET, or POST of a JSON object\n")
        return self._now(lambda: self._tell(name, request.query))

    def _tell(self, name: str, query: str) -> Reply:
        after = dict(parse_qsl(query)).get("after", "0")
        if not after.isascii() or not after.isdigit() or len(after) > 12:
            return Reply(400, "after is the number of an event\n")
        if name == "events":
            body: Any = self.cloud.ledger.since(int(after))
        elif name == "journal":
            body = [one for one in self.journal if one["n"] > int(after)]
        elif name in ("", "state"):
            body = admin.state(self.cloud, self.tokens, self.faults)
        elif name == "ledger":
            body = admin.ledger(self.cloud)
        else:
            return Reply(404, "there are /fakecloud, /fakecloud/events, /fakecloud/journal and "
                         "/fakecloud/ledger\n")
        return Reply(200, json.dumps(body) + "\n", {"Content-Type": "application/json"})

    def _obey(self, body: Any) -> None:
        self.admin.obey(body)


def known(request: Request, etag: str) -> Request:
    """The same, of who has seen this already."""
    if "last_etag=" in request.query:
        return request
    return Request(request.method, request.path, f"{request.query}&last_etag={etag}",
                   request.headers, request.body)


def method_of(request: Request) -> str:
    """As orders name it."""
    if request.path == "/token" and request.method == "POST":
        return "oauth.token"
    if request.path == "/v1/token" and request.method == "POST":
        return "oauth.exchange"
    if _IMPERSONATE.fullmatch(request.path) and request.method == "POST":
        return "oauth.impersonate"
    route, _ = api.find(request.method, request.path.removeprefix(api.ROOT))
    return route.method if route and request.path.startswith(api.ROOT) else "unknown"


def refusal(error: GceError) -> Reply:
    return Reply(error.code, json.dumps(error.as_json(), indent=2) + "\n",
                 {**JSON, "Server": "ESF"})
