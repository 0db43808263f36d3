"""What instructions of the backward passes and of clusters write, compared with an H200 and with NumPy:
`build/.../layouts_cluster` (tests/gpu/layouts_cluster.cu) prints it; tests/data/layouts_cluster_h200.txt holds
what a GPU printed.
"""

import subprocess
from functools import lru_cache

import numpy as np

from tests.e2e.lab.test_layouts_hopper import accumulated, element
from tests.lib.programs import REPOSITORY, STEP_DIR

STORED = REPOSITORY / "tests/data/layouts_cluster_h200.txt"
RANKS, ROWS, COLUMNS, THREADS = 2, 64, 64, 128


@lru_cache
def stored(name: str, rank: int) -> np.ndarray:
    """int16 [lines][64]."""
    lines = (line.split() for line in STORED.read_text().splitlines())
    values = [line[3] for line in lines if line[:2] == [name, str(rank)]]
    return np.frombuffer(bytes.fromhex("".join(values)), ">i2").astype(np.int64).reshape(len(values), 64)


def swizzled(matrix: np.ndarray) -> np.ndarray:
    """As rows of 128 bytes lie in shared memory: 16-byte chunks change places with the row."""
    row, column = np.indices(matrix.shape)
    found = np.empty_like(matrix)
    found[row, (column // 8 ^ row % 8) * 8 + column % 8] = matrix
    return found


def tile() -> np.ndarray:
    return element(0, np.arange(ROWS * COLUMNS)).reshape(ROWS, COLUMNS)


def ds(rank: int) -> np.ndarray:
    """dS^T [64][64] from the registers of operand A, two elements in each."""
    thread, part, register, half = np.indices((THREADS, COLUMNS // 16, 4, 2))
    row = thread // 32 * 16 + thread % 32 // 4 + register % 2 * 8
    matrix = np.zeros((ROWS, COLUMNS))
    matrix[row, part * 16 + thread % 4 * 2 + register // 2 * 8 + half] = element(
        2 + rank, ((thread * COLUMNS // 16 + part) * 4 + register) * 2 + half
    )
    return matrix


def dq(rank: int) -> np.ndarray:
    return stored("dq", rank).reshape(THREADS, COLUMNS // 2)


def test_the_cpu_backend_prints_what_a_gpu_printed() -> None:
    done = subprocess.run([STEP_DIR / "layouts_cluster"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == STORED.read_text()


def test_a_multicast_writes_the_same_to_all_blocks() -> None:
    for rank in range(RANKS):
        assert np.array_equal(stored("tile", rank), swizzled(tile()))


def test_matrices_are_stored_as_operands_lie() -> None:
    for rank in range(RANKS):
        assert np.array_equal(stored("ds", rank), swizzled(ds(rank)))


def test_values_come_from_the_other_block() -> None:
    for rank in range(RANKS):
        other = 1 - rank
        assert np.array_equal(stored("sent", rank), stored("ds", other)[: ROWS // 2])
        assert np.array_equal(stored("stored", rank).ravel(), element(6 + other, np.arange(4 * THREADS)))
        assert np.array_equal(stored("loaded", rank).ravel(), element(4 + other, np.arange(THREADS)))


def test_a_product_of_transposed_matrices_and_its_sum() -> None:
    for rank in range(RANKS):
        d = accumulated(dq(rank).astype(np.int16))
        assert np.array_equal(d, ds(rank).T @ tile())
    before = element(1, np.arange(ROWS * COLUMNS)).reshape(ROWS, COLUMNS)
    assert np.array_equal(stored("sums", 0), before + (dq(0) + dq(1)).reshape(ROWS, COLUMNS))
