"""Parts of a row group in more blocks than the CPU backend runs at a time."""

from pathlib import Path

import pytest

from tests.lib.source_tree import SourceTree
from tests.lib.steps import REPOSITORY, having, settings, source_of

PROBLEMS = [
    ["-b", 1, "-H", 2, "-k", 1500],
    ["-b", 1, "-H", 8, "-n", 4, "-k", 1100, "-m", "window:1000"],
    ["-b", 3, "-H", 8, "-G", 2, "--lengths", "900,0,333"],
]


@pytest.mark.cpu_only("compiled for the CPU backend")
@pytest.mark.parametrize("step", [name for name in having("mutants") if "also" in settings(name, "mutants")])
def test_many_threads_merge_parts(step: str, tmp_path: Path) -> None:
    """With a lower limit eight blocks have enough of them."""
    tree = SourceTree(tmp_path, built="cpu")
    for old, new in settings(step, "mutants")["also"]:
        tree.replace(str(source_of(step).path.relative_to(REPOSITORY)), old, new)
    tree.compile_only(step, 64, element="")
    program = tree.step(step)
    for options in PROBLEMS:
        for dtype in ("fp16", "bf16"):
            more = ["-d", 64, "-t", dtype, "--check", "all", "--report=races,bounds,init"]
            program.run_right(*options, *more, env={"SIMT_SMS": "8"})
