"""docs/real-input.md agrees with the measured records; and how the records are made."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plots.tools.real_input import inputs, measure, tables
from plots.tools.real_input.inputs import INPUTS, Input
from tests.lib.programs import REPOSITORY

RECORDS = REPOSITORY / "plots" / "results" / "real_input"
DOCUMENT = REPOSITORY / "docs" / "real-input.md"


def run(tool: str, *arguments: object) -> int:
    command = [sys.executable, "-m", f"plots.tools.real_input.{tool}", *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, timeout=60, check=False).returncode


def test_the_document_equals_the_records(tmp_path: Path) -> None:
    """Other records give another document."""
    document = Path(shutil.copy(DOCUMENT, tmp_path))
    assert run("tables", document, RECORDS) == 0
    assert document.read_text() == DOCUMENT.read_text(), "out of date: make real-input"
    records = Path(shutil.copytree(RECORDS, tmp_path / "records"))
    for file, name in (("scores", "largest_score"), ("errors", "max_error"), ("no_maximum", "rows_wrong")):
        path = records / f"{file}.jsonl"
        path.write_text(path.read_text().replace(f'"{name}": ', f'"{name}": 1'))
    assert run("tables", document, records) == 0
    changed = sum(
        a != b for a, b in zip(document.read_text().splitlines(), DOCUMENT.read_text().splitlines(), strict=True)
    )
    assert changed == 3 * len(INPUTS)


def test_limits_are_those_of_the_formats() -> None:
    """Of the numbers just below and just above a limit, one is finite and one is not."""
    cells = dict(re.findall(r"^\| (fp16|single precision) \| ([\d.]+) \|", tables.limits_table(), re.MULTILINE))
    for name, dtype in (("fp16", np.float16), ("single precision", np.float32)):
        below, above = (np.exp(np.float64(cells[name]) + step) for step in (-0.06, 0.06))
        with np.errstate(over="ignore"):
            assert np.isfinite(dtype(below)) and np.isinf(dtype(above))


# --- How the records are made ---------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Input:
    """One head of two queries and keys; the scores of query 0 are 0, of query 1 ln 3 and 0."""
    monkeypatch.setattr(inputs, "REPOSITORY", tmp_path)
    for name, x in (("q", [[0, 0], [1, 0]]), ("k", [[2**0.5 * np.log(3), 0], [0, 0]]), ("v", [[1, 0], [0, 1]])):
        np.save(tmp_path / f"{name}.npy", np.array(x, float)[None, None])
    return Input("tiny", "tiny", ".", "causal")


def test_scores(tiny: Input) -> None:
    found = measure.scores_of(tiny)
    assert found["largest_score"] == pytest.approx(np.log(3), abs=1e-3)
    assert (found["row_max"][0], found["first_key"][0]) == (0, 0.75)
    assert (found["entropy"][0], found["first_key"][-1]) == (0, 1)
    expected = -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    assert found["entropy"][-1] == pytest.approx(expected, abs=1e-3)
    assert found["heads_half_on_first_key"] == 1


def test_errors_by_position() -> None:
    expected = np.zeros((1, 2, 300, 4))
    expected[..., 0] = 2
    o = expected.copy()
    o[0, 1, 130, 1] = 0.5
    errors = measure.rows_of(o, expected)
    assert errors.shape == (2, 300) and errors[1, 130] == 0.25
    spans = measure.by_position(errors, expected)
    assert [(span["first"], span["last"]) for span in spans] == [(1, 64), (65, 128), (129, 256), (257, 300)]
    assert [span["max_error"] for span in spans] == [0, 0, 0.25, 0]
    assert spans[2]["mean_error"] == pytest.approx(0.25 / 256, rel=1e-3)
    assert {span["mean_norm"] for span in spans} == {2}
