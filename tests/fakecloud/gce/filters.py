"""The ``filter`` of lists: comparisons, AND, OR, NOT, parentheses, and ``field eq regex``.

``labels.k=v``, ``labels.k:*``, ``name!=a``, ``(status=RUNNING) (labels.a=b)``, ``name eq 'vm-.*'``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Any, Optional

from fakecloud.gce.errors import GceError, invalid

Test = Callable[[dict[str, Any]], bool]
_TOKEN = re.compile(r"""\s*(?:(\(|\))|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(!=|<=|>=|[=:<>])"""
                    r"""|([^\s()=:<>!"']+))""")
DEPTH_MAX, TEXT_MAX = 30, 2048


def _value(body: Any, path: list[str]) -> list[Any]:
    """All values at a path; a list's elements each count."""
    if isinstance(body, list):
        return [one for each in body for one in _value(each, path)]
    if not path:
        return [body]
    if not isinstance(body, dict):
        return []
    # A label's key may have no dot, so that what follows "labels." is one.
    return _value(body[path[0]], path[1:]) if path[0] in body else []


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pattern(wanted: str) -> Callable[[str], bool]:
    """Where a field may be named by a link, its last part is enough."""
    return lambda text: text == wanted or ("/" in text and text.endswith("/" + wanted))


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._tokens: list[tuple[str, str]] = []
        self._depth = 0
        while self._at < len(text.rstrip()):
            match = _TOKEN.match(text, self._at)
            if match is None:
                raise self.wrong()
            kinds = ("paren", "quoted", "op", "word")
            kind = next(k for k, part in zip(kinds, match.groups()) if part is not None)
            self._tokens.append((kind, match.group(match.lastindex or 0)))
            self._at = match.end()
        self._next = 0

    def wrong(self) -> GceError:
        return invalid("filter", self._text, "Invalid list filter expression.")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "")

    def _take(self) -> tuple[str, str]:
        token = self._peek()
        self._next += 1
        return token

    def whole(self) -> Test:
        test = self._or()
        if self._peek()[0] != "end":
            raise self.wrong()
        return test

    def _or(self) -> Test:
        tests = [self._and()]
        while self._peek() == ("word", "OR"):
            self._take()
            tests.append(self._and())
        return tests[0] if len(tests) == 1 else lambda body: any(one(body) for one in tests)

    def _and(self) -> Test:
        tests = [self._not()]
        while self._peek() not in (("end", ""), ("word", "OR"), ("paren", ")")):
            if self._peek() == ("word", "AND"):
                self._take()
            tests.append(self._not())
        return tests[0] if len(tests) == 1 else lambda body: all(one(body) for one in tests)

    def _not(self) -> Test:
        kind, text = self._peek()
        if (kind, text) == ("word", "NOT"):
            self._take()
            test = self._not()
            return lambda body: not test(body)
        if (kind, text) == ("paren", "("):
            self._take()
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise self.wrong()
            test = self._or()
            if self._take() != ("paren", ")"):
                raise self.wrong()
            self._depth -= 1
            return test
        return self._comparison()

    def _comparison(self) -> Test:
        kind, name = self._take()
        negated = kind == "word" and name.startswith("-")
        kind_of_op, op = self._take()
        if kind != "word" or not (kind_of_op == "op" or op in ("eq", "ne")):
            raise self.wrong()
        kind, wanted = self._take()
        if kind == "quoted":
            wanted = re.sub(r"\\(.)", r"\1", wanted[1:-1])
        elif kind != "word":
            raise self.wrong()
        test = self._compare(name.removeprefix("-").split(".", 1), op, wanted)
        return (lambda body: not test(body)) if negated else test

    def _compare(self, head: list[str], op: str, wanted: str) -> Test:
        path = head if head[0] == "labels" else ".".join(head).split(".")
        if op in ("eq", "ne"):
            try:
                regex = re.compile(wanted)
            except re.error:
                raise self.wrong() from None
            return lambda body: any(regex.fullmatch(_text(one)) for one in _value(body, path)) is (
                op == "eq")
        if op == ":":
            if wanted == "*":
                return lambda body: bool(_value(body, path))
            return lambda body: any(
                fnmatch.fnmatchcase(_text(one).lower(), wanted.lower()) if "*" in wanted
                else wanted.lower() in _text(one).lower() for one in _value(body, path))
        if op in ("=", "!="):
            same = _pattern(wanted)
            return lambda body: any(same(_text(one)) for one in _value(body, path)) is (op == "=")
        orders: dict[str, Callable[[Any, Any], bool]] = {
            "<": lambda a, b: a < b, ">": lambda a, b: a > b,
            "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b}

        def ordered(body: dict[str, Any]) -> bool:
            return any(orders[op](_text(one), wanted) for one in _value(body, path))
        return ordered


def parse(text: Optional[str]) -> Test:
    """Raises GceError."""
    if not text or not text.strip():
        return lambda body: True
    if len(text) > TEXT_MAX:
        raise invalid("filter", text[:80], "The filter is too long.")
    return _Parser(text).whole()
