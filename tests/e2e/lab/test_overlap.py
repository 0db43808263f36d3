"""What share of the mma is issued while its warp has a copy in flight: the point of step 04.

The copies of the CPU backend arrive when they are waited for, so that the count depends on the
order of the instructions alone.
"""

from pathlib import Path

import pytest

from tests.lib.programs import RIGHT, Program, read_rows
from tests.lib.source_tree import SourceTree

pytestmark = pytest.mark.cpu_only("it counts what the kernels do")

STEP04 = "steps/step04_prefetch.cu"


def share_under_copy(program: Program, directory: Path, mask: str, head_dim: int) -> float:
    """Of one head of 1024 queries and keys; the answer must be right."""
    path = directory / f"{program.name}.json"
    done = program.run("-b", 1, "-H", 1, "-n", 1024, "-d", head_dim, "-m", mask, "-c", "rows:50",
                       "-j", path)
    assert done.returncode == RIGHT, done.stderr
    (row,) = read_rows(path)
    assert row["count_mma"] > 0
    return row["count_mma_under_copy"] / row["count_mma"]


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_prefetch_puts_the_mma_under_copies(tmp_path: Path, mask: str, head_dim: int) -> None:
    assert share_under_copy(Program("step03"), tmp_path, mask, head_dim) <= 0.05
    assert share_under_copy(Program("step04"), tmp_path, mask, head_dim) >= 0.90


@pytest.mark.parametrize("old, new, share", [
    # V still travels during Q K^T, but no longer K during P V.
    ("cp_async_wait<1>();", "cp_async_wait<0>();", 0.5),
    ("cp_async_commit();", "cp_async_commit(), cp_async_wait<0>();", 0),
], ids=["waits for all", "waits at once"])
def test_lost_overlap_is_seen(tmp_path: Path, old: str, new: str, share: float) -> None:
    """Step 04 with other waits. Its answer stays right: only the count can tell."""
    tree = SourceTree(tmp_path, built="cpu")
    tree.replace(STEP04, old, new)
    assert tree.make("BACKEND=cpu", "build/cpu/step04").returncode == 0
    program = Program("step04", tree.root / "build" / "cpu")
    assert share_under_copy(program, tmp_path, "full", 64) == share
