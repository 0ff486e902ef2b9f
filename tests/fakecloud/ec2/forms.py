"""The parameters of one request: ``Filter.1.Value.2=x`` as a tree, read key by key.

What has not been read when the action has taken all it knows is an error, as it is with EC2: a
misspelt parameter is never just passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Optional, Union
from urllib.parse import parse_qsl

from fakecloud.ec2.errors import Ec2Error, bad_value, missing

KEYS_MAX = 20_000
DEPTH_MAX = 8
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_:-]*|[0-9]{1,6}")

Tree = dict[str, Any]


def parse(text: str) -> dict[str, str]:
    """The pairs of a query string or a form body. Names come once."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text),
                          errors="strict", max_num_fields=KEYS_MAX)
    except ValueError:
        raise Ec2Error("MalformedQueryString", "The query string is malformed") from None
    form: dict[str, str] = {}
    for name, value in pairs:
        if name in form:
            raise Ec2Error("MalformedQueryString", f"The parameter {name} is given twice")
        form[name] = value
    return form


def tree_of(form: dict[str, str]) -> Tree:
    """``{"A.1.B": "x"}`` as ``{"A": {"1": {"B": "x"}}}``."""
    root: Tree = {}
    for name, value in form.items():
        parts = name.split(".")
        if len(parts) > DEPTH_MAX or not all(_NAME.fullmatch(part) for part in parts):
            raise Ec2Error("UnknownParameter", f"The parameter {name[:200]} is not recognized")
        node = root
        for part in parts[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise Ec2Error("InvalidParameterCombination",
                               f"The parameter {name} is both a value and a structure")
        if isinstance(node.get(parts[-1]), dict):
            raise Ec2Error("InvalidParameterCombination",
                           f"The parameter {name} is both a value and a structure")
        node[parts[-1]] = value
    return root


class Form:
    """Reads a tree. Each getter marks what it has read; :meth:`done` complains about the rest."""

    def __init__(self, tree: Tree, path: str = "") -> None:
        self.tree, self.path = tree, path
        self._read: set[str] = set()
        self._parts: list[Form] = []

    def name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def __contains__(self, key: str) -> bool:
        return key in self.tree

    def text(self, key: str, default: Optional[str] = None, longest: int = 100_000) -> str:
        """Required, unless a default is given."""
        self._read.add(key)
        value = self.tree.get(key)
        if value is None:
            if default is None:
                raise missing(self.name(key))
            return default
        if not isinstance(value, str):
            raise Ec2Error("InvalidParameterValue", f"{self.name(key)} is no structure")
        if len(value) > longest:
            raise bad_value(self.name(key), value[:40] + "...",
                            f"It is longer than {longest} characters.")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(key, default)
        if value not in choices and value != default:
            raise bad_value(self.name(key), value, f"It is one of {', '.join(choices)}.")
        return value

    def integer(self, key: str, default: Optional[int] = None, least: int = 0,
                most: int = 1_000_000) -> int:
        value = self.text(key, None if default is None else str(default))
        if not re.fullmatch(r"-?[0-9]{1,12}", value):
            raise bad_value(self.name(key), value, "Expected an integer.")
        if default is not None and key not in self.tree:
            return default
        if not least <= int(value) <= most:
            raise bad_value(self.name(key), value, f"Expected {least} to {most}.")
        return int(value)

    def number(self, key: str, default: Optional[float] = None) -> Optional[float]:
        """None if it is not given and there is no default."""
        if key not in self.tree:
            return default
        value = self.text(key)
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,12})?(E-?[0-9])?", value):
            raise bad_value(self.name(key), value, "Expected a number.")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.text(key, "true" if default else "false").lower()
        if value not in ("true", "false"):
            raise bad_value(self.name(key), value, "Expected true or false.")
        return value == "true"

    def part(self, key: str) -> Form:
        """A structure; empty if it is not there."""
        self._read.add(key)
        value = self.tree.get(key, {})
        if not isinstance(value, dict):
            raise Ec2Error("InvalidParameterValue", f"{self.name(key)} is a structure")
        form = Form(value, self.name(key))
        self._parts.append(form)
        return form

    def _numbered(self, key: str) -> Iterator[tuple[str, Union[str, Tree]]]:
        self._read.add(key)
        value = self.tree.get(key, {})
        if not isinstance(value, dict) or not all(index.isdigit() for index in value):
            raise Ec2Error("InvalidParameterValue",
                           f"{self.name(key)} is a list: its names end in .1, .2 and so on")
        for index in sorted(value, key=int):
            yield index, value[index]

    def texts(self, key: str) -> list[str]:
        values = []
        for index, value in self._numbered(key):
            if not isinstance(value, str):
                raise Ec2Error("InvalidParameterValue", f"{self.name(key)}.{index} is no structure")
            values.append(value)
        return values

    def parts(self, key: str) -> list[Form]:
        forms = []
        for index, value in self._numbered(key):
            if not isinstance(value, dict):
                raise Ec2Error("InvalidParameterValue", f"{self.name(key)}.{index} is a structure")
            forms.append(Form(value, f"{self.name(key)}.{index}"))
        self._parts += forms
        return forms

    def ignore(self, *keys: str) -> None:
        """Known to EC2, without an effect here."""
        self._read.update(keys)

    def done(self) -> None:
        for key in self.tree:
            if key not in self._read:
                raise Ec2Error("UnknownParameter",
                               f"The parameter {self.name(key)} is not recognized")
        for form in self._parts:
            form.done()
