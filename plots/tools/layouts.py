"""Draws which lane and register holds each element of ldmatrix and mma.m16n8k16.

Usage: python3 -m plots.tools.layouts layouts_h200.txt DIRECTORY
Writes layouts_mma and layouts_ldmatrix there, as .svg and .png.

Every label comes from the output of a GPU (tests/gpu/layouts.cu), none from a formula. ldmatrix
loaded a matrix of its own element indices, so its registers name the elements. A and B have the
layout of ldmatrix. The layout of C and D is found by multiplying random numbers: each entry of A B
occurs once among the differences D - C of the lanes.
"""

import colorsys
import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from plots.figures.style import NEUTRAL, REPRODUCIBLE

LANES = 32
Table = dict[tuple[str, str], np.ndarray]  # (instruction, input) -> uint32 [LANES][registers]
Cells = dict[tuple[int, int], tuple[int, str]]  # (row, column) -> lane, register and half


def read_table(path: Path) -> Table:
    """Reads lines "INSTRUCTION INPUT LANE REGISTER VALUE" with hexadecimal values."""
    registers: dict[tuple[str, str], list] = {}
    for line in path.read_text().splitlines():
        instruction, numbers, lane, register, value = line.split()
        entry = (int(lane), int(register), int(value, 16))
        registers.setdefault((instruction, numbers), []).append(entry)
    table = {}
    for name, entries in registers.items():
        table[name] = np.zeros((LANES, len(entries) // LANES), np.uint32)
        for lane, register, value in entries:
            table[name][lane, register] = value
    return table


# --- What lies where -----------------------------------------------------------------------------

def matrix_cells(table: Table, instruction: str) -> list[Cells]:
    """For each 8 x 8 matrix of an ldmatrix: the lane, register and half of each element."""
    registers = table[instruction, "counting"]
    matrices: list[Cells] = [{} for _ in range(registers.shape[1])]
    for lane in range(LANES):
        for register, word in enumerate(registers[lane]):
            for half, element in (("lo", int(word) & 0xffff), ("hi", int(word) >> 16)):
                matrix, rest = divmod(element, 64)  # 64 i + 8 r + c: row r, column c of matrix i
                matrices[matrix][divmod(rest, 8)] = (lane, f"r{register}.{half}")
    return matrices


def row_lanes(matrix: int) -> range:
    """The lanes that give the row addresses of a matrix: lane n that of element 8 n."""
    return range(8 * matrix, 8 * matrix + 8)


def a_cells(table: Table) -> Cells:
    """A [16][16]: the upper left, lower left, upper right, lower right matrix of an ldmatrix.x4."""
    cells = {}
    for i, matrix in enumerate(matrix_cells(table, "ldmatrix.x4")):
        cells |= {(row + i % 2 * 8, column + i // 2 * 8): holder
                  for (row, column), holder in matrix.items()}
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
            nearest, second = np.partition(error.ravel(), 1)[:2]
            if nearest > 1e-4 or second < 10 * nearest or (row, column) in cells:
                raise ValueError(f"lane {lane}, register {register} of D is no entry of A B + C")
            cells[row, column] = (lane, f"r{register}")
    return cells


# --- Pictures ------------------------------------------------------------------------------------

def colour_of(lane: int) -> tuple[float, float, float]:
    """A hue for each four lanes and a shade for each lane, light enough for black text."""
    return colorsys.hls_to_rgb(lane // 4 / 8, 0.86 - 0.07 * (lane % 4), 0.75)


def draw_grid(axes: Axes, cells: Cells, title: str, row_names: list[str] | None = None) -> None:
    """Draws one matrix; row 0 is at the top."""
    rows, columns = (max(where[i] for where in cells) + 1 for i in (0, 1))
    for (row, column), (lane, name) in cells.items():
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour_of(lane), edgecolor="white"))
        axes.text(column + 0.5, row + 0.5, f"T{lane}\n{name}", ha="center", va="center", fontsize=7,
                  color="black")
    small = {"fontsize": 7, "color": NEUTRAL}
    for column in range(columns):
        axes.text(column + 0.5, -0.15, str(column), ha="center", va="bottom", **small)
    for row, name in enumerate(row_names or range(rows)):
        axes.text(-0.15, row + 0.5, name, ha="right", va="center", **small)
    axes.set_xlim(-1.3, columns + 0.1)
    axes.set_ylim(rows + 0.1, -1.5)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.text(columns / 2, -0.75, title, ha="center", va="bottom", fontsize=10, color=NEUTRAL,
              fontweight="bold")


def with_legend(figure: Figure, text: str) -> Figure:
    figure.text(0.5, 0.005, text, ha="center", fontsize=9, color=NEUTRAL)
    figure.subplots_adjust(left=0, right=1, top=1, bottom=0.03, wspace=0, hspace=0)
    return figure


def draw_mma(table: Table) -> Figure:
    """A, B, and C or D side by side, with cells of one size."""
    figure = Figure(figsize=(16, 8.2))
    axes = figure.subplots(1, 3, width_ratios=[17.4, 9.4, 9.4])
    draw_grid(axes[0], a_cells(table), "A of mma.m16n8k16: 16 x 16")
    draw_grid(axes[1], b_cells(table), "B: 16 x 8")
    draw_grid(axes[2], accumulator_cells(table), "C and D: 16 x 8, fp32")
    return with_legend(figure, "T5 r1.lo: lane 5 holds this element, in the lower half of its "
                       "register 1 of this operand.")


def draw_ldmatrix(table: Table) -> Figure:
    """The four matrices side by side, without .trans above and with it below."""
    figure = Figure(figsize=(17, 9))
    instructions = ("ldmatrix.x4", "ldmatrix.x4.trans")
    for axes_row, instruction in zip(figure.subplots(2, 4), instructions, strict=True):
        for i, cells in enumerate(matrix_cells(table, instruction)):
            addresses = [f"T{lane} \N{RIGHTWARDS ARROW}" for lane in row_lanes(i)]
            draw_grid(axes_row[i], cells, f"{instruction}, matrix {i}", addresses)
    return with_legend(figure, "T0 \N{RIGHTWARDS ARROW}: lane 0 gives the address of this row.   "
                       "T5 r1.lo: lane 5 gets this element, in the lower half of its register 1.")


def main() -> int:
    table, directory = read_table(Path(sys.argv[1])), Path(sys.argv[2])
    matplotlib.rcParams.update(REPRODUCIBLE)
    directory.mkdir(parents=True, exist_ok=True)
    for name, figure in {"layouts_mma": draw_mma(table),
                         "layouts_ldmatrix": draw_ldmatrix(table)}.items():
        figure.savefig(directory / f"{name}.svg", transparent=True, metadata={"Date": None})
        figure.savefig(directory / f"{name}.png", transparent=True, dpi=110)
        print(f"wrote {directory / name}.svg and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
