"""Only tiles on the diagonal run mask code: in these kernels mask code masks the whole tile."""

from pathlib import Path

import numpy as np
import pytest

from tests.lib.kinds import FACTS, HOPPER_STEPS, MASK_STEPS, MMA_STEPS
from tests.lib.reference import attention, mistakes
from tests.lib.generators import rounded_inputs
from tests.lib.problem import Problem
from tests.lib.programs import Program, read_result
from tests.lib.source_tree import PLAIN, SourceTree

pytestmark = pytest.mark.cpu_only("which tiles run what is the same on a GPU")

BLOCK_M, BLOCK_N = 128, 64  # at a head dimension of 64
# The steps on mma.sync with these tiles.
STEPS = [
    name
    for name in (*MMA_STEPS, *MASK_STEPS)
    if (FACTS[name]["block_m"], FACTS[name]["block_n"]) == (BLOCK_M, BLOCK_N)
    and name not in HOPPER_STEPS
    and Program(name).takes(64)
]


@pytest.fixture(scope="module")
def masking(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    """The steps, with mask code that masks all keys of a tile."""
    tree = SourceTree(tmp_path_factory.mktemp("masking"), built="cpu")
    tree.replace("common/device/fragments.cuh", "if (8 * n + c >= keys) s[i]", "(void)keys, s[i]")
    for name in STEPS:
        tree.compile_only(name, 64)
    tree.made("BACKEND=cpu", PLAIN, "-j2", *(f"build/cpu/{name}" for name in STEPS))
    return {name: Program(name, tree.root / "build" / "cpu") for name in STEPS}


@pytest.mark.parametrize("name", STEPS)
def test_no_tile_of_a_full_mask_runs_mask_code(masking: dict, name: str) -> None:
    masking[name].run_right("-H", 1, "-n", 4 * BLOCK_M, "-d", 64)


@pytest.mark.parametrize("name", STEPS)
def test_tiles_below_the_diagonal_run_no_mask_code(masking: dict, tmp_path: Path, name: str) -> None:
    """The result is attention to the tiles that every row of a tile of queries attends."""
    p = Problem(seqlen=4 * BLOCK_M, head_dim=64, mask="causal")
    masking[name].run("-o", tmp_path / "out", "-c", "none", *p.options())
    first_of_tile = np.arange(p.seqlen) // BLOCK_M * BLOCK_M
    unmasked_end = (first_of_tile + 1) // BLOCK_N * BLOCK_N
    attended = np.arange(p.seqlen) < unmasked_end[:, None]
    result = read_result(tmp_path / "out")
    assert mistakes(attention(p, *rounded_inputs(p), attended), result.o, result.lse) == []
