"""The commands in the README and in the pages, in blocks of the language sh, run as they are. They print
what a block of the language output shows right after them, or first in the answer after them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lib.programs import REPOSITORY as ROOT, built_commit

LONGEST_S = 60  # of a block
PYTHON_WITH_NUMPY = Path(sys.executable).parent
EXERCISE = re.compile(r"^(make (?:ex|broken)\d\d)\b.*", re.MULTILINE)
BLOCK = re.compile(
    r"^```sh\n(.*?)^```(?:\n+(?:<details><summary>Answer</summary>\n+)?```output\n(.*?)^```)?", re.MULTILINE | re.DOTALL
)
PAGES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if BLOCK.search(path.read_text())]


# Programs of chapter 0 are run by tests/e2e/foundations.
FOUNDATION = re.compile(r"f\d\d\w?")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=pytest.mark.exhaustive if FOUNDATION.fullmatch(page.stem) else ())
        for page in PAGES
    ],
)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    """The blocks of a page, one after the other, in a copy of the tree with its build."""
    for path in ROOT.iterdir():
        if path.name == "build":
            subprocess.run(["cp", "-rl", path, tmp_path / "build"], check=True)
        elif path.name == "steps":  # exercises are written there
            shutil.copytree(path, tmp_path / "steps", ignore=shutil.ignore_patterns("*[0-9].cu", "exf*.cu"))
        elif not re.fullmatch(r"step\d.*|\.git|\.venv|__pycache__|\.pytest_cache", path.name):
            (tmp_path / path.name).symlink_to(path)
    text = page.read_text()
    for match in BLOCK.finditer(text):
        # An exercise in which nothing was done must fail.
        commands = EXERCISE.sub(r"if \1; then exit 1; fi", match[1])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
            env={
                "PATH": f"{PYTHON_WITH_NUMPY}:/usr/local/bin:/usr/bin:/bin",
                "HOME": str(tmp_path),
                "BACKEND": "cpu",
                "COMMIT": built_commit(),
                "WERROR": os.environ.get("WERROR", "0"),
            },
        )
        line = text[: match.start()].count("\n") + 2
        assert done.returncode == 0, f"{page.name}:{line}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        printed = done.stdout.replace(f"{ROOT}/", "").splitlines()  # built there, so outside of this copy
        assert set((match[2] or "").splitlines()) - {"...", *printed} == set(), f"{page.name}:{line}: not printed"
