"""make lab: one page with the counts of all steps, made from the JSON reports."""

import re
import sys
from pathlib import Path

import pytest

from plots.tools import lab
from tests.lib.kinds import NAIVE, SCALAR_STEPS
from tests.lib.programs import REPOSITORY, Program
from tests.lib.steps import step_names

pytestmark = pytest.mark.cpu_only("the lab is part of the CPU backend")

VARIANT = f"{lab.PADDED_STEP}, rows without padding"
UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}
DOCUMENT = REPOSITORY / "docs" / "lab.md"


def tables_with(page: str, column: str) -> list[dict[str, dict[str, str]]]:
    """For each table with such a column, a dictionary from row and column to the cell."""
    found = []
    for block in page.split("\n\n"):
        lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line[:1] == "|"]
        if lines and column in lines[0]:
            head = [cell.strip(" |") for cell in lines[0]]
            found.append({row[0]: dict(zip(head[-len(row) + 1 :], row[1:])) for row in lines[2:]})
    return found


def number(cell: str) -> float:
    value, _, prefix = cell.partition(" ")
    return float(value) * UNITS[prefix]


@pytest.mark.parametrize("shapes", [1, pytest.param(len(lab.SHAPES), marks=pytest.mark.exhaustive)])
def test_make_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes: int) -> None:
    """Every step is in every table, docs/lab.md has its part of the page, and the tables confirm
    what the page says."""
    file, document = tmp_path / "page.md", tmp_path / "document.md"
    document.write_text(DOCUMENT.read_text())
    monkeypatch.setattr(lab, "SHAPES", lab.SHAPES[:shapes])
    monkeypatch.setattr(sys, "argv", ["", str(file), str(document)])
    assert lab.main() == 0
    assert document.read_text() == DOCUMENT.read_text(), "docs/lab.md is out of date: make lab"
    page = file.read_text()
    taking = [name for name in step_names() if Program(name).takes(64)]
    for column in ("must move", "worst", "findings", "bound by"):
        assert [list(table) for table in tables_with(page, column)] == shapes * [[*taking, VARIANT]]
    for table in tables_with(page, "must move"):
        for column in ("must move", "loaded", "stored"):
            assert number(table[SCALAR_STEPS[-1]][column]) < number(table[NAIVE][column]) / 3
    for table in tables_with(page, "worst"):
        assert all(table[name]["conflicts"] == "0" for name in taking)
        assert number(table[VARIANT]["conflicts"]) > 0
        assert number(table[VARIANT]["ldmatrix"]) == pytest.approx(
            8 * number(table[lab.PADDED_STEP]["ldmatrix"]), rel=1e-3
        )
    for table in tables_with(page, "findings"):
        assert all(row["findings"] == "0" for row in table.values())
    assert not re.search(r"\b(ms|milliseconds|TFLOP/s)\b", page)  # bounds are not times
