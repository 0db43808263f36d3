"""Step 05 with each of the classic faults of a block-mask kernel; the tests notice all of them.

The numbers mean: 1 strides, 2 lengths, 3 columns of the tile, 4 lanes, 5 prefetch past a gap, 6
waits, 7 rows that attend nothing, 8 small tiles in large blocks. The original fault 5 is a loop
that skips MASKED slots and prefetches for the slot after them. It cannot occur here, because the
list of tiles has no gaps; its effect, K of another tile, can.

The real sources with a line or two changed. One program has all faults, and the environment says
which is to occur; only the configuration that it is run with is compiled.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.lib import masks
from tests.lib.reference import attention, mistakes
from tests.lib.generators import rounded_inputs
from tests.lib.problem import Problem
from tests.lib.programs import DEVICE, RIGHT, STEP_DIR, WRONG, Program, read_result
from tests.lib.source_tree import PLAIN, SourceTree

pytestmark = pytest.mark.cpu_only("it tests the tests")

STEP = "steps/step05_block_mask.cu"
LISTS = "common/device/tile_list.cuh"
COPY, SOFTMAX = "common/device/copy_tile.cuh", "common/device/fragments.cuh"
TILE, LAUNCH = "common/device/mma_tile.cuh", "common/device/launch.cuh"
WAIT = "cp_async_wait<SHARED_KV ? 0 : 1>();"

# All runs solve problems of this configuration. Blocks of 128 x 128 contain four tiles.
SHAPE = {"head_dim": 64, "mask_block": (128, 128)}
CONFIG = "CONFIG<__half, 64, 1, false>"

CAUSAL = Problem(heads=2, seqlen=200, seqlen_kv=270, mask="causal", **SHAPE)
PARTIAL = replace(CAUSAL, mask="random:0.5")
TAIL = replace(CAUSAL, mask="full")
SHORT = replace(TAIL, seqlen_kv=40)  # the rows past the end were never written
FAR_APART = replace(CAUSAL, seqlen=128, seqlen_kv=1024, mask="blocks:0.5")
SEVERAL_EMPTY = replace(CAUSAL, seqlen_kv=150)
OWN_TILES = replace(PARTIAL, mask="random tiles for each head")


@dataclass(frozen=True)
class Fault:
    """Patches for SourceTree.add_fault(), a problem that shows the fault, the text of the check."""

    patches: tuple[tuple[str, str, str], ...]
    problem: Problem
    says: str


ROWS = "rows of O"
UNWRITTEN = "never written"
IN_FLIGHT = "reads shared memory that a copy is on its way to"
NAN = "NaN where a number belongs"

FAULTS = {
    "1 tiles by the strides of another tensor": Fault(
        ((LISTS, "m.partial_block_mask_indices, m.partial_strides",
          "m.partial_block_mask_indices, FAULTY ? m.type_strides : m.partial_strides"),),
        OWN_TILES, ROWS),
    "2 keys past the end are not masked": Fault(
        ((LISTS, "const bool ends_here = first_key", "const bool ends_here = !(FAULTY) && first_key"),),
        TAIL, ROWS),
    "2 rows past the end are not loaded": Fault(
        ((COPY, "    cp_async_16(", "    if (!(FAULTY) || first + row < rows) cp_async_16("),),
        SHORT, NAN),
    "3 causal columns from the block": Fault(
        ((STEP, "first_q + warp_row, tile.first_key);", "first_q + warp_row, FAULTY "
          "? tile.first_key / p.kv_block_size * p.kv_block_size : tile.first_key);"),),
        CAUSAL, ROWS),
    "3 partial columns from the block": Fault(
        ((LISTS, "partial + i", "partial + (FAULTY ? 0 : i)"),), PARTIAL, ROWS),
    "3 partial rows from the block": Fault(
        ((LISTS, "+ first_q % m.q_block_size", "+ (FAULTY ? 0 : first_q % m.q_block_size)"),),
        PARTIAL, ROWS),
    "4 causal rows of the wrong lanes": Fault(
        ((SOFTMAX, "first_q + 16 * i + 8 * half + lane / 4;",
          "first_q + 16 * i + (FAULTY ? lane % 16 / 2 * 2 + half : 8 * half + lane / 4);"),),
        CAUSAL, ROWS),
    "4 causal columns of the wrong lanes": Fault(
        ((SOFTMAX, "- first_key - lane % 4 * 2;",
          "- first_key - (FAULTY ? lane % 8 / 2 * 2 : lane % 4 * 2);"),), CAUSAL, ROWS),
    "4 partial bits of the wrong lanes": Fault(
        ((STEP, "row_bits[(16 * i + 8 * half + lane / 4)",
          "row_bits[(16 * i + (FAULTY ? lane % 16 / 2 * 2 + half : 8 * half + lane / 4))"),),
        PARTIAL, ROWS),
    "5 prefetch of the neighbour, not of the next in the list": Fault(
        ((STEP, "next.first_key, p.kv_len",
          "FAULTY ? tile.first_key + Tile::BLOCK_N : next.first_key, p.kv_len"),), FAR_APART, ROWS),
    "6 waits for too little": Fault(
        ((STEP, WAIT, "if (FAULTY) cp_async_wait<2>(); else " + WAIT),), TAIL, IN_FLIGHT),
    "6 waits for too little at the last tile": Fault(
        ((STEP, "    cp_async_commit();\n\n    if (tile.mask != ALL_ATTENDED)",
          "    if (!(FAULTY) || i + 1 < own.tile_count) cp_async_commit();\n\n"
          "    if (tile.mask != ALL_ATTENDED)"),), TAIL, IN_FLIGHT),
    "7 infinity minus infinity": Fault(
        ((SOFTMAX, "row_max == -INFINITY ?", "row_max == -INFINITY && !(FAULTY) ?"),),
        SEVERAL_EMPTY, NAN),
    "7 divides by a sum of 0": Fault(
        ((TILE, "sum == 0.0f ?", "sum == 0.0f && !(FAULTY) ?"),), SEVERAL_EMPTY, NAN),
    "8 a thread block for each block of queries": Fault(
        ((LISTS, "lists.q_tiles = (p->q_len + lists.block_m - 1) / lists.block_m;",
          "const int rows = FAULTY ? p->q_block_size : lists.block_m;\n"
          "  lists.q_tiles = (p->q_len + rows - 1) / rows;"),
         (LAUNCH, "const int64_t q_tiles = (p->q_len + config->block_m - 1) / config->block_m;",
          "const int rows = FAULTY ? p->q_block_size : config->block_m;\n"
          "  const int64_t q_tiles = (p->q_len + rows - 1) / rows;")), TAIL, UNWRITTEN),
}
# The answer is right, but the overlap is lost.
WAITS_FOR_ALL = len(FAULTS) + 1


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Step 05, which has the fault that the environment names."""
    tree = SourceTree(tmp_path_factory.mktemp("faulty"), built=STEP_DIR.name)
    for number, fault in enumerate(FAULTS.values(), 1):
        for patch in fault.patches:
            tree.add_fault(number, *patch)
    tree.add_fault(WAITS_FOR_ALL, STEP, WAIT, "if (FAULTY) cp_async_wait<0>(); else " + WAIT)
    tree.compile_only("step05", CONFIG)
    done = tree.make("BACKEND=cpu", PLAIN, f"build/{STEP_DIR.name}/step05")
    assert done.returncode == 0, done.stderr
    return Program("step05", tree.root / "build" / STEP_DIR.name)


