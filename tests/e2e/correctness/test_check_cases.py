"""The problems of `make check` reveal faults that the default problem does not."""

from pathlib import Path

import pytest

from tests.lib.programs import REPOSITORY, Program
from tests.lib.source_tree import PLAIN, SourceTree

pytestmark = pytest.mark.cpu_only("it builds changed steps for the CPU backend")

CASES = REPOSITORY / "tests/sanitize.cases"
HEADS, FRAGMENTS = "common/device/heads.cuh", "common/device/fragments.cuh"
TILES = "common/device/mma_tile.cuh"
FAULTS = {
    "none": (HEADS, "last + 1", "last + 1"),
    "tail": (FRAGMENTS, "causal_keys(p, q) : p.kv_len", "causal_keys(p, q) : p.kv_len + 64"),
    "causal": (HEADS, "last + 1", "last"),
    "grouped heads": (HEADS, "head / (p.q_heads / p.kv_heads)", "head % p.kv_heads"),
    "empty rows": (TILES, "sum == 0.0f ? 0.0f : __fdividef(1.0f, sum)", "__fdividef(1.0f, sum)"),
    "out of bounds": (TILES, "first + at.row + at.row_offset < rows", "true"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(tmp_path: Path, fault: str) -> None:
    """Only two head dimensions are compiled; the program refuses problems with others."""
    tree = SourceTree(tmp_path, built="cpu")
    tree.replace(*FAULTS[fault])
    tree.compile_only("step04", "CONFIG<__half, 64>, CONFIG<__nv_bfloat16, 128>")
    assert tree.make("BACKEND=cpu", PLAIN, "build/cpu/step04").returncode == 0
    done = Program("step04", tree.root / "build/cpu").run(
        "--cases", CASES, "--heads", 2, "--repeat", 0, "--check", "all")
    verdicts = [line.removeprefix(f"{CASES}:").split(": ")[1] for line in done.stdout.splitlines()]
    assert verdicts.count("refused") < len(verdicts) - 4
    assert ("WRONG" in verdicts or "failed" in verdicts) == (fault != "none")
