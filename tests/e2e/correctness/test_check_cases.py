"""The problems of `make check` reveal faults that the default problem does not."""

import pytest

from tests.lib.programs import REPOSITORY, Program
from tests.lib.source_tree import PLAIN, SourceTree

pytestmark = pytest.mark.cpu_only("it builds changed steps for the CPU backend")

CASES = REPOSITORY / "tests/sanitize.cases"
HEADS, FRAGMENTS = "common/device/heads.cuh", "common/device/fragments.cuh"
TILES = "common/device/mma_tile.cuh"
FAULTS = {
    "tail": (FRAGMENTS, "causal_keys(p, q) : p.kv_len", "causal_keys(p, q) : p.kv_len + 64 * (FAULTY)"),
    "causal": (HEADS, "last + 1", "last + !(FAULTY)"),
    "grouped heads": (HEADS, "= head / (p.q_heads / p.kv_heads)",
                      "= FAULTY ? head % p.kv_heads : head / (p.q_heads / p.kv_heads)"),
    "empty rows": (TILES, "sum == 0.0f ?", "sum == 0.0f && !(FAULTY) ?"),
    "out of bounds": (TILES, "first + at.row + at.row_offset < rows",
                      "FAULTY || first + at.row + at.row_offset < rows"),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Only two head dimensions are compiled; the program refuses problems with others."""
    tree = SourceTree(tmp_path_factory.mktemp("faulty"), built="cpu")
    for number, patch in enumerate(FAULTS.values(), 1):
        tree.add_fault(number, *patch)
    tree.compile_only("step04", "CONFIG<__half, 64>, CONFIG<__nv_bfloat16, 128>")
    assert tree.make("BACKEND=cpu", PLAIN, "build/cpu/step04").returncode == 0
    return Program("step04", tree.root / "build/cpu")


@pytest.mark.parametrize("number", range(len(FAULTS) + 1), ids=["none", *FAULTS])
def test_faults_are_noticed(faulty: Program, number: int) -> None:
    done = faulty.run("--cases", CASES, "--heads", 2, "--repeat", 0, "--check", "all",
                      env={"FAULT": str(number)})
    verdicts = [line.removeprefix(f"{CASES}:").split(": ")[1] for line in done.stdout.splitlines()]
    assert verdicts.count("refused") < len(verdicts) - 4
    assert ("WRONG" in verdicts or "failed" in verdicts) == (number != 0)
