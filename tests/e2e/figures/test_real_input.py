"""What docs/real-input.md says comes from the measured records, and how they are made."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plots.tools.real_input import inputs, measure, tables
from plots.tools.real_input.inputs import INPUTS, Input
from tests.lib.programs import REPOSITORY, Program, read_rows

RECORDS = REPOSITORY / "plots" / "results" / "real_input"
DOCUMENT = REPOSITORY / "docs" / "real-input.md"


def run(tool: str, *arguments: object) -> int:
    command = [sys.executable, "-m", f"plots.tools.real_input.{tool}", *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, timeout=60, check=False).returncode


def test_the_document_equals_the_records(tmp_path: Path) -> None:
    """And other records make another document."""
    assert run("tables", DOCUMENT, RECORDS, "--check") == 0
    records = Path(shutil.copytree(RECORDS, tmp_path / "records"))
    for file, name in (("scores", "largest_score"), ("errors", "max_error"),
                       ("no_maximum", "rows_wrong")):
        path = records / f"{file}.jsonl"
        path.write_text(path.read_text().replace(f'"{name}": ', f'"{name}": 1'))
    document = Path(shutil.copy(DOCUMENT, tmp_path))
    assert run("tables", document, records, "--check") == 1
    assert run("tables", document, records) == 0
    changed = sum(a != b for a, b in zip(document.read_text().splitlines(),
                                         DOCUMENT.read_text().splitlines(), strict=True))
    assert changed == 3 * len(INPUTS)


def errors_by_run() -> dict[tuple, dict]:
    """Records by input, step and dtype."""
    return {(row["name"], row["step"], row["dtype"]): row
            for row in read_rows(RECORDS / "errors.jsonl")}


def test_words_on_scores() -> None:
    scores = {row["name"]: row for row in read_rows(RECORDS / "scores.jsonl")}
    assert "the entropy at 15 % shows" in DOCUMENT.read_text()
    assert tables.ONE_HOT == 15 and scores["smollm2_layer18"]["entropy"][15] < 0.02
    assert scores["smollm2_layer18"]["first_key"][85] > 0.99
    assert scores["minilm_layer0"]["largest_score"] > 10 * scores["random_32"]["largest_score"]
    # No row is lost below what fp16 holds in full.
    assert min(row["row_max"][0] for row in scores.values()) > np.log(2.0**-14)


def test_words_on_sinks_and_on_the_token_before() -> None:
    tensors = {given.name: given.tensors() for given in INPUTS
               if given.directory.startswith("tests/")}
    for name in ("smollm2_layer12", "smollm2_layer18"):
        lengths = np.linalg.norm(tensors[name][2][0], axis=-1)
        assert (lengths[:, 0] < 0.5 * np.median(lengths, axis=-1)).all()
    q, k, _ = tensors["minilm_layer0"]
    found = (q[0, 2] @ k[0, 2].T).argmax(axis=-1)
    assert np.mean(found[1:] == np.arange(len(found) - 1)) > 0.5


def test_words_on_growth() -> None:
    def means(name: str) -> list[float]:
        row = errors_by_run()[name, "step04", "fp16"]
        return [span["mean_error"] for span in row["by_position"]]

    real, other, random = (means(name) for name in
                           ("smollm2_layer12", "smollm2_layer18", "random_64"))
    assert real[-1] <= real[0] < 1.03 * min(real)
    assert other[-1] < 1.03 * other[1]
    assert random == sorted(random) and random[-1] > 1.05 * random[0]


def test_words_on_errors() -> None:
    errors = errors_by_run()
    assert all(row["right"] and row["rows_checked"] == row["rows"] for row in errors.values())
    for (name, step, dtype), row in errors.items():
        if name.startswith("random"):
            continue
        random = errors["random_32" if name == "minilm_layer0" else "random_64", step, dtype]
        # Figures of the table, which has two digits.
        assert float(f"{row['mean_error']:.1e}") <= float(f"{random['mean_error']:.1e}")
        worse = row["max_error"] > random["max_error"]
        assert worse == (name != "minilm_layer0" or step in ("step01", "step02"))
        if step >= "step03":
            assert row["mean_error"] < 0.9 * random["mean_error"]
        if dtype == "bf16":
            assert row["max_error_of_inputs"] > 2 * random["max_error_of_inputs"]


def test_words_on_the_maximum() -> None:
    """A step without its maximum is as exact as with it where there is room, and wrong with real
    input only."""
    missing = read_rows(RECORDS / "no_maximum.jsonl")
    for row in missing:
        assert row["right"] or not row["name"].startswith("random")
        if row["step"] == "step02" and row["sharper"] == 1:
            real = errors_by_run()[row["name"], "step02", row["dtype"]]
            assert row["max_error"] == pytest.approx(real["max_error"], rel=1e-2)
    assert {row["step"] for row in missing if not row["right"]} == {"step02", "step04"}


def test_limits_are_those_of_the_formats() -> None:
    """Of numbers beside those of the table, one is finite and one is not."""
    cells = dict(re.findall(r"^\| (fp16|single precision) \| ([\d.]+) \|", tables.limits_table(),
                            re.MULTILINE))
    for name, dtype in (("fp16", np.float16), ("single precision", np.float32)):
        below, above = (np.exp(np.float64(cells[name]) + step) for step in (-0.06, 0.06))
        with np.errstate(over="ignore"):
            assert np.isfinite(dtype(below)) and np.isinf(dtype(above))


def test_commands_of_the_document() -> None:
    """Each makes its program first, and all are right."""
    (block,) = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    made = set()
    for line in block.splitlines():
        *make, command = line.split(" && ")
        made |= {words.removeprefix("make ") for words in make}
        name, *options = command.removeprefix("./").split()
        assert name in made
        Program(name).run_right(*options, cwd=REPOSITORY)
    assert len(made) >= 3


# --- How the records are made ---------------------------------------------------------------------

@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Input:
    """One head of two queries and keys; the scores of the first are 0, of the second ln 3 and 0."""
    monkeypatch.setattr(inputs, "REPOSITORY", tmp_path)
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
