"""A small HTTP/1.1 server on asyncio: many addresses and connections, one thread.

What comes in is bounded: the head, the body, the time of a request, and how many connections there
are.
"""

from __future__ import annotations

import asyncio
import email.utils
import itertools
import socket
import ssl
import traceback
from collections.abc import Awaitable, Callable
from email.message import Message
from http import HTTPStatus
from typing import Optional

from fakecloud.service import HUGE_BYTES, Reply, Request

HEAD_MAX = 1 << 16
BODY_MAX = 3 << 20
CONNECTIONS_MAX = 2_000
REQUEST_S = 30.0        # For the rest of a request whose first bytes are here.
IDLE_S = 300.0

ANSWERED = Reply(0)     # By the handler itself, to the end: the connection goes on.

Handler = Callable[[Request, asyncio.StreamWriter], Awaitable[Optional[Reply]]]


class BadRequest(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


def parse_head(head: bytes) -> tuple[str, str, Message]:
    """Method, target and headers. Names that come twice are there twice."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(400)
    headers = Message()
    for line in lines[1:]:
        if not line:
            continue
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or len(headers) >= 200:
            raise BadRequest(400)
        headers[name] = value.strip(" \t")
    return words[0], words[1], headers


def head_of(status: int, reply: Reply, length: int, date_s: float) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", f"Date: {email.utils.formatdate(date_s, usegmt=True)}",
             *(f"{name}: {value}" for name, value in reply.headers.items()),
             f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Server:
    """Call from its event loop's thread. ``now``: the time of day that is told."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._numbers = itertools.count(1)
        self._listening: dict[int, Optional[asyncio.AbstractServer]] = {}   # None: not yet.
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Task[None]] = set()

    def listen(self, sock: socket.socket, handler: Handler,
               secure: Optional[ssl.SSLContext] = None) -> int:
        """Serves on a bound socket; a number to close it by."""
        sock.listen(128)
        sock.setblocking(False)
        number = next(self._numbers)
        self._listening[number] = None

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            if len(self._connections) >= CONNECTIONS_MAX:
                writer.transport.abort()
                return
            self._connections.add(task)
            try:
                # The event loop does this only for sockets that were made with TCP's number.
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP,
                                                           socket.TCP_NODELAY, 1)
                await self._serve(reader, writer, handler)
            except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                pass
            except asyncio.CancelledError:
                pass    # The server ends; nobody waits for this task.
            finally:
                self._connections.discard(task)
                writer.close()

        async def start() -> None:
            server = await asyncio.start_server(connected, sock=sock, limit=HEAD_MAX, ssl=secure)
            if number in self._listening:
                self._listening[number] = server
            else:
                server.close()

        task = asyncio.get_running_loop().create_task(start())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return number

    def close(self, number: int) -> None:
        server = self._listening.pop(number, None)
        if server is not None:
            server.close()

    async def end(self) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=5)
        for number in list(self._listening):
            self.close(number)
        # More than once: wait_for passes over a cancellation that comes together with its result.
        for _ in range(50):
            if not self._connections:
                break
            for task in self._connections:
                task.cancel()
            await asyncio.wait(set(self._connections), timeout=0.1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
                     handler: Handler) -> None:
        while True:
            try:
                first = await asyncio.wait_for(reader.read(1), IDLE_S)
                if not first:
                    return
                if first in b"\r\n":
                    continue    # Empty lines before a request are passed over.
                request = await asyncio.wait_for(self._read(first, reader, writer), REQUEST_S)
            except BadRequest as bad:
                reply = Reply(bad.status, headers={"Connection": "close"})
                return await self._write(writer, reply)
            try:
                reply_or_none = await handler(request, writer)
            except (OSError, asyncio.TimeoutError):
                return
            except Exception:
                traceback.print_exc()   # A fault of ours.
                reply_or_none = Reply(500)
            if reply_or_none is None:
                return
            closes = request.headers.get("Connection", "").lower() == "close"
            if reply_or_none is not ANSWERED:
                if closes:
                    reply_or_none.headers["Connection"] = "close"
                await self._write(writer, reply_or_none, request.method == "HEAD")
            if closes:
                return

    async def _read(self, first: bytes, reader: asyncio.StreamReader,
                    writer: asyncio.StreamWriter) -> Request:
        try:
            head = first + await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise BadRequest(431) from None
        method, target, headers = parse_head(head)
        if "Transfer-Encoding" in headers:
            raise BadRequest(411)
        length = headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > 12:
            raise BadRequest(400)
        if int(length) > BODY_MAX:
            raise BadRequest(413)
        if headers.get("Expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(length))
        path, _, query = target.partition("?")
        return Request(method, path, query, headers, body)

    async def _write(self, writer: asyncio.StreamWriter, reply: Reply,
                     head_only: bool = False) -> None:
        body = reply.body.encode() if isinstance(reply.body, str) else reply.body
        head = head_of(reply.status, reply, len(body), self._now())
        writer.write(head if head_only else head + body)
        await asyncio.wait_for(writer.drain(), REQUEST_S)


async def misbehave(how: Callable[[], str], writer: asyncio.StreamWriter,
                    answer: Callable[[], Reply]) -> Optional[Reply]:
    """Answers in a wrong way, for as long as ``how`` says so: see ``fakecloud.service.BROKEN``, and
    ``lost``: what was asked for is done, and the answer does not arrive. None: hang up."""
    kind = how()
    if kind == "drip":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while how() == "drip":
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.2)
        return None
    if kind in ("slow", "hanging"):
        left_s = 3.0 if kind == "slow" else 3600.0
        while how() == kind and left_s > 0:
            await asyncio.sleep(0.05)
            left_s -= 0.05
    if kind == "lost":
        answer()
        return None
    if kind in ("", "slow", "hanging"):
        return answer()
    return {"error": Reply(500, "no"), "huge": Reply(200, "x" * HUGE_BYTES),
            "redirect": Reply(302, headers={"Location": "http://127.0.0.1:9/elsewhere"}),
            "garbage": Reply(200, b'<Response><\0\xff[[[')}[kind]
