"""The notebook for the classroom: it is committed without outputs, and all of it runs."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.lib.programs import REPOSITORY, built_commit

NOTEBOOK = nbformat.read(REPOSITORY / "docs/classroom.ipynb", as_version=4)


def test_it_has_no_outputs() -> None:
    cells = [cell for cell in NOTEBOOK.cells if cell.cell_type == "code"]
    assert [cell for cell in cells if cell.outputs or cell.execution_count] == []


def test_outside_of_a_checkout_it_asks_for_an_address(tmp_path: Path) -> None:
    first = next(cell.source for cell in NOTEBOOK.cells if cell.cell_type == "code")
    done = subprocess.run([sys.executable, "-c", first], cwd=tmp_path, text=True, capture_output=True,
                          check=False)
    assert done.returncode == 1 and done.stderr.startswith("Set REPOSITORY") and done.stderr.count("\n") == 1


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy of the tree, so that the files of exercises are written there."""
    for name in ("Makefile", "common", "steps", "docs", "plots", "tests"):
        subprocess.run(["cp", "-rl", REPOSITORY / name, tmp_path / name], check=True)
    subprocess.run(["cp", "-rl", REPOSITORY / "build", tmp_path / "build"], check=True)
    for path in (tmp_path / "steps/exercises").glob("*[0-9].cu"):
        path.unlink()
    monkeypatch.setenv("COMMIT", built_commit())
    monkeypatch.setenv("BACKEND", os.environ.get("BACKEND", "cpu"))
    client = NotebookClient(NOTEBOOK, timeout=120, kernel_name="python3",
                            resources={"metadata": {"path": str(tmp_path / "docs")}})
    client.execute()
    printed = "".join(output.get("text", "") for cell in NOTEBOOK.cells
                      if cell.cell_type == "code" for output in cell.outputs)
    assert "RIGHT: 600 of 600 rows" in printed and "Hint 1: " in printed
