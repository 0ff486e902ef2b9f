"""``runtime_env``: variables, folders, modules and packages of a process."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environment_cases import Looker, look, look_further

import troupe
from troupe.actors import _environment, _environment_setup

pytestmark = [pytest.mark.once, pytest.mark.timeout(180)]
SOON_S = 90.0


def soon(ref: Any) -> Any:
    return troupe.get(ref, timeout=SOON_S)


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_txt", ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return folder


def wheel(folder: Path, name: str, value: int) -> Path:
    """A package for pip that needs no network."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"VALUE = {value}\n")
        archive.writestr(f"{about}/METADATA",
                         f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
                                           "Tag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", f"{name}/__init__.py,,\n")
    return path


@pytest.mark.parametrize(("given", "kind", "message"), [
    ("pip", TypeError, "must be a dict"),
    ({"conda": "x"}, TypeError, "env_vars"),
    ({"env_vars": ["A"]}, TypeError, "env_vars"),
    ({"working_dir": 3}, TypeError, "working_dir"),
    ({"py_modules": "folder"}, TypeError, "py_modules"),
    ({"py_modules": [1]}, TypeError, "py_modules"),
    ({"py_modules": ["x"] * 65}, ValueError, "64"),
    ({"excludes": "x"}, TypeError, "excludes"),
    ({"pip": [1]}, TypeError, "requirements"),
    ({"pip": {"wheels": []}}, ValueError, "packages"),
    ({"pip": ["x" * 70_000]}, ValueError, "65536"),
    ({"config": {"eager": True}}, ValueError, "setup_timeout_seconds"),
    ({"config": {"setup_timeout_seconds": "long"}}, TypeError, "setup_timeout_seconds"),
])
def test_what_cannot_be_is_refused(given: Any, kind: type[Exception], message: str) -> None:
    for thing in (look, Looker):
        with pytest.raises(kind, match=message):
            thing.options(runtime_env=given)


def test_requirements_come_from_a_file_too(tmp_path: Path) -> None:
    write(tmp_path, requirements_txt="# ours\nnumpy>=1  # for arrays\n\nrich\n")
    path = str(tmp_path / "requirements.txt")
    assert _environment._requirements_of(path) == ["numpy>=1", "rich"]


def test_entries_that_nobody_uses_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "environments"
    monkeypatch.setenv("TROUPE_ENVIRONMENTS", str(base))
    monkeypatch.setattr(_environment_setup, "ENTRIES_KEPT", 2)
    filled = []

    def fill(folder: str) -> None:
        filled.append(folder)

    deadline = 1e18
    folders = [_environment_setup._entry(f"e{i}", fill, deadline) for i in range(4)]
    assert all(map(os.path.isdir, folders)) and len(filled) == 4  # This process uses all.
    assert _environment_setup._entry("e0", fill, deadline) == folders[0] and len(filled) == 4
    for held in _environment_setup._held:
        os.close(held)
    _environment_setup._held.clear()
    for folder in folders[1:]:
        os.utime(folder, (1, 1))  # The clock of files is coarse.
    _environment_setup._entry("e4", fill, deadline)
    assert [os.path.isdir(folder) for folder in folders] == [True, False, False, False]
    os.chmod(base, 0o777)
    with pytest.raises(troupe.RuntimeEnvSetupError, match="others may write"):
        _environment_setup._base()


