"""Every step keeps the limits of tests/lib/limits.py, and kernels that exceed them are noticed.

On the CPU backend a copy completes at the wait for it, so the share of mma with a copy in flight
depends on the order of the instructions alone.
"""

from pathlib import Path

import pytest

from tests.lib.limits import exceeded
from tests.lib.programs import Program, read_records
from tests.lib.source_tree import SourceTree

pytestmark = pytest.mark.cpu_only("it counts what the kernels do")

PROBLEMS = [f"-b 1 -H 1 -n {queries} -k {keys} -d {head_dim} -m {mask}"
            for head_dim in (32, 64, 96, 128, 256)
            for queries, keys, mask in ((130, 128, "full"), (128, 128, "causal"), (65, 133, "causal"))]


def records_of(program: Program, directory: Path, problems: list[str]) -> list[dict]:
    cases, path = directory / "cases", directory / "records"
    cases.write_text("\n".join(problems) + "\n")
    program.run_right("--report=traffic,banks", "-j", path, "--cases", cases)
    return read_records(path)


def test_steps_keep_their_limits(step: Program, tmp_path: Path) -> None:
    records = records_of(step, tmp_path, PROBLEMS)
    assert {problem: found for problem, record in zip(PROBLEMS, records, strict=True)
            if (found := exceeded(record))} == {}


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
    tree.compile_only(name, "CONFIG<__half, 64>")
    assert tree.make("BACKEND=cpu", f"build/cpu/{name}").returncode == 0
    (record,) = records_of(Program(name, tree.root / "build" / "cpu"), tmp_path,
                           [f"-b 1 -H 1 -d 64 {problem}"])
    assert found in exceeded(record)
