"""Pictures of the backward pass: the operands of its products, and which thread block adds to which gradient."""

from pathlib import Path

from plots.figures.pictures_svg import Picture

KEYS, QUERIES, COLUMNS = 56, 46, 68  # how large the sides of the tiles are drawn
SIDE = {"K": KEYS, "V": KEYS, "Q": QUERIES, "dO": QUERIES}
LOOKS = {
    "Q": "q",
    "dO": "q",
    "K": "k",
    "V": "v",
    "P": "s",
    "S": "s",
    "dP": "s",
    "dS": "s",
    "dQ": "o",
    "dK": "o",
    "dV": "o",
}
# Product: its result and operands, and whether operand A is what registers hold of an earlier result.
KERNELS = {
    "A block keeps K and V": (
        "keys",
        (("S^T", "K", "Q^T"), ("dV", "P^T", "dO"), ("dP^T", "V", "dO^T"), ("dK", "dS^T", "Q")),
    ),
    "A block keeps Q and dO": ("queries", (("S", "Q", "K^T"), ("dP", "dO", "V^T"), ("dQ", "dS", "K"))),
}
BECOMES = {"dV": "P^T = exp(S^T - LSE)", "dK": "dS^T = P^T o (dP^T - D)", "dQ": "P = exp(S - LSE), dS = P o (dP - D)"}
ROW = 126


def shape(matrix: str) -> tuple[int, int]:
    """Rows and columns, as drawn."""
    name, turned = matrix.removesuffix("^T"), matrix.endswith("^T")
    rows, columns = (SIDE[name], COLUMNS) if name in SIDE else (QUERIES, KEYS)
    if name in ("dQ", "dK", "dV"):
        rows, columns = SIDE[name[1:]], COLUMNS
    return (columns, rows) if turned else (rows, columns)


def tile(picture: Picture, x: float, middle: float, matrix: str, memory: str, below: str) -> None:
    rows, columns = shape(matrix)
    look = LOOKS[matrix.removesuffix("^T")]
    picture.tile(x, middle - rows / 2, columns, rows, look, memory)
    picture.label(x + columns / 2, middle, matrix, look, "bold")
    picture.text(x + columns / 2, middle + 48, below, "small", "middle")


def operands(directory: Path) -> None:
    """The seven products of the two kernels, and where their operands come from."""
    told, width = [], 316
    picture = Picture("backward_operands", 2 * width, 4 * ROW + 62, "Operands of the products of the backward pass", "")
    for column, (title, (side, products)) in enumerate(KERNELS.items()):
        left = 8 + column * width
        picture.text(left, 18, f"{title}: {side}", "large")
        for i, (result, a, b) in enumerate(products):
            middle, in_registers = 72 + i * ROW, a.startswith(("P", "dS"))
            if in_registers:
                picture.text(left, middle - 46, BECOMES[result], "small")
            tile(
                picture,
                left,
                middle,
                a,
                "registers" if in_registers else "shared",
                "as it is" if in_registers else "ldmatrix",
            )
            picture.text(left + 76, middle + 5, "x", "bold", "middle")
            transposed = not b.endswith("^T")
            tile(picture, left + 96, middle, b, "shared", ".trans" if transposed else "no .trans")
            picture.text(left + 178, middle + 5, "+=" if transposed else "=", "bold", "middle")
            tile(picture, left + 200, middle, result, "registers", "")
            told.append(
                f"{result} = {a} {b}, {a} from {'registers' if in_registers else 'shared memory'}, {b} by ldmatrix "
                f"{'with' if transposed else 'without'} .trans"
            )
    y = 4 * ROW + 40
    picture.tile(8, y, 26, 16, "n", "shared", "thin")
    picture.text(42, y + 13, "in shared memory")
    picture.tile(190, y, 26, 16, "n", "registers", "thin")
    picture.text(224, y + 13, "in registers, as fragments")
    picture.description = "; ".join(told) + "."
    picture.save(directory)


def loops(directory: Path) -> None:
    """Which part of the scores a thread block goes through, and where its sums are."""
    picture = Picture(
        "backward_loops",
        664,
        318,
        "The order of the loops of the backward pass",
        "Three squares of scores, queries down and keys across. In the kernel for keys a block goes down a "
        "column and keeps dK and dV in registers. In the kernel for queries it goes along a row and keeps dQ. "
        "In one pass it goes down a column, keeps dK and dV, and adds to dQ of every row in device memory; "
        "so do the blocks of the other columns.",
    )
    cell, cells, top = 26, 5, 74
    size = cell * cells
    picture.text(8, 18, "Two kernels: each score is computed twice", "large")
    picture.text(468, 18, "One pass", "large")
    for x, name in ((36, "keys_kernel"), (262, "queries_kernel"), (468, "backward_kernel")):
        of_keys = name != "queries_kernel"
        picture.text(x, 40, name, "small bold")
        picture.text(x + size, top - 8, "keys", "small", "end")
        picture.text(x - (10 if of_keys else 34), top + size, "queries", "small", turned=True)
        for i in range(cells):
            for j in range(cells):
                picture.rect(
                    x + j * cell, top + i * cell, cell, cell, f"{'s' if (j if of_keys else i) == 1 else 'n'} thin"
                )
        if of_keys:
            picture.tile(x + cell, top - 24, cell, 20, "k", "shared")
            picture.text(x + cell - 6, top - 8, "K, V", "small", "end")
            picture.arrow((x + 1.5 * cell, top + 6), (x + 1.5 * cell, top + size - 6))
            picture.tile(x + cell, top + size + 6, cell, 20, "o", "registers")
            picture.text(x + 2 * cell + 8, top + size + 21, "dK, dV", "small")
        else:
            picture.tile(x - 26, top + cell, 20, cell, "q", "shared")
            picture.text(x - 6, top + cell - 6, "Q, dO", "small", "end")
            picture.arrow((x + 6, top + 1.5 * cell), (x + size - 6, top + 1.5 * cell))
            picture.tile(x + size + 6, top + cell, 20, cell, "o", "registers")
            picture.text(x + size + 6, top + cell - 6, "dQ", "small")
        if name == "backward_kernel":
            for i in range(cells):
                picture.tile(x + size + 30, top + i * cell + 3, 20, cell - 6, "o")
                picture.arrow((x + 2 * cell, top + (i + 0.5) * cell), (x + size + 28, top + (i + 0.5) * cell))
            picture.text(x + size + 30, top - 8, "dQ", "small")
    for x, y, fill, memory, text in (
        (8, 268, "k", "shared", "a tile that a block keeps in shared memory"),
        (8, 292, "o", "registers", "sums in its registers"),
        (220, 292, "o", "", "sums in device memory, to which all blocks add"),
    ):
        picture.tile(x, y, 26, 16, fill, memory, "thin")
        picture.text(x + 34, y + 13, text)
    picture.save(directory)


def all_of(directory: Path) -> None:
    for draw in (operands, loops):
        draw(directory)
