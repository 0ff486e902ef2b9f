"""An EC2 for tests: moto's, behind a gate that checks each signature, keeps what was asked, and
answers itself where a test wants a fault.

moto starts no machines: what is looked at here is what goes over the wire.
"""

from __future__ import annotations

import datetime
import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.server import ThreadedMotoServer

Form = dict[str, str]
Fault = Callable[[Form], "tuple[int, str] | None"]
KEYS = {"AKIDTROUPE": "very+secret/key", "AKIDSECOND": "another+secret"}


def refusal(code: str, message: str = "no") -> str:
    """The body of an error of EC2."""
    return (f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error>"
            "</Errors><RequestID>r</RequestID></Response>")


def signature_of(method: str, url: str, headers: dict[str, str], body: str, secret: str) -> str:
    """By botocore, which signs for Amazon's own tools."""
    described = headers["authorization"]
    scope = described.split("Credential=")[1].split(",")[0].split("/")
    signed = described.split("SignedHeaders=")[1].split(",")[0].split(";")
    request = AWSRequest(method=method, url=url, data=body,
                         headers={name: headers[name] for name in signed})
    request.context["timestamp"] = headers["x-amz-date"]
    auth = SigV4Auth(Credentials(scope[0], secret), scope[3], scope[2])
    request.context["payload_signing_enabled"] = True
    # Newer releases of botocore take the time from here.
    when = datetime.datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
    request.context["signing_date"] = when
    return str(auth.signature(
        auth.string_to_sign(request, auth.canonical_request(request)), request))


class Gate:
    """Serves at ``url`` until it is closed."""

    def __init__(self) -> None:
        self._moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._moto.start()
        host, port = self._moto.get_host_and_port()
        self._behind = (host, port)
        self.asked: list[Form] = []
        self.key_ids: set[str] = set()
        self.wrong: list[str] = []
        self.signed: set[str] = set()  # Names of headers.
        self.fault: Fault = lambda form: None
        self._lock = threading.Lock()
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                names = [name.lower() for name in self.headers]
                if len(set(names)) < len(names):
                    gate.wrong.append(f"a header comes twice: {names}")
                status, answer = gate.answer({k.lower(): v for k, v in self.headers.items()}, body)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except BrokenPipeError:  # Who has asked has gone.
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.ec2: Any = boto3.client("ec2", region_name="us-east-1",
                                     endpoint_url=f"http://{host}:{port}",
                                     aws_access_key_id="a", aws_secret_access_key="b")

    def answer(self, headers: dict[str, str], body: str) -> tuple[int, bytes]:
        """What is answered to one request."""
        form = dict(parse_qsl(body, keep_blank_values=True))
        key_id = headers["authorization"].split("Credential=")[1].split("/")[0]
        wanted = signature_of("POST", self.url + "/", headers, body, KEYS[key_id])
        with self._lock:
            self.asked.append(form)
            self.key_ids.add(key_id)
            self.signed.update(
                headers["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";"))
            if not headers["authorization"].endswith("Signature=" + wanted):
                self.wrong.append(f"{form['Action']}: {headers['authorization']}")
            fault = self.fault(form)
        if fault:
            return fault[0], fault[1].encode()
        connection = http.client.HTTPConnection(*self._behind, timeout=30)
        try:
            kept = ("authorization", "content-type", "x-amz-date", "x-amz-security-token")
            connection.request("POST", "/", body,
                               {name: headers[name] for name in kept if name in headers})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def instances(self, *states: str) -> list[dict[str, Any]]:
        """Those in one of the states; without any, all."""
        pages = self.ec2.describe_instances()["Reservations"]
        return [i for page in pages for i in page["Instances"]
                if not states or i["State"]["Name"] in states]

    def count(self, action: str) -> int:
        """How often it was asked for."""
        return sum(form["Action"] == action for form in list(self.asked))

    def close(self) -> None:
        """Forgets all that there is."""
        self._server.shutdown()
        self._server.server_close()
        self._moto.stop()
