"""The fake EC2's small parts: signatures, forms, XML, traces, market files, settings, orders."""

from __future__ import annotations

import hashlib
import json
import os
import random
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from ec2_world import World
from fakecloud import hosting
from fakecloud.ec2 import admin, cli, forms, market, markup, sigv4, traces
from fakecloud.ec2.errors import BadMarket, Ec2Error
from fakecloud.ec2.machines import script_of
from fakecloud.ec2.settings import Settings, Spread
from fakecloud.ec2.sigv4 import Key, Signed
from fakecloud.web import BadRequest, parse_head

NOW_S = 1_440_938_160.0     # 2015-08-30T12:36:00Z


# ---- signatures ----

def signed(key: Key, body: str = "Action=DescribeRegions", date: str = "20150830T123600Z",
           method: str = "POST", query: str = "", scope: str = "", **more: str) -> Signed:
    """Signed step by step as the documentation describes it, with nothing of the verifier's."""
    import hmac
    headers = {"host": "example.amazonaws.com", "x-amz-date": date,
               **{name.replace("_", "-"): value for name, value in more.items()}}
    if key.token:
        headers["x-amz-security-token"] = key.token
    names = sorted(headers)
    scope = scope or f"{date[:8]}/us-east-1/ec2/aws4_request"
    text = "\n".join([method, "/", query, *(f"{name}:{headers[name]}" for name in names), "",
                      ";".join(names), hashlib.sha256(body.encode()).hexdigest()])
    mac = ("AWS4" + key.secret).encode()
    for part in scope.split("/"):
        mac = hmac.new(mac, part.encode(), "sha256").digest()
    to_sign = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(
        text.encode()).hexdigest()])
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={key.id}/{scope}, SignedHeaders={';'.join(names)}, "
        f"Signature={hmac.new(mac, to_sign.encode(), 'sha256').hexdigest()}")
    return Signed(method, "/", query, headers, body.encode())


KEY = Key("AKID", "secret")
SESSION = Key("ASIA", "other", "token", NOW_S + 60)


def verify(request: Signed, now_s: float = NOW_S) -> sigv4.Identity:
    return sigv4.verify(request, {one.id: one for one in (KEY, SESSION)}, now_s)


def code_of(request: Signed, now_s: float = NOW_S) -> str:
    with pytest.raises(Ec2Error) as caught:
        verify(request, now_s)
    return caught.value.code


def test_good_signatures() -> None:
    assert verify(signed(KEY)).region == "us-east-1"
    assert verify(signed(SESSION)).key is SESSION
    assert verify(signed(KEY, "", method="GET", query="Action=A&Version=1%2F2")).key is KEY
    assert verify(signed(KEY), NOW_S + 299).key is KEY


def test_documented_key() -> None:
    """The example of a signing key in AWS's documentation, by its signature of a text."""
    text = ("AWS4-HMAC-SHA256\n20150830T123600Z\n20150830/us-east-1/iam/aws4_request\n"
            "f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59")
    assert sigv4.signature("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
                           "20150830/us-east-1/iam/aws4_request", text) == (
        "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7")


def test_wrong_signatures() -> None:
    bare = signed(KEY)
    bare.headers = {key: value for key, value in bare.headers.items() if key != "authorization"}
    assert code_of(bare) == "AuthFailure"
    changed = signed(KEY)
    changed.body += b"&DryRun=true"
    assert code_of(changed) == "SignatureDoesNotMatch"
    assert code_of(signed(Key("AKID", "wrong"))) == "SignatureDoesNotMatch"
    assert code_of(signed(KEY, scope="20150830/us-east-1/s3/aws4_request")) == (
        "SignatureDoesNotMatch")
    assert code_of(signed(Key("NOBODY", "secret"))) == "InvalidClientTokenId"
    assert code_of(signed(Key("ASIA", "other", "stale"))) == "InvalidClientTokenId"
    for off_s in (-301, 301):
        assert code_of(signed(KEY), NOW_S + off_s) == "RequestExpired"
    assert code_of(signed(SESSION), NOW_S + 60) == "ExpiredToken"
    unsigned = signed(KEY)
    unsigned.headers = {**unsigned.headers, "x-amz-target": "x"}
    assert code_of(unsigned) == "SignatureDoesNotMatch"
    for header in ("Basic x", "AWS4-HMAC-SHA256 Credential=x", "AWS4-HMAC-SHA256 Credential=x, "
                   "SignedHeaders=host;x-amz-date, Signature=0"):
        request = signed(KEY)
        request.headers = {**request.headers, "authorization": header}
        assert code_of(request) == "IncompleteSignature"
    assert code_of(signed(KEY, date="yesterday")) == "IncompleteSignature"


