"""One request as an action sees it, and what actions share: filters, pages, tags, resources."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Optional, TypeVar

from fakecloud.ec2.cloud import Cloud
from fakecloud.ec2.errors import Ec2Error, bad_value, missing
from fakecloud.ec2.forms import Form
from fakecloud.ec2.guards import digest_of
from fakecloud.ec2.instances import Instance

T = TypeVar("T")
TAGS_MAX = 50
FILTER_VALUES_MAX = 200
RESOURCES = ("instance", "volume", "network-interface", "spot-instances-request", "fleet",
             "launch-template", "elastic-gpu")


class Call:
    def __init__(self, cloud: Cloud, action: str, form: dict[str, str], tree: dict[str, Any],
                 region: str, user: str) -> None:
        self.cloud, self.action, self.region, self.user = cloud, action, region, user
        self.raw = form
        self.form = Form(tree)
        self.form.ignore("Action", "Version")
        self.token = self.form.text("ClientToken", "", 10_000)
        self._dry = self.form.flag("DryRun")

    def ready(self) -> None:
        """All has been read. Nothing may be changed before this."""
        self.form.done()
        if self._dry:
            raise Ec2Error("DryRunOperation",
                           "Request would have succeeded, but DryRun flag is set.")

    def once(self, make: Callable[[], T]) -> T:
        """The result of the first request with this client token."""
        key = (self.user, self.region, self.action, self.token)
        result: T = self.cloud.once.run(key, self.raw, make)
        return result

    # ---- pages ----

    def page(self, items: list[T], most: int, default: Optional[int] = None, least: int = 5,
             number: Optional[Callable[[T], int]] = None) -> tuple[list[T], Optional[str]]:
        """This page of them and the token of the next one; reads MaxResults and NextToken.

        ``number``: by which the items are in order. A page begins behind the last one of the page
        before then, also if some of those are gone meanwhile.
        """
        given = "MaxResults" in self.form
        size = self.form.integer("MaxResults", most, least, most) if given else default
        token = self.form.text("NextToken", "")
        start = self._start(token) if token else 0
        if number is not None:
            items, start = [one for one in items if number(one) >= start], 0
        if size is None or start + size >= len(items):
            return items[start:], None
        following = start + size if number is None else number(items[size - 1]) + 1
        body = json.dumps([self._question(), following]).encode()
        return items[start:start + size], base64.urlsafe_b64encode(body).decode()

    def _question(self) -> str:
        return digest_of({key: value for key, value in self.raw.items()
                          if key not in ("NextToken", "MaxResults")})[:16]

    def _start(self, token: str) -> int:
        try:
            question, start = json.loads(base64.urlsafe_b64decode(token.encode("ascii")))
            if question == self._question() and isinstance(start, int) and start >= 0:
                return start
        except (ValueError, TypeError, RecursionError):
            pass
        raise bad_value("nextToken", token[:80], "Expected the token of this question's last page.")

    # ---- filters ----

    def filters(self, known: tuple[str, ...]) -> list[tuple[str, list[str]]]:
        """``known``: names; ``tag:`` stands for all that begin so."""
        found = []
        for form in self.form.parts("Filter"):
            name, values = form.text("Name"), form.texts("Value")
            if name not in known and not (name.startswith("tag:") and "tag:" in known):
                raise Ec2Error("InvalidParameterValue", f"The filter '{name[:80]}' is invalid")
            if not values:
                raise missing(f"{form.path}.Value")
            if len(values) > FILTER_VALUES_MAX:
                raise Ec2Error("FilterLimitExceeded",
                               f"The maximum number of filter values is {FILTER_VALUES_MAX}")
            found.append((name, values))
        return found

    # ---- tags ----

    def tags(self, form: Form, key: str = "TagSpecification") -> dict[str, dict[str, str]]:
        """By the type of resource."""
        found: dict[str, dict[str, str]] = {}
        for part in form.parts(key):
            kind = part.text("ResourceType")
            if kind not in RESOURCES:
                raise bad_value(part.name("ResourceType"), kind[:80],
                                f"Expected one of {', '.join(RESOURCES)}.")
            found.setdefault(kind, {}).update(read_tags(part))
        return found

    # ---- instances ----

    def seen(self) -> list[Instance]:
        """Those of this region that have become visible, in the order of their launch."""
        return [one for one in self.cloud.instances.values()
                if one.region == self.region and one.visible_s <= self.cloud.now_s]

    def instances_by_id(self, ids: Iterable[str]) -> list[Instance]:
        ids = list(dict.fromkeys(ids))
        for one in ids:
            if not re.fullmatch(r"i-([0-9a-f]{8}|[0-9a-f]{17})", one):
                raise Ec2Error("InvalidInstanceID.Malformed", f'Invalid id: "{one[:80]}"')
        seen = {one.id: one for one in self.seen()}
        unknown = [one for one in ids if one not in seen]
        if unknown:
            text = (f"The instance ID '{unknown[0]}' does" if len(unknown) == 1 else
                    f"The instance IDs '{', '.join(unknown)}' do")
            raise Ec2Error("InvalidInstanceID.NotFound", text + " not exist")
        return [seen[one] for one in ids]


def read_tags(form: Form) -> dict[str, str]:
    tags: dict[str, str] = {}
    for one in form.parts("Tag"):
        key, value = one.text("Key"), one.text("Value", "")
        if not key or len(key) > 127 or key.lower().startswith("aws:"):
            raise bad_value(one.name("Key"), key[:80],
                            "Tag keys have 1 to 127 characters and do not begin with aws:.")
        if len(value) > 255:
            raise bad_value(one.name("Value"), value[:80],
                            "Tag values have 255 characters at most.")
        if key in tags:
            raise Ec2Error("InvalidParameterValue", f"Duplicate tag key '{key}' specified.")
        tags[key] = value
    if len(tags) > TAGS_MAX:
        raise Ec2Error("TagLimitExceeded", f"A resource has at most {TAGS_MAX} tags")
    return tags


def tag_set(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in sorted(tags.items())]


def matches(value: Optional[str], patterns: list[str]) -> bool:
    """``*`` and ``?`` stand for characters, a backslash before them for themselves."""
    return value is not None and any(_matches(value, one) for one in patterns)


def _matches(value: str, pattern: str) -> bool:
    if "*" not in pattern and "?" not in pattern:
        return value == pattern
    if "\\" in pattern:
        pattern = re.sub(r"\\([*?])", r"[\1]", pattern)
    else:
        pattern = pattern.replace("[", "[[]")
    return fnmatch.fnmatchcase(value, pattern)


def passes(filters: list[tuple[str, list[str]]], values: dict[str, Optional[str]],
           tags: dict[str, str]) -> bool:
    for name, patterns in filters:
        if name.startswith("tag:"):
            good = matches(tags.get(name[4:]), patterns)
        elif name == "tag-key":
            good = any(matches(key, patterns) for key in tags)
        elif name == "tag-value":
            good = any(matches(value, patterns) for value in tags.values())
        else:
            good = matches(values.get(name), patterns)
        if not good:
            return False
    return True


USER_DATA_MAX = 16384


def check_user_data(text: str) -> str:
    """What EC2 takes: base64 of at most 16 KiB."""
    try:
        size = len(base64.b64decode(text.encode("ascii"), validate=True))
    except (ValueError, binascii.Error):
        raise Ec2Error("InvalidUserData.Malformed",
                       "Invalid BASE64 encoding of user data.") from None
    if size > USER_DATA_MAX:
        raise Ec2Error("InvalidUserData.Malformed",
                       f"User data is limited to {USER_DATA_MAX} bytes")
    return text
