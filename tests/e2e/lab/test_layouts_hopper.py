"""The layouts of tensor copies and wgmma, and sums of e4m3, compared with an H200; the layouts also
with the PTX manual.

`build/.../layouts_hopper` (tests/gpu/layouts_hopper.cu) prints shared memory and accumulators;
tests/data/layouts_hopper_h200.txt holds what a GPU printed.
"""

import subprocess
from functools import lru_cache

import numpy as np
import pytest

from tests.lib.programs import REPOSITORY, STEP_DIR
from tests.lib.reference import as_doubles

STORED = REPOSITORY / "tests/data/layouts_hopper_h200.txt"
CASES = [("bf16", 32), ("bf16", 64), ("fp16", 96), ("fp16", 128)]
Q_ROWS, KV_ROWS, BLOCK_N, FIRST_KEY, FIRST_STORED = 60, 29, 32, 4, 50


@lru_cache
def stored() -> dict[str, np.ndarray]:
    """By name, such as "k.fp16.128", uint16 [index][values]."""
    lines: dict[str, list] = {}
    for name, _, values in map(str.split, STORED.read_text().splitlines()):
        lines.setdefault(name, []).append([int(values[i : i + 4], 16) for i in range(0, len(values), 4)])
    return {name: np.array(values, np.uint16) for name, values in lines.items()}


def element(tensor: int, i: np.ndarray) -> np.ndarray:
    """As layouts_hopper.cu computes it."""
    x = (1000003 * tensor + i).astype(np.uint64)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ x >> np.uint64(shift)) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return ((x ^ x >> np.uint64(16)) % np.uint64(17)).astype(float) - 8


def rows_of(tensor: int, rows: int, first: int, count: int, dim: int) -> np.ndarray:
    """`count` rows of the second head; those past its end are 0."""
    index = np.arange(first, first + count)
    values = element(tensor, (rows + index[:, None]) * dim + np.arange(dim))
    return np.where(index[:, None] < rows, values, 0)


def unswizzled(shared: np.ndarray, dim: int) -> np.ndarray:
    """[rows][dim] from shared memory: panels of 128 or 64 bytes in which 16-byte chunks change
    places with the row."""
    row, column = np.indices((BLOCK_N, dim))
    panel = 64 if dim % 64 == 0 else 32
    swizzle = row % 8 if panel == 64 else row // 2 % 4
    at = (column // panel * BLOCK_N + row) * panel
    return shared.ravel()[at + (column % panel // 8 ^ swizzle) * 8 + column % 8]


def accumulated(values: np.ndarray) -> np.ndarray:
    """D [64][N] from the accumulators of 128 threads."""
    thread, register = np.indices(values.shape)
    row = thread // 32 * 16 + thread % 32 // 4 + register % 4 // 2 * 8
    column = register // 4 * 8 + thread % 4 * 2 + register % 2
    d = np.zeros((64, 2 * values.shape[1]))
    d[row, column] = values.view(np.int16)
    return d


def probabilities() -> np.ndarray:
    """P [64][BLOCK_N] from the registers of operand A, two elements in each."""
    thread, key_tile, register, half = np.indices((128, BLOCK_N // 16, 4, 2))
    row = thread // 32 * 16 + thread % 32 // 4 + register % 2 * 8
    p = np.zeros((64, BLOCK_N))
    p[row, key_tile * 16 + thread % 4 * 2 + register // 2 * 8 + half] = element(
        3, (thread * (BLOCK_N // 16) + key_tile) * 8 + 2 * register + half
    )
    return p


def test_the_cpu_backend_prints_what_a_gpu_printed() -> None:
    done = subprocess.run([STEP_DIR / "layouts_hopper"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == STORED.read_text()


@pytest.mark.parametrize("dtype,dim", CASES)
def test_shared_memory_is_swizzled_as_documented(dtype: str, dim: int) -> None:
    for tensor, name in ((1, "k"), (2, "v")):
        found = unswizzled(as_doubles(stored()[f"{name}.{dtype}.{dim}"], dtype), dim)
        assert np.array_equal(found, rows_of(tensor, KV_ROWS, FIRST_KEY, BLOCK_N, dim))


@pytest.mark.parametrize("dtype,dim", CASES)
def test_products_are_those_of_the_matrices(dtype: str, dim: int) -> None:
    q = rows_of(0, Q_ROWS, 0, 64, dim)
    k, v = (rows_of(tensor, KV_ROWS, FIRST_KEY, BLOCK_N, dim) for tensor in (1, 2))
    assert np.array_equal(accumulated(stored()[f"s.{dtype}.{dim}"]), q @ k.T)
    assert np.array_equal(accumulated(stored()[f"o.{dtype}.{dim}"]), probabilities() @ v)


@pytest.mark.parametrize("dtype,dim", CASES)
def test_a_store_leaves_out_rows_past_the_end(dtype: str, dim: int) -> None:
    found = as_doubles(stored()[f"stored.{dtype}.{dim}"], dtype)
    inside = rows_of(0, Q_ROWS, 0, Q_ROWS - FIRST_STORED, dim)
    outside = np.full((1, dim), 99.0)
    assert np.array_equal(found, np.concatenate([outside, inside, outside]))
