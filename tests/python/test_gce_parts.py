"""Parts of the fake Compute Engine by themselves: filters, placement, tokens, names, markets."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlencode

import pytest

from fakecloud.gce import catalog, cli, filters, placement, schema
from fakecloud.gce.errors import GceError, OAuthError
from fakecloud.gce.faults import Faults
from fakecloud.gce.guards import Rates
from fakecloud.gce.metadata import InstanceMetadata, Waiting
from fakecloud.gce.oauth import EXCHANGE, JWT_BEARER, OAuth, credentials
from fakecloud.gce.placement import Offer, Wish
from fakecloud.gce.settings import Settings
from fakecloud.gce.specs import merge
from fakecloud.gce.tokens import Tokens
from fakecloud.orders import BadOrder, Order
from fakecloud.service import Reply
from gce_world import START_S, A, World

VM = {"name": "vm-1", "status": "RUNNING", "labels": {"a": "1", "b-c": "x y"},
      "zone": f"https://host/zones/{A}", "tags": {"items": ["web", "db"]}, "big": {"on": True}}
URL = "http://127.0.0.1:1"


@pytest.mark.parametrize("text, fits", [
    ("", True), ("name=vm-1", True), ("name = vm-1", True), ("name=vm-2", False),
    ('labels.a="1"', True), ("labels.b-c='x y'", True), ("labels.a:*", True),
    ("labels.z:*", False), ("NOT labels.z:*", True), ("-labels.z:*", True), ("labels.z=1", False),
    ("labels.z!=1", True), ("name:vm", True), ("name:VM-*", True), ("name:x*", False),
    ("a=1 OR name=vm-1", True), ("name=vm-1 AND a=1", False), ("name=vm-1 status=RUNNING", True),
    ("(name=vm-1) (status=STOPPING)", False), ("(a=1 OR (name=vm-1 AND status=RUNNING))", True),
    ("name eq vm-.*", True), ("name eq 'v'", False), ("name ne v", True), (f"zone={A}", True),
    ("tags.items=db", True), ("big.on=true", True), ("name>=vm-0", True), ("name<vm-0", False),
    ("NOT (name=vm-1 OR a=b)", False)])
def test_filters(text: str, fits: bool) -> None:
    assert filters.parse(text)(VM) is fits


@pytest.mark.parametrize("text", ["(", "a", "a=", "=a", "(a=b", "a=b)", "a==b", "a=b OR", "a ! b",
                                  "'a'=b", "name eq [", "(" * 40 + "a=b" + ")" * 40, "x" * 3000])
def test_wrong_filters(text: str) -> None:
    with pytest.raises(GceError) as caught:
        filters.parse(text)
    assert (caught.value.code, caught.value.reason) == (400, "invalid")


@pytest.mark.parametrize("shape", ["ANY", "ANY_SINGLE_ZONE", "BALANCED"])
def test_placement_takes_no_more_than_there_is(shape: str) -> None:
    types = [catalog.GCE.types[name] for name in ("e2-standard-2", "n2-standard-4")]
    for count in range(12):
        offers = [Offer(zone, type_, free, rank) for zone, free in (("a", 1), ("b", 3), ("c", 0))
                  for rank, type_ in enumerate(types)]
        found = placement.place(offers, Wish(count, shape, {"b": 4}))
        assert len(found) <= count
        for one in offers:
            assert found.count(one) <= one.free
        zones = [sum(one.zone == zone for one in found) for zone in "abc"]
        assert zones[1] <= 4
        if shape == "ANY":
            assert len(found) == min(count, 6)
        if shape == "ANY_SINGLE_ZONE":
            assert sorted(zones)[:2] == [0, 0] and max(zones) == min(count, 4)
        if shape == "BALANCED":
            assert len(found) == min(count, 6)
            assert zones[0] == 2 or abs(zones[0] - zones[1]) <= 1
    assert placement.place([], Wish(3, shape)) == []


def test_the_schema_knows_what_it_refers_to() -> None:
    messages = schema.messages()
    plain = {"str", "int", "num", "bool", "long"}
    for name, fields in messages.items():
        for kind in fields.values():
            assert kind.strip("[]{}") in plain | set(messages), name
    assert messages["Scheduling"]["provisioningModel"] == "str"
    assert messages["Instance"]["labels"] == "{str}"


def test_images() -> None:
    for text in ("projects/debian-cloud/global/images/family/debian-12",
                 "https://www.googleapis.com/compute/v1/projects/debian-cloud/global/images/"
                 "debian-12-bookworm-v20250610"):
        found = catalog.image_named(text, "p", [])
        assert found == "projects/debian-cloud/global/images/debian-12-bookworm-v20250610"
    assert catalog.image_named("global/images/mine", "p", ["mine"]) == (
        "projects/p/global/images/mine")
    assert catalog.image_named("global/images/mine", "p", []) is None
    assert catalog.image_named("debian-12", "p", []) is None


def test_a_patch_of_a_template() -> None:
    assert merge({"a": {"x": 1}, "b": [1], "c": None}, {"a": {"y": 2}, "b": [2], "c": 3}) == {
        "a": {"x": 1, "y": 2}, "b": [1], "c": 3}


def test_markets(tmp_path: Path) -> None:
    trace = tmp_path / "us-central1-a_v100_1.json"
    trace.write_text('{"metadata": {"gap_seconds": 60}, "data": [3, 0]}')
    found = catalog.load([str(tmp_path)]).market
    assert list(found.pools) == [("us-central1-a", "n1-standard-8+v100x1")]
    found = catalog.load([f"europe-west4-b/g2-standard-4={trace}"]).market
    assert found.regions() == ["europe-west4"]
    with pytest.raises(BadOrder, match="us-central1-a/e2-standard-2=PATH"):
        catalog.load([f"us-east-1a={trace}"])
    market = tmp_path / "market.json"
    market.write_text(json.dumps({
        "types": {"x1-tiny": {"vcpus": 1, "memory_mib": 512, "on_demand": 0.01}},
        "pools": [{"zone": "us-west1-b", "type": "x1-tiny", "points": [[0, 2], [60, 0, 0.005]]}],
        "settings": {"lag_s": 0}}))
    read = catalog.load([str(market)])
    assert read.settings == {"lag_s": 0} and read.market.zones("us-west1") == ["us-west1-b"]


@pytest.mark.parametrize("change", [{"project": ""}, {"images": "a"}, {"quotas": {"CPUS": -1}},
                                    {"details_share": 2}, {"speed": 0}, {"throttle": {"*": [1]}},
                                    {"nothing": 1}, {"lead_s": "x"}])
def test_wrong_settings(change: dict[str, Any]) -> None:
    with pytest.raises(BadOrder):
        Settings().update(change, "settings")


def test_options() -> None:
    read = cli.read_settings(cli.parser().parse_args(
        ["--set", "lag_s=0", "--speed", "2", "--project", "p", "--env", "A=b=c"]))
    assert read == {"lag_s": 0, "speed": 2, "project": "p", "environment": {"A": "b=c"}}
    for words in (["--set", "x"], ["--env", "x"], ["--set", "x={"]):
        with pytest.raises(BadOrder):
            cli.read_settings(cli.parser().parse_args(words))


def test_rates_fill_again() -> None:
    rates, rules = Rates(), {"instances.*": [1.0, 2.0], "*": [100.0, 100.0]}
    assert [rates.take("instances.get", rules, 0) for _ in range(3)] == [True, True, False]
    assert rates.take("instances.list", rules, 0) and rates.take("zones.list", rules, 0)
    assert rates.take("instances.get", rules, 1) and not rates.take("instances.get", rules, 1)
    assert all(rates.take("x", None, 0) for _ in range(1000))


def test_faults_are_used_up() -> None:
    faults = Faults(lambda: 0.5)
    for share in (0.4, 1):
        faults.order(Order({"do": "fault", "how": "slow", "method": "*.list", "share": share}))
    assert faults.take("zones.get") is None
    assert faults.take("zones.list") is not None and faults.take("zones.list") is None
    faults.order(Order({"do": "fault", "how": "error", "count": 2}))
    assert faults.take("oauth.token") is None and faults.take("metadata.instance/id") is None
    assert faults.take("zones.get") is not None


# ---- tokens ----

class Key:
    """Signs by taking the text's end."""

    id, pem = "k1", "PEM"

    def has_signed(self, text: bytes, signature: bytes) -> bool:
        return signature == text[-8:]


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def assertion(head: Optional[dict[str, Any]] = None, **claims: Any) -> str:
    body = {"iss": "fleet@p.iam.gserviceaccount.com", "aud": f"{URL}/token", "iat": START_S,
            "exp": START_S + 3600, "scope": "https://www.googleapis.com/auth/compute", **claims}
    text = f"{part({'alg': 'RS256', 'kid': 'k1', **(head or {})})}.{part(body)}"
    return f"{text}.{base64.urlsafe_b64encode(text[-8:].encode()).decode().rstrip('=')}"


