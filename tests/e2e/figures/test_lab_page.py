"""make lab: one page with the counts of all steps, made of the JSON reports."""

import re
import subprocess
import sys

import pytest

from tests.lib.programs import REPOSITORY, step_names

pytestmark = pytest.mark.cpu_only("the lab is part of the CPU backend")

VARIANT = "step03, rows without padding"
UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}


DOCUMENT = REPOSITORY / "docs" / "lab.md"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The page, and the document with its part of it."""
    page, document = (tmp_path_factory.mktemp("lab") / name for name in ("page.md", "document.md"))
    document.write_text(DOCUMENT.read_text())
    done = subprocess.run([sys.executable, REPOSITORY / "plots/lab.py", page, document], text=True,
                          cwd=REPOSITORY, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return page.read_text(), document.read_text()


@pytest.fixture(scope="module")
def page(written: tuple[str, str]) -> str:
    return written[0]


def test_document_has_what_the_steps_do_now(written: tuple[str, str]) -> None:
    assert written[1] == DOCUMENT.read_text(), "docs/lab.md is out of date: make lab"


def tables_with(page: str, column: str) -> list[dict[str, dict[str, str]]]:
    """Of each table with such a column: row and column to the cell."""
    found = []
    for block in page.split("\n\n"):
        lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line[:1] == "|"]
        if not lines or column not in lines[0]:
            continue
        head = [cell.strip(" |") for cell in lines[0]]
        found.append({row[0]: dict(zip(head[-len(row) + 1:], row[1:])) for row in lines[2:]})
    return found


def number(cell: str) -> float:
    value, _, prefix = cell.partition(" ")
    return float(value) * UNITS[prefix]


def test_every_step_is_in_every_table(page: str) -> None:
    for column in ("must move", "worst", "findings", "bound by"):
        tables = tables_with(page, column)
        assert len(tables) == 3
        for table in tables:
            assert list(table) == [*step_names(), VARIANT]


def test_memory_traffic_falls_from_step01_to_step02(page: str) -> None:
    for table in tables_with(page, "must move"):
        for column in ("must move", "loaded", "stored"):
            assert number(table["step02"][column]) < number(table["step01"][column]) / 3


def test_conflicts_vanish_with_padding(page: str) -> None:
    for table in tables_with(page, "worst"):
        assert all(table[name]["conflicts"] == "0" for name in step_names())
        assert number(table[VARIANT]["conflicts"]) > 10_000
        assert table[VARIANT]["worst"] == "8-way"
        assert number(table[VARIANT]["ldmatrix"]) == pytest.approx(
            8 * number(table["step03"]["ldmatrix"]), rel=1e-3)


def test_only_what_is_broken_has_findings(page: str) -> None:
    for table in tables_with(page, "findings"):
        assert all(table[name]["findings"] == "0" for name in step_names())
        assert int(table[VARIANT]["findings"]) >= 2


def test_bounds_are_marked_as_such(page: str) -> None:
    assert page.count("Bounds, not times:") == 3
    assert not re.search(r"\b(ms|milliseconds|TFLOP/s)\b", page)