# ---- forms, XML, HTTP ----

@pytest.mark.parametrize(("text", "code"), [
    ("a", "MalformedQueryString"), ("a=1&a=2", "MalformedQueryString"),
    ("A=%ff", "MalformedQueryString"), ("A..B=1", "UnknownParameter"),
    ("A=1&A.1=2", "InvalidParameterCombination"), ("A.1=2&A=1", "InvalidParameterCombination"),
    ("A.1.2.3.4.5.6.7.8=1", "UnknownParameter"), ("=1", "UnknownParameter"),
    ("&".join(f"A.{i}=1" for i in range(20_001)), "MalformedQueryString"),
])
def test_malformed_forms(text: str, code: str) -> None:
    with pytest.raises(Ec2Error) as caught:
        forms.tree_of(forms.parse(text))
    assert caught.value.code == code


def test_form_tells_what_was_not_read() -> None:
    form = forms.Form(forms.tree_of(forms.parse("A.1.B=x&A.1.C=y&A.10.B=z&A.2.B=w")))
    parts = form.parts("A")
    assert [part.text("B") for part in parts] == ["x", "w", "z"]
    with pytest.raises(Ec2Error, match=r"UnknownParameter.*A\.1\.C"):
        form.done()


def test_markup_can_be_read_whatever_is_in_it() -> None:
    nasty = "<a>&\"' \r\n\t\0\x1b\ud800 ü"
    text = markup.response("X", "id", {"list": [nasty, {"k": True, "n": None}], "none": []})
    root = ET.fromstring(text.encode())
    space = f"{{{markup.NAMESPACE}}}"
    items = root.findall(f"{space}list/{space}item")
    assert items[0].text == "<a>&\"' \r\n\t\ufffd\x1b\ufffd ü".replace("\x1b", "\ufffd")
    assert [child.tag for child in items[1]] == [space + "k"] and items[1][0].text == "true"
    error = ET.fromstring(markup.error("Code", nasty, "id").encode())
    assert error.findtext("Errors/Error/Code") == "Code" and error.findtext("RequestID") == "id"


@pytest.mark.parametrize("head", ["GET /", "GET / HTTP/2", "GET / HTTP/1.1\r\nbad",
                                  "GET / HTTP/1.1\r\n: x", "GET / HTTP/1.1\r\na : x"])
def test_wrong_heads(head: str) -> None:
    with pytest.raises(BadRequest):
        parse_head(head.encode())


# ---- traces and market files ----

def test_three_forms_of_traces() -> None:
    [one] = traces.parse('{"metadata": {"gap_seconds": 300}, "data": [16, 0]}', "d/us-east-1a.json")
    assert one.name == "us-east-1a" and one.points == [(0, 16, None), (300, 0, None)]
    [two] = traces.parse("0,add,n1\n0,add,n2\r\n1500,remove,n1\n", "b.csv")
    assert two.points == [(0, 2, None), (1.5, 1, None)]
    lines = ('{"t": 60, "offering": "us-east-1a", "capacity": 8, "price": 0.9}\n'
             '{"t": 60, "offering": "us-east-1b", "capacity": 1}\n')
    found = traces.parse(lines, "t.jsonl")
    assert [(one.name, one.points) for one in found] == [
        ("us-east-1a", [(60, 8, 0.9)]), ("us-east-1b", [(60, 1, None)])]