@pytest.mark.integration
class TestOnACluster:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def cluster(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        os.environ["TROUPE_ENVIRONMENTS"] = str(tmp_path_factory.mktemp("environments"))
        troupe.init(num_cpus=4)
        yield
        troupe.shutdown()
        del os.environ["TROUPE_ENVIRONMENTS"]

    def test_a_working_directory_with_its_modules(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "project", helper_py="VALUE = 1", data__x_txt="x",
                       big_txt="left out", __pycache____junk_txt="")
        env = {"working_dir": str(folder), "excludes": ["big*"], "env_vars": {"COLOUR": "blue"}}
        actor = Looker.options(runtime_env=env).remote()
        assert soon(actor.look.remote("helper")) == ("data,helper.py", {"COLOUR": "blue"}, 1)
        assert soon(actor.hire.remote()) == ("data,helper.py", {"COLOUR": "blue"}, 1)
        actor.die.remote()
        again = actor.look.options(retries=1).remote("helper")
        assert soon(again) == ("data,helper.py", {"COLOUR": "blue"}, 1)
        write(folder, helper_py="VALUE = 2222")
        task = look.options(runtime_env={**env, "env_vars": {"SHAPE": "round"}})
        assert soon(task.remote("helper"))[1:] == ({"SHAPE": "round"}, 2222)

    def test_modules_beside_it(self, tmp_path: Path) -> None:
        package = write(tmp_path / "shapes", __init___py="from shapes.sizes import VALUE",
                        sizes_py="VALUE = 3").joinpath()
        (package / "__init__.py").write_text("from shapes.sizes import VALUE", encoding="ascii")
        single = write(tmp_path, lonely_py="VALUE = 4") / "lonely.py"
        env = {"py_modules": [str(package), single, str(wheel(tmp_path, "wheeled", 5))]}
        actor = Looker.options(runtime_env=env).remote()
        seen = soon([actor.look.remote(name) for name in ("shapes", "lonely", "wheeled")])
        assert [value for _, _, value in seen] == [3, 4, 5]

    def test_packages_are_installed_once(self, tmp_path: Path) -> None:
        made = wheel(tmp_path, "installed", 6)
        tasks = [look.options(runtime_env={"pip": [str(made)]}).remote("installed")
                 for _ in range(2)]
        assert [value for _, _, value in soon(tasks)] == [6, 6]
        made.unlink()  # It is there.
        third = look.options(runtime_env={"pip": {"packages": [str(made)]}}).remote("installed")
        assert soon(third)[2] == 6
        with pytest.raises(ImportError):
            soon(look.remote("installed"))

    def test_what_cannot_be_installed_is_told(self, tmp_path: Path) -> None:
        missing = str(tmp_path / "missing-1.0-py3-none-any.whl")
        task = look.options(runtime_env={"pip": [missing]})
        with pytest.raises(troupe.RuntimeEnvSetupError, match=r"pip cannot install .*missing-1.0"):
            soon(task.remote())
        actor = Looker.options(runtime_env={"pip": [missing]}).remote()
        with pytest.raises(troupe.RuntimeEnvSetupError, match=r"status 1"):
            soon(actor.look.remote())

    def test_a_damaged_archive_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "damaged.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("helper.py", "VALUE = 8")
        path.write_bytes(path.read_bytes().replace(b"VALUE", b"value"))
        actor = Looker.options(runtime_env={"working_dir": path}).remote()
        with pytest.raises(troupe.RuntimeEnvSetupError, match="CRC"):
            soon(actor.look.remote())
        ok = tmp_path / "whole.zip"
        with zipfile.ZipFile(ok, "w") as archive:
            archive.writestr("helper.py", "VALUE = 8")
        task = look.options(runtime_env={"working_dir": str(ok)})
        assert soon(task.remote("helper"))[2] == 8

    def test_what_cannot_be_packed_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for key, value in (("working_dir", str(tmp_path / "nowhere")),
                           ("working_dir", "s3://bucket/x"), ("py_modules", ["nowhere"]),
                           ("py_modules", [sys])):
            with pytest.raises(ValueError, match=key):
                look.options(runtime_env={key: value}).remote()
        write(tmp_path, a_txt="x" * 1000)
        monkeypatch.setattr(_environment, "PACKAGE_BYTES_MAX", 999)
        with pytest.raises(ValueError, match="excludes"):
            look.options(runtime_env={"working_dir": str(tmp_path)}).remote()
        (tmp_path / "no.zip").write_bytes(b"nothing")
        with pytest.raises(ValueError, match="no ZIP"):
            look.options(runtime_env={"working_dir": str(tmp_path / "no.zip")}).remote()


@pytest.mark.integration
def test_what_init_gives_is_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_ENVIRONMENTS", str(tmp_path / "environments"))
    folder = write(tmp_path / "project", helper_py="VALUE = 7")
    with pytest.raises(TypeError, match="env_vars"):
        troupe.init(runtime_env={"conda": "x"})
    troupe.init(num_cpus=4, runtime_env={"working_dir": str(folder), "env_vars": {"COLOUR": "red"}})
    try:
        there = ("helper.py", {"COLOUR": "red"}, 7)
        assert soon(look.remote("helper")) == there
        assert soon(look_further.remote("helper")) == there
        own = Looker.options(runtime_env={"env_vars": {"SHAPE": "flat"}}).remote()
        assert soon(own.look.remote())[1] == {"COLOUR": "red", "SHAPE": "flat"}
    finally:
        troupe.shutdown()
