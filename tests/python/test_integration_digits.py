"""The digits example as a user runs it: as a script and as a notebook."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import EXAMPLES, PYAPI

pytestmark = [pytest.mark.integration, pytest.mark.timeout(420)]


def check(summary: dict[str, Any]) -> None:
    assert summary["workers_agree"] and summary["accuracy"] >= 0.97
    assert (summary["steps_lost"], summary["samples_missing"], summary["samples_doubled"]) == (
        0, 0, 0)
    assert 0 <= summary["steps_replayed"] <= 2 >= summary["steps_recomputed"] >= 0
    assert summary["samples_returned"] == 0 or summary["steps_replayed"] > 0
    sizes = [epoch["size"] for epoch in summary["epochs"]]
    assert sizes[:4] == [4, 3, 4, 5] and sizes[-1] == 3 and 2 in sizes
    assert all(epoch["pause_ms"] >= 0 and epoch["reason"] for epoch in summary["epochs"])


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{PYAPI}{os.pathsep}{EXAMPLES}"}


def test_script() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "digits.py")], env=environment(), capture_output=True,
        text=True, timeout=400,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    lines = done.stdout.strip().splitlines()
    print(done.stdout[-20000:])  # shown if the rest fails
    check(json.loads(lines[-1]))
    assert sum(">>> SIGKILL" in line for line in lines) == 2
    assert any(re.search(r"epoch\s+reason\s+workers\s+pause ms\s+state sent\s+steps lost", line)
               for line in lines)


@pytest.mark.venv_only
def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    notebook = nbformat.read(EXAMPLES / "digits.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=400, kernel_name="python3",
        resources={"metadata": {"path": str(EXAMPLES)}},
    ).execute()
    texts = [output["text"] for cell in notebook.cells if cell.cell_type == "code"
             for output in cell.outputs if output.output_type == "stream"]
    check(json.loads(texts[-1].strip().splitlines()[-1]))
    html = [output["data"]["text/html"] for cell in notebook.cells if cell.cell_type == "code"
            for output in cell.outputs if "text/html" in output.get("data", {})]
    assert any("min 2, max 6" in text for text in html)
