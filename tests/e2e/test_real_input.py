"""What docs/real-input.md says comes from the measured rows, and how they are made."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from programs import REPOSITORY, read_rows

PLOTS = REPOSITORY / "plots" / "real_input"
ROWS = REPOSITORY / "plots" / "results" / "real_input"
DOCUMENT = REPOSITORY / "docs" / "real-input.md"
sys.path.append(str(PLOTS))
import measure  # noqa: E402
from inputs import INPUTS, Input  # noqa: E402


def run(script: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, PLOTS / script, *arguments]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=60, check=False)


def test_the_document_agrees_with_the_rows() -> None:
    assert run("tables.py", DOCUMENT, ROWS, "--check").returncode == 0


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """A copy that may be rewritten."""
    return Path(shutil.copy(DOCUMENT, tmp_path))


@pytest.mark.parametrize("file, old, new", [
    ("scores.jsonl", '"largest_score": ', '"largest_score": 1'),
    ("errors.jsonl", '"max_error": 0', '"max_error": 1'),
    ("errors.jsonl", '"mean_norm": ', '"mean_norm": 1'),
    ("no_maximum.jsonl", '"rows_wrong": ', '"rows_wrong": 1'),
    ("errors.jsonl", '"commit": "', '"commit": "a')])
def test_other_rows_make_another_document(document: Path, tmp_path: Path, file: str, old: str,
                                          new: str) -> None:
    rows = Path(shutil.copytree(ROWS, tmp_path / "rows"))
    text = (rows / file).read_text()
    assert old in text
    (rows / file).write_text(text.replace(old, new))
    assert run("tables.py", document, rows, "--check").returncode == 1
    assert run("tables.py", document, rows).returncode == 0
    assert document.read_text() != DOCUMENT.read_text()
    assert run("tables.py", document, rows, "--check").returncode == 0


def test_missing_marker_is_said(document: Path) -> None:
    document.write_text(document.read_text().replace("<!-- /scores -->", ""))
    done = run("tables.py", document, ROWS)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "must hold once each" in done.stderr and "<!-- /scores -->" in done.stderr


def test_what_the_document_says_in_words() -> None:
    """All steps are right; a step without its maximum is as exact as with it where there is room,
    and wrong with real input only."""
    errors = {(row["name"], row["step"], row["dtype"]): row
              for row in read_rows(ROWS / "errors.jsonl")}
    assert all(row["right"] and row["rows_checked"] == row["rows"] for row in errors.values())
    missing = read_rows(ROWS / "no_maximum.jsonl")
    for row in missing:
        assert row["right"] or not row["name"].startswith("random")
        if row["step"] == "step02" and row["sharper"] == 1:
            real = errors[row["name"], "step02", row["dtype"]]
            assert row["max_error"] == pytest.approx(real["max_error"], rel=1e-2)
    assert {row["step"] for row in missing if not row["right"]} == {"step02", "step04"}


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    assert run("figure.py", ROWS, tmp_path / "plots").returncode == 0
    assert (tmp_path / "plots" / "real_input.svg").read_text().startswith("<?xml")
    assert (tmp_path / "plots" / "real_input.png").stat().st_size > 10_000


# --- How the rows are made ------------------------------------------------------------------------

@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Input:
    """One head of two queries and keys; the scores of the first are 0, of the second ln 3 and 0."""
    monkeypatch.setattr("inputs.REPOSITORY", tmp_path)
    for name, x in (("q", [[0, 0], [1, 0]]), ("k", [[2**0.5 * np.log(3), 0], [0, 0]]),
                    ("v", [[1, 0], [0, 1]])):
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
    assert [(span["first"], span["last"]) for span in spans] == [
        (1, 64), (65, 128), (129, 256), (257, 300)]
    assert [span["max_error"] for span in spans] == [0, 0, 0.25, 0]
    assert spans[2]["mean_error"] == pytest.approx(0.25 / 256, rel=1e-3)
    assert {span["mean_norm"] for span in spans} == {2}


def test_inputs_exist() -> None:
    """Of the real ones, the shapes are those that random input is drawn in."""
    shapes = [[x.shape for x in given.tensors()] for given in INPUTS
              if given.directory.startswith("tests/")]
    assert shapes == 2 * [[(1, heads, 1024, 64) for heads in (9, 3, 3)]] + [3 * [(1, 12, 264, 32)]]
