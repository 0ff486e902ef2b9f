"""What the metadata services share: HTTP, an administrator's door, and ways to be broken.

The administrator calls the methods of the object, or sends ``POST /fakecloud`` with a JSON object:
``{"do": "interrupt", "lead_s": 30}`` calls ``interrupt(lead_s=30)``.
"""

from __future__ import annotations

import email.utils
import json
import threading
import time
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Optional, Union

ADMIN_PATH = "/fakecloud"
ADMIN_VERBS = ("interrupt", "rebalance", "maintain", "calm", "throttle", "break", "shift_clock")
BROKEN = ("", "slow", "hanging", "error", "redirect", "huge", "garbage", "drip")
HUGE_BYTES = 4 << 20
BODY_MAX = 1 << 16


@dataclass
class Request:
    method: str
    path: str
    query: str
    headers: Message
    body: bytes


@dataclass
class Reply:
    status: int
    body: Union[str, bytes] = ""
    headers: dict[str, str] = field(default_factory=dict)


class MetadataService:
    """One cloud's service at ``url``; use as a context manager. Its threads end with it.

    With None as ``port`` it has no server: who has one of their own asks :meth:`answer`.
    """

    name = ""

    def __init__(self, host: str = "127.0.0.1", port: Optional[int] = 0) -> None:
        self._changed = threading.Condition()
        self._broken, self._throttled, self._shift_s = "", 0, 0.0
        self._ended = False
        self.requests: list[Request] = []
        if port is not None:
            self._bind(host, port)

    def _bind(self, host: str, port: int) -> None:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = min(BODY_MAX, int(self.headers.get("Content-Length") or 0))
                path, _, query = self.path.partition("?")
                request = Request(self.command, path, query, self.headers, self.rfile.read(length))
                try:
                    service._serve(self, request)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def date_time_string(self, timestamp: Optional[float] = None) -> str:
                return email.utils.formatdate(service.now(), usegmt=True)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server((host, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> MetadataService:
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    # ---- the administrator's door ----

    def now(self) -> float:
        """The time of day, as this service has it."""
        return time.time() + self._shift_s

    def interrupt(self, lead_s: float = 120.0) -> None:
        """The machine is taken back after so many seconds."""
        raise NotImplementedError

    def calm(self) -> None:
        """Nothing is announced any more: what was, was a false alarm."""
        raise NotImplementedError

    def throttle(self, count: int = 10) -> None:
        """Refuses so many of the next questions."""
        with self._changed:
            self._throttled = count

    def break_(self, how: str = "") -> None:
        """Answers in a wrong way from now on; "" mends it."""
        if how not in BROKEN:
            raise ValueError(f"how is one of {BROKEN}, got {how!r}")
        with self._changed:
            self._broken = how
            self._changed.notify_all()

    def shift_clock(self, by_s: float = 0.0) -> None:
        """Its clock is wrong by so much."""
        self._shift_s = by_s

    # ---- answers ----

    def answer(self, request: Request) -> Reply:
        """What the cloud answers."""
        raise NotImplementedError

    def _serve(self, to: BaseHTTPRequestHandler, request: Request) -> None:
        if request.path == ADMIN_PATH and request.method == "POST":
            return _send(to, self._administrate(request))
        with self._changed:
            self.requests.append(request)
            broken, throttled = self._broken, self._throttled > 0
            self._throttled = max(0, self._throttled - 1)
        if throttled:
            return _send(to, Reply(503 if self.name == "aws" else 429))
        if broken == "drip":
            return self._drip(to)
        if broken in ("slow", "hanging"):
            self._pause(3.0 if broken == "slow" else 3600.0)
        if broken in ("", "slow", "hanging"):
            return _send(to, self.answer(request))
        _send(to, {"error": Reply(500, "no"), "huge": Reply(200, "x" * HUGE_BYTES),
                   "redirect": Reply(302, headers={"Location": self.url + "/elsewhere"}),
                   "garbage": Reply(200, '{"action": "term\0\xff[[[')}[broken])

    def _pause(self, limit_s: float) -> None:
        """Until then, or until it is mended or ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not self._broken, limit_s)

    def _drip(self, to: BaseHTTPRequestHandler) -> None:
        """A byte now and then, without an end."""
        to.send_response(200)
        to.send_header("Content-Length", "100000")
        to.end_headers()
        while not self._ended and self._broken == "drip":
            to.wfile.write(b" ")
            time.sleep(0.2)
        to.close_connection = True

    def _administrate(self, request: Request) -> Reply:
        try:
            order = json.loads(request.body)
            verb = order.pop("do")
            if verb not in ADMIN_VERBS:
                raise ValueError(f"do is one of {ADMIN_VERBS}")
            getattr(self, "break_" if verb == "break" else verb)(**order)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return Reply(400, f"{error}\n")
        return Reply(200, "done\n")


def _send(to: BaseHTTPRequestHandler, reply: Reply) -> None:
    body = reply.body.encode() if isinstance(reply.body, str) else reply.body
    to.send_response(reply.status)
    for name, value in reply.headers.items():
        to.send_header(name, value)
    to.send_header("Content-Length", str(len(body)))
    to.end_headers()
    to.wfile.write(body)
