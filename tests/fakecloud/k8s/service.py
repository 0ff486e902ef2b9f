"""The cluster as a server: one event loop in one thread serves the API and the administrator, and
moves the cluster's time on."""

from __future__ import annotations

import asyncio
import email.utils
import importlib
import json
import socket
import time
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Optional, TypeVar
from urllib.parse import parse_qsl

from fakecloud.hosting import HostedCloud
from fakecloud.k8s import admin, api, kubeconfig, logs, watches
from fakecloud.k8s.api import Api, Call, Streaming
from fakecloud.k8s.cluster import Cluster
from fakecloud.k8s.containers import Containers
from fakecloud.k8s.errors import ApiError
from fakecloud.k8s.logs import LogAsked
from fakecloud.k8s.settings import Settings
from fakecloud.k8s.watches import Watch
from fakecloud.orders import BadOrder
from fakecloud.service import ADMIN_PATH, Reply, Request
from fakecloud.web import ANSWERED, Server

T = TypeVar("T")
TICK_S = 0.1
MEMORY_S = 0.25         # Between two looks at what containers take.
FOLLOW_S = 0.05
HANG_S = 3600.0
STREAM = ("HTTP/1.1 200 OK\r\nContent-Type: {}\r\nDate: {}\r\nCache-Control: no-cache, private\r\n"
          "Transfer-Encoding: chunked\r\n\r\n")