def dense_of(p: Problem) -> np.ndarray:
    """[1, H, Nq, Nkv]"""
    if p.mask != OWN_TILES.mask:
        return masks.preset(p)[None, None]
    return np.random.default_rng(1).random((1, p.heads, p.seqlen, p.seqlen_kv)) < 0.5


def options_of(p: Problem, directory: Path) -> list[str]:
    """Heads with tiles of their own share all the other tensors."""
    if p.mask != OWN_TILES.mask:
        return p.options()
    m = masks.with_fewest_copies(masks.from_dense(dense_of(p), p.mask_block))
    assert m.types.shape[1] == 1 and m.tile_indices.shape[1] == p.heads
    return replace(p, mask=str(m.write(directory))).options()


@pytest.mark.parametrize("p", dict.fromkeys(fault.problem for fault in FAULTS.values()),
                         ids=lambda p: p.mask.replace(" ", "-"))
def test_without_a_fault_it_is_right(faulty: Program, tmp_path: Path, p: Problem) -> None:
    result, _ = faulty.solve(tmp_path / "out", *options_of(p, tmp_path / "mask"))
    assert mistakes(attention(p, *rounded_inputs(p), dense_of(p)), result.o, result.lse) == []


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_noticed(faulty: Program, tmp_path: Path, name: str) -> None:
    """By the program's check and by NumPy, or by a finding of the CPU backend during the run."""
    fault = FAULTS[name]
    p, env = fault.problem, {"FAULT": str(list(FAULTS).index(name) + 1)}
    done = faulty.run("-c", "all", "-r", 0, "-o", tmp_path / "out",
                      *options_of(p, tmp_path / "mask"), env=env)
    assert fault.says in done.stderr, done.stdout + done.stderr
    if fault.says == IN_FLIGHT:
        assert done.returncode == DEVICE
        return
    assert done.returncode == WRONG
    done = faulty.run("-c", "none", "-r", 0, "-o", tmp_path / "out",
                      *options_of(p, tmp_path / "mask2"), env=env)
    assert done.returncode == RIGHT
    result = read_result(tmp_path / "out")
    assert mistakes(attention(p, *rounded_inputs(p), dense_of(p)), result.o, result.lse) != []


def test_lost_overlap_is_noticed(faulty: Program, tmp_path: Path) -> None:
    """The opposite of fault 6: waiting for all copies gives the right answer, later. Only the
    number of mma issued while a copy is in flight shows it."""
    share = {}
    for number in (0, WAITS_FOR_ALL):
        _, record = faulty.solve(tmp_path / str(number), *FAR_APART.options(),
                                 env={"FAULT": str(number)})
        share[number] = record["count_mma_under_copy"] / record["count_mma"]
    assert share[0] > 0.9 and share[WAITS_FOR_ALL] == 0.5
