"""The stages of docs/profiling.md: what the pages say of them, and that all but the first are right."""

import shutil
import sys
from pathlib import Path

import pytest

from plots.figures import walk
from tests.lib.programs import REPOSITORY, Program
from tests.lib.source_tree import SourceTree

pytestmark = pytest.mark.cpu_only("the pages have the output of the CPU backend")


def test_the_pages_have_what_the_stages_print(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path, built="cpu")
    tree.made("BACKEND=cpu", f"PYTHON={sys.executable}", "walk", f"build/cpu/{walk.END}")
    programs, written = tree.root / "build/cpu", tmp_path / "written"
    shutil.copytree(REPOSITORY / "docs", written, ignore=lambda _, names: [n for n in names if "profiling" not in n])
    walk.write(written, programs)
    for page in written.iterdir():
        assert page.read_text() == (REPOSITORY / "docs" / page.name).read_text(), (
            f"{page.name} is out of date: make pages"
        )
    for stage in walk.STAGES[1:]:
        Program(stage, programs / "walk").run_right(
            "-n", 45, "-k", 300, "-d", 32, "-H", 1, "-m", "causal", "--report=races,bounds,init"
        )
