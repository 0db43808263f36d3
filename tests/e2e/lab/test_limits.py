"""Kernels that exceed the limits of tests/lib/limits.py are noticed; test_lab.py tests that the steps
keep them.

On the CPU backend a copy completes at the wait for it, so the share of mma with a copy in flight
depends on the order of the instructions alone.
"""

from pathlib import Path

import pytest

from tests.lib.limits import exceeded
from tests.lib.programs import read_records
from tests.lib.source_tree import CHECKED, SourceTree

pytestmark = pytest.mark.cpu_only("it counts what the kernels do")

@pytest.mark.parametrize("name, path, old, new, problem, found", [
    # V is still copied during Q K^T, but K is no longer copied during P V.
    ("step04", "steps/step04_prefetch.cu", "cp_async_wait<1>();", "cp_async_wait<0>();",
     "-n 128 -k 1024", "50.0 % of the mma with a copy in flight, at least 96 %"),
    ("step02b", "steps/step02b_mma.cu", "SMEM_STRIDE = HEAD_DIM + 8", "SMEM_STRIDE = HEAD_DIM",
     "-n 64", "shared_load: 8 ways of a bank conflict, at most 1"),
    ("step02c", "common/device/fragments.cuh", "SMEM_STRIDE = HEAD_DIM + CHUNK",
     "SMEM_STRIDE = HEAD_DIM", "-n 64", "ldmatrix: 8 ways of a bank conflict, at most 1"),
], ids=["waits for all", "02b without padding", "02c without padding"])
def test_slower_kernels_are_noticed(tmp_path: Path, name: str, path: str, old: str, new: str,
                                    problem: str, found: str) -> None:
    """Their answers are right: only the counts show the difference."""
    tree = SourceTree(tmp_path, built="cpu")
    tree.replace(path, old, new)
    tree.compile_only(name, 64)
    path = tmp_path / "records"
    tree.step(name, *CHECKED).run_right(
        "-b", 1, "-H", 1, "-d", 64, *problem.split(), "--report=traffic,banks", "-j", path)
    (record,) = read_records(path)
    assert found in exceeded(record)
