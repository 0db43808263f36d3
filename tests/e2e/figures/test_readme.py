"""The README's table of steps and its picture come from the measured rows, from nowhere else."""

import contextlib
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.e2e.figures.measured_rows import write_results, write_rows
from tests.lib.programs import REPOSITORY, read_rows

pytest.importorskip("matplotlib")
import ladder as ladder_program
import rows as measured

README = REPOSITORY / "README.md"
H200 = REPOSITORY / "plots" / "results" / "h200"
PICTURES = REPOSITORY / "docs" / "pictures"


def ladder(*arguments: object) -> SimpleNamespace:
    """ladder.py in this process, which has loaded Matplotlib already."""
    said = io.StringIO()
    with mock.patch.object(sys, "argv", ["ladder.py", *map(str, arguments)]), \
            contextlib.redirect_stderr(said):
        returncode = ladder_program.main()
    return SimpleNamespace(returncode=returncode, stderr=said.getvalue())


@pytest.fixture
def page(tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the README and its pictures that may be rewritten, as they lie to each other."""
    return (Path(shutil.copy(README, tmp_path)),
            shutil.copytree(PICTURES, tmp_path / "docs" / "pictures"))


def headline(rows: list[dict], **wanted: object) -> dict:
    """The last of the rows of the table's shape, found without what is tested."""
    wanted = {"batch": 4, "heads": 16, "seqlen": 4096, "seqlen_kv": 4096, "head_dim": 128,
              "dtype": "fp16", "mask": "full", "layout": "bhnd", **wanted}
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())
            and not row.get("shared_kv", row.get("stages") == 1)][-1]


def rows_with(tmp_path: Path, **changes: str) -> Path:
    """The measured rows, those of step02 with other fields."""
    directory = tmp_path / "rows"
    for path in H200.glob("sweep_*.jsonl"):
        write_rows(directory / path.name, [
            row | (changes if row.get("step") == "step02" else {}) for row in read_rows(path)])
    return directory


