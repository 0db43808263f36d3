"""The README's table of steps comes from the measured rows, and from nowhere else."""

import subprocess
import sys

from programs import REPOSITORY


def ladder(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, REPOSITORY / "plots" / "ladder.py", *arguments]
    return subprocess.run([str(word) for word in command], cwd=REPOSITORY, capture_output=True,
                          text=True, timeout=60)


def test_readme_agrees_with_the_rows() -> None:
    rows = sorted((REPOSITORY / "plots" / "results").glob("*.jsonl"))
    assert rows
    assert ladder("README.md", *rows, "--check").returncode == 0


def test_a_changed_number_is_noticed(tmp_path) -> None:
    rows = sorted((REPOSITORY / "plots" / "results").glob("*.jsonl"))
    text = (REPOSITORY / "README.md").read_text()
    changed = tmp_path / "README.md"
    changed.write_text(text.replace(" % of ", " % or so of ", 1))
    assert changed.read_text() != text
    assert ladder(changed, *rows, "--check").returncode == 1


def test_no_rows_is_said() -> None:
    done = ladder("README.md", "/dev/null")
    assert done.returncode == 1 and "no row of the table's shape" in done.stderr
