"""The notebook for the classroom is committed with the outputs of a run, and its cells still print them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from plots import address
from tests.docs.notebook import NOTEBOOK, run
from tests.lib.programs import REPOSITORY, built_commit

# What make says, and what names the machine.
OTHERWISE = re.compile(r"^(?:  (?:CC|CXX|LD|AR|LINK) |make|device ).*\n", re.MULTILINE)


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What each cell prints, and whether it draws. Matplotlib may say that it looks for fonts."""
    return [
        OTHERWISE.sub("", output.get("text") or ", ".join(sorted(output.data)))
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.get("name") != "stderr"
    ]


def first_cell() -> str:
    return next(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code")


def test_from_nothing_it_clones_the_repository(tmp_path: Path) -> None:
    """Here a copy of one, whose files are in no checkout around it."""
    source = tmp_path / "source"
    (source / "steps").mkdir(parents=True)
    (source / "steps/readme").touch()
    identity = ["-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", source, *words], check=True)
    (tmp_path / "empty").mkdir()
    cell = address.in_notebook(first_cell().replace('"', '\\"'), source.as_uri()).replace('\\"', '"')
    subprocess.run([sys.executable, "-c", cell + '\nsh("ls steps/readme")'], cwd=tmp_path / "empty", check=True)


def test_without_an_address_it_asks_for_one(tmp_path: Path) -> None:
    if address.repository(REPOSITORY):
        pytest.skip("it has an address")
    done = subprocess.run(
        [sys.executable, "-c", first_cell()], cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert done.returncode == 1 and done.stderr.startswith("Set REPOSITORY") and done.stderr.count("\n") == 1


def test_it_prints_what_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMIT", built_commit())
    monkeypatch.setenv("BACKEND", os.environ.get("BACKEND", "cpu"))
    found = printed(run(tmp_path))
    assert "RIGHT: 600 of 600 rows" in found[0] and "image/png" in found[2]
    saved = printed(nbformat.read(NOTEBOOK, as_version=4))
    assert found == saved or os.environ["BACKEND"] != "cpu", "docs/classroom.ipynb is out of date: make notebook"