class Issuer:
    def __init__(self, key: Any = None) -> None:
        self.tokens, self.now_s = Tokens("p"), START_S
        self.oauth = OAuth(self.tokens, key or Key(), URL, lambda: self.now_s, lambda: 600.0,
                           lambda: ["subject"])

    def token(self, **form: str) -> dict[str, Any]:
        return self.oauth.token(urlencode(form).encode())

    def whose(self, text: str) -> str:
        return self.tokens.whose(f"Bearer {text}", self.now_s).user


def test_signed_assertions() -> None:
    issuer = Issuer()
    made = issuer.token(grant_type=JWT_BEARER, assertion=assertion())
    assert made["token_type"] == "Bearer" and made["expires_in"] == 600
    assert issuer.whose(made["access_token"]) == "fleet@p.iam.gserviceaccount.com"
    issuer.now_s += 601
    with pytest.raises(GceError) as caught:
        issuer.whose(made["access_token"])
    assert caught.value.as_json()["error"]["status"] == "UNAUTHENTICATED"


@pytest.mark.parametrize("text, told", [
    ("a.b", "Bad Request"), ("a.b.c", "JWT"), (assertion() + "AA", "Invalid JWT"),
    (assertion({"alg": "HS256"}), "algorithm"), (assertion({"kid": "k2"}), "Signature"),
    (assertion(iss="x@y"), "account not found"), (assertion(aud="https://x"), "audience"),
    (assertion(exp=START_S - 1), "reasonable timeframe"), (assertion(iat=None), "timeframe"),
    (assertion(exp=START_S + 9999), "timeframe"), (assertion(iat=START_S + 999), "timeframe"),
    (assertion(scope=""), "scope")])
