"""The layouts of ldmatrix and mma, compared with an H200 and with the PTX manual.

`build/.../layouts` (tests/gpu/layouts.cu) prints the registers of every lane;
tests/data/layouts_h200.txt holds what a GPU printed.
"""

import subprocess

import numpy as np
import pytest

from plots.tools import layouts
from plots.tools.layouts import Table, read_table
from tests.lib.programs import REPOSITORY, STEP_DIR
from tests.lib.reference import as_doubles

STORED = REPOSITORY / "tests/data/layouts_h200.txt"


@pytest.fixture(scope="module")
def stored() -> Table:
    return read_table(STORED.read_text())


@pytest.fixture(scope="module")
def ours() -> Table:
    done = subprocess.run([STEP_DIR / "layouts"], capture_output=True, text=True, check=True, timeout=60)
    return read_table(done.stdout)


def as_floats(registers: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(registers).view(np.float32)


def pairs(registers: np.ndarray, dtype: str) -> np.ndarray:
    """The two 16-bit numbers of each register, as float64 [lanes][registers][2]."""
    return as_doubles(np.stack([registers & 0xFFFF, registers >> 16], axis=-1).astype(np.uint16), dtype)


def matrices(dump: Table, dtype: str, inputs: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [16, 16], B [16, 8] and C [16, 8] from the fragments, by the tables of the PTX manual."""
    a, b, c = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    a_pairs, b_pairs = (pairs(dump[f"{name}.{dtype}", inputs], dtype) for name in "ab")
    c_floats = as_floats(dump[f"c.{dtype}", inputs])
    for lane in range(32):
        group, column = lane // 4, lane % 4 * 2
        for register in range(4):
            row, first = group + register % 2 * 8, column + register // 2 * 8
            a[row, first : first + 2] = a_pairs[lane, register]
        for register in range(2):
            first = column + register * 8
            b[first : first + 2, group] = b_pairs[lane, register]
        for register in range(4):
            c[group + register // 2 * 8, column + register % 2] = c_floats[lane, register]
    return a, b, c


def results(dump: Table, dtype: str, inputs: str) -> np.ndarray:
    """D [16, 8]."""
    d = np.zeros((16, 8))
    floats = as_floats(dump[f"d.{dtype}", inputs])
    for lane in range(32):
        for register in range(4):
            d[lane // 4 + register // 2 * 8, lane % 4 * 2 + register % 2] = floats[lane, register]
    return d


def test_same_lines(ours: Table, stored: Table) -> None:
    assert ours.keys() == stored.keys() and len(ours) == 22


def test_ldmatrix_to_the_bit(ours: Table, stored: Table) -> None:
    names = [name for name in stored if name[0].startswith("ldmatrix")]
    assert len(names) == 6
    for name in names:
        assert np.array_equal(ours[name], stored[name]), name


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_is_what_the_manual_says(stored: Table, count: int, transposed: bool) -> None:
    """Element 64 i + 8 r + c is row r, column c of matrix i."""
    found = stored[f"ldmatrix.x{count}" + ".trans" * transposed, "counting"]
    for lane in range(32):
        for i in range(count):
            line, pair = lane // 4, lane % 4 * 2
            step = 8 if transposed else 1
            low = 64 * i + (8 * pair + line if transposed else 8 * line + pair)
            assert found[lane, i] == (low + step) << 16 | low


def test_cells_of_pictures_are_what_the_manual_says(stored: Table) -> None:
    """With g = lane / 4 and t = 2 (lane % 4), the place of the low half of register i."""
    a, b, d = (cells(stored) for cells in (layouts.a_cells, layouts.b_cells, layouts.accumulator_cells))
    assert (len(a), len(b), len(d)) == (256, 128, 128)
    for lane in range(32):
        row, column = lane // 4, lane % 4 * 2
        for i in range(4):
            at = row + i % 2 * 8, column + i // 2 * 8
            assert a[at] == (lane, f"r{i}.lo") and a[at[0], at[1] + 1] == (lane, f"r{i}.hi")
            assert d[row + i // 2 * 8, column + i % 2] == (lane, f"r{i}")
        for i in range(2):
            assert b[column + i * 8, row] == (lane, f"r{i}.lo")
            assert b[column + i * 8 + 1, row] == (lane, f"r{i}.hi")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_mma_of_integers_to_the_bit(ours: Table, stored: Table, dtype: str) -> None:
    for operand in "abcd":
        name = (f"{operand}.{dtype}", "integers")
        assert np.array_equal(ours[name], stored[name]), name
    a, b, c = matrices(stored, dtype, "integers")
    assert np.array_equal(results(stored, dtype, "integers"), a @ b + c)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_mma_of_random_numbers(ours: Table, stored: Table, dtype: str) -> None:
    """Sums that do not fit fp32. The CPU backend rounds once. The tensor core aligns the products
    and C to the largest of them and truncates: for each of the 17 terms the difference is at most
    one unit in the last place of the largest."""
    for operand in "abc":
        name = (f"{operand}.{dtype}", "random")
        assert np.array_equal(ours[name], stored[name]), name
    a, b, c = matrices(stored, dtype, "random")
    exact = a @ b + c  # to 53 bits
    largest = np.maximum(np.abs(a[:, :, None] * b[None]).max(axis=1), np.abs(c))
    of_gpu = results(stored, dtype, "random")
    assert (np.abs(of_gpu - exact) <= 17 * largest * 2.0**-23).all()
    # The inputs must show how a sum is rounded.
    rounded = exact.astype(np.float32)
    assert np.count_nonzero(rounded != exact) > 100 and (of_gpu != rounded).any()
    expected = of_gpu if STEP_DIR.name.startswith("cuda") else rounded
    assert np.array_equal(results(ours, dtype, "random"), expected)