@pytest.mark.parametrize(("name", "text", "said"), [
    ("a.json", "{", "a.json:1: is not JSON"), ("a.json", "[]", "expected an object"),
    ("a.json", '{"metadata": {"gap_seconds": 0}, "data": [1]}', "is 0"),
    ("a.json", '{"metadata": {"gap_seconds": NaN}, "data": [1]}', "NaN"),
    ("a.json", '{"metadata": {"gap_seconds": 1}, "data": []}', "list"),
    ("a.json", '{"metadata": {"gap_seconds": 1}, "data": [1, true]}', r"data\[1\]"),
    ("a.json", '{"metadata": {"gap_seconds": 1}, "data": [-1]}', r"data\[0\]"),
    ("a.json", "[" * 100_000, "is not JSON"),
    ("a.csv", "", "no event"), ("a.csv", "x,add,n", "a.csv:1: expected milliseconds"),
    ("a.csv", "nan,add,n", "milliseconds"), ("a.csv", "1,add", "add|remove"),
    ("a.csv", "5,add,n\n4,add,m", "a.csv:2: goes back"), ("a.csv", "1,drop,n", "add or remove"),
    ("a.csv", "1,add,n\n2,add,n", "again"), ("a.csv", "1,remove,n", "not there"),
    ("a.jsonl", "", "no line"), ("a.jsonl", "\n{}", 'a.jsonl:2: expected a string "offering"'),
    ("a.jsonl", "\n{", "a.jsonl:2: is not JSON"),
    ("a.jsonl", '{"offering": "z", "t": 1, "capacity": 1.5}', "whole"),
    ("a.jsonl", '{"offering": "z", "t": 1, "capacity": 1e99}', "out of range"),
    ("a.txt", "", "expected a .json, .csv, .jsonl"),
])
def test_rubbish_in_traces(name: str, text: str, said: str) -> None:
    with pytest.raises(BadMarket, match=said):
        traces.parse(text, name)


def test_where_traces_lie(tmp_path: Path) -> None:
    trace = '{"metadata": {"gap_seconds": 300}, "data": [3, 1]}'
    (tmp_path / "us-east-2b_v100_1.json").write_text(trace)
    (tmp_path / "us-west-2a_v100_8.json").write_text(trace)
    (tmp_path / "README.md").write_text("no trace")
    found = market.load([str(tmp_path)]).market
    assert sorted(found.pools) == [("us-east-2b", "p3.2xlarge"), ("us-west-2a", "p3.16xlarge")]
    assert found.regions() == ["us-east-2", "us-west-2"]
    bamboo = tmp_path / "bamboo.csv"
    bamboo.write_text("5000,add,n1\n")
    with pytest.raises(BadMarket, match="say ZONE/TYPE=PATH"):
        market.load([str(bamboo)])
    found = market.load([f"us-east-1a/g4dn.xlarge={bamboo}"]).market
    pool = found.pools["us-east-1a", "g4dn.xlarge"]
    assert pool.points == [(0, 0, None), (5, 1, None)] and pool.price == pytest.approx(0.1578)
    with pytest.raises(BadMarket, match="described twice"):
        market.load([f"us-east-1a={bamboo}", f"us-east-1a={bamboo}"])
    for device in ("/dev/zero", "/etc/passwd"):
        with pytest.raises(BadMarket, match="expected a .json"):
            market.load([device])
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(BadMarket, match="is no file"):
        market.load([str(tmp_path / "pipe.json")])
    with pytest.raises(BadMarket, match="cannot be read: No such file"):
        market.load([str(tmp_path / "missing.json")])


GOOD = {"types": {"tiny.one": {"vcpus": 1, "memory_mib": 512, "on_demand": 0.1}},
        "pools": [{"zone": "us-east-1a", "type": "tiny.one", "points": [[0, 2, 0.01], [60, 0]]},
                  {"zone": "us-east-1b", "type": "tiny.one", "capacity": 4, "price": 0.02},
                  {"zone": "us-east-1c", "type": "m5.large", "trace": "t.csv"}],
        "settings": {"lag_s": 0}}


def test_market_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("0,add,n1\n")
    path = tmp_path / "market.json"
    path.write_text(json.dumps(GOOD))
    read = market.load([str(path)])
    assert len(read.market.pools) == 3 and read.settings == {"lag_s": 0}
    with pytest.raises(BadMarket, match="stands alone"):
        market.load([str(path), str(path)])


@pytest.mark.parametrize(("change", "said"), [
    ({"pool": []}, "unknown key pool"), ({"pools": []}, "expected a list"),
    ({"pools": [1]}, r"pools\[0\]: expected an object"),
    ({"pools": [{"zone": "mars", "type": "m5.large", "capacity": 1}]}, "zone"),
    ({"pools": [{"zone": "us-east-1a", "type": "m5.huge", "capacity": 1}]}, "m5.huge"),
    ({"pools": [{"zone": "us-east-1a", "type": "m5.large"}]}, "one of capacity, trace, points"),
    ({"pools": [{"zone": "us-east-1a", "type": "m5.large", "capacity": -1}]}, "out of range"),
    ({"pools": [{"zone": "us-east-1a", "type": "m5.large", "points": [[5, 1], [4, 1]]}]}, "back"),
    ({"pools": [{"zone": "us-east-1a", "type": "m5.large", "points": [[5]]}]}, r"points\[0\]"),
    ({"pools": [{"zone": "us-east-1a", "type": "m5.large", "trace": "no.csv"}]}, "cannot be read"),
    ({"pools": [{"zone": "us-east-1a", "type": "m5.large", "capacity": 1, "size": 1}]}, "size"),
    ({"types": {"x": {}}}, "FAMILY.SIZE"), ({"types": {"a.b": {"vcpus": 0}}}, "memory_mib"),
    ({"types": {"a.b": {"colour": 1}}}, "unknown key colour"),
])
def test_rubbish_in_market_files(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadMarket, match=said):
        market.read_market({**GOOD, **change}, "/nowhere/market.json")


