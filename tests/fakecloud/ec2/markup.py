"""Values as EC2's XML: a dictionary is an element per key, a list one of ``item`` elements."""

from __future__ import annotations

import re
import time
from typing import Any
from xml.sax.saxutils import escape

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
# What XML 1.0 cannot carry, escaped or not.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def stamp(at_s: float) -> str:
    """A time as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s)) + ".000Z"


def _text(value: str) -> str:
    return escape(_FORBIDDEN.sub("\ufffd", value)).replace("\r", "&#13;")


def _write(out: list[str], name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, dict):
        out.append(f"<{name}>")
        for key, one in value.items():
            _write(out, key, one)
        out.append(f"</{name}>")
    elif isinstance(value, list):
        out.append(f"<{name}>")
        for one in value:
            _write(out, "item", one)
        out.append(f"</{name}>")
    elif isinstance(value, bool):
        out.append(f"<{name}>{'true' if value else 'false'}</{name}>")
    elif value == "":
        out.append(f"<{name}/>")
    else:
        out.append(f"<{name}>{_text(str(value))}</{name}>")


def response(action: str, request_id: str, result: dict[str, Any]) -> str:
    """None stands for an element that is left out."""
    out = [_HEAD, f'<{action}Response xmlns="{NAMESPACE}">', f"<requestId>{request_id}</requestId>"]
    for key, value in result.items():
        _write(out, key, value)
    out.append(f"</{action}Response>\n")
    return "".join(out)


def error(code: str, message: str, request_id: str) -> str:
    return (f"{_HEAD}<Response><Errors><Error><Code>{_text(code)}</Code>"
            f"<Message>{_text(message)}</Message></Error></Errors>"
            f"<RequestID>{request_id}</RequestID></Response>\n")