def test_wrong_assertions(text: str, told: str) -> None:
    with pytest.raises(OAuthError, match=told):
        Issuer().token(grant_type=JWT_BEARER, assertion=text)


def test_refresh_tokens() -> None:
    issuer = Issuer()
    user = credentials(issuer.tokens, None, "p", URL, "/subject")["authorized_user"]
    form = {key: user[key] for key in ("client_id", "client_secret", "refresh_token")}
    made = issuer.token(grant_type="refresh_token", **form)
    assert issuer.whose(made["access_token"]) == "someone@example.com"
    for change, error in (({"refresh_token": "x"}, "invalid_grant"),
                          ({"client_secret": "x"}, "invalid_client"),
                          ({"grant_type": "password"}, "unsupported_grant_type")):
        with pytest.raises(OAuthError, match=error):
            issuer.token(**{"grant_type": "refresh_token", **form, **change})
    issuer.tokens.refuses["authorized_user"] = 1
    with pytest.raises(OAuthError, match="revoked"):
        issuer.token(grant_type="refresh_token", **form)
    issuer.token(grant_type="refresh_token", **form)
    assert issuer.tokens.expire("", issuer.now_s) == 2


def test_exchanges_and_impersonation() -> None:
    issuer = Issuer()
    form = {"grant_type": EXCHANGE, "audience": issuer.tokens.audience,
            "subject_token": "subject", "scope": "https://www.googleapis.com/auth/cloud-platform",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt"}
    made = issuer.oauth.exchange(urlencode(form).encode(), "application/x-www-form-urlencoded")
    camel = {"grantType": EXCHANGE, "subjectToken": "subject", "audience": form["audience"],
             "scope": form["scope"], "subjectTokenType": form["subject_token_type"]}
    assert issuer.oauth.exchange(json.dumps(camel).encode(), "application/json")["access_token"]
    for change in ({"audience": "x"}, {"subject_token": "x"}, {"subject_token_type": "x"},
                   {"grant_type": "x"}):
        with pytest.raises(OAuthError):
            issuer.oauth.exchange(urlencode({**form, **change}).encode(), "")
    header, account = f"Bearer {made['access_token']}", issuer.tokens.account
    asked = json.dumps({"scope": [form["scope"]], "lifetime": "100s"}).encode()
    got = issuer.oauth.impersonate(account, header, asked)
    assert issuer.whose(got["accessToken"]) == account and got["expireTime"].endswith("Z")
    for name, body in (("x@y", asked), (account, b"{"), (account, b'{"scope": ["a"], "lifetime": '
                                                         b'"9999s"}')):
        with pytest.raises(GceError):
            issuer.oauth.impersonate(name, header, body)
    issuer.tokens.denied.append(("*", "iam.*"))
    with pytest.raises(GceError, match="getAccessToken"):
        issuer.oauth.impersonate(account, header, asked)


def test_metadata_of_a_virtual_machine() -> None:
    world = World()
    world.insert(metadata={"items": [{"key": "some-key", "value": "v"}]})
    [one] = world.cloud.instances.values()
    metadata = InstanceMetadata(world.cloud, world.tokens, one)

    def get(path: str, method: str = "GET", **query: Any) -> Any:
        asked = world.request(method, "", **query)
        asked.path = f"/computeMetadata/v1/{path}"
        asked.headers["Metadata-Flavor"] = "Google"
        return metadata.answer(asked)
    assert get("instance/service-accounts/default/token").status == 404     # It has no account.
    lines = get("instance/", recursive="true", alt="text").body
    assert "attributes/some-key v\n" in lines and "preempted FALSE\n" in lines
    assert json.loads(get("instance/attributes/", recursive="true").body) == {"some-key": "v"}
    assert json.loads(get("instance/tags", alt="json").body) == "[]"
    assert get("instance/id", method="POST").status == 405
    assert get("instance", alt="json").headers["Location"].endswith("/instance/?alt=json")
    first = get("instance/preempted", wait_for_change="true", timeout_sec="5")
    assert isinstance(first, Waiting) and first.limit_s == 5
    one.preempted = True
    changed = get("instance/preempted", wait_for_change="true", last_etag=first.etag)
    assert isinstance(changed, Reply) and changed.body == "TRUE"
    assert get("instance/preempted", wait_for_change="true", timeout_sec="x").status == 400


def test_the_key_is_missed_with_a_word(monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "fakecloud.gce.keys", raising=False)
    for name in [one for one in sys.modules if one.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SystemExit):
        cli.main([])
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "cryptography" in told and "--unsigned" in told