class FakeKubernetes(HostedCloud):
    """Use as a context manager. ``settings``: see :class:`fakecloud.k8s.settings.Settings`.
    ``namespace``: where the user that is no administrator may do all."""

    def __init__(self, settings: Optional[dict[str, Any]] = None, seed: int = 0,
                 host: str = "127.0.0.1", port: int = 0, admin_port: int = 0,
                 folder: Optional[Path] = None, namespace: str = "default") -> None:
        super().__init__("fake Kubernetes")
        read = Settings()
        read.update(settings or {}, "settings")
        if namespace not in ("default", *read.namespaces):
            read.namespaces = [*read.namespaces, namespace]
        self.cluster = Cluster(read, seed, time.time())
        self.cluster.begin_users(namespace)
        self.namespace, self._folder = namespace, folder
        self.api = Api(self.cluster)
        # Needs a package that not every Python has.
        self._pki = importlib.import_module("fakecloud.k8s.pki")
        self.authority = self._pki.Authority()
        self.cluster.authority = self.authority.pem
        self._socket = socket.create_server((host, port))
        self._admin_socket = socket.create_server((host, admin_port))
        self.cluster.address = "{}:{}".format(*self._socket.getsockname()[:2])
        port = self._socket.getsockname()[1]
        self.cluster.kubelet.environment = {
            "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(port)}
        self._watches: set[Watch] = set()
        self._wake: Optional[asyncio.Event] = None

    @property
    def url(self) -> str:
        return f"https://{self.cluster.address}"

    @property
    def admin_url(self) -> str:
        host, port = self._admin_socket.getsockname()[:2]
        return f"http://{host}:{port}{ADMIN_PATH}"

    def kubeconfig(self, **more: Any) -> dict[str, Any]:
        """See :func:`fakecloud.k8s.kubeconfig.document`."""
        return self.do(lambda: kubeconfig.document(self, **more))

    def ledger(self) -> dict[str, Any]:
        """Of pods, with the processes that run. In the loop's thread, or when it has ended."""
        return {**self.cluster.ledger.as_json(), "processes": self.containers.processes()}

    # ---- in the loop's thread ----

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        server = Server(time.time)
        self.containers = Containers(self.cluster, self._folder)
        try:
            host = self._socket.getsockname()[0]
            secure = self._pki.server_context(self.authority, [host], self.containers.base)
            server.listen(self._socket, self._serve, secure)
            server.listen(self._admin_socket, self._administrate)
            self._ready.set()
            memory_s = 0.0
            while not self._ended:
                if time.monotonic() >= memory_s:
                    self.containers.memory()
                    self.containers.trim()
                    memory_s = time.monotonic() + MEMORY_S
                self._now(lambda: None)
                await self._rest()
        finally:
            self._ended = True
            for watch in self._watches:
                watch.wake()
            try:
                self.containers.end()
                self.cluster.now_s = time.time()
                self.cluster.ledger.end()
            finally:
                await server.end()

    async def _rest(self) -> None:
        """Until something is due, or has happened."""
        assert self._wake is not None and self._loop is not None
        due = self.cluster.next_due()
        wait_s = TICK_S if due is None else min(TICK_S, max(0.001, due - time.time()))
        self._wake.clear()
        number = self.containers.fileno()
        self._loop.add_reader(number, self._wake.set)
        try:
            await asyncio.wait_for(self._wake.wait(), wait_s)
        except asyncio.TimeoutError:
            pass
        finally:
            self._loop.remove_reader(number)

    def _settle(self) -> None:
        """Time, and what it brings about, until nothing more follows from it."""
        for _ in range(20):
            self.containers.look()
            self.cluster.advance(time.time())
            if not self.containers.apply():
                break

    def _now(self, what: Callable[[], T]) -> T:
        self._settle()
        try:
            return what()
        finally:
            self._settle()

    # ---- the API ----

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> Optional[Reply]:
        call = api.read(request)
        try:
            fault = self.cluster.faults.take(call.asked)
            if fault is not None and fault.how in ("throttle", "error"):
                raise fault.error()
            if fault is not None and fault.how in ("slow", "hang"):
                await self._pause(fault.seconds or (3.0 if fault.how == "slow" else HANG_S))
            if fault is not None and fault.how == "cut":
                writer.transport.abort()
                return None
            peer = writer.get_extra_info("peercert")
            answer = self._now(lambda: self._answer(call, peer))
            if fault is not None and fault.how == "lost":
                writer.transport.abort()
                return None
            if fault is not None and fault.how == "garbage":
                return Reply(200, b'{"kind": "Pod\0\xff[[[', {"Content-Type": "application/json"})
            if isinstance(answer, Streaming):
                return await self._watch(answer, writer)
            if isinstance(answer, LogAsked):
                return await self._log(answer, writer)
            return answer
        except ApiError as error:
            return refusal(error)

    def _answer(self, call: Call, peer: Any) -> api.Answer:
        try:
            self.api.authorize(call, peer)
            return self.api.answer(call)
        except ApiError:
            raise
        except Exception as error:
            traceback.print_exc()   # A fault of ours: who drives the cluster is to see it.
            raise ApiError(500, "InternalError", "Internal error occurred: the fake cluster has a "
                           "fault: see what it has printed") from error

    async def _pause(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not self._ended and time.monotonic() < until_s:
            await asyncio.sleep(min(0.05, seconds))

    async def _watch(self, asked: Streaming,
                     writer: asyncio.StreamWriter) -> Optional[Reply]:
        cluster, faults = self.cluster, self.cluster.faults
        limit_s = asked.timeout_s or cluster.settings.watch_s.draw(cluster.rng)
        with asked.watch as watch:
            self._watches.add(watch)
            try:
                first, error = watch.first(), None
            except ApiError as refused:
                first, error = [], refused
                if refused.code != 410:
                    self._watches.discard(watch)
                    raise
            try:
                writer.write(head_of("application/json"))
                if error is not None:
                    first = [watches.error_line(error)]
                for line in first:
                    await self._send(asked, line, writer)
                lines = watch.lines(time.time() + limit_s, cluster.settings.bookmark_s, time.time,
                                    asked.bookmarks, lambda: self._ended)
                async for line in lines if error is None else _nothing():
                    while faults.silent(asked.call.asked) and not self._ended:
                        await asyncio.sleep(0.05)
                    fault = faults.take(asked.call.asked, ("drop", "gone"))
                    if fault is not None and fault.how == "drop":
                        await self._drop(line, writer)
                        return None
                    if fault is not None:
                        line = watches.error_line(ApiError(
                            410, "Expired", "The resourceVersion for the provided watch is too "
                            "old."))
                    if writer.is_closing():
                        return None
                    if line:
                        await self._send(asked, line, writer)
                    if fault is not None:
                        break
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return ANSWERED
            finally:
                self._watches.discard(watch)

    async def _drop(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        """In the middle of a line."""
        line = line or b'{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1"}}'
        writer.write(chunk(line[:len(line) // 2]))
        await writer.drain()
        writer.close()

    async def _send(self, asked: Streaming, line: bytes, writer: asyncio.StreamWriter) -> None:
        if asked.as_table:
            line = self.api.table_line(asked.call, line)
        writer.write(chunk(line))
        await asyncio.wait_for(writer.drain(), 30.0)

    async def _log(self, asked: LogAsked, writer: asyncio.StreamWriter) -> Optional[Reply]:
        path = self.containers.log(asked.uid, asked.container, asked.number)
        text = logs.read(path, asked.tail_lines, asked.limit_bytes)
        if not asked.follow:
            return Reply(200, text, {"Content-Type": "text/plain"})
        writer.write(head_of("text/plain"))
        at = path.stat().st_size if path.exists() else 0
        if text:
            writer.write(chunk(text))
        while not self._ended and not writer.is_closing():
            life = self.cluster.kubelet.lives.get(asked.uid)
            going = life is not None and any(
                one.name == asked.container and one.number == asked.number and one.alive
                for one in life.containers)
            try:
                with path.open("rb") as file:
                    file.seek(at)
                    more = file.read(1 << 16)
            except OSError:
                more = b""
            at += len(more)
            if more:
                writer.write(chunk(more))
                await asyncio.wait_for(writer.drain(), 30.0)
            elif not going:
                break
            else:
                await asyncio.sleep(FOLLOW_S)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return ANSWERED

    # ---- the administrator ----

    async def _administrate(self, request: Request,
                            writer: asyncio.StreamWriter) -> Optional[Reply]:
        if "Origin" in request.headers:
            return Reply(403, "a page of a browser has nothing to ask here\n")
        if not request.path.startswith(ADMIN_PATH):
            return Reply(404, "there is /fakecloud\n")
        name = request.path.removeprefix(ADMIN_PATH).strip("/")
        if request.method == "POST" and not name:
            try:
                body = json.loads(request.body)
                self._now(lambda: self._obey(body))
            except (BadOrder, ValueError, RecursionError) as error:
                return Reply(400, f"{error}\n")
            return Reply(200, "done\n")
        if request.method != "GET":
            return Reply(405, "GET, or POST of a JSON object\n")
        return self._now(lambda: self._tell(name, request.query))

    def _obey(self, body: Any) -> None:
        admin.obey(self.cluster, body)
        for watch in self._watches:
            watch.wake()

    def _tell(self, name: str, query: str) -> Reply:
        if name == "events":
            after = dict(parse_qsl(query)).get("after", "0")
            if not after.isascii() or not after.isdigit() or len(after) > 12:
                return Reply(400, "after is the number of an event\n")
            body: Any = self.cluster.ledger.since(int(after))
        elif name == "ledger":
            body = self.ledger()
        elif name in ("token", "credential"):
            try:
                body = admin.credential(self.cluster, dict(parse_qsl(query)))
            except BadOrder as error:
                return Reply(404, f"{error}\n")
            if name == "token":
                return Reply(200, body["status"]["token"], {"Content-Type": "text/plain"})
        elif name in ("", "state"):
            body = admin.state(self.cluster)
        else:
            return Reply(404, "there are /fakecloud, /fakecloud/events, /fakecloud/ledger, "
                         "/fakecloud/token?user=NAME and /fakecloud/credential?user=NAME\n")
        return Reply(200, json.dumps(body) + "\n", {"Content-Type": "application/json"})


async def _nothing() -> AsyncIterator[bytes]:
    for line in list[bytes]():
        yield line


def head_of(kind: str) -> bytes:
    return STREAM.format(kind, email.utils.formatdate(usegmt=True)).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def refusal(error: ApiError) -> Reply:
    if error.plain:
        return Reply(error.code, error.message + "\n",
                     {"Content-Type": "text/plain; charset=utf-8", **error.headers})
    headers = {"Content-Type": "application/json", "Cache-Control": "no-cache, private",
               **error.headers}
    return Reply(error.code, json.dumps(error.status(), separators=(",", ":")) + "\n", headers)
