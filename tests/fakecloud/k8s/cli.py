"""``python3 tests/fakecloud k8s``: serves a fake Kubernetes until a signal ends it."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from fakecloud import hosting
from fakecloud.k8s import kubeconfig
from fakecloud.k8s.cluster import ADMIN
from fakecloud.k8s.service import FakeKubernetes
from fakecloud.orders import BadOrder


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="fakecloud k8s", description="A fake Kubernetes on this machine. Its containers are "
        "processes of yours that run what their command says; none of them outlives it.",
        epilog="It prints the environment of a client. Tell it what to do with POST /fakecloud, a "
               "JSON object, at FAKECLOUD_URL; GET /fakecloud, /fakecloud/events, "
               "/fakecloud/ledger and /fakecloud/token?user=NAME tell what there is. See "
               "tests/fakecloud/k8s/README.md.")
    new.add_argument("--host", default="127.0.0.1", help="an address of this host's loopback")
    new.add_argument("--port", type=int, default=0, help="of the API; default: one that is free")
    new.add_argument("--admin-port", type=int, default=0)
    new.add_argument("--namespace", default="default", help="the one of kubeconfigs")
    new.add_argument("--seed", type=int, default=0)
    new.add_argument("--set", action="append", default=[], metavar="NAME=JSON", dest="settings",
                     help='a setting, as in create_s=0 or pools=\'[{"name": "a", "count": 3}]\'')
    new.add_argument("--settings", type=Path, metavar="FILE", dest="file",
                     help="a JSON object of settings, which count before those of --set")
    new.add_argument("--env", action="append", default=[], metavar="NAME=VALUE",
                     help="a variable of all containers")
    new.add_argument("--kubeconfig", action="append", default=[],
                     metavar="PATH[:USER[:token|certificate|exec]]",
                     help=f"writes one; default: for {ADMIN}, by its token")
    new.add_argument("--service-account", type=Path, metavar="FOLDER",
                     help="writes token, ca.crt and namespace, as pods have them")
    new.add_argument("--ledger", type=Path, metavar="FILE",
                     help="is written when it ends: every pod's time, and that no process is left")
    new.add_argument("--folder", type=Path, help="where containers have theirs; default: a "
                     "temporary one")
    hosting.add_with_parent(new)
    return new


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadOrder(f"{option}: expected NAME=VALUE, got {text!r}")
    return name, value


def read_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    where = ""
    try:
        if arguments.file is not None:
            where = str(arguments.file)
            settings = json.loads(arguments.file.read_text())
            if not isinstance(settings, dict):
                raise BadOrder(f"{where}: expected an object")
        for one in arguments.settings:
            name, value = _pair(one, "--set")
            where = f"--set {name}"
            settings[name] = json.loads(value)
    except json.JSONDecodeError as error:
        raise BadOrder(f"{where}: is not JSON: {error.msg}") from None
    for one in arguments.env:
        name, value = _pair(one, "--env")
        settings.setdefault("environment", {})[name] = value
    return settings


def _write_files(arguments: argparse.Namespace, cluster: FakeKubernetes) -> None:
    for one in arguments.kubeconfig:
        path, _, rest = one.partition(":")
        user, _, how = rest.partition(":")
        if how not in ("", "token", "certificate", "exec"):
            raise BadOrder(f"--kubeconfig: {how!r} is none of token, certificate, exec")
        try:
            content = cluster.kubeconfig(user=user or ADMIN, how=how or "token")
        except IndexError:
            raise BadOrder(f"--kubeconfig: there is no user {user!r}") from None
        kubeconfig.write(Path(path), content)
        print(f"KUBECONFIG={shlex.quote(str(Path(path).absolute()))}")
    if arguments.service_account is not None:
        kubeconfig.write_account(arguments.service_account, cluster)


def serve(arguments: argparse.Namespace) -> None:
    hosting.check_host(arguments.host)
    cluster = FakeKubernetes(
        read_settings(arguments), arguments.seed, arguments.host, arguments.port,
        arguments.admin_port, arguments.folder, arguments.namespace)

    def tell() -> None:
        _write_files(arguments, cluster)
        print(f"KUBERNETES_URL={cluster.url}")
        print(f"FAKECLOUD_URL={cluster.admin_url}", flush=True)

    hosting.serve(cluster, arguments, tell)
    if arguments.ledger is not None:
        arguments.ledger.write_text(json.dumps(cluster.ledger(), indent=1) + "\n")


def main(words: list[str]) -> None:
    hosting.raise_limits()
    arguments = parser().parse_args(words)
    try:
        serve(arguments)
    except BrokenPipeError:
        os._exit(1)     # Nobody reads what is printed.
    except ModuleNotFoundError as error:
        print(f"fakecloud k8s: the Python package {error.name} is missing", file=sys.stderr)
        sys.exit(2)
    except (BadOrder, OSError, OverflowError) as error:
        print(f"fakecloud k8s: {error}", file=sys.stderr)
        sys.exit(2)
