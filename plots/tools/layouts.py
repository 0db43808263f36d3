"""Which lane and register holds each element of ldmatrix and mma.m16n8k16.

It comes from the output of a GPU (tests/data/layouts_h200.txt), not from a formula. ldmatrix
loaded a matrix of its own element indices, so its registers name the elements. A and B have the
layout of ldmatrix. The layout of C and D is found by multiplying random numbers: each entry of A B
occurs once among the differences D - C of the lanes. tests/e2e/lab/test_layouts.py compares the
places with the manual.
"""

import numpy as np

LANES = 32
Table = dict[tuple[str, str], np.ndarray]  # (instruction, input) -> uint32 [LANES][registers]
Cells = dict[tuple[int, int], tuple[int, str]]  # (row, column) -> lane, register and half


def read_table(text: str) -> Table:
    """Reads lines "INSTRUCTION INPUT LANE REGISTER VALUE" with hexadecimal values."""
    registers: dict[tuple[str, str], list] = {}
    for line in text.splitlines():
        instruction, numbers, lane, register, value = line.split()
        entry = (int(lane), int(register), int(value, 16))
        registers.setdefault((instruction, numbers), []).append(entry)
    table = {}
    for name, entries in registers.items():
        table[name] = np.zeros((LANES, len(entries) // LANES), np.uint32)
        for lane, register, value in entries:
            table[name][lane, register] = value
    return table


def matrix_cells(table: Table, instruction: str) -> list[Cells]:
    """For each 8 x 8 matrix of an ldmatrix: the lane, register and half of each element."""
    registers = table[instruction, "counting"]
    matrices: list[Cells] = [{} for _ in range(registers.shape[1])]
    for lane in range(LANES):
        for register, word in enumerate(registers[lane]):
            for half, element in (("lo", int(word) & 0xFFFF), ("hi", int(word) >> 16)):
                matrix, rest = divmod(element, 64)  # 64 i + 8 r + c: row r, column c of matrix i
                matrices[matrix][divmod(rest, 8)] = (lane, f"r{register}.{half}")
    return matrices


def a_cells(table: Table) -> Cells:
    """A [16][16]: the upper left, lower left, upper right, lower right matrix of an ldmatrix.x4."""
    cells = {}
    for i, matrix in enumerate(matrix_cells(table, "ldmatrix.x4")):
        cells |= {(row + i % 2 * 8, column + i // 2 * 8): holder for (row, column), holder in matrix.items()}
    return cells


def b_cells(table: Table) -> Cells:
    """B [16][8]: the transpose of an ldmatrix.x2, whose rows are the columns of B."""
    cells = {}
    for i, matrix in enumerate(matrix_cells(table, "ldmatrix.x2")):
        cells |= {(column + i * 8, row): holder for (row, column), holder in matrix.items()}
    return cells


def assemble(cells: Cells, registers: np.ndarray) -> np.ndarray:
    """The matrix of fp16 numbers in the registers of all lanes."""
    halves = np.ascontiguousarray(registers, "<u4").view("<f2").astype(np.float64)
    rows, columns = (max(where[i] for where in cells) + 1 for i in (0, 1))
    matrix = np.zeros((rows, columns))
    for where, (lane, name) in cells.items():
        register, half = name[1:].split(".")
        matrix[where] = halves[lane, 2 * int(register) + (half == "hi")]
    return matrix


def accumulator_cells(table: Table) -> Cells:
    """C and D [16][8]: an element is where D - C of a lane equals an entry of A B."""
    a = assemble(a_cells(table), table["a.fp16", "random"])
    b = assemble(b_cells(table), table["b.fp16", "random"])
    c, d = (table[f"{name}.fp16", "random"].view(np.float32).astype(np.float64) for name in "cd")
    product = a @ b
    cells = {}
    for lane in range(LANES):
        for register in range(4):
            error = np.abs(product - (d - c)[lane, register])
            row, column = map(int, np.unravel_index(error.argmin(), error.shape))
            cells[row, column] = (lane, f"r{register}")
    return cells
