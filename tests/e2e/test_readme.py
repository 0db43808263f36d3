"""The README's table of steps comes from the measured rows, and from nowhere else."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from programs import REPOSITORY, read_rows

# Of runs that were timed; counts and scores are not told in the README.
ROWS = sorted(path for path in (REPOSITORY / "plots" / "results").glob("*.jsonl")
              if "median_ms" in read_rows(path)[0])


def ladder(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, REPOSITORY / "plots" / "ladder.py", *arguments]
    return subprocess.run([str(word) for word in command], cwd=REPOSITORY, capture_output=True,
                          text=True, timeout=60)


@pytest.fixture
def readme(tmp_path: Path) -> Path:
    """A copy that may be rewritten."""
    return Path(shutil.copy(REPOSITORY / "README.md", tmp_path))


def rows_with(tmp_path: Path, **changes: str) -> Path:
    """The measured rows, those of step02 with other fields."""
    path = tmp_path / "rows.jsonl"
    rows = [row | (changes if row.get("step") == "step02" else {}) for file in ROWS
            for row in read_rows(file)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_readme_agrees_with_the_rows() -> None:
    assert ROWS
    assert ladder("README.md", *ROWS, "--check").returncode == 0


def test_a_changed_number_is_noticed(readme: Path) -> None:
    text = readme.read_text()
    readme.write_text(text.replace(" % of ", " % or so of ", 1))
    assert readme.read_text() != text
    assert ladder(readme, *ROWS, "--check").returncode == 1


@pytest.mark.parametrize("field, value, shown", [
    ("commit", "0123456789ab", "commit 0123456789ab)"),
    ("device", "NVIDIA A100", "one NVIDIA A100 ("),
    ("date", "2030-01-02T03:04:05Z", "2030-01-02, commit"),
    ("cuda_runtime", "99.1", "(CUDA 99.1, ")])
def test_each_origin_is_told(readme: Path, tmp_path: Path, field: str, value: str,
                             shown: str) -> None:
    """Rows that were not measured together must not look as if they were."""
    rows = rows_with(tmp_path, **{field: value})
    assert ladder(readme, rows, "--check").returncode == 1
    assert ladder(readme, rows).returncode == 0
    (line,) = [line for line in readme.read_text().splitlines() if "Measured:" in line]
    assert [part for part in line.split(";") if shown in part and " step 02 on one " in part]
    assert line.count(shown) == 1 and line.count("commit") == line.count("on one ") >= 2
    assert ladder(readme, rows, "--check").returncode == 0


def test_one_origin_is_told_once() -> None:
    text = (REPOSITORY / "README.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("Forward pass, fp16, B=4")]
    origins = {(row["commit"], row["device"], row["date"][:10], row["cuda_runtime"])
               for file in ROWS for row in read_rows(file)}
    assert len(origins) > 1 or line.count("commit") == 1


def test_no_rows_is_said() -> None:
    done = ladder("README.md", "/dev/null")
    assert done.returncode == 1 and "no row of the table's shape" in done.stderr


def test_missing_marker_is_said(readme: Path) -> None:
    readme.write_text(readme.read_text().replace("<!-- /ladder -->", ""))
    done = ladder(readme, *ROWS)
    assert done.returncode == 1 and "must hold once each" in done.stderr
    assert done.stderr.count("\n") == 1