def test_readme_and_pictures_agree_with_the_rows() -> None:
    program = REPOSITORY / "plots" / "ladder.py"
    done = subprocess.run([sys.executable, program, "--check", README, H200, PICTURES],
                          capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_changed_number_is_noticed(page: tuple[Path, Path]) -> None:
    readme, pictures = page
    text = readme.read_text()
    readme.write_text(text.replace(" % of ", " % or so of ", 1))
    assert readme.read_text() != text
    done = ladder("--check", readme, H200, pictures)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "make readme" in done.stderr


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("change", [
    lambda path: path.unlink(),
    lambda path: path.write_text(path.read_text().replace('"tflops": ', '"tflops": 1', 1)),
    lambda path: path.write_text(re.sub(r">[\d.]+(\N{EM SPACE}×)", r">123\1", path.read_text())),
    lambda path: path.write_text(path.read_text().replace("dc:description", "dc:relation")),
    lambda path: path.write_text(path.read_text()[:2000])])
def test_another_picture_is_noticed(page: tuple[Path, Path], theme: str, change) -> None:
    readme, pictures = page
    path = pictures / f"waterfall_{theme}.svg"
    before = path.read_text()
    change(path)
    assert not path.exists() or path.read_text() != before
    done = ladder("--check", readme, H200, pictures)
    assert done.returncode == 1 and f"waterfall_{theme}.svg: shows not what" in done.stderr
    assert ladder(readme, H200, pictures).returncode == 0
    assert ladder("--check", readme, H200, pictures).returncode == 0


def test_other_rows_are_noticed(page: tuple[Path, Path], tmp_path: Path) -> None:
    """By the README and both pictures."""
    readme, pictures = page
    rows = rows_with(tmp_path, flops=33_250_000_000, median_ms=1.0, tflops=33.25)
    done = ladder("--check", readme, rows, pictures)
    assert done.returncode == 1
    for name in ("README.md: not what", "light.svg: shows", "dark.svg: shows"):
        assert name in done.stderr
    assert ladder(readme, rows, pictures).returncode == 0
    assert "| 33.2 |" in readme.read_text()
    for theme in ("light", "dark"):
        assert ">33.2\N{EM SPACE}×" in (pictures / f"waterfall_{theme}.svg").read_text()


def test_cells_are_those_of_the_rows(page: tuple[Path, Path], tmp_path: Path) -> None:
    """Of a whole sweep and comparison."""
    readme, pictures = page
    rows = write_results(tmp_path / "results") / "h200"
    assert ladder(readme, rows, pictures).returncode == 0
    lines = [line for line in readme.read_text().splitlines() if line.startswith("| [0")]
    assert len(lines) == 5
    sweep, compare = (read_rows(next(rows.glob(f"{kind}_*.jsonl"))) for kind in ("sweep",
                                                                                 "compare"))
    for number, line in enumerate(lines, 1):
        step = f"step{number:02}"
        alone, beside = headline(sweep, step=step), headline(compare, step=step)
        speed, ratio = alone["tflops"], beside["speed_over_fa2"]
        assert speed != beside["tflops"]
        for cell in (f" {speed:.1f} ", f" {100 * speed / alone['ceiling_mma_tflops']:.0f} %",
                     f" {ratio:.4f} (" if ratio < 0.1 else f" {ratio:.3f} (",
                     f" {alone['max_error']:.1e} / "):
            assert cell in line, (step, cell)
        assert (" % of " in line) == (alone["ceiling"] != "mma.sync")


def test_the_table_holds_the_measured_ratio() -> None:
    """In what is committed."""
    row = headline(read_rows(measured.load(H200).compare.path), step="step04")
    (line,) = [line for line in README.read_text().splitlines()
               if line.startswith("| [04 ")]
    assert f"| {row['speed_over_fa2']:.3f} ({row['speed_over_fa2_p10']:.3f}" in line


@pytest.mark.parametrize("card, told", [("GPU-1", "on the same"), ("GPU-2", "on another"),
                                        (None, "on one")])
def test_both_origins_are_told(page: tuple[Path, Path], tmp_path: Path, card: str | None,
                               told: str) -> None:
    """Of speeds and of ratios: what was not measured together must not look as if it were."""
    readme, pictures = page
    rows = write_results(tmp_path / "results") / "h200"
    path = next(rows.glob("compare_*.jsonl"))
    write_rows(path, [row | {"gpu_uuid": card, "date": "2031-02-03T04:05:06Z",
                             "cuda_runtime": "99.1"} for row in read_rows(path)])
    assert ladder(readme, rows, pictures).returncode == 0
    (line,) = [line for line in readme.read_text().splitlines()
               if line.startswith("Forward pass, fp16, B=4")]
    speeds, ratios = line.split(" × FA2")
    assert "on one NVIDIA H200 (CUDA 13.0, 2030-01-02, commit 0123456789ab)" in speeds
    assert f"{told} NVIDIA H200 (CUDA 99.1, 2031-02-03, commit 0123456789ab)" in ratios


def test_wrong_answers_have_no_speed(page: tuple[Path, Path], tmp_path: Path) -> None:
    readme, pictures = page
    assert ladder(readme, rows_with(tmp_path, right=False), pictures).returncode == 0
    table = [line for line in readme.read_text().splitlines() if line.startswith("| [0")]
    steps = [step.removeprefix("step") for step in measured.load(H200).sweep.steps()]
    assert [line[3:5] for line in table] == [step for step in steps if step != "02"]


def test_no_rows_is_said(tmp_path: Path) -> None:
    done = ladder(README, tmp_path, PICTURES)
    assert done.returncode == 1 and "no row of the table's shape" in done.stderr
    assert done.stderr.count("\n") == 1


def test_broken_rows_are_said(page: tuple[Path, Path], tmp_path: Path) -> None:
    readme, pictures = page
    before = readme.read_text()
    path = write_rows(tmp_path / "rows" / "sweep_abc.jsonl", [{"step": "step01"}])
    done = ladder(readme, path.parent, pictures)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f'{path}, line 1: has no "commit"' in done.stderr and readme.read_text() == before


def test_missing_marker_is_said(page: tuple[Path, Path]) -> None:
    readme, pictures = page
    readme.write_text(readme.read_text().replace("<!-- /ladder -->", ""))
    done = ladder(readme, H200, pictures)
    assert done.returncode == 1 and "must hold once each" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_picture_is_described_in_words() -> None:
    """For readers who do not see it: every step's speed and speedup."""
    text = README.read_text()
    (alt,) = [line.split('alt="')[1] for line in text.splitlines() if 'alt="From step' in line]
    sweep = measured.load(H200).sweep
    speeds = [headline(read_rows(sweep.path), step=step)["tflops"] for step in sweep.steps()]
    assert len(speeds) >= 5
    for before, speed in zip(speeds, speeds[1:]):
        assert f"{speed:.3g} ×{speed / before:.2f}" in alt
