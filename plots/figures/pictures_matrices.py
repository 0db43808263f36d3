"""Pictures of the matrix products of chapter 0, f07 to f08c: tiles, fragments, stages of copies. Sizes are read from
the sources, layouts from what a GPU printed."""

import re
from pathlib import Path

from plots.figures.pictures_hardware import LAYOUTS, registers_of
from plots.figures.pictures_svg import Picture
from plots.tools import layouts
from tests.lib.programs import REPOSITORY

LANE = 9  # whose elements are outlined


def constants(program: str, **given: int) -> dict[str, int]:
    """Of its source; `given` are parameters of its templates."""
    (source,) = REPOSITORY.glob(f"steps/foundations/{program}_*.cu")
    found = re.findall(
        r"(\w+) = ([^,;]+)[,;]", "".join(re.findall(r"^constexpr int .*", source.read_text(), re.MULTILINE))
    )
    values = dict(given)
    for name, value in found:
        values[name] = eval(re.sub("<.*>", "", value).replace("/", "//"), dict(values))
    return values


def registers(directory: Path) -> None:
    """f07: what a block keeps in shared memory, and a thread in registers."""
    of = constants("f07")
    tile, k, own = of["TILE"], of["K"], of["OWN"]
    picture = Picture(
        "f07_tiles",
        440,
        546,
        "f07: tiles in shared memory and in registers",
        f"A thread block computes {tile} x {tile} elements of C. It has {k} columns of A and {k} rows of B "
        f"in shared memory at a time. For each k, a thread loads {own} elements of A and {own} of B into "
        f"registers and adds {own * own} products to its {own} x {own} sums.",
    )
    left, top, side, thin = 96, 96, 140, 22
    picture.text(8, 20, f"A block: {tile} x {tile} elements of C", "large")
    picture.tile(left - 30 - thin, top, thin, side, "q", "shared")
    picture.tile(left, top - 30 - thin, side, thin, "k", "shared")
    picture.tile(left, top, side, side, "o", "registers")
    picture.texts(left + side + 14, top - 42, [f"{k} rows of B,", f"{tile} columns"], "small", 17)
    picture.text(left - 30 - thin, top + side + 18, f"{k} columns of A, {tile} rows", "small")
    picture.rect(left + 50, top + 60, 14, 14, "q thick")
    picture.arrow((left + 62, top + 76), (left + 134, top + 152))
    picture.texts(
        left + side + 14, top + 30, ["C: sums, in the", f"registers of {of['THREADS']}", "threads"], "small", 17
    )
    x, y, cell = 250, 316, 17
    picture.text(8, y - 40, f"A thread, for one k: {own} + {own} loads", "large")
    for i in range(own):
        picture.tile(x - 30, y + 28 + i * cell, cell, cell, "q", "registers", "thin")
        picture.tile(x + i * cell, y - 4, cell, cell, "k", "registers", "thin")
        for j in range(own):
            picture.rect(x + j * cell, y + 28 + i * cell, cell, cell, "o thin")
    picture.text(x, y + 28 + own * cell + 20, f"{own * own} multiply-adds", "small")
    picture.tile(8, 524, 26, 16, "n", "shared", "thin")
    picture.text(42, 537, "in shared memory", "small")
    picture.tile(190, 524, 26, 16, "n", "registers", "thin")
    picture.text(224, 537, "in registers", "small")
    picture.save(directory)