def test_settings_are_read_strictly() -> None:
    settings = Settings()
    settings.update({"lead_s": {"choices": [[120, 3], [0, 1]]}, "speed": 60, "throttle": None}, "s")
    drawn = {settings.lead_s.draw(random.Random(seed)) for seed in range(50)}
    assert drawn == {120.0, 0.0} and settings.speed == 60
    for wrong in ({"sped": 1}, {"speed": 0}, {"lag_s": [2, 1]}, {"lag_s": "soon"}, {"lag_s": -1},
                  {"lag_s": True}, {"lead_s": {"choices": [[1, 0]]}}, {"lead_scaled": 1},
                  {"rebalance_share": 2}, {"spot_vcpus": 1.5}, {"throttle": {"*": [1]}},
                  {"environment": {"A=B": "x"}}, {"images": "ami"}, [], {"lag_s": 1e99}):
        before = settings.as_json()
        with pytest.raises(BadMarket):
            settings.update({"lead_scaled": True, **wrong} if isinstance(wrong, dict) else wrong,
                            "s")
        assert settings.as_json() == before
    median = sorted(Spread({"median": 20, "sigma": 0.5}).draw(random.Random(i)) for i in range(999))
    assert 18 < median[499] < 22


def test_orders_are_read_strictly() -> None:
    world = World()
    [one] = world.run()
    for wrong in (1, {}, {"do": "fly"}, {"do": 1}, {"do": "interrupt"}, {"do": "interrupt",
                  "instance": "i-0"}, {"do": "interrupt", "instance": one, "lead": 1},
                  {"do": "interrupt", "instance": one, "lead_s": -1}, {"do": "set_capacity"},
                  {"do": "set_capacity", "zone": "mars", "capacity": 1},
                  {"do": "deny", "action": "Fly"}, {"do": "outage", "zone": "mars"},
                  {"do": "expire"}, {"do": "set", "settings": {"sped": 1}},
                  {"do": "set", "settings": {"speed": 0}}, {"do": "enable", "key": "x"},
                  {"do": "set_price", "price": True}, {"do": "throttle", "rate": 1, "burst": 0}):
        with pytest.raises(BadMarket):
            admin.obey(world.cloud, wrong, {})
    assert world.states() == {one: "pending"} and world.cloud.instances[one].notice is None


def test_user_data_as_cloud_init_takes_it() -> None:
    import gzip
    script = b"#!/bin/sh\necho\n"
    assert script_of(script) == (script, "") == script_of(gzip.compress(script))
    assert script_of(b"") == (b"", "")
    for wrong in (b"echo no first line", b"#cloud-config\n", b"\x1f\x8bxx",
                  gzip.compress(script)[:-9]):
        assert script_of(wrong)[0] == b"" and script_of(wrong)[1]
    assert "when it is unpacked" in script_of(gzip.compress(bytes(5 << 20)))[1]


def test_command_line_is_read_strictly() -> None:
    def read(*words: str) -> dict[str, Any]:
        return cli.read_settings(cli.parser().parse_args(list(words)))
    assert read("--speed", "60", "--set", "lag_s=[0, 1]", "--env", "A=b=c") == {
        "speed": 60, "lag_s": [0, 1], "environment": {"A": "b=c"}}
    for wrong in (["--set", "lag_s"], ["--set", "lag_s=x"], ["--env", "A"]):
        with pytest.raises(BadMarket):
            read(*wrong)
    for key in ("a", "a:", ":b", "a:b:c:d", "a:b:c:1:2"):
        with pytest.raises(BadMarket):
            cli.read_key(key)
    for host in ("0.0.0.0", "10.0.0.1", "example.com"):
        with pytest.raises(BadMarket, match="loopback"):
            hosting.check_host(host)
    hosting.check_host("127.0.0.2")