def warp_tiles(directory: Path) -> None:
    """f07b: the tiles of a block, of a warp and of a thread."""
    of = constants("f07b", FOURS=2)
    rows, columns, tile, half = of["WARP_ROWS"], of["COLUMNS"] // 4, of["ROWS"], of["OWN"] // 2
    picture = Picture(
        "f07b_tiles",
        440,
        470,
        "f07b: tiles of a block, a warp and a thread",
        f"A block of {tile} x {tile} elements has {tile // rows} x {tile // columns} warps of {rows} x {columns}. "
        f"In a warp, a thread has four pieces of {half} x {half} elements, {of['ROW_STEP']} rows and "
        f"{of['COLUMN_STEP']} columns apart; those of lane {LANE} are outlined.",
    )
    picture.text(8, 20, f"Block: {tile} x {tile}", "large")
    scale, top = 150 / tile, 40
    for warp in range(of["THREADS"] // 32):
        x, y = 8 + warp % (tile // columns) * columns * scale, top + warp // (tile // columns) * rows * scale
        picture.rect(x, y, columns * scale, rows * scale, "k thick" if warp == 5 else "n thin")
        picture.text(x + columns * scale / 2, y + rows * scale / 2 + 4, str(warp), "small", "middle")
    picture.text(8, top + 172, f"{of['THREADS'] // 32} warps", "small")
    x, scale = 220, 6
    picture.text(x, 20, f"Warp: {rows} x {columns}", "large")
    places = [
        (row, column, lane)
        for lane in range(32)
        for row in (lane // 4 * 4, lane // 4 * 4 + of["ROW_STEP"])
        for column in (lane % 4 * 4, lane % 4 * 4 + of["COLUMN_STEP"])
    ]
    for row, column, lane in sorted(places, key=lambda place: place[2] == LANE):
        box = x + column * scale, top + row * scale
        picture.rect(*box, half * scale, half * scale, "o thick" if lane == LANE else "n faint")
        picture.text(
            box[0] + half * scale / 2,
            box[1] + half * scale / 2 + 4.4,
            str(lane),
            "small bold" if lane == LANE else "small",
            "middle",
        )
    picture.line(8 + 2 * columns * 150 / tile, top + rows * 150 / tile, x, top, "thin dash")
    picture.line(8 + 2 * columns * 150 / tile, top + 150, x, top + rows * scale, "thin dash")
    picture.texts(
        8,
        250,
        (
            f"A box is {half} x {half} elements",
            "of the lane whose",
            "number it has.",
            "",
            f"Outlined: lane {LANE}, with",
            f"{of['OWN']} x {of['OWN']} elements in",
            "four pieces.",
        ),
        "small",
        18,
    )
    picture.save(directory)


def wmma(directory: Path) -> None:
    """f08: the fragments of a warp, which cannot be looked into."""
    of = constants("f08")
    down, across, side = of["DOWN"], of["ACROSS"], of["SIDE"]
    picture = Picture(
        "f08_fragments",
        440,
        316,
        "f08: fragments of a warp",
        f"A warp keeps {down} x {across} fragments of C in registers. For each {side} columns of A it loads "
        f"{down} fragments of A and {across} of B and multiplies each pair.",
    )
    left, top, cell = 110, 104, 66
    picture.text(8, 20, f"A warp: {down * side} x {across * side} elements of C", "large")
    picture.texts(8, 50, [f"B: {across} fragments"], "small")
    picture.text(8, top + down * cell + 22, f"A: {down}", "small")
    for j in range(across):
        picture.tile(left + j * cell, top - cell - 4, cell, cell, "k", "registers")
        picture.label(left + (j + 0.5) * cell, top - cell / 2 - 4, f"{side} x {side}", "k")
    for i in range(down):
        picture.tile(left - cell - 10, top + i * cell, cell, cell, "q", "registers")
        picture.label(left - cell / 2 - 10, top + (i + 0.5) * cell, f"{side} x {side}", "q")
        for j in range(across):
            picture.tile(left + j * cell, top + i * cell, cell, cell, "o", "registers")
            picture.label(left + (j + 0.5) * cell, top + (i + 0.5) * cell, f"c[{i}][{j}]", "o")
    picture.text(
        left, top + down * cell + 22, f"C: {down * across} fragments, {down * across} mma_sync for each k", "small"
    )
    picture.text(left, top + down * cell + 42, "Each of the 32 lanes holds some elements of", "small")
    picture.text(left, top + down * cell + 58, "every box. Which ones, wmma does not say.", "small")
    picture.save(directory)


def fragments(directory: Path) -> None:
    """f08b: which lane holds which element, the three matrices as they are multiplied."""
    table = layouts.read_table(LAYOUTS.read_text())
    picture = Picture(
        "f08b_fragments",
        560,
        640,
        "f08b: the fragments of mma.m16n8k16",
        f"A of 16 x 16, B of 16 x 8 and C of 16 x 8 elements. A box is a register, or two of C, with the "
        f"number of its lane. Colours are registers 0 to 3. Lane {LANE} is outlined. As an H200 printed it.",
    )
    size = 17
    places = {
        "a": (36, 330, layouts.a_cells(table)),
        "b": (346, 36, layouts.b_cells(table)),
        "c": (346, 330, layouts.accumulator_cells(table)),
    }
    for operand, (left, top, cells) in places.items():
        columns, width = (16, 17) if operand == "a" else (8, 22)
        for i in range(16):
            picture.text(left - 5, top + (i + 0.5) * size + 4, str(i), "small muted", "end")
        for i in range(0, columns, 2 if operand == "a" else 1):
            picture.text(left + (i + 0.5) * width, top - 5, str(i), "small muted", "middle")
        boxes = {}
        for (lane, register), held in registers_of(cells).items():  # two registers of C in a box
            boxes.setdefault((lane, register // 2 * 2 if operand == "c" else register), []).extend(held)
        for (lane, register), held in sorted(boxes.items(), key=lambda item: item[0][0] == LANE):
            row, column = min(held)
            wide, high = max(c for _, c in held) - column + 1, max(r for r, _ in held) - row + 1
            box = left + column * width, top + row * size, wide * width, high * size
            picture.rect(*box, f"{'qkvo'[register]} {'thick' if lane == LANE else 'faint'}")
            picture.text(
                box[0] + box[2] / 2,
                box[1] + box[3] / 2 + 4.4,
                str(lane),
                "small bold" if lane == LANE else "small",
                "middle",
            )
    picture.text(314, 342, "A", "large")
    picture.text(530, 48, "B", "large")
    picture.text(530, 342, "C", "large")
    y = picture.texts(
        8,
        30,
        (
            "A box is a register of the lane",
            "whose number it has: 2 elements.",
            "In C, it is two registers.",
            "",
            f"Outlined: lane {LANE}, with g = {LANE // 4}",
            f"and j = {LANE % 4 * 2}.",
        ),
        "",
        21,
    )
    for register, text in enumerate(("a0, b0, c0 and c1", "a1, b1", "a2, c2 and c3", "a3")):
        picture.rect(8, y + 2, 28, 16, f"{'qkvo'[register]} thin")
        picture.text(44, y + 15, text)
        y += 24
    picture.save(directory)


def ring(directory: Path) -> None:
    """f08c: what each pair of tiles is used for, iteration by iteration, by the loop of the source."""
    stages, steps = constants("f08c")["STAGES"], 7
    picture = Picture("f08c_ring", 460, 0, "f08c: a ring of pairs of tiles", "")
    left, top, width, height = 62, 76, 48, 34
    state: dict[int, tuple[int, int]] = {}  # of a slot: k-tile, iteration in which its copy began
    told = []
    picture.text(8, 20, f"{stages} slots; tile t is in slot t % {stages}", "large")
    for s in range(stages - 1):
        state[s] = s, -1
    for at in range(-1, steps):
        x = left + (at + 1) * width
        picture.text(x + width / 2, top - 8, "before" if at < 0 else str(at), "small muted", "middle")
        if at >= 0:
            state[(at + stages - 1) % stages] = at + stages - 1, at
        for slot in range(stages):
            tile, began = state.get(slot, (-1, 0))
            busy = tile == at and at >= 0
            y = top + slot * height
            picture.tile(
                x + 1,
                y + 2,
                width - 2,
                height - 4,
                "o" if busy else "k" if tile >= 0 else "n",
                "busy" if busy else "",
                "thick" if began == at and tile >= 0 else "thin",
            )
            if tile >= 0:
                picture.label(
                    x + width / 2, y + height / 2, str(tile), "o" if busy else "k", "small bold" if busy else "small"
                )
        if at >= 0:
            told.append(f"iteration {at} multiplies tile {at} and starts the copy of tile {at + stages - 1}")
    for slot in range(stages):
        picture.text(left - 6, top + slot * height + height / 2 + 4, f"slot {slot}", "small", "end")
    picture.text(left + width, top - 28, "iteration of the loop", "small muted")
    y = top + stages * height + 24
    for look, memory, text in (
        ("o thin", "busy", "multiplied"),
        ("k thick", "", "its copy is started here"),
        ("k thin", "", "in flight, or arrived and not yet used"),
    ):
        picture.tile(8, y - 12, 28, 16, look.split()[0], memory, look.split()[1])
        picture.text(44, y + 1, text)
        y += 24
    picture.height, picture.description = y, "; ".join(told) + "."
    picture.save(directory)


def all_of(directory: Path) -> None:
    for draw in (registers, warp_tiles, wmma, fragments, ring):
        draw(directory)
